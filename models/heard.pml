/* A live waiter hears of its grant: a lease that was granted by a push does not end before its holder knows of it.

   CLAIM   No lease that was granted to a live waiter ends before that waiter has heard of it: be it that every push
   is lost and it has to ask (NET = ASKING), be it that every push to an open inbox arrives and it never asks again
   (NET = PUSHING). So neither is needed for the other, and a lease is wasted only on the dead.

   MODEL   Client 1 holds; it releases, or is silent until its lease ends. Clients 2 and 3 join, stand, and leave,
   release or die at any moment. While they live they are prompt. ASKING: each asks again at the latest INTERVAL after
   a reply, and DELAY ticks later the store has carried that out and answered. PUSHING: a push arrives within a tick.
   The table, in table.pml, drops none but dead waiters: a waiter's patience is longer than INTERVAL + DELAY.

   BOUNDS  END ticks; time alone bounds the number of asks. INTERVAL is 2 ticks, DELAY 1, TTL 4, which is two
   intervals. INTERVAL stands for the longest that src/tenure/table/step.py names, for a place far behind:
   twice the interval in the ask, which src/tenure/core/attempt.py makes at most a quarter of the ttl.

   VARIANT             NET       drops this rule                                              expected
   SOUND               ASKING    (none)                                                       ok
   SOUND               PUSHING   (none)                                                       ok
   SHORT_TTL           ASKING    a ttl is longer than INTERVAL + DELAY                        unheard
   LATE_CHANNEL          PUSHING   the inbox is open before the first ask                       unheard   */

#define ASKING  1
#define PUSHING 2

#ifndef NET
#define NET ASKING
#endif
#ifndef END
#define END 10
#endif

#define INTERVAL 2
#define DELAY    1
#define NEVER    255

#define TTL           (is(SHORT_TTL) -> INTERVAL + DELAY : 2 * INTERVAL)
#define seems_dead(c) (!lives[c])
#define listens(c)    (NET == PUSHING && has_inbox[c])
#define must_hear(c)  stands[c]
#define prompt(c)     (now < ask_by[c] && (!stands[c] || pushed[c] == 0))
#define may_tick      (prompt(2) && prompt(3))

bool lives[4], has_inbox[4];
bool stands[4]; /* lives, and was told to wait, and has not heard of a grant */
byte ask_by[4]; /* when the store must have answered the next ask */

#include "table.pml"

inline stop_waiting(me) {
	stands[me] = false;
	ask_by[me] = NEVER;
	pushed[me] = 0
}

proctype waiter(byte me) {
	byte head;
	mtype reply;

	atomic { lives[me] = true; has_inbox[me] = !is(LATE_CHANNEL) };
	do
	:: atomic {
		!stands[me] || NET == ASKING ->
		carry_out_ask(me, reply);
		printf("%d: %d asks, and is told %e\n", now, me, reply);
		if
		:: reply == WAITING ->
			stands[me] = true;
			ask_by[me] = (NET == ASKING -> now + INTERVAL + DELAY : NEVER)
		:: else -> stop_waiting(me)
		fi;
		if
		:: reply == GRANTED -> reply = 0; goto holding
		:: else -> reply = 0
		fi
	   }
	:: atomic { stands[me] && !has_inbox[me] -> has_inbox[me] = true; printf("%d: %d opens its inbox\n", now, me) }
	:: atomic {
		stands[me] && pushed[me] != 0 ->
		printf("%d: %d hears of its grant\n", now, me);
		stop_waiting(me);
		goto holding
	   }
	:: atomic { stop_waiting(me); carry_out_leave(me); goto over }
	:: atomic { stop_waiting(me); lives[me] = false; printf("%d: %d dies\n", now, me); goto over }
	od;
holding:
	atomic { carry_out_release(me) };
over:
	skip
}

active proctype first_holder() {
	byte head;
	atomic { carry_out_release(1) }
}

init {
	atomic { ask_by[2] = NEVER; ask_by[3] = NEVER; run waiter(2); run waiter(3) }
}
