-- The tables and functions of Tenure in PostgreSQL. Times are microseconds since 1970 by the database's clock.
-- `@` stands for the schema and the prefix of all names, `@now` for the clock, `@started` for when the server started,
-- `@timeline` for the timeline, which changes when a standby is promoted or a backup is restored.
-- A change of what is stored is a new form: see "The stored form" in ARCHITECTURE.md. Clients of several releases share the
-- functions. So a function that a release has never changes: another one takes another name beside it. A client that misses
-- one runs this file. `in_reads` is the latest form that the client reads; a function that meets a later one raises FORM.

-- One row a name; see SqlRow in ../sql/rows.py. No column but the name has an index, so that updates stay on their page.
CREATE TABLE IF NOT EXISTS @names (
    name          text COLLATE "C" PRIMARY KEY,
    version       bigint  NOT NULL,
    counter       bigint  NOT NULL,
    plain         boolean NOT NULL,
    request_id    text    NOT NULL,
    holder        text    NOT NULL,
    ttl           bigint  NOT NULL,
    lock_delay    bigint  NOT NULL,
    granted_at    bigint  NOT NULL,
    expires_at    bigint  NOT NULL,
    last_released text    NOT NULL,
    tombstones    text    NOT NULL,
    used_at       bigint  NOT NULL,
    idle_after    bigint  NOT NULL,
    state         text    NOT NULL,
    heads         text    NOT NULL,
    waiting       integer NOT NULL,
    head          bigint  NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

-- The waiters of the rows that are plain but for them, each in a row: `queue` of SqlRow. Whoever changes them has the row of
-- the name locked, and raises its version; a new waiter takes that version as its place, which is larger than all before.
-- No waiter has a smaller place than `head` of the name, so nobody looks for the first one among those that are gone.
-- `waiter` is its request, as `dump_request` in ../table_codec.py makes it.
CREATE TABLE IF NOT EXISTS @waiters (
    name        text COLLATE "C",
    request_id  text COLLATE "C",
    place       bigint NOT NULL,
    joined_at   bigint NOT NULL,
    fresh_until bigint NOT NULL,
    channel     text   NOT NULL,
    waiter      text   NOT NULL,
    PRIMARY KEY (name, request_id),
    UNIQUE (name, place)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

-- One row. `floor` is at least the counter of every row that was deleted. `timeline` and `started` identify the server
-- that granted the names of this table; `longest_ttl` is the longest ttl of any client. `form` is the number of the stored
-- form, `needs` the release that a client needs to read it.
CREATE TABLE IF NOT EXISTS @meta (
    one               boolean PRIMARY KEY CHECK (one),
    form              integer NOT NULL,
    needs             text    NOT NULL,
    floor             bigint  NOT NULL,
    timeline          text    NOT NULL,
    started           bigint  NOT NULL,
    longest_ttl       bigint  NOT NULL,
    quarantined_since bigint  NOT NULL,
    quarantined_until bigint  NOT NULL
);

INSERT INTO @meta VALUES (true, @form, @needed, 0, @timeline, @started, 0, 0, 0) ON CONFLICT DO NOTHING;

-- Rows to write, as arrays make them.
DO $$ BEGIN
    CREATE TYPE @snapshot AS (
        at bigint, floor bigint, quarantined_since bigint, quarantined_until bigint, silent text,
        name text, version bigint, counter bigint, plain boolean, request_id text, holder text, ttl bigint,
        lock_delay bigint, granted_at bigint, expires_at bigint, last_released text, tombstones text, used_at bigint,
        idle_after bigint, state text, heads text, queue text, waiting integer
    );
EXCEPTION WHEN duplicate_object THEN NULL;
END $$;

-- Begin a quarantine if this server may have forgotten grants: it is not the one that this table was written at.
-- A restart alone forgets nothing, because every commit of Tenure waits for the log; `in_strict` doubts that, too.
-- Also shorten a quarantine that a clock which stepped back has stretched.
CREATE OR REPLACE FUNCTION @begin_quarantine(in_longest_ttl bigint, in_strict boolean) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM @wait_for_log();
    UPDATE @meta SET
        timeline = @timeline,
        started = @started,
        quarantined_since = @now,
        quarantined_until = @now + greatest(longest_ttl, in_longest_ttl)
    WHERE timeline <> @timeline OR (in_strict AND started <> @started);
    UPDATE @meta SET quarantined_until = @now + greatest(longest_ttl, in_longest_ttl)
    WHERE quarantined_until > @now + greatest(longest_ttl, in_longest_ttl);
END $$;

-- Have this transaction wait until its log is on disk, where the server's setting would not.
CREATE OR REPLACE FUNCTION @wait_for_log() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'local', true);
    END IF;
END $$;

-- Have the statements of this transaction find rows by the index. A plan is made once in each session, perhaps while the
-- table has one row: then to read all of it looks cheap, and stays so however many names there are later. A session
-- without a pooler has these settings from its begin: `@by_index` looks first.
CREATE OR REPLACE FUNCTION @plan_by_index() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config(name, 'off', true)
    FROM unnest(ARRAY['enable_seqscan', 'enable_hashjoin', 'enable_mergejoin', 'jit']) AS name;
END $$;

-- Raise an error if the tables have a later form: its number, and the release that reads it.
CREATE OR REPLACE FUNCTION @refuse_later(in_reads integer) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    later text;
BEGIN
    SELECT form || ' ' || needs INTO later FROM @meta WHERE form > in_reads;
    IF FOUND THEN
        RAISE EXCEPTION 'FORM %', later USING ERRCODE = 'TN001';
    END IF;
END $$;

-- The rows of some names, at one instant. A name without a row gets one of version 0.
-- A client listens if its session holds the advisory lock of its channel.
CREATE OR REPLACE FUNCTION @read(
    in_names text[], in_longest_ttl bigint, in_strict boolean, in_reads integer
) RETURNS SETOF @snapshot
LANGUAGE plpgsql AS $$
BEGIN
    @by_index;
    IF EXISTS (
        SELECT FROM @meta
        WHERE form > in_reads
            OR timeline <> @timeline
            OR (in_strict AND started <> @started)
            OR quarantined_until > @now + greatest(longest_ttl, in_longest_ttl)
    ) THEN
        PERFORM @refuse_later(in_reads);
        PERFORM @begin_quarantine(in_longest_ttl, in_strict);
    END IF;
    RETURN QUERY
    SELECT
        @now, m.floor, m.quarantined_since, m.quarantined_until,
        CASE WHEN n.heads <> '' OR n.waiting > 0 THEN (
            SELECT string_agg(channel, ' ') FROM (
                SELECT unnest(string_to_array(n.heads, ' ')) AS channel
                UNION ALL (
                    SELECT channel FROM @waiters AS w WHERE w.name = n.name AND w.place >= n.head AND channel <> ''
                    GROUP BY channel ORDER BY min(place) LIMIT @heads
                )
            ) AS first
            WHERE pg_try_advisory_xact_lock_shared(hashtextextended(channel, 0))
        ) END,
        wanted.name, coalesce(n.version, 0), coalesce(n.counter, 0), coalesce(n.plain, true),
        coalesce(n.request_id, ''), coalesce(n.holder, ''), coalesce(n.ttl, 0), coalesce(n.lock_delay, 0),
        coalesce(n.granted_at, 0), coalesce(n.expires_at, 0), coalesce(n.last_released, ''),
        coalesce(n.tombstones, ''), coalesce(n.used_at, 0), coalesce(n.idle_after, 0), coalesce(n.state, ''),
        coalesce(n.heads, ''),
        CASE WHEN n.waiting > 0 THEN (
            SELECT '[' || string_agg(
                '[' || joined_at || ',' || fresh_until || ',' || waiter || ']', ',' ORDER BY place
            ) || ']'
            FROM @waiters AS w WHERE w.name = n.name AND w.place >= n.head
        ) ELSE '' END,
        coalesce(n.waiting, 0)
    FROM @meta AS m CROSS JOIN unnest(in_names) AS wanted (name) LEFT JOIN @names AS n ON n.name = wanted.name
    WHERE m.one;
END $$;

-- The same, after the rows are locked: SqlDatabase.transact.
CREATE OR REPLACE FUNCTION @lock(
    in_names text[], in_longest_ttl bigint, in_strict boolean, in_reads integer
) RETURNS SETOF @snapshot
LANGUAGE plpgsql AS $$
BEGIN
    @by_index;
    PERFORM FROM @names WHERE name = ANY (in_names) ORDER BY name FOR UPDATE;
    RETURN QUERY SELECT * FROM @read(in_names, in_longest_ttl, in_strict, in_reads);
END $$;

-- By which factor a waiter with so many others ahead may be silent for longer: silence_factor in ../../table/times.py.
CREATE OR REPLACE FUNCTION @silence_factor(in_place integer, in_ttl bigint, in_waiter_ttl bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT greatest(1, least(1 + in_place / @crowd, @longest_silence, in_ttl / greatest(in_waiter_ttl, 1)))
$$;

-- The next token after a counter: next_token in ../../table/times.py. It is PL/pgSQL, whose plan lasts as long as the
-- session: a function in SQL to which the clock is given cannot be inlined, and would be planned in each statement.
CREATE OR REPLACE FUNCTION @next_token(in_counter bigint, in_proposal bigint, in_clock bigint) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN greatest(
        in_counter + 1, CASE WHEN in_clock <= @latest THEN in_clock ELSE 0 END,
        least(in_proposal, least(in_clock, @latest) + @proposal_bound)
    );
END $$;

-- Grant a plain row that is free: SqlDatabase.acquire. Returns the token; or 0, and the place that the request has in
-- the queue with the counter and the rest of the holder's lease; or -1 as the place, and the row.
-- `in_waiter` is the end of a waiter as the queue keeps it; NULL: do not wait.
CREATE OR REPLACE FUNCTION @acquire(
    in_name text, in_request_id text, in_holder text, in_ttl bigint, in_lock_delay bigint, in_proposal bigint,
    in_span bigint, in_waiter text, in_channel text, in_waiter_ttl bigint, in_longest_ttl bigint, in_strict boolean,
    in_reads integer,
    OUT token bigint, OUT place integer, OUT last_token bigint, OUT rest bigint, OUT row_found @snapshot
) LANGUAGE plpgsql AS $$
DECLARE
    present @names%ROWTYPE;
    guard @meta%ROWTYPE;
    mine @waiters%ROWTYPE;
    at bigint;
    until bigint;
BEGIN
    @by_index;
    place := -1;
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM @wait_for_log();
    END IF;
    FOR attempt IN 1..2 LOOP
        UPDATE @names AS n SET
            version = CASE WHEN n.version = 0 THEN @now ELSE n.version + 1 END,
            counter = @next_token(greatest(n.counter, m.floor), in_proposal, @now) + in_span - 1,
            request_id = in_request_id,
            holder = in_holder,
            ttl = in_ttl,
            lock_delay = in_lock_delay,
            granted_at = @now,
            expires_at = @now + in_ttl,
            used_at = greatest(n.used_at, @now),
            idle_after = @now + in_ttl + in_lock_delay
        FROM @meta AS m
        WHERE n.name = in_name
            AND n.plain
            AND (n.request_id = '' OR (n.expires_at <= @now AND n.lock_delay = 0))
            AND n.last_released <> in_request_id
            AND strpos(n.tombstones, in_request_id) = 0
            AND m.one
            AND m.timeline = @timeline
            AND (m.started = @started OR NOT in_strict)
            AND m.quarantined_until <= @now
            AND m.form <= in_reads
        RETURNING n.counter INTO token;
        IF FOUND THEN
            RETURN;
        END IF;
        token := 0;
        IF in_waiter IS NOT NULL AND attempt = 1 THEN
            SELECT * INTO present FROM @names AS n
            WHERE n.name = in_name AND (n.plain OR n.waiting > 0) AND n.request_id NOT IN ('', in_request_id)
            FOR UPDATE;
            IF FOUND THEN
                SELECT * INTO guard FROM @meta;
                at := @now;
                IF present.expires_at > at AND present.expires_at <= at + present.ttl
                    AND present.used_at <= at
                    AND present.last_released <> in_request_id
                    AND strpos(present.tombstones, in_request_id) = 0
                    AND guard.timeline = @timeline
                    AND (guard.started = @started OR NOT in_strict)
                    AND guard.quarantined_until <= at
                    AND guard.form <= in_reads
                THEN
                    place := present.waiting;
                    SELECT * INTO mine FROM @waiters AS w WHERE w.name = in_name AND w.request_id = in_request_id;
                    IF NOT FOUND THEN
                        until := at + in_waiter_ttl * @silence_factor(place, in_ttl, in_waiter_ttl);
                        INSERT INTO @waiters (name, request_id, place, joined_at, fresh_until, channel, waiter)
                        VALUES (in_name, in_request_id, present.version + 1, at, until, in_channel, in_waiter);
                    ELSIF mine.waiter = in_waiter THEN  -- it asks again while nothing has changed: it stays alive
                        place := (
                            SELECT count(*) FROM @waiters AS w
                            WHERE w.name = in_name AND w.place >= present.head AND w.place < mine.place
                        );
                        until := at + in_waiter_ttl * @silence_factor(place, in_ttl, in_waiter_ttl);
                        UPDATE @waiters AS w SET fresh_until = until
                        WHERE w.name = in_name AND w.request_id = in_request_id;
                    ELSE
                        place := -1;
                    END IF;
                END IF;
                IF place >= 0 THEN
                    UPDATE @names AS n SET
                        version = n.version + 1,
                        plain = false,
                        waiting = n.waiting + (mine.place IS NULL)::integer,
                        used_at = at,
                        idle_after = greatest(n.idle_after, until)
                    WHERE n.name = in_name;
                    last_token := greatest(
                        present.counter, CASE WHEN in_longest_ttl > 0 THEN guard.quarantined_until - 1 ELSE 0 END
                    );
                    rest := present.expires_at - at;
                    IF (present.waiting = 0 OR mine.place IS NOT NULL)
                        AND (present.holder::json ->> 2)::boolean AND present.holder::json ->> 0 <> ''
                    THEN
                        PERFORM pg_notify(
                            present.holder::json ->> 0, '["contended","' || present.request_id || '",0,0,false]'
                        );
                    END IF;
                    RETURN;
                END IF;
            END IF;
        END IF;
        SELECT * INTO row_found FROM @read(ARRAY[in_name], in_longest_ttl, in_strict, in_reads);
        IF row_found.version > 0 OR row_found.quarantined_until > row_found.at THEN
            RETURN;
        END IF;
        INSERT INTO @names VALUES (in_name, 0, 0, true, '', '', 0, 0, 0, 0, '', '', 0, @now, '', '', 0, 0)
        ON CONFLICT DO NOTHING;
    END LOOP;
END $$;

-- Tell the waiter behind a place that it is the first, unless it asks again anyway before the lease ends: `must_be_told`.
CREATE OR REPLACE FUNCTION @tell_head(in_name text, in_place bigint, in_at bigint, in_expires_at bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    head @waiters%ROWTYPE;
    waiter json;
BEGIN
    SELECT * INTO head FROM @waiters AS w WHERE w.name = in_name AND w.place > in_place ORDER BY w.place LIMIT 1;
    waiter := '[' || head.waiter || ']';
    IF head.channel <> ''
        AND in_expires_at < head.fresh_until - (waiter ->> 5)::bigint + 2 * (waiter ->> 4)::bigint + @margin
    THEN
        PERFORM pg_notify(
            head.channel,
            '["head","' || head.request_id || '",0,' || greatest(in_expires_at - in_at, @retry) || ',false]'
        );
    END IF;
END $$;

-- Remove a waiter from the queue of a lease that lasts: SqlDatabase.withdraw. Returns its place and the holder; or -1.
CREATE OR REPLACE FUNCTION @withdraw(
    in_name text, in_request_id text, in_unsure boolean, in_strict boolean, in_reads integer,
    OUT place integer, OUT holder text
) LANGUAGE plpgsql AS $$
DECLARE
    n @names%ROWTYPE;
    m @meta%ROWTYPE;
    mine @waiters%ROWTYPE;
    at bigint;
    until bigint;
BEGIN
    @by_index;
    PERFORM @wait_for_log();
    place := -1;
    SELECT * INTO n FROM @names AS names
    WHERE names.name = in_name AND names.waiting > 0 AND names.request_id NOT IN ('', in_request_id) FOR UPDATE;
    SELECT * INTO mine FROM @waiters AS w WHERE w.name = in_name AND w.request_id = in_request_id;
    SELECT * INTO m FROM @meta;
    at := @now;
    IF n.expires_at > at AND n.expires_at <= at + n.ttl AND n.used_at <= at
        AND mine.place IS NOT NULL
        AND m.timeline = @timeline
        AND (m.started = @started OR NOT in_strict)
        AND m.quarantined_until <= at
        AND m.form <= in_reads
    THEN
        DELETE FROM @waiters AS w WHERE w.name = in_name AND w.request_id = in_request_id;
        SELECT count(*) FILTER (WHERE w.place < mine.place), max(w.fresh_until) INTO place, until
        FROM @waiters AS w WHERE w.name = in_name AND w.place >= n.head;
        UPDATE @names AS names SET
            version = n.version + 1,
            plain = (n.waiting = 1),
            waiting = n.waiting - 1,
            tombstones = CASE WHEN in_unsure THEN '{' || coalesce((
                SELECT string_agg(format('"%s": %s', key, value), ', ' ORDER BY number) || ', '
                FROM json_each_text(CASE n.tombstones WHEN '' THEN '{}' ELSE n.tombstones END::json)
                    WITH ORDINALITY AS stone (key, value, number)
                WHERE value::bigint > at AND key <> in_request_id
            ), '') || format('"%s": %s}', in_request_id, at + @tombstone) ELSE n.tombstones END,
            used_at = at,
            idle_after = greatest(n.expires_at + n.lock_delay, until)
        WHERE names.name = in_name;
        IF place = 0 THEN
            PERFORM @tell_head(in_name, mine.place, at, n.expires_at);
        END IF;
        holder := n.holder;
    END IF;
END $$;

-- End the lease of a request in a plain row: SqlDatabase.release. Returns true; or false and the row.
CREATE OR REPLACE FUNCTION @release(
    in_name text, in_request_id text, in_longest_ttl bigint, in_strict boolean, in_reads integer,
    OUT released boolean, OUT row_found @snapshot
) LANGUAGE plpgsql AS $$
DECLARE
    n @names%ROWTYPE;
    m @meta%ROWTYPE;
    at bigint;
    first @waiters%ROWTYPE;
    waiter json;
    new_token bigint;
    new_ttl bigint;
    new_delay bigint;
    span bigint;
BEGIN
    @by_index;
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM @wait_for_log();
    END IF;
    UPDATE @names SET
        version = version + 1,
        request_id = '',
        holder = '',
        last_released = in_request_id,
        used_at = greatest(used_at, @now),
        idle_after = @now
    WHERE name = in_name AND plain AND request_id = in_request_id AND expires_at > @now;
    released := FOUND;
    IF released THEN
        RETURN;
    END IF;
    -- Hand the name over to the first waiter, if it is alive; all else is left to a step of the client.
    SELECT * INTO n FROM @names AS names
    WHERE names.name = in_name AND names.waiting > 0 AND names.request_id = in_request_id FOR UPDATE;
    IF FOUND THEN
        SELECT * INTO m FROM @meta;
        at := @now;
        SELECT * INTO first FROM @waiters AS w
        WHERE w.name = in_name AND w.place >= n.head ORDER BY w.place LIMIT 1;
        IF n.expires_at > at AND n.expires_at <= at + n.ttl AND n.used_at <= at
            AND first.fresh_until >= at
            AND first.channel <> ''
            AND NOT pg_try_advisory_xact_lock_shared(hashtextextended(first.channel, 0))
            AND m.timeline = @timeline
            AND (m.started = @started OR NOT in_strict)
            AND m.quarantined_until <= at
            AND m.form <= in_reads
        THEN
            waiter := '[' || first.waiter || ']';
            new_ttl := waiter ->> 3;
            new_delay := waiter ->> 8;
            span := waiter ->> 11;
            new_token := @next_token(n.counter, (waiter ->> 9)::bigint, at) + span - 1;
            DELETE FROM @waiters AS w WHERE w.name = in_name AND w.request_id = first.request_id;
            UPDATE @names AS names SET
                version = n.version + 1,
                counter = new_token,
                plain = (n.waiting = 1),
                request_id = first.request_id,
                holder = '[' || (waiter -> 1) || ',' || (waiter -> 2) || ','
                    || CASE WHEN span > 1 THEN 'true' ELSE 'false' END || ']',
                ttl = new_ttl,
                lock_delay = new_delay,
                granted_at = at,
                expires_at = at + new_ttl,
                last_released = in_request_id,
                used_at = at,
                idle_after = greatest(n.idle_after, at + new_ttl + new_delay),
                waiting = n.waiting - 1,
                head = first.place + 1
            WHERE names.name = in_name;
            PERFORM pg_notify(
                first.channel,
                '["granted","' || first.request_id || '",' || new_token || ',0,'
                || CASE WHEN n.waiting > 1 THEN 'true' ELSE 'false' END || ']'
            );
            IF n.waiting > 1 THEN
                PERFORM @tell_head(in_name, first.place, at, at + new_ttl);
            END IF;
            released := true;
            RETURN;
        END IF;
    END IF;
    SELECT * INTO row_found FROM @read(ARRAY[in_name], in_longest_ttl, in_strict, in_reads);
END $$;

-- Renew the leases that last in rows that are plain, or plain but for waiters: SqlDatabase.renew. Returns the ids of their
-- requests, and whether somebody waits.
CREATE OR REPLACE FUNCTION @renew(
    in_names text[], in_request_ids text[], in_tokens bigint[], in_ttls bigint[], in_reads integer
) RETURNS TABLE (renewed text, contended boolean) LANGUAGE plpgsql AS $$
BEGIN
    @by_index;
    PERFORM @wait_for_log();
    IF cardinality(in_names) > 1 THEN  -- an UPDATE locks rows in no certain order
        PERFORM FROM @names WHERE name = ANY (in_names) ORDER BY name FOR UPDATE;
    END IF;
    RETURN QUERY
    UPDATE @names AS n SET
        version = n.version + 1,
        ttl = greatest(n.ttl, r.ttl),
        expires_at = greatest(least(n.expires_at, @now + n.ttl), @now + r.ttl),
        used_at = greatest(n.used_at, @now),
        idle_after = greatest(
            CASE WHEN n.waiting > 0 THEN n.idle_after ELSE 0 END,
            greatest(least(n.expires_at, @now + n.ttl), @now + r.ttl) + n.lock_delay
        )
    FROM unnest(in_names, in_request_ids, in_tokens, in_ttls) AS r (name, request_id, token, ttl)
    WHERE n.name = r.name AND n.request_id = r.request_id AND n.counter = r.token AND n.expires_at > @now
        AND (n.plain OR (n.waiting > 0 AND n.used_at <= @now))
        AND EXISTS (SELECT FROM @meta WHERE form <= in_reads)
    RETURNING n.request_id, n.waiting > 0;
END $$;

-- Write the rows that still have the version that they replace: SqlDatabase.write. Returns the names that are written.
-- None if this server may have forgotten grants since they were read: `in_since` is the quarantine of then.
-- `in_told` has the name, the channel and the text of each notification, one after another; `in_gone` the name and the
-- request of each waiter that leaves its place; `in_put` the name, the request, the channel, `joined_at`, `fresh_until` and
-- `waiter` of each that is changed, or else joins the tail.
CREATE OR REPLACE FUNCTION @write(
    in_as_of bigint, in_since bigint, in_strict boolean, in_reads integer, in_atomic boolean, in_told text[],
    in_gone text[], in_put text[],
    in_names text[], in_versions bigint[], in_counters bigint[], in_plains boolean[], in_request_ids text[],
    in_holders text[], in_ttls bigint[], in_lock_delays bigint[], in_granted_ats bigint[], in_expires_ats bigint[],
    in_last_releaseds text[], in_tombstones text[], in_used_ats bigint[], in_idle_afters bigint[], in_states text[],
    in_heads text[], in_waitings integer[]
) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    written text[];
    places integer := cardinality(in_put) / 6;
BEGIN
    @by_index;
    IF NOT EXISTS (
        SELECT FROM @meta
        WHERE quarantined_since = in_since AND timeline = @timeline AND (started = @started OR NOT in_strict)
            AND form <= in_reads
    ) THEN
        RETURN '{}';
    END IF;
    PERFORM @wait_for_log();
    INSERT INTO @names
    SELECT name, 0, 0, true, '', '', 0, 0, 0, 0, '', '', 0, @now, '', '', 0, 0
    FROM unnest(in_names, in_versions) AS r (name, version)
    WHERE r.version = 0 AND @now < in_as_of + @new_for
    ORDER BY name
    ON CONFLICT DO NOTHING;
    IF in_atomic OR cardinality(in_names) > 1 THEN  -- an UPDATE locks rows in no certain order
        PERFORM FROM @names WHERE name = ANY (in_names) ORDER BY name FOR UPDATE;
    END IF;
    IF in_atomic AND cardinality(in_names) <> (
        SELECT count(*) FROM @names JOIN unnest(in_names, in_versions) AS r (name, version) USING (name, version)
    ) THEN
        RETURN '{}';
    END IF;
    WITH done AS (
        UPDATE @names AS n SET
            version = CASE WHEN n.version = 0 THEN @now ELSE n.version + 1 END + places,
            counter = r.counter,
            plain = r.plain,
            request_id = r.request_id,
            holder = r.holder,
            ttl = r.ttl,
            lock_delay = r.lock_delay,
            granted_at = r.granted_at,
            expires_at = r.expires_at,
            last_released = r.last_released,
            tombstones = r.tombstones,
            used_at = r.used_at,
            idle_after = r.idle_after,
            state = r.state,
            heads = r.heads,
            waiting = r.waiting
        FROM unnest(
            in_names, in_versions, in_counters, in_plains, in_request_ids, in_holders, in_ttls, in_lock_delays,
            in_granted_ats, in_expires_ats, in_last_releaseds, in_tombstones, in_used_ats, in_idle_afters, in_states,
            in_heads, in_waitings
        ) AS r (
            name, version, counter, plain, request_id, holder, ttl, lock_delay, granted_at, expires_at, last_released,
            tombstones, used_at, idle_after, state, heads, waiting
        )
        WHERE n.name = r.name AND n.version = r.version
        RETURNING n.name
    )
    SELECT coalesce(array_agg(name), '{}') INTO written FROM done;
    FOR gone IN 1..cardinality(in_gone) BY 2 LOOP
        DELETE FROM @waiters
        WHERE in_gone[gone] = ANY (written) AND name = in_gone[gone] AND request_id = in_gone[gone + 1];
    END LOOP;
    FOR put IN 1..cardinality(in_put) BY 6 LOOP
        INSERT INTO @waiters (name, request_id, place, joined_at, fresh_until, channel, waiter)
        SELECT n.name, in_put[put + 1], n.version - places + put / 6, in_put[put + 3]::bigint, in_put[put + 4]::bigint,
            in_put[put + 2], in_put[put + 5]
        FROM @names AS n WHERE n.name = in_put[put] AND n.name = ANY (written)
        ON CONFLICT (name, request_id) DO UPDATE SET
            joined_at = excluded.joined_at, fresh_until = excluded.fresh_until, waiter = excluded.waiter;
    END LOOP;
    FOR told IN 1..cardinality(in_told) BY 3 LOOP
        IF in_told[told] = ANY (written) THEN
            PERFORM pg_notify(in_told[told + 1], in_told[told + 2]);
        END IF;
    END LOOP;
    RETURN written;
END $$;

-- Delete the old rows among those that follow a name: SqlDatabase.sweep. Returns the last name that was looked at.
CREATE OR REPLACE FUNCTION @sweep(in_after text, in_most integer, in_retention bigint, in_reads integer) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    last_name text;
    highest bigint;
BEGIN
    @by_index;
    PERFORM @refuse_later(in_reads);
    PERFORM @wait_for_log();
    SELECT max(name) INTO last_name FROM (
        SELECT name FROM @names WHERE name > in_after ORDER BY name LIMIT in_most
    ) AS next HAVING count(*) = in_most;
    WITH old AS (
        SELECT name FROM @names
        WHERE name > in_after AND (last_name IS NULL OR name <= last_name) AND idle_after < @now - in_retention
        ORDER BY name
        FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM @names AS n USING old
        WHERE n.name = old.name AND n.idle_after < @now - in_retention
        RETURNING n.name, n.counter
    ), waiters AS (
        DELETE FROM @waiters AS w USING gone WHERE w.name = gone.name
    )
    SELECT max(counter) INTO highest FROM gone;
    UPDATE @meta SET floor = highest WHERE floor < highest;
    RETURN coalesce(last_name, '');
END $$;

-- Cells: contracts/cells.py. A version is at least the clock and larger than the one before: of two servers that have parted,
-- the one that is behind does not count up to the versions that the other one gave. The row of a removed cell stays for a
-- while without a value, so that its versions grow; `floor` of the settings is at least the version of every row that was
-- deleted. A row may be deleted after `kept_until`; 0: never.
CREATE TABLE IF NOT EXISTS @cells (
    name       text COLLATE "C" PRIMARY KEY,
    version    bigint NOT NULL,
    value      bytea  NOT NULL,
    kept_until bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

-- Return when the last quarantine began. Begin one if this server may have forgotten what the tables say, as @read does.
CREATE OR REPLACE FUNCTION @quarantined_since(in_longest_ttl bigint, in_strict boolean, in_reads integer)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    since bigint;
    doubtful boolean;
BEGIN
    SELECT quarantined_since, form > in_reads OR timeline <> @timeline OR (in_strict AND started <> @started)
    INTO since, doubtful FROM @meta;
    IF doubtful THEN
        PERFORM @refuse_later(in_reads);
        PERFORM @begin_quarantine(in_longest_ttl, in_strict);
        SELECT quarantined_since INTO since FROM @meta;
    END IF;
    RETURN since;
END $$;

-- A cell, in hexadecimal, and the quarantine in which it was read: SqlDatabase.read_cell. `since` is NULL if the settings
-- are gone.
CREATE OR REPLACE FUNCTION @read_cell(
    in_name text, in_longest_ttl bigint, in_strict boolean, in_reads integer,
    OUT at bigint, OUT since bigint, OUT version_found bigint, OUT value_found text
) LANGUAGE plpgsql AS $$
BEGIN
    @by_index;
    since := @quarantined_since(in_longest_ttl, in_strict, in_reads);
    at := @now;
    SELECT c.version, encode(c.value, 'hex') INTO version_found, value_found FROM @cells AS c WHERE c.name = in_name;
END $$;

-- Write a cell that has this version and was read in this quarantine: SqlDatabase.write_cell. A later server may have given
-- the same version to something else. Returns the cell as it is then.
CREATE OR REPLACE FUNCTION @write_cell(
    in_name text, in_value text, in_since bigint, in_version bigint, in_keep bigint, in_longest_ttl bigint,
    in_strict boolean, in_reads integer,
    OUT at bigint, OUT since bigint, OUT version_found bigint, OUT value_found text, OUT written boolean
) LANGUAGE plpgsql AS $$
DECLARE
    new_value bytea := decode(in_value, 'hex');
    until bigint := CASE
        WHEN in_value = '' THEN @now + @removed_for WHEN in_keep = 0 THEN 0 ELSE @now + in_keep
    END;
BEGIN
    @by_index;
    PERFORM @wait_for_log();
    since := @quarantined_since(in_longest_ttl, in_strict, in_reads);
    written := false;
    IF in_version <> 0 THEN
        UPDATE @cells AS c SET version = greatest(c.version + 1, @now), value = new_value, kept_until = until
        WHERE c.name = in_name AND c.version = in_version AND c.value <> '' AND in_since = since
        RETURNING c.version INTO version_found;
        written := FOUND;
    ELSIF in_value <> '' THEN
        UPDATE @cells AS c SET version = greatest(c.version + 1, @now), value = new_value, kept_until = until
        WHERE c.name = in_name AND c.value = ''
        RETURNING c.version INTO version_found;
        written := FOUND;
        IF NOT written THEN  -- the row of the floor is locked, so that no sweep raises the floor meanwhile
            INSERT INTO @cells AS c (name, version, value, kept_until)
            SELECT in_name, greatest(m.floor + 1, @now), new_value, until FROM @meta AS m FOR SHARE
            ON CONFLICT DO NOTHING
            RETURNING c.version INTO version_found;
            written := FOUND;
        END IF;
    END IF;
    at := @now;
    value_found := in_value;
    IF NOT written THEN
        SELECT c.version, encode(c.value, 'hex') INTO version_found, value_found FROM @cells AS c WHERE c.name = in_name;
        written := in_version = 0 AND in_value = '' AND coalesce(value_found, '') = '';
    END IF;
END $$;

-- Delete cells whose time is over, among some that follow a name: SqlDatabase.sweep_cells. Returns the last name that was
-- looked at; empty if these were the last cells. The floor is raised before the rows go.
CREATE OR REPLACE FUNCTION @sweep_cells(in_after text, in_most integer, in_reads integer) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    last_name text;
    old_names text[];
    highest bigint;
BEGIN
    @by_index;
    PERFORM @refuse_later(in_reads);
    PERFORM @wait_for_log();
    SELECT max(name) INTO last_name FROM (
        SELECT name FROM @cells WHERE name > in_after ORDER BY name LIMIT in_most
    ) AS next HAVING count(*) = in_most;
    SELECT array_agg(name), max(version) INTO old_names, highest FROM (
        SELECT name, version FROM @cells
        WHERE name > in_after AND (last_name IS NULL OR name <= last_name) AND kept_until BETWEEN 1 AND @now
        ORDER BY name
        FOR UPDATE SKIP LOCKED
    ) AS old;
    UPDATE @meta SET floor = highest WHERE floor < highest;
    DELETE FROM @cells WHERE name = ANY (old_names);
    RETURN coalesce(last_name, '');
END $$;
