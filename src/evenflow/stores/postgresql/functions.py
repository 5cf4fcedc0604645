"""The PL/pgSQL functions of a PostgreSQL store. Each is one atomic step, called with one statement.

They implement `stores/rules.py` in the server, so that a heartbeat is one round trip. A function that changes a group
takes the group's row lock and its next revision under that lock, so a reader of "changes since" misses no change that
commits late. Wall-clock times are the server's and only for display. Operator requests are decided in Python.
"""

from __future__ import annotations

from evenflow.stores import rules

SUPERSEDED, REFUSED = "EV001", "EV002"
"""SQLSTATE codes of evenflow's own errors."""

LOCK_WAIT = "2s"
"""Far below a time-to-live, so that a caller that hits a lock can retry in time."""

_LEASE = """json_build_array(l.partition, l.owner, l.incarnation, l.epoch, l.revision, l.history, l.ttl_s,
            l.late, l.ended, l.reason, l.changed_at)"""
_MEMBER = "json_build_array(r.facts::json, r.incarnation, r.mark, r.heartbeat_at)"
_STATE = """json_build_object('source', g.source, 'pauses', g.pauses::json, 'retired', g.retired::json,
            'redrives', g.redrives::json)"""
_RECORD = """json_build_array(c.partition, c.epoch, c."offset", c.sequence, c.ordinal, c.notes::json,
            c.event_at, c.begun, c.fruitless, c.effects, c.changed_at, c.edition)"""
_WHOLE = """
    SELECT coalesce(json_agg(LEASE), '[]') INTO leases FROM evenflow.leases l WHERE l.group_id = g.id;
    SELECT coalesce(json_agg(MEMBER), '[]') INTO members FROM evenflow.members r WHERE r.group_id = g.id;"""
_NOW = "extract(epoch FROM clock_timestamp())"
_DELETING = "hashtextextended(concat_ws(E'\\n', 'evenflow.meta'::regclass::oid, a_namespace, a_hub, a_name), 0)"

