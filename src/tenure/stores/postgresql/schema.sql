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
    queue         text    NOT NULL,
    waiting       integer NOT NULL
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
        CASE WHEN n.heads <> '' THEN (
            SELECT string_agg(channel, ' ') FROM unnest(string_to_array(n.heads, ' ')) AS channel
            WHERE pg_try_advisory_xact_lock_shared(hashtextextended(channel, 0))
        ) END,
        wanted.name, coalesce(n.version, 0), coalesce(n.counter, 0), coalesce(n.plain, true),
        coalesce(n.request_id, ''), coalesce(n.holder, ''), coalesce(n.ttl, 0), coalesce(n.lock_delay, 0),
        coalesce(n.granted_at, 0), coalesce(n.expires_at, 0), coalesce(n.last_released, ''),
        coalesce(n.tombstones, ''), coalesce(n.used_at, 0), coalesce(n.idle_after, 0), coalesce(n.state, ''),
        coalesce(n.heads, ''), coalesce(n.queue, ''), coalesce(n.waiting, 0)
    FROM @meta AS m CROSS JOIN unnest(in_names) AS wanted (name) LEFT JOIN @names AS n ON n.name = wanted.name;
END $$;

-- The same, after the rows are locked: SqlDatabase.transact.
CREATE OR REPLACE FUNCTION @lock(
    in_names text[], in_longest_ttl bigint, in_strict boolean, in_reads integer
) RETURNS SETOF @snapshot
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM @names WHERE name = ANY (in_names) ORDER BY name FOR UPDATE;
    RETURN QUERY SELECT * FROM @read(in_names, in_longest_ttl, in_strict, in_reads);
END $$;

