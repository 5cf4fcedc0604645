"""The SQL that all watched tables of a schema share: the table of feeds, how numbers are drawn, and the horizon.

**Why no change is missed.** A change gets its number from a sequence, and transactions commit in a different order than
they draw numbers. So before its first number in a partition, a transaction takes a shared advisory lock that encodes
the last number drawn so far, and holds it until it ends. The function `look` reads the last numbers first, then the
locks, and only then takes a snapshot. Every transaction that has drawn a number by then had taken its lock. If it still
holds the lock, its numbers are above the lock's number, and readers stop there. If it has ended, the snapshot shows its
changes, because the server makes a commit visible before it releases locks. So everything up to the lowest of the last
number and the locks is complete.

**Why readers never see what a crash can undo.** A number that a reader has passed must not be drawn again. But a crash
may forget asynchronous commits, and numbers that were drawn and rolled back. So when the horizon has moved, `look`
writes something itself and waits until its own commit is on disk: everything before it is on disk then, too.

**Why the changes of a key are in order.** A transaction draws a number while it holds the row's lock. The next
transaction changes the row after the first has ended, and draws a higher number. Transaction ids have no such order: a
transaction that got its id early may change a row late.

Names between @ are placeholders. Any change here or in the trigger must raise VERSION.
"""

from __future__ import annotations

import re

VERSION = 2
SCHEMA = "evenflow_feed"
HISTORY_BITS = 40
"""A number is (history << 40) + a count, so numbers that a failover lost are never reused."""

