/* Fencing tokens from a quorum of independent nodes are unique, and come in order, whatever becomes of the leases.

   CLAIM   With CLAIM = TOKENS: no token is given to two attempts (twice); and whoever starts an attempt after another
   has got a token gets a greater one (older). With CLAIM = RESOURCE: a resource with a fence, raised at the first
   touch, accepts no write of a holder once it has let in one that came after him (stale_write), and none that was not
   computed from the value that it replaces (lost_update).

   MODEL   Each node keeps a counter, and who was granted last. Granting, it issues the greater of its counter plus one
   and the attempt's proposal, to that attempt alone. Phase 1: an attempt, with an id of its own, asks all nodes. If a
   quorum issued the very same value, that is its token. Phase 2: else it takes one more than the greatest value it was
   told of, and asks the nodes that granted to raise their counters to it. A node does, and acknowledges, only if the
   attempt still holds its lease there, and its counter is not above already. It is the token if a quorum acknowledges.
   With a SPAN the token is the last of so many values, all of which are the attempt's.

   Nothing here is a matter of time: a node grants whoever asks, for the lease before may have lapsed, and so may that
   of one that asks again. Requests are lost, or carried out at any later time, and asks REPEATS times once more;
   replies are lost, or late: acted upon late. A raise that is repeated only has its acknowledgement later. Who leaves lets his
   leases lapse. Anybody may be dead, or paused, at every step: an attempt that failed is one that takes no more steps.
   To try again is another attempt, unless in SAME_ID. FORGETS times a node forgets all that it had.

   What attempts propose is NONE (zero); ANY, for clocks that agree on nothing; or ORDERED: greater than any token got
   before the attempt started. Where nodes forget, attempts KEEP_BITS: each has low bits of its own (here the remainder by
   their number, elsewhere random bits at the end of a clock). Its proposal has them, in phase 2 it takes the next value that
   has, and in phase 1 only a value that has can be its token.

   BOUNDS  ATTEMPTS attempts, NODES nodes, a proposal is one of the SPREAD least. Reduced by hand: attempts are numbered
   as they start, nodes as they are first asked; unless in AMNESIA, an attempt starts when its first ask is carried out,
   and has its token when the reply that makes it one arrives, for later, and earlier, would make the claims weaker;
   requests of an attempt that has got its token are lost.

   VARIANT           CLAIM      drops this rule                                                    expected
   COUNTED           TOKENS     (none; no proposals, nothing is forgotten)                         ok
   DISORDER          TOKENS     (none; any proposals, nothing is forgotten)                        ok
   DISORDER          RESOURCE   (none; any proposals, nothing is forgotten)                        ok
   AMNESIA           TOKENS     (none; ordered proposals, nodes forget)                            ok
   AMNESIA           RESOURCE   (none; ordered proposals, nodes forget)                            ok
   FORGOTTEN_ORDER   TOKENS     either nothing is forgotten, or proposals are ordered              older
   FORGOTTEN_ORDER   RESOURCE   either nothing is forgotten, or proposals are ordered              stale_write
   BITS_NOT_KEPT     TOKENS     where nodes forget, low bits are kept; proposals do differ         twice
   BITS_NOT_KEPT     RESOURCE   where nodes forget, low bits are kept; proposals do differ         lost_update
   PER_NODE          TOKENS     a quorum issued the very token; here it is the greatest of any     twice
   PER_NODE          RESOURCE   a quorum issued the very token; here it is the greatest of any     lost_update
   SAME_ID           TOKENS     an attempt that is tried again has another id                      older
   UNCHECKED         TOKENS     a node whose counter is above the value does not acknowledge       twice
   NOT_HELD          TOKENS     a node that granted another since does not acknowledge (SPAN = 2)  twice
   HALF              TOKENS     two quorums have a node in common                                  twice   */

#define is(variant) (VARIANT == variant)

#define COUNTED         0
#define DISORDER        1
#define AMNESIA         2
#define FORGOTTEN_ORDER 3
#define BITS_NOT_KEPT   4
#define PER_NODE        5
#define SAME_ID         6
#define UNCHECKED       7
#define NOT_HELD        8
#define HALF            9

#define NONE    0
#define ANY     1
#define ORDERED 2

#define TOKENS   1
#define RESOURCE 2

#ifndef VARIANT
#define VARIANT COUNTED
#endif
#ifndef CLAIM
#define CLAIM TOKENS
#endif
#ifndef ATTEMPTS
#define ATTEMPTS 3
#endif
#ifndef NODES
#define NODES 3
#endif
#ifndef SPAN
#define SPAN 1
#endif
#ifndef REPEATS
#define REPEATS 0
#endif
#ifndef FORGETS
#define FORGETS 0
#endif
#ifndef SPREAD
#define SPREAD 3
#endif

/* Whether an attempt starts, and has its token, at the moments that make the claims strongest. */
#define EAGER     (!is(AMNESIA))