-- By which factor a waiter with so many others ahead may be silent for longer: silence_factor in ../../table/times.py.
CREATE OR REPLACE FUNCTION @silence_factor(in_place integer, in_ttl bigint, in_waiter_ttl bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT greatest(1, least(1 + in_place / @crowd, @longest_silence, in_ttl / greatest(in_waiter_ttl, 1)))
$$;

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
    present_holder json;
    present_request text;
    present @names%ROWTYPE;
    guard @meta%ROWTYPE;
    at bigint;
    found_at integer;
    fresh_until text;
    until bigint;
BEGIN
    place := -1;
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM @wait_for_log();
    END IF;
    FOR attempt IN 1..2 LOOP
        UPDATE @names AS n SET
            version = CASE WHEN n.version = 0 THEN @now ELSE n.version + 1 END,
            counter = greatest(
                n.counter + 1, m.floor + 1, CASE WHEN @now <= @latest THEN @now ELSE 0 END,
                least(in_proposal, least(@now, @latest) + @proposal_bound)
            ) + in_span - 1,
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
            UPDATE @names AS n SET
                version = n.version + 1,
                plain = false,
                queue = CASE n.waiting WHEN 0 THEN '[' ELSE left(n.queue, -1) || ',' END
                    || '[' || @now || ',' || @now + in_waiter_ttl * @silence_factor(n.waiting, in_ttl, in_waiter_ttl)
                    || ',' || in_waiter || ']]',
                waiting = n.waiting + 1,
                heads = CASE
                    WHEN strpos(n.heads, in_channel) > 0 OR cardinality(string_to_array(n.heads, ' ')) >= @heads
                    THEN n.heads ELSE trim(n.heads || ' ' || in_channel)
                END,
                used_at = @now,
                idle_after = greatest(
                    n.idle_after, @now + in_waiter_ttl * @silence_factor(n.waiting, in_ttl, in_waiter_ttl)
                )
            FROM @meta AS m
            WHERE n.name = in_name
                AND (n.plain OR n.waiting > 0)
                AND n.request_id NOT IN ('', in_request_id)
                AND n.expires_at > @now
                AND n.expires_at <= @now + n.ttl
                AND n.used_at <= @now
                AND n.last_released <> in_request_id
                AND strpos(n.tombstones, in_request_id) = 0
                AND strpos(n.queue, in_request_id) = 0
                AND m.timeline = @timeline
                AND (m.started = @started OR NOT in_strict)
                AND m.quarantined_until <= @now
                AND m.form <= in_reads
            RETURNING n.waiting - 1,
                greatest(n.counter, CASE WHEN in_longest_ttl > 0 THEN m.quarantined_until - 1 ELSE 0 END),
                n.expires_at - @now, n.holder::json, n.request_id
            INTO place, last_token, rest, present_holder, present_request;
            IF FOUND THEN
                IF place = 0 AND (present_holder ->> 2)::boolean AND present_holder ->> 0 <> '' THEN
                    PERFORM pg_notify(present_holder ->> 0, '["contended","' || present_request || '",0,0,false]');
                END IF;
                RETURN;
            END IF;
            place := -1;
            -- A waiter that asks again while nothing has changed stays alive: its entry gets a new `fresh_until`.
            SELECT * INTO present FROM @names AS names
            WHERE names.name = in_name AND names.waiting > 0 AND strpos(names.queue, ',' || in_waiter || ']') > 0
            FOR UPDATE;
            IF FOUND THEN
                SELECT * INTO guard FROM @meta;
                at := @now;
                IF present.request_id NOT IN ('', in_request_id)
                    AND present.expires_at > at AND present.expires_at <= at + present.ttl
                    AND present.used_at <= at
                    AND present.last_released <> in_request_id
                    AND strpos(present.tombstones, in_request_id) = 0
                    AND guard.timeline = @timeline
                    AND (guard.started = @started OR NOT in_strict)
                    AND guard.quarantined_until <= at
                    AND guard.form <= in_reads
                THEN
                    found_at := strpos(present.queue, ',' || in_waiter || ']');
                    fresh_until := substring(right(left(present.queue, found_at - 1), 20) FROM '[0-9]+$');
                    place := (
                        SELECT number - 1
                        FROM json_array_elements(present.queue::json) WITH ORDINALITY AS queue (each, number)
                        WHERE each ->> 2 = in_request_id
                    );
                    until := at + in_waiter_ttl * @silence_factor(place, in_ttl, in_waiter_ttl);
                    UPDATE @names AS names SET
                        version = present.version + 1,
                        queue = overlay(
                            present.queue PLACING until::text
                            FROM found_at - length(fresh_until) FOR length(fresh_until)
                        ),
                        used_at = at,
                        idle_after = greatest(present.idle_after, until)
                    WHERE names.name = in_name;
                    last_token := greatest(
                        present.counter, CASE WHEN in_longest_ttl > 0 THEN guard.quarantined_until - 1 ELSE 0 END
                    );
                    rest := present.expires_at - at;
                    present_holder := present.holder::json;
                    IF (present_holder ->> 2)::boolean AND present_holder ->> 0 <> '' THEN
                        PERFORM pg_notify(
                            present_holder ->> 0, '["contended","' || present.request_id || '",0,0,false]'
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
        INSERT INTO @names VALUES (in_name, 0, 0, true, '', '', 0, 0, 0, 0, '', '', 0, @now, '', '', '', 0)
        ON CONFLICT DO NOTHING;
    END LOOP;
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
    waiter json;
    others text;
    other json;
    new_token bigint;
BEGIN
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
        waiter := n.queue::json -> 0;
        IF n.expires_at > at AND n.expires_at <= at + n.ttl AND n.used_at <= at
            AND (waiter ->> 1)::bigint >= at
            AND waiter ->> 3 <> ''
            AND NOT pg_try_advisory_xact_lock_shared(hashtextextended(waiter ->> 3, 0))
            AND m.timeline = @timeline
            AND (m.started = @started OR NOT in_strict)
            AND m.quarantined_until <= at
            AND m.form <= in_reads
        THEN
            others := CASE WHEN n.waiting > 1 THEN '[' || substr(n.queue, length(waiter::text) + 3) ELSE '' END;
            new_token := greatest(
                n.counter + 1, CASE WHEN at <= @latest THEN at ELSE 0 END,
                least((waiter ->> 11)::bigint, least(at, @latest) + @proposal_bound)
            ) + (waiter ->> 13)::bigint - 1;
            UPDATE @names AS names SET
                version = n.version + 1,
                counter = new_token,
                plain = (n.waiting = 1),
                request_id = waiter ->> 2,
                holder = '[' || (waiter -> 3) || ',' || (waiter -> 4) || ','
                    || CASE WHEN (waiter ->> 13)::bigint > 1 THEN 'true' ELSE 'false' END || ']',
                ttl = (waiter ->> 5)::bigint,
                lock_delay = (waiter ->> 10)::bigint,
                granted_at = at,
                expires_at = at + (waiter ->> 5)::bigint,
                last_released = in_request_id,
                used_at = at,
                idle_after = greatest(n.idle_after, at + (waiter ->> 5)::bigint + (waiter ->> 10)::bigint),
                queue = others,
                waiting = n.waiting - 1,
                heads = CASE WHEN others = '' THEN '' ELSE coalesce((
                    SELECT string_agg(channel, ' ' ORDER BY place) FROM (
                        SELECT each ->> 3 AS channel, min(number) AS place
                        FROM json_array_elements(others::json) WITH ORDINALITY AS queue (each, number)
                        WHERE each ->> 3 <> ''
                        GROUP BY channel ORDER BY place LIMIT @heads
                    ) AS first
                ), '') END
            WHERE names.name = in_name;
            PERFORM pg_notify(
                waiter ->> 3,
                '["granted",' || (waiter -> 2) || ',' || new_token || ',0,'
                || CASE WHEN n.waiting > 1 THEN 'true' ELSE 'false' END || ']'
            );
            IF others <> '' THEN
                other := others::json -> 0;
                IF other ->> 3 <> '' AND at + (waiter ->> 5)::bigint
                    < (other ->> 1)::bigint - (other ->> 7)::bigint + 2 * (other ->> 6)::bigint + @margin
                THEN
                    PERFORM pg_notify(
                        other ->> 3,
                        '["head",' || (other -> 2) || ',0,' || greatest((waiter ->> 5)::bigint, @retry) || ',false]'
                    );
                END IF;
            END IF;
            released := true;
            RETURN;
        END IF;
    END IF;
    SELECT * INTO row_found FROM @read(ARRAY[in_name], in_longest_ttl, in_strict, in_reads);
END $$;

-- Renew the leases in plain rows that last: SqlDatabase.renew. Returns the ids of their requests.
CREATE OR REPLACE FUNCTION @renew(in_names text[], in_request_ids text[], in_tokens bigint[], in_ttls bigint[])
RETURNS SETOF text LANGUAGE plpgsql AS $$
BEGIN
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
        idle_after = greatest(least(n.expires_at, @now + n.ttl), @now + r.ttl) + n.lock_delay
    FROM unnest(in_names, in_request_ids, in_tokens, in_ttls) AS r (name, request_id, token, ttl)
    WHERE n.name = r.name AND n.plain AND n.request_id = r.request_id AND n.counter = r.token AND n.expires_at > @now
    RETURNING n.request_id;
END $$;

-- Write the rows that still have the version that they replace: SqlDatabase.write. Returns the names that are written.
-- None if this server may have forgotten grants since they were read: `in_since` is the quarantine of then.
-- `in_told` has the name, the channel and the text of each notification, one after another.
CREATE OR REPLACE FUNCTION @write(
    in_as_of bigint, in_since bigint, in_strict boolean, in_reads integer, in_atomic boolean, in_told text[],
    in_names text[], in_versions bigint[], in_counters bigint[], in_plains boolean[], in_request_ids text[],
    in_holders text[], in_ttls bigint[], in_lock_delays bigint[], in_granted_ats bigint[], in_expires_ats bigint[],
    in_last_releaseds text[], in_tombstones text[], in_used_ats bigint[], in_idle_afters bigint[], in_states text[],
    in_heads text[], in_queues text[], in_waitings integer[]
) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    written text[];
BEGIN
    IF NOT EXISTS (
        SELECT FROM @meta
        WHERE quarantined_since = in_since AND timeline = @timeline AND (started = @started OR NOT in_strict)
            AND form <= in_reads
    ) THEN
        RETURN '{}';
    END IF;
    PERFORM @wait_for_log();
    INSERT INTO @names
    SELECT name, 0, 0, true, '', '', 0, 0, 0, 0, '', '', 0, @now, '', '', '', 0
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
            version = CASE WHEN n.version = 0 THEN @now ELSE n.version + 1 END,
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
            queue = r.queue,
            waiting = r.waiting
        FROM unnest(
            in_names, in_versions, in_counters, in_plains, in_request_ids, in_holders, in_ttls, in_lock_delays,
            in_granted_ats, in_expires_ats, in_last_releaseds, in_tombstones, in_used_ats, in_idle_afters, in_states,
            in_heads, in_queues, in_waitings
        ) AS r (
            name, version, counter, plain, request_id, holder, ttl, lock_delay, granted_at, expires_at, last_released,
            tombstones, used_at, idle_after, state, heads, queue, waiting
        )
        WHERE n.name = r.name AND n.version = r.version
        RETURNING n.name
    )
    SELECT coalesce(array_agg(name), '{}') INTO written FROM done;
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
        RETURNING n.counter
    )
    SELECT max(counter) INTO highest FROM gone;
    UPDATE @meta SET floor = highest WHERE floor < highest;
    RETURN coalesce(last_name, '');
