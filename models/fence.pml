/* A fence keeps every update: nobody overwrites what he has not read, however stale his lease.

   CLAIM   Every write that the resource accepts was computed from the value that it replaces. So no update is lost.

   MODEL   Each client is given the next token, and updates one value ROUNDS times: it reads, it writes what it has
   read plus one. The worst of locks is assumed: every lease ends at once, so that all may be at work together, and
   anybody may be paused at every step for as long as it takes. Only the tokens come in the order of the grants. The
   resource carries out one touch, one read, one write at a time. A client that is refused stops, as one that meets
   StaleTokenError does. The fence is that of src/tenure/fence.py: touch(token) refuses a smaller token than the
   highest it has seen, lets in an equal one, and remembers a larger one. A write is checked in the step that writes.
   The first touch is a step of its own: to do it in one transaction with the read is stronger still.

   BOUNDS  CLIENTS clients, ROUNDS updates by each.

   VARIANT        the fence is raised                               expected
   FIRST_TOUCH    before the read, and checked on the write         ok
   AFTER_READ     after the read, and checked on the write          lost_update
   ON_WRITE       by writes only                                    lost_update
   NO_FENCE       never                                             lost_update   */

#define FIRST_TOUCH 0
#define AFTER_READ  1
#define ON_WRITE    2
#define NO_FENCE    3

#ifndef VARIANT
#define VARIANT FIRST_TOUCH
#endif
#ifndef CLIENTS
#define CLIENTS 3
#endif
#ifndef ROUNDS
#define ROUNDS 2
#endif

#define is(variant) (VARIANT == variant)

byte last_token, highest, value;
bool lost_update; /* the claim: this never becomes true */

inline touch() {
	if
	:: token < highest -> printf("%d is refused\n", token); goto over
	:: else -> highest = token
	fi
}

proctype client() {
	byte token, read, rounds;

	atomic { last_token++; token = last_token };
	do
	:: rounds < ROUNDS ->
		if
		:: is(FIRST_TOUCH) -> atomic { touch() }
		:: else
		fi;
		atomic { read = value; printf("%d reads %d\n", token, read) };
		if
		:: is(AFTER_READ) -> atomic { touch() }
		:: else
		fi;
		atomic {
			if
			:: is(NO_FENCE)
			:: else -> touch()
			fi;
			printf("%d writes %d over %d\n", token, read + 1, value);
			lost_update = (read != value);
			assert(!lost_update);
			value = read + 1;
			rounds++;
			read = 0
		}
	:: else -> break
	od;
over:
	skip
}

init {
	byte made;
	atomic {
		do
		:: made < CLIENTS -> run client(); made++
		:: else -> break
		od
	}
}
