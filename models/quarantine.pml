/* A server that may have forgotten leases grants nothing until they have run out: how long is that?

   CLAIM   Nobody is granted the name while another holder trusts a lease of it.

   MODEL   A server grants one name, for SHORT or for LONG ticks, and its marker keeps the longest length in use. A copy
   of all that it knows is a replica, a snapshot or a backup. The copy follows while it is linked, one instant at a time
   and as late as it likes; it may be cut off and linked again at any time. At any time the copy replaces the server,
   with what it knew when it last followed. It then grants nothing for as long as the variant says. Holders renew while
   they trust their leases, but only at the server that granted them: the worst case is a holder that is cut off from
   the new one. No client remembers anything; a client that does can only make a quarantine longer. All read one clock.

   BOUNDS  END ticks, TAKEOVERS replacements. LONG is the longest ttl that any lock may have, which is max_ttl.

   VARIANT        a quarantine lasts for               a longer lease is first granted           expected
   MAX_TTL        max_ttl                              at once                                   ok
   KNOWN          the longest length in the marker     at once                                   overlap
   ON_DISK        the longest length in the marker     a tick later, when its disk has it        overlap
   LINKED_COPIES  the longest length in the marker     when all linked copies have its length    overlap
   ALL_COPIES     the longest length in the marker     when all copies have its length           ok
   FRESH_MARKER   the longest length in the marker,    when no marker without its length is      ok
                  max_ttl if the marker is older       trusted any more
                  than AGE ticks

   So the length in a marker is enough only if a longer lease waits for all copies, also for those that nobody can reach
   and those that nobody knows of; or for as long as the slowest restart or failover takes. src/tenure does neither: it
   is MAX_TTL. See docs/adr/0004-quarantine.md. */

#define MAX_TTL       0
#define KNOWN         1
#define ON_DISK       2
#define LINKED_COPIES 3
#define ALL_COPIES    4
#define FRESH_MARKER  5

#ifndef VARIANT
#define VARIANT MAX_TTL
#endif
#ifndef END
#define END 9
#endif
#ifndef TAKEOVERS
#define TAKEOVERS 2
#endif

#define SHORT 1
#define LONG  3
#define AGE   2

#define is(variant) (VARIANT == variant)

byte now = 1;

/* What the server knows: until when the name is held; the length in its marker (0: no marker), which counts from
   `raised_at` on; when the marker was last written; until when it grants nothing. */
byte held_until, known, raised_at, written, quarantined_until;

/* The same of the copy. */
byte copy_held_until, copy_known, copy_raised_at, copy_written, copy_quarantined_until;
bool linked = true;

/* The truth: until when the last holder trusts its lease, for how long it was granted, and whether the server that
   granted it has been replaced. */
byte trusted_until, length;
bool replaced;

byte takeovers;
bool overlap; /* the claim: this never becomes true */

/* Note in the marker that leases of a length are used. */
inline raise(lasts) {
	if
	:: known < lasts -> known = lasts; raised_at = now; printf("%d: the marker says %d from now on\n", now, lasts)
	:: else
	fi;
	written = now
}

#define settled(lasts) ( \
	is(MAX_TTL) || is(KNOWN) \
	|| (is(ON_DISK) && (lasts < known || now > raised_at)) \
	|| (is(LINKED_COPIES) && (!linked || copy_known >= lasts)) \
	|| (is(ALL_COPIES) && copy_known >= lasts) \
	|| (is(FRESH_MARKER) && (lasts < known || now > raised_at + AGE)))

inline grant(lasts) {
	raise(lasts);
	if
	:: settled(lasts) ->
		printf("%d: granted for %d\n", now, lasts);
		overlap = (now < trusted_until);
		assert(!overlap);
		held_until = now + lasts;
		trusted_until = now + lasts;
		length = lasts;
		replaced = false
	:: else
	fi
}

inline take_over() {
	printf("%d: a copy takes over that knows a length of %d\n", now, copy_known);
	takeovers++;
	replaced = true;
	held_until = copy_held_until;
	known = copy_known;
	raised_at = copy_raised_at;
	written = copy_written;
	quarantined_until = copy_quarantined_until;
	if
	:: is(MAX_TTL) || known == 0 || (is(FRESH_MARKER) && now > written + AGE) -> quarantined_until = now + LONG
	:: else -> quarantined_until = (quarantined_until > now + known -> quarantined_until : now + known)
	fi
}

init {
	do
	:: atomic { now < END -> now++ }
	:: atomic { now >= quarantined_until && now >= held_until -> grant(SHORT) }
	:: atomic { now >= quarantined_until && now >= held_until -> grant(LONG) }
	:: atomic {
		!replaced && now < trusted_until ->
		printf("%d: renewed for %d\n", now, length);
		raise(length);
		held_until = now + length;
		trusted_until = now + length
	}
	:: atomic {
		linked ->
		copy_held_until = held_until;
		copy_known = known;
		copy_raised_at = raised_at;
		copy_written = written;
		copy_quarantined_until = quarantined_until
	}
	:: atomic { linked -> linked = false; printf("%d: the copy is cut off\n", now) }
	:: atomic { !linked -> linked = true }
	:: atomic { takeovers < TAKEOVERS -> take_over() }
	:: now == END -> break
	od
}