END $$;

-- Cells: contracts/cells.py. Every write takes the next number as the version, which no row ever had. A cell that nobody
-- writes may be removed after `kept_until`; 0: never.
CREATE TABLE IF NOT EXISTS @cells (
    name       text COLLATE "C" PRIMARY KEY,
    version    bigint GENERATED ALWAYS AS IDENTITY,
    value      bytea  NOT NULL,
    kept_until bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

-- Write a cell that has this version: SqlDatabase.write_cell. Values are hexadecimal. Returns the cell as it is then.
CREATE OR REPLACE FUNCTION @write_cell(
    in_name text, in_value text, in_version bigint, in_keep bigint, in_reads integer,
    OUT at bigint, OUT version_found bigint, OUT value_found text, OUT written boolean
) LANGUAGE plpgsql AS $$
DECLARE
    until bigint := CASE in_keep WHEN 0 THEN 0 ELSE @now + in_keep END;
BEGIN
    PERFORM @refuse_later(in_reads);
    PERFORM @wait_for_log();
    IF in_version = 0 AND in_value <> '' THEN
        INSERT INTO @cells AS c (name, value, kept_until) VALUES (in_name, decode(in_value, 'hex'), until)
        ON CONFLICT DO NOTHING RETURNING c.version INTO version_found;
    ELSIF in_value <> '' THEN
        UPDATE @cells AS c SET version = DEFAULT, value = decode(in_value, 'hex'), kept_until = until
        WHERE c.name = in_name AND c.version = in_version
        RETURNING c.version INTO version_found;
    ELSE
        DELETE FROM @cells AS c WHERE c.name = in_name AND c.version = in_version;
    END IF;
    written := FOUND;
    at := @now;
    value_found := in_value;
    IF NOT written THEN
        SELECT c.version, encode(c.value, 'hex') INTO version_found, value_found FROM @cells AS c WHERE c.name = in_name;
        written := in_version = 0 AND in_value = '' AND NOT FOUND;
    END IF;
END $$;

-- Remove cells whose time is over, among some that follow a name: SqlDatabase.sweep_cells. Returns the last name that was
-- looked at; empty if these were the last cells.
CREATE OR REPLACE FUNCTION @sweep_cells(in_after text, in_most integer, in_reads integer) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    last_name text;
BEGIN
    PERFORM @refuse_later(in_reads);
    PERFORM @wait_for_log();
    SELECT max(name) INTO last_name FROM (
        SELECT name FROM @cells WHERE name > in_after ORDER BY name LIMIT in_most
    ) AS next HAVING count(*) = in_most;
    WITH old AS (
        SELECT name FROM @cells
        WHERE name > in_after AND (last_name IS NULL OR name <= last_name) AND kept_until BETWEEN 1 AND @now
        ORDER BY name
        FOR UPDATE SKIP LOCKED
    )
    DELETE FROM @cells AS c USING old WHERE c.name = old.name AND c.kept_until BETWEEN 1 AND @now;
    RETURN coalesce(last_name, '');
END $$;