#define QUORUM    (is(HALF) -> NODES / 2 : NODES / 2 + 1)
#define IN_ORDER  (is(AMNESIA) || is(BITS_NOT_KEPT))
#define PROPOSALS (IN_ORDER -> ORDERED : ((is(DISORDER) || is(FORGOTTEN_ORDER)) -> ANY : NONE))
#define KEEP_BITS (is(AMNESIA) || is(FORGOTTEN_ORDER))

#define NOBODY 0
#define greater(a, b) ((a) > (b) -> (a) : (b))
#define bit(i)        (1 << (i))
#define has(set, i)   (((set) & bit(i)) != 0)

/* Whether a token has the low bits of `me`, and how far apart those are that have. */
#define CYCLE         (ATTEMPTS * SPAN)
#define has_bits(v)   ((v) % CYCLE == (me * SPAN) % CYCLE)
#define DISTINCT      (KEEP_BITS || is(BITS_NOT_KEPT))

/* The values that come with a token, as a set. */
#define values_of(v)  (((1 << SPAN) - 1) << ((v) - SPAN + 1))

/* An option for each node, in which it takes a step that it may take. */
#define on_each_node(may, step) on_node(0, may, step) on_node(1, may, step) on_node_2(may, step) on_node_3(may, step)
#define on_node(node, may, step) :: atomic { may(node) -> step(node) }
#if NODES > 2
#define on_node_2(may, step) on_node(2, may, step)
#else
#define on_node_2(may, step)
#endif
#if NODES > 3
#define on_node_3(may, step) on_node(3, may, step)
#else
#define on_node_3(may, step)
#endif

mtype = { ASKING, RAISING, OVER };

/* What the nodes keep. */
byte counter[NODES];
byte holder[NODES]; /* the last that was granted: the counter was issued to it, or raised by it */

/* What has happened, which nobody sees but the claims. */
byte started; /* so many attempts */
byte met;     /* so many nodes have been asked */
byte repeats, forgets;
byte highest; /* of the tokens that were got */
int taken;    /* the values that came with them, as a set */
byte owners;  /* who has got one, as a set */

/* The resource. */
byte fence, value;
byte outdated; /* those after whom another came that was let in, as a set */

/* The claims: none of these ever becomes true. */
bool twice, older, stale_write, lost_update;

/* A first try, or in SAME_ID another: what was told to the first can still arrive. */
inline begin() {
	stage = ASKING;
	asked = 0;
	granted = 0;
	token = 0;
	acknowledged = 0;
	acknowledgements = 0;
	floor = highest;
	before = owners
}

inline propose() {
	if
	:: PROPOSALS == NONE
	:: else ->
		proposal = (PROPOSALS == ORDERED -> highest + 1 : 1);
		do
		:: DISTINCT && !has_bits(proposal + SPAN - 1) -> proposal++
		:: else -> break
		od;
		i = 1;
		do
		:: i < SPREAD -> i++; proposal = proposal + (DISTINCT -> CYCLE : 1)
		:: break
		od;
		i = 0
	fi
}

/* Whether a quorum issued the value that this node did, and it can be the token. */
#if NODES == 2
#define as_told(v)    ((told[0] == v) + (told[1] == v))
#define grants_heard  ((told[0] != 0) + (told[1] != 0))
#elif NODES == 3
#define as_told(v)    ((told[0] == v) + (told[1] == v) + (told[2] == v))
#define grants_heard  ((told[0] != 0) + (told[1] != 0) + (told[2] != 0))
#else
#define as_told(v)    ((told[0] == v) + (told[1] == v) + (told[2] == v) + (told[3] == v))
#define grants_heard  ((told[0] != 0) + (told[1] != 0) + (told[2] != 0) + (told[3] != 0))
#endif
#define agreed(node)  (told[node] != 0 && (!KEEP_BITS || has_bits(told[node])) && as_told(told[node]) >= QUORUM)

#define may_ask(node) (node <= met && stage != OVER && (!has(asked, node) || repeats < REPEATS))

/* An attempt that is eager starts with the first of its asks that is carried out. */
#define starts_by(node) (EAGER && node <= met)

inline carry_out_ask(node) {
	repeats = repeats + has(asked, node);
	asked = asked | bit(node);
	met = greater(met, node + 1);
	if
	:: holder[node] == me /* asked again, the same answer */
	:: d_step {           /* or it is free, for the lease before has lapsed */
		counter[node] = greater(counter[node] + 1, proposal) + SPAN - 1;
		holder[node] = me
	   }
	fi;
	printf("node %d grants %d the value %d\n", node + 1, me, counter[node]);
	if
	:: stage == ASKING ->
		told[node] = counter[node];
		if
		:: EAGER && agreed(node) -> token = told[node]; get()
		:: else
		fi
	:: printf("... and that is not heard, or too late\n")
	fi
}

inline forget_replies() {
	i = 0;
	do
	:: i < NODES -> told[i] = 0; i++
	:: else -> break
	od;
	i = 0
}

