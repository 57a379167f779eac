"""Bugs to plant in the SQL of PostgreSQL, one at a time, to see that histories on a real server notice."""

Change = tuple[str, str]
"""What schema.sql says, and what it says then."""

_ACQUIRE_FREE = "            AND (n.request_id = '' OR (n.expires_at <= @now AND n.lock_delay = 0))\n"

WRONG_SQL: dict[str, Change] = {
    "acquire: a waiter that asks again counts twice": ("(mine.place IS NULL)::integer", "1"),
    "acquire: the last to come is the first": (
        "in_request_id, present.version + 1, at",
        "in_request_id, -present.version, at",
    ),
    "acquire: joins behind a lease that ran out": (
        "present.expires_at > at AND present.expires_at <= at + present.ttl\n                    AND present.used",
        "present.used",
    ),
    "acquire: a waiter that asks again does not stay alive": (
        "SET fresh_until = until\n",
        "SET joined_at = joined_at\n",
    ),
    "acquire: a waiter that asks again keeps the first alive": (
        "SET fresh_until = until\n                        WHERE w.name = in_name AND w.request_id = in_request_id;",
        "SET fresh_until = until\n                        WHERE w.name = in_name AND w.place <= present.head;",
    ),
    "acquire: the last of a long queue is dead early": (
        "until := at + in_waiter_ttl * @silence_factor(place, in_ttl, in_waiter_ttl);\n                        INSERT",
        "until := at + in_waiter_ttl;\n                        INSERT",
    ),
    "acquire: the last of a long queue asks again and is dead early": (
        "until := at + in_waiter_ttl * @silence_factor(place, in_ttl, in_waiter_ttl);\n                        UPDATE",
        "until := at + in_waiter_ttl;\n                        UPDATE",
    ),
    "acquire: a waiter that asks again learns a wrong place": ("w.place < mine.place", "w.place <= mine.place"),
    "acquire: a waiter that asks again does not tell the holder": (
        'present.holder::json ->> 0, \'["contended","\' || present.request_id',
        "'nobody', '[\"contended\",\"' || present.request_id",
    ),
    "release: hands over to a dead waiter": ("            AND first.fresh_until >= at\n", ""),
    "release: passes over all who wait": ("head = first.place + 1", "head = n.version + 2"),
    "release: whoever is granted the name goes on waiting": (
        "            DELETE FROM @waiters AS w WHERE w.name = in_name AND w.request_id = first.request_id;\n",
        "",
    ),
    "release: hands over an old token": (
        "@next_token(n.counter, (waiter",
        "@next_token(0, (waiter",
    ),
    "release: does not wake the waiter": (
        '                first.channel,\n                \'["granted"',
        "                'nobody',\n                '[\"granted\"",
    ),
    "release: the last of two learns nothing of its place": ("IF n.waiting > 1 THEN", "IF n.waiting > 2 THEN"),
    "acquire: a push of a forgotten grant is no matter": (
        "present.counter, CASE WHEN in_longest_ttl > 0 THEN guard.quarantined_until - 1 ELSE 0 END",
        "present.counter",
    ),
    "acquire: overtakes the queue": ("            AND n.plain\n", ""),
    "acquire: takes what is held": (_ACQUIRE_FREE, ""),
    "acquire: a lock delay is no matter": (
        _ACQUIRE_FREE,
        "            AND (n.request_id = '' OR n.expires_at <= @now)\n",
    ),
    "acquire: what was released is granted": ("            AND n.last_released <> in_request_id\n", ""),
    "acquire: what was withdrawn is granted": ("            AND strpos(n.tombstones, in_request_id) = 0\n", ""),
    "acquire: another timeline is no matter": ("            AND m.timeline = @timeline\n", ""),
    "acquire: a restart is no matter": ("            AND (m.started = @started OR NOT in_strict)\n", ""),
    "acquire: a quarantine is no matter": ("            AND m.quarantined_until <= @now\n", ""),
    "acquire: a lease ends a microsecond late": ("(n.expires_at <= @now AND n", "(n.expires_at <= @now + 1 AND n"),
    "acquire: the floor is forgotten": ("greatest(n.counter, m.floor), in_proposal", "n.counter, in_proposal"),
    "acquire: the clock makes no token": ("CASE WHEN in_clock <= @latest THEN in_clock ELSE 0 END", "0"),
    "acquire: any proposal is taken": (
        "least(in_proposal, least(in_clock, @latest) + @proposal_bound)",
        "in_proposal",
    ),
    "acquire: one token for all": (", @now) + in_span - 1,", ", @now),"),
    "acquire: the counter goes on from nowhere": ("greatest(n.counter, m.floor), in_proposal", "m.floor, in_proposal"),
    "acquire: the holder before keeps its delay": (
        "            lock_delay = in_lock_delay,\n",
        "            lock_delay = greatest(n.lock_delay, in_lock_delay),\n",
    ),
    "acquire: the lock delay is forgotten": ("            lock_delay = in_lock_delay,\n", ""),
    "acquire: the version stays": (
        "version = CASE WHEN n.version = 0 THEN @now ELSE n.version + 1 END,\n            counter = @next",
        "counter = @next",
    ),
    "release: of anybody": (
        "plain AND request_id = in_request_id AND expires_at > @now;",
        "plain AND request_id <> '' AND expires_at > @now;",
    ),
    "release: of a lease that ran out": (
        "request_id = in_request_id AND expires_at > @now;",
        "request_id = in_request_id;",
    ),
    "release: it is not remembered": ("        last_released = in_request_id,\n", ""),
    "release: the version stays": (
        "        version = version + 1,\n        request_id = '',",
        "        request_id = '',",
    ),
    "renew: of a lease that ran out": ("n.counter = r.token AND n.expires_at > @now", "n.counter = r.token"),
    "renew: nobody seems to wait": ("RETURNING n.request_id, n.waiting > 0;", "RETURNING n.request_id, false;"),
    "renew: a clock that stepped back is no matter": ("(n.waiting > 0 AND n.used_at <= @now)", "n.waiting > 0"),
    "withdraw: from a lease that ran out": (
        "    IF n.expires_at > at AND n.expires_at <= at + n.ttl AND n.used_at <= at\n        AND mine",
        "    IF mine",
    ),
    "withdraw: the place is forgotten": ("count(*) FILTER (WHERE w.place < mine.place)", "0"),
    "withdraw: nobody learns that it is the first": (
        "PERFORM @tell_head(in_name, mine.place",
        "PERFORM @tell_head('', 0",
    ),
    "withdraw: it leaves no tombstone": ("CASE WHEN in_unsure THEN '{'", "CASE WHEN false THEN '{'"),
    "withdraw: a tombstone ends the others": ("WHERE value::bigint > at AND key <> in_request_id", "WHERE false"),
    "withdraw: the last one leaves a queue": ("plain = (n.waiting = 1),\n            waiting", "waiting"),
    "renew: by any token": (" AND n.counter = r.token", ""),
    "renew: of anybody": (" AND n.request_id = r.request_id", ""),
    "renew: it may shorten": (
        "expires_at = greatest(least(n.expires_at, @now + n.ttl), @now + r.ttl)",
        "expires_at = @now + r.ttl",
    ),
    "renew: the shorter ttl counts": ("ttl = greatest(n.ttl, r.ttl)", "ttl = least(n.ttl, r.ttl)"),
    "renew: what the clock stretched stays": ("greatest(least(n.expires_at, @now + n.ttl),", "greatest(n.expires_at,"),
    "renew: the version stays": ("        version = n.version + 1,\n        ttl", "        ttl"),
    "write: whatever is there": ("WHERE n.name = r.name AND n.version = r.version", "WHERE n.name = r.name"),
    "write: the rows one by one": ("IF in_atomic AND", "IF false AND"),
    "write: at a server that forgot": (
        "WHERE quarantined_since = in_since AND timeline = @timeline AND (started = @started OR NOT in_strict)",
        "WHERE true",
    ),
    "write: no notification": ("IF in_told[told] = ANY (written) THEN", "IF false THEN"),
    "write: notifications whatever is written": ("IF in_told[told] = ANY (written) THEN", "IF true THEN"),
    "write: the lock delay is forgotten": ("            lock_delay = r.lock_delay,\n", ""),
    "write: the last release is forgotten": ("            last_released = r.last_released,\n", ""),
    "write: the tombstones are forgotten": ("            tombstones = r.tombstones,\n", ""),
    "write: whoever waits is forgotten": ("            plain = r.plain,\n", ""),
    "write: whoever listens is forgotten": ("            heads = r.heads,\n", ""),
    "write: whoever joins is forgotten": ("FOR put IN 1..cardinality(in_put)", "FOR put IN 1..0"),
    "write: whoever has left goes on waiting": ("FOR gone IN 1..cardinality(in_gone)", "FOR gone IN 1..0"),
    "write: whoever joins is the first": ("n.version - places + put / 6", "-n.version + put / 6"),
    "read: everybody listens": ("CASE WHEN n.heads <> '' OR n.waiting > 0 THEN (", "CASE WHEN false THEN ("),
    "read: nobody listens": ("WHERE pg_try_advisory_xact_lock_shared(hashtextextended(channel, 0))", "WHERE true"),
    "read: no quarantine on another timeline": (
        "            OR timeline <> @timeline\n            OR (in",
        "            OR (in",
    ),
    "read: a quarantine is stretched": (
        "            OR quarantined_until > @now + greatest(longest_ttl, in_longest_ttl)\n",
        "",
    ),
    "read: a restart begins no quarantine": ("            OR (in_strict AND started <> @started)\n", ""),
    "quarantine: it ends at once": (
        "quarantined_until = @now + greatest(longest_ttl, in_longest_ttl)\n    WHERE timeline",
        "quarantined_until = @now\n    WHERE timeline",
    ),
    "sweep: whatever is unused": ("idle_after < @now - in_retention", "idle_after < @now"),
    "sweep: the floor is forgotten": ("UPDATE @meta SET floor = highest WHERE floor < highest;", ""),
    "sweep: the floor falls": (
        "UPDATE @meta SET floor = highest WHERE floor < highest;",
        "UPDATE @meta SET floor = coalesce(highest, floor);",
    ),
    "sweep: the least counter is the floor": ("SELECT max(counter) INTO highest", "SELECT min(counter) INTO highest"),
}

FOUND_SOON = (
    "acquire: a waiter that asks again counts twice",
    "acquire: overtakes the queue",
    "acquire: takes what is held",
    "acquire: a quarantine is no matter",
    "release: does not wake the waiter",
)
"""Those that random histories look for each time. The others take minutes each: set TENURE_ALL_MUTANTS."""
