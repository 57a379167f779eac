/* The grant table of one mutex, in Promela. Not a model by itself: handoff.pml and heard.pml include it.

   It follows src/tenure/table/step.py, operation by operation, with these abstractions:

   -  One name of capacity 1, no lock delay, no revocation. At most two stand in the queue.
   -  Time is a number that everybody reads alike. It may tick between any two steps, or not. (What clocks may drift
      is taken off the holder's time by src/tenure/contracts/deadlines.py; that is not part of the model.)
   -  Tokens are 1, 2, 3 ... : all that is asked of them is that they increase.
   -  A push that was sent is an element of a set: it can arrive late, twice, out of order, or never.
   -  A tombstone outlives every request that it is put down against.
   -  A silent client needs no step of its own: nobody is ever made to take the next step, so everybody may be dead,
      or paused for as long as it takes, at every point. A search for what can go wrong tries that, too.

   The including model says VARIANT, the length TTL, when it is END, and:
     seems_dead(c)   whether the table may drop waiter c (its patience is over, or nobody listens at its inbox)
     listens(c)      whether a push that is sent to c now finds an open inbox
     must_hear(c)    whether c is owed to hear of the lease that it has before it ends
     may_tick        whether time may go on                                                                        */

#define is(variant) (VARIANT == variant)

/* SOUND keeps every rule; each other variant drops one. */
#define SOUND               0
#define VALID_FROM_PUSH     1
#define VALID_FROM_REPLY    2
#define NO_TOKEN_TEST       3
#define PLAIN_DEQUEUE       4
#define NO_TOMBSTONE        5
#define RELEASE_KEEPS_PLACE 6
#define SHORT_TTL           7
#define LATE_CHANNEL          8

#ifndef VARIANT
#define VARIANT SOUND
#endif

#define NOBODY  0
#define CLIENTS 3 /* client 1 holds the name at the start, clients 2 and 3 want it */
#define longer(a, b) ((a) > (b) -> (a) : (b))

mtype = { GRANTED, WAITING, GONE };

byte now;

/* What the store keeps. The token of the holder is the counter, for it got the last one. */
byte holder = 1;
byte ends_at = TTL;
byte counter = 1;
byte first, second; /* in the queue */
bool buried[CLIENTS + 1];

/* What is under way to a client: bit t stands for a push of token t. */
short pushed[CLIENTS + 1];

/* What the clients believe and have done; the store cannot see it, only the claims do. */
byte trusts_until[CLIENTS + 1];
bool gave_up[CLIENTS + 1]; /* it left, or released, and the store has carried that out */

/* The claims: none of these ever becomes true. */
bool overlap;     /* the name was granted while another trusted its lease, or is trusted by one that does not hold it */
bool wrong_token; /* somebody entered with another token than the one of its grant */
bool orphan;      /* the name was granted to, or left with, one that has given up */
bool unheard;     /* a lease ended that its holder was owed to hear of */

#define trusted(c) (now < trusts_until[c])
#define trusted_by_another(c) ((c != 1 && trusted(1)) || (c != 2 && trusted(2)) || (c != 3 && trusted(3)))

/* _begin: let end what has ended. */
inline expire() {
	if
	:: holder != NOBODY && now >= ends_at ->
		printf("%d: the lease of %d ends\n", now, holder);
		unheard = must_hear(holder);
		assert(!unheard);
		holder = NOBODY
	:: else
	fi
}

/* _grant */
inline grant(whom) {
	counter++;
	holder = whom;
	ends_at = now + TTL;
	printf("%d: %d is granted, token %d, until %d\n", now, whom, counter, ends_at);
	overlap = trusted_by_another(whom);
	assert(!overlap);
	orphan = gave_up[whom];
	assert(!orphan)
}

inline shift() {
	first = second;
	second = NOBODY
}

/* _join: stand at the tail, or stay in place. */
inline join(who) {
	if
	:: first == who || second == who
	:: else ->
		if
		:: first == NOBODY -> first = who
		:: else -> second = who
		fi
	fi
}

/* _drop */
inline drop(who) {
	if
	:: first == who -> shift()
	:: second == who -> second = NOBODY
	:: else
	fi
}

/* _advance: grant the first live waiter, by a push unless it is the one that asks. `head` is scratch. */
inline advance(asking) {
	do
	:: holder == NOBODY && first != NOBODY ->
		head = first;
		shift();
		if
		:: head == asking -> grant(head)
		:: head != asking && seems_dead(head) -> printf("%d: %d seems dead, and is dropped\n", now, head)
		:: head != asking ->
			grant(head);
			if
			:: listens(head) -> pushed[head] = pushed[head] | (1 << counter)
			:: else
			fi
		fi
	:: else -> break
	od;
	head = NOBODY
}

/* acquire, and _granted_before */
inline carry_out_ask(who, answer) {
	expire();
	if
	:: buried[who] -> answer = GONE
	:: !buried[who] && holder == who ->
		ends_at = longer(ends_at, now + TTL);
		answer = GRANTED
	:: else ->
		join(who);
		advance(who);
		answer = (holder == who -> GRANTED : WAITING)
	fi
}

/* leave */
inline carry_out_leave(who) {
	printf("%d: %d leaves\n", now, who);
	expire();
	if
	:: holder == who && !is(PLAIN_DEQUEUE) -> holder = NOBODY
	:: else
	fi;
	drop(who);
	buried[who] = !is(NO_TOMBSTONE);
	gave_up[who] = true;
	advance(NOBODY);
	orphan = (holder == who);
	assert(!orphan)
}

/* release */
inline carry_out_release(who) {
	printf("%d: %d releases\n", now, who);
	expire();
	if
	:: holder == who -> holder = NOBODY
	:: else
	fi;
	if
	:: is(RELEASE_KEEPS_PLACE)
	:: else -> drop(who)
	fi;
	buried[who] = !is(NO_TOMBSTONE);
	gave_up[who] = true;
	advance(NOBODY)
}

/* renew */
inline carry_out_renewal(who, token, accepted) {
	expire();
	advance(NOBODY);
	if
	:: holder == who && counter == token ->
		ends_at = longer(ends_at, now + TTL);
		accepted = true
	:: else -> accepted = false
	fi
}

active proctype clock() {
end:	do
	:: atomic { now < END && may_tick -> now++ }
	od
}
