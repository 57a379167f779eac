"""Bugs to plant in the SQL of PostgreSQL, one at a time, to see that histories on a real server notice."""

Change = tuple[str, str]
"""What schema.sql says, and what it says then."""

_ACQUIRE_FREE = "            AND (n.request_id = '' OR (n.expires_at <= @now AND n.lock_delay = 0))\n"

WRONG_SQL: dict[str, Change] = {
    "acquire: joins a queue twice": ("                AND strpos(n.queue, in_request_id) = 0\n", ""),
    "acquire: joins behind a lease that ran out": (
        "                AND n.expires_at > @now\n                AND n.expires_at <= @now + n.ttl\n",
        "",
    ),
    "acquire: a waiter that asks again does not stay alive": (
        "present.queue PLACING until::text",
        "present.queue PLACING fresh_until",
    ),
    "acquire: a waiter that asks again keeps the first alive": (
        "found_at := strpos(present.queue, ',' || in_waiter || ']');",
        "found_at := strpos(present.queue, ',\"');",
    ),
    "acquire: the last of a long queue is dead early": (
        "|| @now + in_waiter_ttl * @silence_factor(n.waiting, in_ttl, in_waiter_ttl)\n",
        "|| @now + in_waiter_ttl\n",
    ),
    "acquire: the last of a long queue asks again and is dead early": (
        "until := at + in_waiter_ttl * @silence_factor(place, in_ttl, in_waiter_ttl);",
        "until := at + in_waiter_ttl;",
    ),
    "acquire: a waiter that asks again learns a wrong place": ("SELECT number - 1\n", "SELECT number\n"),
    "acquire: a waiter that asks again finds a lease that ran out": (
        "                    AND present.expires_at > at AND present.expires_at <= at + present.ttl\n",
        "",
    ),
    "acquire: a waiter that asks again does not tell the holder": (
        'present_holder ->> 0, \'["contended","\' || present.request_id',
        "'nobody', '[\"contended\",\"' || present.request_id",
    ),
    "release: hands over to a dead waiter": ("            AND (waiter ->> 1)::bigint >= at\n", ""),
    "release: hands over an old token": (
        "                n.counter + 1, CASE WHEN at <= @latest",
        "                CASE WHEN at <= @latest",
    ),
    "release: does not wake the waiter": (
        '                waiter ->> 3,\n                \'["granted"',
        "                'nobody',\n                '[\"granted\"",
    ),
    "acquire: a push of a forgotten grant is no matter": (
        "greatest(n.counter, CASE WHEN in_longest_ttl > 0 THEN m.quarantined_until - 1 ELSE 0 END)",
        "n.counter",
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
    "acquire: the floor is forgotten": ("n.counter + 1, m.floor + 1,", "n.counter + 1,"),
    "acquire: the clock makes no token": ("CASE WHEN @now <= @latest THEN @now ELSE 0 END", "0"),
    "acquire: any proposal is taken": (
        "least(in_proposal, least(@now, @latest) + @proposal_bound)",
        "in_proposal",
    ),
    "acquire: one token for all": (") + in_span - 1,", "),"),
    "acquire: the counter goes on from nowhere": ("n.counter + 1, m.floor + 1,", "m.floor + 1,"),
    "acquire: the holder before keeps its delay": (
        "            lock_delay = in_lock_delay,\n",
        "            lock_delay = greatest(n.lock_delay, in_lock_delay),\n",
    ),
    "acquire: the lock delay is forgotten": ("            lock_delay = in_lock_delay,\n", ""),
    "acquire: the version stays": (
        "version = CASE WHEN n.version = 0 THEN @now ELSE n.version + 1 END,\n            counter = greatest(",
        "counter = greatest(",
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
    "write: the queue is forgotten": ("            queue = r.queue,\n", ""),
    "read: everybody listens": ("CASE WHEN n.heads <> '' THEN (", "CASE WHEN false THEN ("),
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
    "acquire: joins a queue twice",
    "acquire: overtakes the queue",
    "acquire: takes what is held",
    "acquire: a quarantine is no matter",
    "release: does not wake the waiter",
)
"""Those that random histories look for each time. The others take minutes each: set TENURE_ALL_MUTANTS."""