COMMON = """
CREATE TABLE IF NOT EXISTS @schema@.feeds (
    id smallint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE,               -- SCHEMA.TABLE
    relation oid NOT NULL,
    made text NOT NULL DEFAULT replace(gen_random_uuid()::text, '-', ''),
    partitions integer NOT NULL,
    previous boolean NOT NULL,               -- whether the log has images from before changes
    key text[] NOT NULL,
    key_at text NOT NULL,                    -- where its columns are in the table: they may be renamed
    keep_s double precision,                 -- retention; where there is none, everything is kept
    timeline text NOT NULL,                  -- the server's; another one means that a standby or a backup took over
    history bigint NOT NULL DEFAULT 0,       -- which one this is: the upper bits of its numbers
    ends jsonb NOT NULL DEFAULT '{}',        -- the last numbers of each history that has ended
    floors bigint[] NOT NULL,                -- up to here the log was pruned
    filled text[],                           -- how far existing rows were copied, as a key
    is_filled boolean NOT NULL DEFAULT false,
    pruned_at timestamptz NOT NULL DEFAULT now(),
    made_at timestamptz NOT NULL DEFAULT now()
);

CREATE SEQUENCE IF NOT EXISTS @schema@.written;

CREATE OR REPLACE FUNCTION @schema@.version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT @version@';

CREATE OR REPLACE FUNCTION @schema@.timeline() RETURNS text LANGUAGE sql VOLATILE AS
    'SELECT left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)';

-- The last numbers drawn, 0 if there are none yet.
CREATE OR REPLACE FUNCTION @schema@.lasts(feed integer, partitions integer) RETURNS bigint[] LANGUAGE sql VOLATILE AS $$
    SELECT array_agg(coalesce(pg_sequence_last_value(
        ('@schema@.number_' || feed || '_' || place)::regclass), 0) ORDER BY place)
    FROM generate_series(0, partitions - 1) place $$;

-- Another server has taken over. It may have lost numbers that were read already, so it continues above all of them.
-- This does not depend on a transaction: the first writer's may stay open for long, or roll back.
CREATE OR REPLACE FUNCTION @schema@.rise(feed integer, history bigint, partitions integer) RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    kind CONSTANT integer := hashtext('@schema@.rise');
    number bigint;
BEGIN
    PERFORM pg_advisory_lock(kind, feed);
    BEGIN
        FOR place IN 0 .. partitions - 1 LOOP
            number := coalesce(pg_sequence_last_value(('@schema@.number_' || feed || '_' || place)::regclass), 0);
            IF number >> @history_bits@ <= history THEN
                PERFORM setval(('@schema@.end_' || feed || '_' || place)::regclass, number);
                PERFORM setval(('@schema@.number_' || feed || '_' || place)::regclass, (history + 1) << @history_bits@);
            END IF;
        END LOOP;
    EXCEPTION WHEN OTHERS OR query_canceled THEN
        PERFORM pg_advisory_unlock(kind, feed);
        RAISE;
    END;
    PERFORM pg_advisory_unlock(kind, feed);
END $$;

-- Called by readers after a takeover: records where the previous history has ended.
CREATE OR REPLACE FUNCTION @schema@.turn(feed integer) RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    mine record;
BEGIN
    SELECT partitions, timeline, history INTO mine FROM @schema@.feeds WHERE id = feed FOR UPDATE;
    IF mine.timeline = @schema@.timeline() THEN
        RETURN;
    END IF;
    PERFORM @schema@.rise(feed, mine.history, mine.partitions);
    UPDATE @schema@.feeds SET timeline = @schema@.timeline(), history = mine.history + 1,
        ends = ends || jsonb_build_object(mine.history, (
            SELECT array_agg(pg_sequence_last_value(('@schema@.end_' || feed || '_' || place)::regclass) ORDER BY place)
            FROM generate_series(0, mine.partitions - 1) place))
    WHERE id = feed;
END $$;

-- Called before a transaction's first number in a partition. Rolling back to a savepoint undoes the note and the lock
-- together, so a transaction that finds the note holds the lock.
CREATE OR REPLACE FUNCTION @schema@.enter(feed integer, place integer, mark text, noted text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    now_ms bigint := extract(epoch FROM clock_timestamp()) * 1000;
    numbers CONSTANT regclass := '@schema@.number_' || feed || '_' || place;
    mine record;
BEGIN
    SELECT timeline, history, partitions INTO mine FROM @schema@.feeds WHERE id = feed;
    IF mine.timeline <> @schema@.timeline()
        AND coalesce(pg_sequence_last_value(numbers), 0) >> @history_bits@ <= mine.history THEN
        PERFORM @schema@.rise(feed, mine.history, mine.partitions);
    END IF;
    IF noted IS NULL OR split_part(noted, ' ', 1) <> mark THEN
        noted := mark || ' ';
        -- Only while a poller sleeps, since NOTIFY serialises commits, and is not allowed in a prepared transaction.
        IF pg_sequence_last_value(('@schema@.bell_' || feed)::regclass) > now_ms
            AND current_setting('max_prepared_transactions') = '0' THEN
            PERFORM pg_notify('@schema@', feed::text);
        END IF;
    END IF;
    PERFORM pg_advisory_xact_lock_shared(((feed % 128)::bigint << 56) | (place::bigint << 48)
        | (coalesce(pg_sequence_last_value(numbers), 0) & ((1::bigint << 48) - 1)));
    RETURN set_config('@schema@.open_' || feed, noted || place || ' ', true);
END $$;

-- The open transactions that have drawn numbers: their partition, and how far below the last number they began.
CREATE OR REPLACE FUNCTION @schema@.writers(feed integer, lasts bigint[])
RETURNS TABLE (place integer, below bigint, pid integer, "transaction" text)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    -- A transaction that began after the last number was read is above it, and does not limit the horizon.
    SELECT found, CASE WHEN distance < 1::bigint << 47 THEN distance ELSE 0 END, found_pid, found_transaction
    FROM (
        SELECT ((classid::bigint >> 16) & 255)::integer AS found, pid AS found_pid,
            virtualtransaction AS found_transaction,
            (lasts[((classid::bigint >> 16) & 255) + 1] - (((classid::bigint & 65535) << 32) | objid::bigint))
                & ((1::bigint << 48) - 1) AS distance
        FROM pg_locks
        WHERE locktype = 'advisory' AND objsubid = 1 AND mode = 'ShareLock' AND granted
            AND classid::bigint >> 24 = feed % 128
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    ) held
    WHERE found < array_length(lasts, 1) $$;

-- How many open transactions there are, and up to which number each partition is complete.
CREATE OR REPLACE FUNCTION @schema@.complete(feed integer, lasts bigint[], OUT open integer, OUT horizons bigint[])
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(sum(writers), 0), array_agg(lasts[place + 1] - coalesce(below, 0) ORDER BY place)
    FROM generate_series(0, array_length(lasts, 1) - 1) place LEFT JOIN (
        SELECT place, max(below) AS below, count(*) AS writers FROM @schema@.writers(feed, lasts) GROUP BY place
    ) held USING (place) $$;

-- How far each partition may be read, and its newest change. `known` are the horizons of the caller's previous call.
CREATE OR REPLACE FUNCTION @schema@.look(feed integer, sleep_ms integer, known bigint[], OUT trouble text,
    OUT made text, OUT ends text, OUT open integer, OUT lasts bigint[], OUT horizons bigint[], OUT newest bigint[],
    OUT floors bigint[], OUT has_large boolean) RETURNS record
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    mine record;
    bell CONSTANT regclass := '@schema@.bell_' || feed;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'not read committed' USING ERRCODE = 'EV011';
    ELSIF pg_is_in_recovery() THEN
        RAISE EXCEPTION 'a standby' USING ERRCODE = 'EV012';
    END IF;
    SELECT * INTO STRICT mine FROM @schema@.feeds WHERE id = feed;
    trouble := @schema@.trouble(feed);
    made := mine.made || '.' || ('@schema@.log_' || feed)::regclass::oid;
    IF trouble IS NOT NULL THEN
        RETURN;
    END IF;
    IF mine.timeline <> @schema@.timeline() THEN
        PERFORM @schema@.turn(feed);
        SELECT * INTO STRICT mine FROM @schema@.feeds WHERE id = feed;
    END IF;
    IF sleep_ms > 0 THEN
        PERFORM setval(bell, greatest(coalesce(pg_sequence_last_value(bell), 1),
            (extract(epoch FROM clock_timestamp()) * 1000)::bigint + sleep_ms));
    END IF;
    ends := mine.ends;
    floors := mine.floors;
    -- From here on the order counts: numbers, then locks, then the snapshot of the last statement.
    lasts := @schema@.lasts(feed, mine.partitions);
    SELECT found.open, found.horizons INTO open, horizons FROM @schema@.complete(feed, lasts) found;
    EXECUTE 'SELECT array_agg(coalesce((SELECT max(sequence) FROM @schema@.log_' || feed
        || ' WHERE partition = place AND sequence <= $1[place + 1]), 0) ORDER BY place)'
        ' FROM generate_series(0, $2 - 1) place' INTO newest USING horizons, mine.partitions;
    has_large := pg_relation_size((SELECT reltoastrelid FROM pg_class
        WHERE oid = ('@schema@.log_' || feed)::regclass)) > 0;
    IF horizons IS DISTINCT FROM known AND pg_current_wal_flush_lsn() < pg_current_wal_insert_lsn() THEN
        PERFORM set_config('synchronous_commit', 'local', true);
        PERFORM setval('@schema@.written', 1);
    END IF;
END $$;

-- Why changes of a table are not logged, or cannot be assigned to rows; NULL if there is no problem.
CREATE OR REPLACE FUNCTION @schema@.trouble(feed integer) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE
        WHEN to_regclass(name)::oid <> relation
        THEN 'another table has its name now: it was recreated, or restored from a dump'
        WHEN pg_class.oid IS NULL THEN 'the table was dropped'
        WHEN NOT EXISTS (SELECT 1 FROM pg_trigger WHERE tgrelid = relation AND tgenabled = 'A'
                AND tgfoid = to_regproc('@schema@.note_' || feed))
            OR NOT EXISTS (SELECT 1 FROM pg_trigger WHERE tgrelid = relation AND tgenabled = 'A'
                AND tgfoid = to_regproc('@schema@.truncate_' || feed))
            OR relkind = 'p' AND EXISTS (SELECT 1 FROM pg_partition_tree(relation) child WHERE isleaf
                AND NOT EXISTS (SELECT 1 FROM pg_trigger WHERE tgrelid = child.relid AND tgenabled IN ('A', 'O')
                    AND tgfoid = to_regproc('@schema@.note_' || feed)))
        THEN 'its trigger was dropped or disabled, and changes since then are not in the log'
        WHEN key_at IS DISTINCT FROM
            (SELECT indkey::text FROM pg_index WHERE indrelid = relation AND indisprimary)
        THEN 'its primary key is not the one that it had when it was first watched' END
    FROM @schema@.feeds LEFT JOIN pg_class ON pg_class.oid = relation WHERE id = feed $$;

-- The position before the first change at or after the time. Times are ordered like numbers except for concurrent
-- transactions: so the binary search stops ten seconds earlier, and a scan follows.
CREATE OR REPLACE FUNCTION @schema@.before(feed integer, place integer, time_us bigint) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    low bigint;
    high bigint;
    mine record;
    log CONSTANT text := ' FROM @schema@.log_' || feed || ' WHERE partition = $1';
BEGIN
    EXECUTE 'SELECT min(sequence) - 1, max(sequence)' || log INTO low, high USING place;
    WHILE high - low > 100 LOOP
        EXECUTE 'SELECT sequence, at_us' || log || ' AND sequence > $2 ORDER BY sequence LIMIT 1'
            INTO mine USING place, (low + high) / 2;
        IF mine.at_us < time_us - 10000000 THEN
            low := mine.sequence;
        ELSE
            high := (low + high) / 2;
        END IF;
    END LOOP;
    EXECUTE 'SELECT sequence - 1' || log || ' AND sequence > $2 AND at_us >= $3 ORDER BY sequence LIMIT 1'
        INTO low USING place, low, time_us;
    RETURN low;
END $$;

-- Removes older changes, up to a number of rows for each partition, and returns how many. If all versions are kept,
-- every older change is removed. Otherwise only those that a later change of the key has replaced: the latest version
-- of a row stays.
CREATE OR REPLACE FUNCTION @schema@.prune(feed integer, older_s double precision, most integer) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    mine record;
    removed bigint;
    upto bigint[];
    cut CONSTANT bigint := (extract(epoch FROM clock_timestamp()) - older_s) * 1000000;
    log CONSTANT text := '@schema@.log_' || feed;
BEGIN
    SELECT * INTO mine FROM @schema@.feeds WHERE id = feed FOR UPDATE;
    UPDATE @schema@.feeds SET pruned_at = clock_timestamp() WHERE id = feed;
    IF NOT mine.previous THEN
        -- A delete is removed only after everything before it: otherwise the deleted row would appear again.
        EXECUTE 'DELETE FROM ' || log || ' WHERE (partition, sequence) IN (SELECT partition, sequence FROM ('
            'SELECT partition, sequence, at_us, op, lead(sequence) OVER of_key AS later,'
            ' lag(sequence) OVER of_key AS earlier, row_number() OVER (all_of_it ORDER BY sequence) AS at,'
            ' max(CASE WHEN op = ''t'' THEN sequence END) OVER all_of_it AS emptied FROM ' || log ||
            ' WINDOW of_key AS (PARTITION BY partition, key ORDER BY sequence),'
            ' all_of_it AS (PARTITION BY partition)) every'
            ' WHERE at_us < $1 AND (sequence < emptied OR CASE op WHEN ''t'' THEN at = 1'
            ' WHEN ''d'' THEN earlier IS NULL ELSE later IS NOT NULL END) LIMIT $2)'
            USING cut, most * mine.partitions;
        GET DIAGNOSTICS removed = ROW_COUNT;
        RETURN removed;
    END IF;
    -- Removes from the lower end of each partition, so that one number describes what was removed: everything up to
    -- the first younger change, but nothing beyond the horizon.
    SELECT horizons INTO upto FROM @schema@.complete(feed, @schema@.lasts(feed, mine.partitions));
    EXECUTE 'SELECT array_agg(coalesce((SELECT max(sequence) FROM ('
        'SELECT sequence, max(at_us) OVER (ORDER BY sequence) AS latest_us FROM ('
        'SELECT sequence, at_us FROM ' || log || ' WHERE partition = place AND sequence <= $3[place + 1]'
        ' ORDER BY sequence LIMIT $2) lower) old'
        ' WHERE latest_us < $1), 0) ORDER BY place) FROM generate_series(0, array_length($3, 1) - 1) place'
        INTO upto USING cut, most, upto;
    RETURN @schema@.forget(feed, upto);
END $$;

-- Removes everything up to these numbers.
CREATE OR REPLACE FUNCTION @schema@.forget(feed integer, upto bigint[]) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    removed bigint;
BEGIN
    EXECUTE 'DELETE FROM @schema@.log_' || feed || ' log USING unnest($1) WITH ORDINALITY ends(number, place)'
        ' WHERE partition = place - 1 AND sequence <= number' USING upto;
    GET DIAGNOSTICS removed = ROW_COUNT;
    UPDATE @schema@.feeds SET floors = (SELECT array_agg(greatest(one, other) ORDER BY at)
        FROM unnest(floors, upto) WITH ORDINALITY both_of(one, other, at)) WHERE id = feed;
    RETURN removed;
END $$;

-- Called by readers regularly: applies the configured retention, in one session at a time and not too often.
CREATE OR REPLACE FUNCTION @schema@.tidy(feed integer) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    older_s double precision;
BEGIN
    SELECT keep_s INTO older_s FROM @schema@.feeds
    WHERE id = feed AND pruned_at < clock_timestamp() - make_interval(secs => greatest(60, keep_s / 8))
    FOR UPDATE SKIP LOCKED;
    RETURN CASE WHEN older_s IS NULL THEN 0 ELSE @schema@.prune(feed, older_s, 20000) END;
END $$;
"""


def common(schema: str) -> str:
    return filled_in(COMMON, schema=schema, version=VERSION, history_bits=HISTORY_BITS)


def filled_in(text: str, **values: object) -> str:
    """Replaces placeholders in one pass, so that inserted text is not searched again."""
    return re.sub(r"@(\w+)@", lambda found: str(values[found[1]]), text)
