/* Hand-off by push is safe: no two clients trust a lease at once, and nobody is granted that has given up.

   CLAIM   Whenever the store grants the name, nobody else trusts a lease of it by his own clock. Whoever enters, on a
   reply or on a push, holds the name at that moment, with the very token that he was told, and the store keeps it for
   him for as long as he trusts it. Whoever has left or released is not the holder, and is never granted again, even
   when an ask of his arrives later.

   MODEL   Client 1 holds. Clients 2 and 3 make one acquisition each, as src/tenure/core/attempt.py does: they ask,
   stand, ask again, enter on a reply or on a push, renew, release; or they leave. Requests and replies take any time.
   A reply may be lost. An ask may be given up on while it is under way: then it is carried out at any later moment,
   or never. Pushes are lost, late, doubled and reordered. Anybody may die or be paused at every step. The table, in
   table.pml, may at any time take a live waiter for dead, and drop it from the queue.

   BOUNDS  ASKS asks by each waiter, RENEWALS by each holder, one ask adrift per waiter, END ticks. TTL is 2 ticks.
   Not in the model: drift, capacity above 1, lock delay, a store that loses its state.

   VARIANT               drops this rule                                                                   expected
   SOUND                 (none)                                                                            ok
   VALID_FROM_PUSH       a pushed lease counts from the send of the ask, not from the push's arrival       overlap
   VALID_FROM_REPLY      every lease counts from the send of the ask, not from the reply's arrival         overlap
   NO_TOKEN_TEST         a push counts only if its token exceeds the counter in the last "waiting" reply   overlap
   PLAIN_DEQUEUE         whoever leaves passes on a grant that crossed the message                         orphan
   NO_TOMBSTONE          a request that was given up is refused when it arrives late                       orphan
   RELEASE_KEEPS_PLACE   a release also gives up a place in the queue, which a late ask may have taken     orphan   */

#ifndef ASKS
#define ASKS 2
#endif
#ifndef RENEWALS
#define RENEWALS 1
#endif
#ifndef END
#define END 5
#endif

#define TTL           2
#define seems_dead(c) true
#define listens(c)    true
#define must_hear(c)  false
#define may_tick      true

#include "table.pml"

bool adrift[CLIENTS + 1]; /* an ask that its sender has given up on is still under way */

/* From when a lease counts whose request was sent at this time, and is answered now. */
#define start_of(sent_at) (is(VALID_FROM_REPLY) -> now : sent_at)

#define holds_as_trusted(c) (holder == c && ends_at >= trusts_until[c])

/* Trust the lease that `me` was told of for TTL ticks after `since`; `token` stays 0 if that is over. */
inline enter(me, told, since) {
	if
	:: now < since + TTL ->
		token = told;
		trusts_until[me] = since + TTL;
		printf("%d: %d enters, token %d, and trusts it until %d\n", now, me, told, trusts_until[me]);
		overlap = !holds_as_trusted(me);
		assert(!overlap);
		wrong_token = (counter != told);
		assert(!wrong_token)
	:: else
	fi
}

proctype client(byte me) {
	byte asks, renewals; /* made so far */
	byte sent;           /* when the request under way was */
	byte seen;           /* the counter in its reply */
	byte token, head;
	bool standing, accepted;
	mtype reply;

	if
	:: me == 1 -> token = 1; goto holding
	:: else
	fi;

waiting:
	do
	:: atomic {
		asks < ASKS -> asks++;
		standing = false;
		sent = now;
		printf("%d: %d asks\n", now, me);
		if /* Who comes second is called client 3. */
		:: me == 2 && asks == 1 -> run client(3)
		:: else
		fi
	   };
		if
		:: atomic { carry_out_ask(me, reply); seen = counter }
		:: atomic { !adrift[me] -> adrift[me] = true; printf("%d: the ask of %d is given up on\n", now, me) }
		fi;
		if
		:: atomic {
			reply == GRANTED ->
			sent = start_of(sent);
			enter(me, seen, sent);
			sent = 0; seen = 0; reply = 0;
			if
			:: token != 0 -> goto settled
			:: else
			fi
		   }
		:: atomic {
			reply == WAITING ->
			printf("%d: %d is told to wait, counter %d\n", now, me, seen);
			standing = true;
			sent = start_of(sent);
			if /* The token test: what does not exceed the counter is ignored from now on. */
			:: is(NO_TOKEN_TEST)
			:: else -> pushed[me] = pushed[me] & ~((2 << seen) - 1)
			fi;
			seen = 0; reply = 0
		   }
		:: atomic { printf("%d: %d gets no reply\n", now, me); sent = 0; seen = 0; reply = 0 }
		fi
	:: atomic {
		standing && pushed[me] != 0 -> /* one of them arrives */
		do
		:: pushed[me] >> (seen + 1) -> seen++
		:: (pushed[me] >> seen) & 1 -> break
		od;
		if
		:: is(VALID_FROM_PUSH) -> enter(me, seen, now)
		:: else -> enter(me, seen, sent)
		fi;
		seen = 0;
		if
		:: token != 0 -> goto settled
		:: else
		fi
	   }
	:: atomic { asks = 0; standing = false; sent = 0; pushed[me] = 0; carry_out_leave(me); goto over }
	od;

settled:
	atomic { asks = 0; standing = false; sent = 0; pushed[me] = 0 };

holding:
	do
	:: atomic { renewals < RENEWALS && trusted(me) -> renewals++; sent = now };
		atomic { carry_out_renewal(me, token, accepted) };
		if
		:: atomic { /* Too late, it revives nothing. */
			if
			:: accepted && trusted(me) ->
				sent = start_of(sent);
				trusts_until[me] = longer(trusts_until[me], sent + TTL);
				printf("%d: %d has renewed, and trusts it until %d\n", now, me, trusts_until[me]);
				overlap = !holds_as_trusted(me);
				assert(!overlap)
			:: !accepted -> trusts_until[me] = 0
			:: else
			fi;
			sent = 0; accepted = false
		   }
		:: atomic { sent = 0; accepted = false } /* The reply is lost. */
		fi
	:: atomic { renewals = 0; token = 0; trusts_until[me] = 0; carry_out_release(me); break }
	od;
over:
	skip
}

/* Carries out what is adrift, at any moment. Nobody hears the answer. */
active proctype network() {
	byte who, head;
	mtype answer;
end:	do
	:: atomic {
		if
		:: adrift[2] -> who = 2
		:: adrift[3] -> who = 3
		fi;
		printf("%d: the ask of %d that was given up on arrives\n", now, who);
		adrift[who] = false;
		carry_out_ask(who, answer);
		answer = 0; who = 0
	   }
	od
}

init {
	atomic { trusts_until[1] = TTL; run client(1); run client(2) }
}