_TEXT = """
-- These identify the server; '' if the role may not read them. A server that is promoted or restored from an archive
-- starts a new timeline. (The control file also has it, but only after the next checkpoint.)
CREATE OR REPLACE FUNCTION evenflow.timeline() RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RETURN left(pg_walfile_name(pg_current_wal_insert_lsn()), 8);
EXCEPTION WHEN insufficient_privilege OR object_not_in_prerequisite_state OR feature_not_supported THEN
    RETURN '';
END $$;
CREATE OR REPLACE FUNCTION evenflow.system() RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT system_identifier::text FROM pg_control_system());
EXCEPTION WHEN insufficient_privilege OR object_not_in_prerequisite_state OR feature_not_supported THEN
    RETURN '';
END $$;

-- The store's own row. Every function that writes reads it here. If the server has changed since the last write, the
-- history rises, because the new server may have lost writes that the old one acknowledged.
CREATE OR REPLACE FUNCTION evenflow.current_meta() RETURNS evenflow.meta LANGUAGE plpgsql AS $$
DECLARE
    m evenflow.meta%ROWTYPE;
    timeline_now text := evenflow.timeline();
    system_now text := evenflow.system();
    -- A restored dump has another table oid, and a copy has another database oid.
    place_now text := (SELECT oid FROM pg_database WHERE datname = current_database()) || '.'
        || 'evenflow.meta'::regclass::oid;
BEGIN
    IF current_setting('synchronous_commit') = 'off' THEN  -- an acknowledged write must survive a crash
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    SELECT * INTO m FROM evenflow.meta;
    IF NOT FOUND THEN  -- the table was emptied: a new lineage
        INSERT INTO evenflow.meta DEFAULT VALUES ON CONFLICT DO NOTHING;
        SELECT * INTO STRICT m FROM evenflow.meta;
    END IF;
    IF timeline_now NOT IN ('', m.timeline) OR system_now NOT IN ('', m.system) OR place_now <> m.place THEN
        SELECT * INTO STRICT m FROM evenflow.meta FOR UPDATE;  -- another session may have noticed it first
        IF m.timeline <> '' AND timeline_now NOT IN ('', m.timeline)
            OR m.system <> '' AND system_now NOT IN ('', m.system)
            OR m.place NOT IN ('', place_now)
        THEN
            m.history := m.history + 1;
            m.lineage := replace(gen_random_uuid()::text, '-', '');
        END IF;
        UPDATE evenflow.meta SET history = m.history, lineage = m.lineage, place = place_now,
            timeline = coalesce(nullif(timeline_now, ''), timeline), system = coalesce(nullif(system_now, ''), system)
            RETURNING * INTO STRICT m;
    END IF;
    RETURN m;
END $$;

-- The epoch floor of a group's name. The shared lock keeps a delete from changing it before this transaction ends. All
-- functions that create a group or a record call this, so requests in flight cannot recreate a deleted group.
CREATE OR REPLACE FUNCTION evenflow.locked_floor(a_namespace text, a_hub text, a_name text)
RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(DELETING);
    RETURN coalesce((SELECT epoch_floor FROM evenflow.floors
        WHERE namespace = a_namespace AND hub = a_hub AND consumer_group = a_name), 0);
END $$;

CREATE OR REPLACE FUNCTION evenflow.wake(a_namespace text, a_hub text, a_name text, a_instance text)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN  -- an empty instance stands for all instances
    PERFORM pg_notify('CHANNEL', md5(a_namespace || E'\\n' || a_hub || E'\\n' || a_name) || ' ' || a_instance);
END $$;

CREATE OR REPLACE FUNCTION evenflow.heartbeat(
    a_namespace text, a_hub text, a_name text, a_id text, a_nonce text, a_incarnation bigint, a_leaving boolean,
    a_source text, a_digest text, a_facts text, a_lineage text, a_history bigint, a_revision bigint
) RETURNS text LANGUAGE plpgsql SET lock_timeout = 'LOCK_WAIT' SET enable_seqscan = off AS $$
DECLARE
    g evenflow.groups%ROWTYPE;
    before evenflow.groups%ROWTYPE;
    m evenflow.meta%ROWTYPE;
    mine evenflow.members%ROWTYPE;
    now_s double precision;
    number bigint;
    floor bigint;
    known boolean;
    departed boolean := false;
    whole boolean;
    roster boolean;
    gone boolean := false;
    leases json := '[]';
    members json := '[]';
BEGIN
    UPDATE evenflow.groups SET revision = revision + 1
        WHERE namespace = a_namespace AND hub = a_hub AND name = a_name RETURNING * INTO g;
    IF NOT FOUND THEN
        m := evenflow.current_meta();
        floor := evenflow.locked_floor(a_namespace, a_hub, a_name);
        SELECT * INTO STRICT m FROM evenflow.meta;
        INSERT INTO evenflow.groups (namespace, hub, name, born, revision, newest, began, epoch_floor)
            VALUES (a_namespace, a_hub, a_name, m.revision_floor + 1, m.revision_floor + 1, m.incarnation_floor,
                m.history, floor)
            ON CONFLICT DO NOTHING;
        UPDATE evenflow.groups SET revision = revision + 1
            WHERE namespace = a_namespace AND hub = a_hub AND name = a_name RETURNING * INTO STRICT g;
    END IF;
    m := evenflow.current_meta();
    before := g;
    now_s := NOW_S;

    SELECT * INTO mine FROM evenflow.members WHERE group_id = g.id AND id = a_id;
    known := FOUND;
    IF NOT (known AND mine.nonce = a_nonce) THEN
        SELECT count(*) > 0 INTO departed FROM evenflow.departures WHERE group_id = g.id AND nonce = a_nonce;
    END IF;
    IF departed THEN  -- a late heartbeat changes nothing
        gone := true;
        UPDATE evenflow.groups SET revision = revision - 1 WHERE id = g.id RETURNING * INTO g;
    ELSE
        -- rules.history_after
        IF a_history >= m.history
            AND (a_lineage <> m.lineage OR (a_history, a_revision) > (m.history, g.revision - 1))
        THEN
            UPDATE evenflow.meta SET history = greatest(history, a_history + 1) RETURNING * INTO m;
        END IF;

        -- rules.first_history
        g.began := least(g.began, a_history);

        -- rules.admit_incarnation
        IF known AND mine.nonce = a_nonce AND a_incarnation IN (0, mine.incarnation) THEN
            number := mine.incarnation;
        ELSIF a_incarnation = 0 THEN
            number := greatest(g.newest, m.history << 32) + 1;
        ELSIF known AND mine.incarnation >= a_incarnation THEN
            RAISE EXCEPTION 'superseded' USING ERRCODE = 'SUPERSEDED',
                DETAIL = mine.facts;
        ELSE
            number := a_incarnation;
        END IF;
        IF a_facts IS NULL AND NOT (known AND mine.incarnation = number AND mine.digest = a_digest) THEN
            RETURN NULL;  -- the caller has to send all facts
        END IF;
        g.newest := greatest(g.newest, number);

        IF a_leaving AND NOT EXISTS (
            SELECT 1 FROM evenflow.leases WHERE group_id = g.id AND owner = a_id AND incarnation = number)
        THEN
            DELETE FROM evenflow.members WHERE group_id = g.id AND id = a_id AND incarnation = number;
            IF FOUND THEN
                g.roster_revision := g.revision;
            END IF;
            gone := true;
            INSERT INTO evenflow.departures VALUES (g.id, a_nonce, g.revision)  -- rules.remember_departed
                ON CONFLICT (group_id, nonce) DO UPDATE SET revision = excluded.revision;
            DELETE FROM evenflow.departures WHERE group_id = g.id AND nonce IN (SELECT nonce FROM evenflow.departures
                WHERE group_id = g.id ORDER BY revision DESC OFFSET DEPARTED_KEPT);
        ELSIF known AND mine.incarnation = number AND mine.digest = a_digest THEN
            UPDATE evenflow.members SET mark = g.revision, heartbeat_at = now_s WHERE group_id = g.id AND id = a_id;
        ELSE
            INSERT INTO evenflow.members (group_id, id, incarnation, nonce, mark, heartbeat_at, digest, facts)
                VALUES (g.id, a_id, number, a_nonce, g.revision, now_s, a_digest, a_facts)
                ON CONFLICT (group_id, id) DO UPDATE SET incarnation = excluded.incarnation, nonce = excluded.nonce,
                    mark = excluded.mark, heartbeat_at = excluded.heartbeat_at, digest = excluded.digest,
                    facts = excluded.facts;
            g.roster_revision := g.revision;
        END IF;

        IF EXISTS (SELECT 1 FROM evenflow.members
                   WHERE group_id = g.id AND mark <= a_revision AND heartbeat_at < now_s - FORGOTTEN_AFTER)
        THEN
            DELETE FROM evenflow.members r
                WHERE group_id = g.id AND mark <= a_revision AND heartbeat_at < now_s - FORGOTTEN_AFTER
                AND NOT EXISTS (SELECT 1 FROM evenflow.leases l
                    WHERE l.group_id = g.id AND l.owner = r.id AND l.incarnation = r.incarnation);
            IF FOUND THEN
                g.roster_revision := g.revision;
            END IF;
        END IF;
        IF g.retired <> '{}' AND g.roster_revision = g.revision THEN  -- rules.prune_retired
            SELECT coalesce(json_object_agg(request.key, request.value), '{}')::text INTO g.retired
                FROM json_each(g.retired::json) request WHERE EXISTS (
                    SELECT 1 FROM evenflow.members r
                    WHERE r.group_id = g.id AND r.id || '#' || r.incarnation = request.key);
        END IF;
        IF g.source = '' AND a_source <> '' THEN
            g.source := a_source;
            PERFORM evenflow.wake(a_namespace, a_hub, a_name, '');
        END IF;
        IF g IS DISTINCT FROM before THEN
            UPDATE evenflow.groups SET roster_revision = g.roster_revision, newest = g.newest, source = g.source,
                retired = g.retired, began = g.began WHERE id = g.id;
        END IF;
    END IF;

    -- rules.can_send_changes
    whole := (a_lineage, a_history) IS DISTINCT FROM (m.lineage, m.history)
        OR a_revision NOT BETWEEN g.born AND g.revision;
    roster := whole OR g.roster_revision > a_revision;
    IF whole THEN
        WHOLE
    ELSE
        IF g.lease_revision > a_revision THEN
            SELECT coalesce(json_agg(LEASE), '[]') INTO leases
                FROM evenflow.leases l WHERE l.group_id = g.id AND l.revision > a_revision;
        END IF;
        SELECT coalesce(json_agg(MEMBER), '[]') INTO members
            FROM evenflow.members r WHERE r.group_id = g.id AND (roster OR r.mark <= a_revision);
    END IF;
    RETURN json_build_array(m.lineage, m.history, g.revision, CASE WHEN NOT gone THEN number END, now_s,
        whole, leases, roster, members, STATE, g.began, g.epoch_floor);
END $$;

CREATE OR REPLACE FUNCTION evenflow.peek(a_namespace text, a_hub text, a_name text)
RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE  -- STABLE: everything is read in one snapshot
    g evenflow.groups%ROWTYPE;
    m evenflow.meta%ROWTYPE;
    leases json;
    members json;
BEGIN
    SELECT * INTO g FROM evenflow.groups WHERE namespace = a_namespace AND hub = a_hub AND name = a_name;
    SELECT * INTO m FROM evenflow.meta;
    IF g.id IS NULL OR m.history IS NULL THEN
        RETURN NULL;
    END IF;
    WHOLE
    RETURN json_build_array(m.lineage, m.history, g.revision, NULL, 0, true, leases, true, members, STATE, g.began,
        g.epoch_floor);
END $$;

CREATE OR REPLACE FUNCTION evenflow.swap(a_namespace text, a_hub text, a_name text, a_changes text)
RETURNS text LANGUAGE plpgsql SET lock_timeout = 'LOCK_WAIT' SET enable_seqscan = off AS $$
DECLARE
    g evenflow.groups%ROWTYPE;
    m evenflow.meta%ROWTYPE;
    l evenflow.leases%ROWTYPE;
    c record;
    now_s double precision := NOW_S;
    mark_now bigint;
    why text;
    refused json[] := '{}';
    moves_before bigint;
    done boolean := false;
BEGIN
    SELECT * INTO g FROM evenflow.groups WHERE namespace = a_namespace AND hub = a_hub AND name = a_name FOR UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    m := evenflow.current_meta();
    g.revision := g.revision + 1;
    moves_before := g.moves;
    FOR c IN SELECT * FROM json_to_recordset(a_changes::json) AS change(
        number integer, partition text, revision bigint, history bigint, owner text, incarnation bigint, epoch bigint,
        ttl_s double precision, reason text, late boolean, ended boolean, still text, still_incarnation bigint,
        mark bigint) ORDER BY number
    LOOP
        -- rules.why_refused
        SELECT * INTO l FROM evenflow.leases WHERE group_id = g.id AND partition = c.partition;
        why := CASE WHEN c.history IS DISTINCT FROM m.history THEN 'history'
                    WHEN c.revision <> coalesce(l.revision, 0) THEN 'revision'
                    WHEN c.epoch <= g.epoch_floor THEN 'epoch' END;
        IF why IS NULL AND c.still IS NOT NULL THEN
            -- Locks the row, so that no heartbeat of the silent member commits between this check and the commit.
            SELECT mark INTO mark_now FROM evenflow.members
                WHERE group_id = g.id AND id = c.still AND incarnation = c.still_incarnation FOR UPDATE;
            IF mark_now IS DISTINCT FROM c.mark THEN
                why := 'mark';
            END IF;
        END IF;
        IF why IS NULL AND c.owner IS NOT NULL AND NOT EXISTS (
            SELECT 1 FROM evenflow.members WHERE group_id = g.id AND id = c.owner AND incarnation = c.incarnation)
        THEN
            why := 'owner';
        END IF;
        IF why IS NOT NULL THEN
            refused := refused || json_build_array(c.number, why, CASE WHEN l.revision IS NOT NULL THEN LEASE END);
            CONTINUE;
        END IF;
        done := true;
        INSERT INTO evenflow.leases VALUES (g.id, c.partition, c.owner, c.incarnation, c.epoch, g.revision, c.history,
                c.ttl_s, c.late, c.ended, c.reason, now_s)
            ON CONFLICT (group_id, partition) DO UPDATE SET owner = excluded.owner,
                incarnation = excluded.incarnation, epoch = excluded.epoch, revision = excluded.revision,
                history = excluded.history, ttl_s = excluded.ttl_s, late = excluded.late, ended = excluded.ended,
                reason = excluded.reason, changed_at = excluded.changed_at;
        IF l.owner IS NOT NULL OR c.owner IS NOT NULL THEN  -- rules.move_between
            g.moves := g.moves + 1;
            INSERT INTO evenflow.moves
                VALUES (g.id, g.moves, c.partition, l.owner, c.owner, c.epoch, c.reason, now_s);
        END IF;
        IF l.owner <> c.owner AND c.still IS NULL THEN  -- rules.instance_to_wake
            PERFORM evenflow.wake(a_namespace, a_hub, a_name, c.owner);
        END IF;
    END LOOP;
    IF done THEN
        UPDATE evenflow.groups SET revision = g.revision, lease_revision = g.revision, moves = g.moves
            WHERE id = g.id;
        IF g.moves > moves_before THEN
            DELETE FROM evenflow.moves WHERE group_id = g.id AND number <= g.moves - MOVES_KEPT;
        END IF;
    END IF;
    RETURN json_build_array(g.revision, now_s, array_to_json(refused));
END $$;

CREATE OR REPLACE FUNCTION evenflow.seal(
    a_namespace text, a_hub text, a_name text, a_partition text, a_epoch bigint, a_unplanned boolean,
    a_offset text, a_sequence bigint, a_ordinal bigint, a_notes text, a_event_at double precision, a_effects boolean
) RETURNS text LANGUAGE plpgsql SET lock_timeout = 'LOCK_WAIT' SET enable_seqscan = off AS $$
DECLARE
    c evenflow.checkpoints%ROWTYPE;
    m evenflow.meta%ROWTYPE := evenflow.current_meta();
    floor bigint := evenflow.locked_floor(a_namespace, a_hub, a_name);
    now_s double precision := NOW_S;
BEGIN  -- rules.seal
    SELECT * INTO c FROM evenflow.checkpoints WHERE namespace = a_namespace AND hub = a_hub
        AND consumer_group = a_name AND partition = a_partition FOR UPDATE;
    IF NOT FOUND AND a_epoch >= greatest(floor, m.history << 32) THEN
        INSERT INTO evenflow.checkpoints VALUES (a_namespace, a_hub, a_name, a_partition, a_epoch, a_offset,
            a_sequence, a_ordinal, a_notes, a_event_at, a_ordinal, 0, a_effects, now_s)
            ON CONFLICT DO NOTHING RETURNING * INTO c;
        IF NOT FOUND THEN  -- a concurrent session inserted it first
            RAISE serialization_failure;
        END IF;
    ELSIF c.epoch < a_epoch AND a_epoch >= floor THEN
        UPDATE evenflow.checkpoints SET epoch = a_epoch, edition = 0, begun = ordinal, changed_at = now_s,
            fruitless = CASE WHEN ordinal > begun THEN 0 ELSE fruitless + a_unplanned::integer END
            WHERE namespace = a_namespace AND hub = a_hub AND consumer_group = a_name
            AND partition = a_partition RETURNING * INTO c;
    END IF;
    RETURN json_build_array(CASE WHEN c.epoch IS NOT NULL THEN RECORD END, m.history, floor);
END $$;

CREATE OR REPLACE FUNCTION evenflow.commit(a_namespace text, a_hub text, a_name text, a_checkpoints text)
RETURNS integer[] LANGUAGE plpgsql SET lock_timeout = 'LOCK_WAIT' SET enable_seqscan = off AS $$
DECLARE
    c record;
    k evenflow.checkpoints%ROWTYPE;
    m evenflow.meta%ROWTYPE := evenflow.current_meta();
    floor bigint := evenflow.locked_floor(a_namespace, a_hub, a_name);
    restored bigint := m.history << 32;
    now_s double precision := NOW_S;
    refused integer[] := '{}';
BEGIN
    -- In the order of partitions, so that two commits of the same partitions cannot deadlock.
    FOR c IN SELECT * FROM json_to_recordset(a_checkpoints::json) AS checkpoint(
        number integer, partition text, epoch bigint, "offset" text, sequence bigint, ordinal bigint, notes text,
        event_at double precision, begun bigint, fruitless bigint, effects boolean, effects_to bigint,
        edition bigint)
        ORDER BY partition, number
    LOOP
        -- rules.may_commit
        IF c.epoch < floor THEN
            refused := refused || c.number;
            CONTINUE;
        END IF;
        UPDATE evenflow.checkpoints SET "offset" = c."offset", sequence = c.sequence, ordinal = c.ordinal,
            notes = c.notes, event_at = c.event_at, effects = checkpoints.effects OR c.effects, edition = c.edition,
            changed_at = now_s
            WHERE namespace = a_namespace AND hub = a_hub AND consumer_group = a_name AND partition = c.partition
            AND epoch = c.epoch AND (ordinal, edition) <= (c.ordinal, c.edition)
            AND ordinal >= coalesce(c.effects_to, 0);
        CONTINUE WHEN FOUND;
        SELECT * INTO k FROM evenflow.checkpoints WHERE namespace = a_namespace AND hub = a_hub
            AND consumer_group = a_name AND partition = c.partition FOR UPDATE;
        CONTINUE WHEN k.epoch = c.epoch AND k.ordinal >= coalesce(c.effects_to, 0);  -- rules.is_late_commit
        IF coalesce(c.effects_to, 0) > coalesce(k.ordinal, 0)
            OR restored = 0 OR c.epoch > restored OR k.epoch > restored OR k.effects
            OR (k.epoch, k.ordinal, k.edition) >= (c.epoch, c.ordinal, c.edition)
        THEN
            refused := refused || c.number;
        ELSIF k.epoch IS NOT NULL THEN
            UPDATE evenflow.checkpoints SET epoch = c.epoch, "offset" = c."offset", sequence = c.sequence,
                ordinal = c.ordinal, notes = c.notes, event_at = c.event_at, effects = c.effects, edition = c.edition,
                changed_at = now_s
                WHERE namespace = a_namespace AND hub = a_hub AND consumer_group = a_name AND partition = c.partition;
        ELSE
            INSERT INTO evenflow.checkpoints VALUES (a_namespace, a_hub, a_name, c.partition, c.epoch, c."offset",
                c.sequence, c.ordinal, c.notes, c.event_at, c.begun, c.fruitless, c.effects, now_s, c.edition)
                ON CONFLICT DO NOTHING;
            IF NOT FOUND THEN  -- a concurrent session inserted it first
                RAISE serialization_failure;
            END IF;
        END IF;
    END LOOP;
    RETURN refused;
END $$;

CREATE OR REPLACE FUNCTION evenflow.delete(a_namespace text, a_hub text, a_name text)
RETURNS void LANGUAGE plpgsql SET lock_timeout = 'LOCK_WAIT' AS $$
DECLARE
    g evenflow.groups%ROWTYPE;
    m evenflow.meta%ROWTYPE := evenflow.current_meta();
    epochs bigint[];
BEGIN
    PERFORM pg_advisory_xact_lock(DELETING);
    PERFORM set_config('evenflow_store.tidies', 'on', true);
    SELECT * INTO g FROM evenflow.groups WHERE namespace = a_namespace AND hub = a_hub AND name = a_name FOR UPDATE;
    SELECT array_agg(epoch) INTO epochs FROM evenflow.leases WHERE group_id = g.id;
    IF g.id IS NOT NULL THEN
        UPDATE evenflow.meta SET revision_floor = greatest(revision_floor, g.revision),
            incarnation_floor = greatest(incarnation_floor, g.newest);
        DELETE FROM evenflow.members WHERE group_id = g.id;
        DELETE FROM evenflow.departures WHERE group_id = g.id;
        DELETE FROM evenflow.leases WHERE group_id = g.id;
        DELETE FROM evenflow.moves WHERE group_id = g.id;
        DELETE FROM evenflow.groups WHERE id = g.id;
    END IF;
    WITH records AS (DELETE FROM evenflow.checkpoints WHERE namespace = a_namespace AND hub = a_hub
        AND consumer_group = a_name RETURNING epoch)
        SELECT epochs || array_agg(epoch) INTO epochs FROM records;
    INSERT INTO evenflow.floors AS f VALUES (a_namespace, a_hub, a_name,  -- rules.floor_after
            greatest(m.history << 32, (SELECT max(epoch) FROM unnest(epochs) epoch)) + 1)
        ON CONFLICT (namespace, hub, consumer_group)
        DO UPDATE SET epoch_floor = greatest(f.epoch_floor + 1, excluded.epoch_floor);
    PERFORM set_config('evenflow_store.tidies', '', true);
    PERFORM evenflow.wake(a_namespace, a_hub, a_name, '');
END $$;

CREATE OR REPLACE FUNCTION evenflow.record(
    a_namespace text, a_hub text, a_name text, a_kind text, a_by text, a_why text, a_what text,
    a_at double precision
) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    INSERT INTO evenflow.actions (namespace, hub, consumer_group, kind, done_by, why, what, at)
        VALUES (a_namespace, a_hub, a_name, a_kind, a_by, a_why, a_what, a_at);
    DELETE FROM evenflow.actions WHERE namespace = a_namespace AND hub = a_hub AND consumer_group = a_name
        AND number <= (SELECT number FROM evenflow.actions
            WHERE namespace = a_namespace AND hub = a_hub AND consumer_group = a_name
            ORDER BY number DESC LIMIT 1 OFFSET ACTIONS_KEPT);
END $$;

CREATE OR REPLACE FUNCTION evenflow.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '%.%', TG_TABLE_SCHEMA, TG_TABLE_NAME USING ERRCODE = 'REFUSED';
END $$;

CREATE OR REPLACE FUNCTION evenflow.forgets() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE evenflow.meta SET history = history + 1;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION evenflow.loses() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE evenflow.meta SET history = history + 1 WHERE EXISTS (SELECT 1 FROM lost);
    RETURN NULL;
END $$;
"""


def _filled() -> str:
    text = _TEXT
    for word, meaning in {
        "WHOLE\n": f"{_WHOLE.strip()}\n",
        "LEASE)": f"{_LEASE})",
        "THEN LEASE END": f"THEN {_LEASE} END",
        "MEMBER)": f"{_MEMBER})",
        "STATE,": f"{_STATE},",
        "THEN RECORD END": f"THEN {_RECORD} END",
        "NOW_S": _NOW,
        "LOCK_WAIT": LOCK_WAIT,
        "FORGOTTEN_AFTER": f"{rules.FORGOTTEN_AFTER_S:.0f}",
        "MOVES_KEPT": str(rules.MOVES_KEPT),
        "ACTIONS_KEPT": str(rules.ACTIONS_KEPT),
        "DEPARTED_KEPT": str(rules.DEPARTED_KEPT),
        "DELETING": _DELETING,
        "'SUPERSEDED'": f"'{SUPERSEDED}'",
        "'REFUSED'": f"'{REFUSED}'",
        "'CHANNEL'": "rtrim('evenflow.', '.')",
    }.items():
        text = text.replace(word, meaning)
    return text


FUNCTIONS = _filled()