/* What can be decided once a quorum has granted: the token itself, or what it shall be. */
inline decide() {
	do
	:: n < NODES ->
		granted = granted | ((told[n] != 0) << n);
		most = greater(most, told[n]);
		if
		:: agreed(n) -> token = told[n]
		:: else
		fi;
		n++
	:: else -> break
	od;
	if
	:: is(PER_NODE) -> token = most; stage = OVER
	:: !is(PER_NODE) && token != 0 -> stage = OVER
	:: else ->
		token = most + 1;
		do
		:: KEEP_BITS && !has_bits(token) -> token++
		:: else -> break
		od;
		stage = RAISING;
		forget_replies()
	fi;
	n = 0; most = 0
}

/* A counter that equals the value already was raised to it for the same attempt, or issued to it. */
#define held(node)      (is(NOT_HELD) || holder[node] == me)
#define not_above(node) (is(UNCHECKED) || counter[node] < token || (counter[node] == token && holder[node] == me))
#define unraised(node)  (stage == RAISING && has(granted, node) && !has(acknowledged, node))
#define may_raise(node) (unraised(node) && held(node) && not_above(node))

inline carry_out_raise(node) {
	counter[node] = greater(counter[node], token);
	holder[node] = me;
	printf("node %d raises its counter to %d for %d\n", node + 1, token, me);
	if
	:: acknowledged = acknowledged | bit(node);
		acknowledgements++;
		if
		:: EAGER && acknowledgements >= QUORUM -> get()
		:: else
		fi
	:: printf("... and that is not heard, or too late\n")
	fi
}

/* The token counts from now on. */
inline get() {
	printf("%d gets the token %d\n", me, token);
	stage = OVER;
	acknowledged = 0;
	acknowledgements = 0;
	forget_replies();
	if
	:: CLAIM == TOKENS ->
		assert(token < 31);
		older = (token - SPAN + 1 <= floor);
		assert(!older);
		twice = ((taken & values_of(token)) != 0);
		assert(!twice);
		taken = taken | values_of(token)
	:: else -> owners = owners | bit(me)
	fi;
	highest = greater(highest, token);
	floor = 0; proposal = 0; asked = 0; granted = 0;
	if
	:: CLAIM == TOKENS -> token = 0; before = 0
	:: else
	fi
}

/* The first touch, and the read that goes with it. */
inline touch() {
	if
	:: token < fence -> printf("%d is refused\n", me); refused = true
	:: else ->
		fence = token;
		outdated = outdated | before;
		read = value;
		let_in = true;
		printf("%d is let in with token %d\n", me, token)
	fi
}

inline write() {
	if
	:: token < fence -> printf("%d is refused\n", me)
	:: else ->
		printf("%d writes over what %d wrote, having read what %d wrote\n", me, value, read);
		stale_write = has(outdated, me);
		assert(!stale_write);
		lost_update = (read != value);
		assert(!lost_update);
		value = me
	fi;
	refused = true;
	read = 0;
	before = 0
}

proctype attempt(byte me) {
	mtype stage;
	byte proposal;
	byte told[NODES]; /* the last value that was heard of from each node */
	byte token;       /* or what shall be it, once a quorum has acknowledged it */
	byte asked, granted, acknowledged; /* nodes, as sets */
	byte acknowledgements;
	bool tried, let_in, refused;
	byte floor;  /* the highest token that was got before the attempt started */
	byte before; /* who had got one by then, as a set */
	byte read;
	byte i, n, most; /* scratch */

	atomic {
		started == me - 1 -> started++;
		begin();
		propose();
		printf("%d starts, and proposes %d\n", me, proposal);
		if
		on_each_node(starts_by, carry_out_ask)
		:: !EAGER
		fi
	};
end:	do
	on_each_node(may_ask, carry_out_ask)
	:: atomic {
		stage == ASKING && grants_heard >= QUORUM -> d_step { decide() };
		if
		:: stage == OVER -> get()
		:: else
		fi
	   }
	on_each_node(may_raise, carry_out_raise)
	:: atomic { stage == RAISING && acknowledgements >= QUORUM -> stage = OVER; get() }
	:: atomic { is(SAME_ID) && !tried && stage == ASKING -> tried = true; begin(); printf("%d tries again\n", me) }
	:: atomic { CLAIM == RESOURCE && stage == OVER && !let_in && !refused -> touch() }
	:: atomic { let_in && !refused -> write() }
	od
}

inline forget(node) {
	forgets++;
	counter[node] = 0;
	holder[node] = NOBODY;
	printf("node %d forgets\n", node + 1)
}

#define may_forget(node) (forgets < FORGETS && counter[node] != 0)

active proctype amnesia() {
end:	do
	on_each_node(may_forget, forget)
	od
}

init {
	byte made;
	atomic {
		do
		:: made < ATTEMPTS -> made++; run attempt(made)
		:: else -> break
		od
	}
}
