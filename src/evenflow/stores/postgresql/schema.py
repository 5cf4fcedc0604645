"""The schema of a PostgreSQL store: tables, views for operators, and triggers that protect the tables.

A change here or in `functions` raises VERSION and adds an upgrade. The version is the result of a function of the
schema, so that it survives if all tables are emptied. In these texts `evenflow.` stands for the schema, whatever its
name is.
"""

from __future__ import annotations

from evenflow.drivers.postgresql.driver import check_name
from evenflow.stores.postgresql.functions import FUNCTIONS

VERSION = 3
SCHEMA = "evenflow"

TABLES = """
CREATE TABLE IF NOT EXISTS evenflow.meta (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    lineage text NOT NULL DEFAULT replace(gen_random_uuid()::text, '-', ''),
    history bigint NOT NULL DEFAULT 0,
    revision_floor bigint NOT NULL DEFAULT 0,       -- the highest of all deleted groups;
    incarnation_floor bigint NOT NULL DEFAULT 0,    -- a group that is created again starts above them
    timeline text NOT NULL DEFAULT '',              -- of the server that last wrote it,
    system text NOT NULL DEFAULT '',                -- its system identifier,
    place text NOT NULL DEFAULT ''                  -- and the oids of database and table: see current_meta
);
CREATE TABLE IF NOT EXISTS evenflow.groups (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace text NOT NULL, hub text NOT NULL, name text NOT NULL,
    born bigint NOT NULL,                           -- its revision when it was created
    revision bigint NOT NULL,                       -- grows with every heartbeat and every swap, under this row's lock
    roster_revision bigint NOT NULL DEFAULT 0,      -- when a member last joined, left or changed
    lease_revision bigint NOT NULL DEFAULT 0,       -- when a lease last changed
    newest bigint NOT NULL,                         -- the highest incarnation assigned or seen
    moves bigint NOT NULL DEFAULT 0,                -- the number of moves so far
    source text NOT NULL DEFAULT '',
    pauses text NOT NULL DEFAULT '{}', retired text NOT NULL DEFAULT '{}', redrives text NOT NULL DEFAULT '{}',
    began bigint NOT NULL DEFAULT 0,                -- the history in which it was created, as far as known
    epoch_floor bigint NOT NULL DEFAULT 0,          -- of its name, when it was created: see floors
    UNIQUE (namespace, hub, name)
) WITH (fillfactor = 50);
-- mark has no index, so that a heartbeat's update stays inside its page.
CREATE TABLE IF NOT EXISTS evenflow.members (
    group_id bigint NOT NULL, id text NOT NULL, incarnation bigint NOT NULL, nonce text NOT NULL,
    mark bigint NOT NULL,                           -- the group's revision at its last heartbeat
    heartbeat_at double precision NOT NULL, digest text NOT NULL, facts text NOT NULL,
    PRIMARY KEY (group_id, id)
) WITH (fillfactor = 50);
CREATE TABLE IF NOT EXISTS evenflow.departures (   -- members that left last: their late heartbeats change nothing
    group_id bigint NOT NULL, nonce text NOT NULL, revision bigint NOT NULL,
    PRIMARY KEY (group_id, nonce)
);
CREATE TABLE IF NOT EXISTS evenflow.floors (       -- above all epochs of deleted groups of this name
    namespace text NOT NULL, hub text NOT NULL, consumer_group text NOT NULL, epoch_floor bigint NOT NULL,
    PRIMARY KEY (namespace, hub, consumer_group)
);
CREATE TABLE IF NOT EXISTS evenflow.leases (
    group_id bigint NOT NULL, partition text NOT NULL, owner text, incarnation bigint,
    epoch bigint NOT NULL, revision bigint NOT NULL, history bigint NOT NULL, ttl_s double precision NOT NULL,
    late boolean NOT NULL, ended boolean NOT NULL, reason text NOT NULL, changed_at double precision NOT NULL,
    PRIMARY KEY (group_id, partition)
);
CREATE INDEX IF NOT EXISTS leases_by_revision ON evenflow.leases (group_id, revision);
CREATE TABLE IF NOT EXISTS evenflow.moves (
    group_id bigint NOT NULL, number bigint NOT NULL, partition text NOT NULL, before text, after text,
    epoch bigint NOT NULL, reason text NOT NULL, at double precision NOT NULL,
    PRIMARY KEY (group_id, number)
);
CREATE TABLE IF NOT EXISTS evenflow.actions (      -- operator actions; they outlive their group
    number bigint GENERATED ALWAYS AS IDENTITY,
    namespace text NOT NULL, hub text NOT NULL, consumer_group text NOT NULL,
    kind text NOT NULL, done_by text NOT NULL, why text NOT NULL, what text NOT NULL, at double precision NOT NULL,
    PRIMARY KEY (namespace, hub, consumer_group, number)
);
CREATE TABLE IF NOT EXISTS evenflow.checkpoints (
    namespace text NOT NULL, hub text NOT NULL, consumer_group text NOT NULL, partition text NOT NULL,
    epoch bigint NOT NULL, "offset" text NOT NULL, sequence bigint, ordinal bigint NOT NULL, notes text NOT NULL,
    event_at double precision NOT NULL, begun bigint NOT NULL, fruitless bigint NOT NULL,
    effects boolean NOT NULL,                       -- whether a transaction ever wrote it
    changed_at double precision NOT NULL,
    edition bigint NOT NULL DEFAULT 0,              -- orders records with equal epoch and ordinal
    PRIMARY KEY (namespace, hub, consumer_group, partition)
) WITH (fillfactor = 50);
"""

VIEWS = """
CREATE OR REPLACE VIEW evenflow.ownership AS
    SELECT namespace, hub, name AS consumer_group, partition, owner, epoch,
           to_timestamp(changed_at) AS changed_at, reason
    FROM evenflow.leases JOIN evenflow.groups ON groups.id = leases.group_id;
CREATE OR REPLACE VIEW evenflow.progress AS
    SELECT namespace, hub, consumer_group, partition, ordinal AS handled, "offset", sequence,
           CASE WHEN event_at > 0 THEN to_timestamp(event_at) END AS event_at,
           to_timestamp(changed_at) AS changed_at,
           CASE WHEN event_at > 0 THEN greatest(changed_at - event_at, 0) END AS behind_s
    FROM evenflow.checkpoints;
CREATE OR REPLACE VIEW evenflow.lag AS
    SELECT namespace, hub, consumer_group, count(*) AS partitions, max(behind_s) AS behind_s,
           max(changed_at) AS changed_at
    FROM evenflow.progress GROUP BY namespace, hub, consumer_group;
"""

GUARDED = "meta", "groups", "members", "departures", "floors", "leases", "moves", "actions", "checkpoints"
"""Tables that an application's transaction may read but not write."""
SINCE = {"departures": 2, "floors": 2}
"""The schema version that added a table, if not the first."""
REMEMBERED = "groups", "floors", "leases", "checkpoints"
"""Tables from which only `delete` may remove rows. Any other deletion loses writes, so the history rises."""

_GUARD = """
CREATE OR REPLACE TRIGGER evenflow_guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON evenflow.{table}
    FOR EACH STATEMENT WHEN (current_setting('evenflow_store.application', true) = 'on')
    EXECUTE FUNCTION evenflow.refuse();
"""
_REMEMBER = """
CREATE OR REPLACE TRIGGER evenflow_forgets AFTER TRUNCATE ON evenflow.{table}
    FOR EACH STATEMENT EXECUTE FUNCTION evenflow.forgets();
CREATE OR REPLACE TRIGGER evenflow_loses AFTER DELETE ON evenflow.{table} REFERENCING OLD TABLE AS lost
    FOR EACH STATEMENT WHEN (current_setting('evenflow_store.tidies', true) IS DISTINCT FROM 'on')
    EXECUTE FUNCTION evenflow.loses();
"""

_VERSION = """
CREATE OR REPLACE FUNCTION evenflow.version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT VERSION';
INSERT INTO evenflow.meta DEFAULT VALUES ON CONFLICT DO NOTHING;
"""

UPGRADES: dict[int, str] = {
    1: """
ALTER TABLE IF EXISTS evenflow.meta
    ADD COLUMN IF NOT EXISTS timeline text NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS system text NOT NULL DEFAULT '', ADD COLUMN IF NOT EXISTS place text NOT NULL DEFAULT '';
ALTER TABLE IF EXISTS evenflow.groups
    ADD COLUMN IF NOT EXISTS began bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS epoch_floor bigint NOT NULL DEFAULT 0;
ALTER TABLE IF EXISTS evenflow.checkpoints ADD COLUMN IF NOT EXISTS edition bigint NOT NULL DEFAULT 0;
""",
    2: "SELECT 1",  # only functions changed
}
"""Upgrades the tables from this version to the next. Functions, views and triggers are always replaced."""


def placed(text: str, schema: str) -> str:
    """Replaces `evenflow.` with the name of the schema."""
    return text.replace("evenflow.", f"{schema}.")


def making(schema: str) -> str:
    """The script that creates everything that is missing and replaces functions, views and triggers."""
    guards = [_GUARD.format(table=table) for table in GUARDED] + [_REMEMBER.format(table=table) for table in REMEMBERED]
    version = _VERSION.replace("VERSION", str(VERSION))
    return placed("".join([TABLES, FUNCTIONS, VIEWS, *guards, version]), schema)


def grants(schema: str, role: str) -> str:
    """The grants for a role that runs instances but may not create anything."""
    return (
        f"GRANT USAGE ON SCHEMA {schema} TO {role};\n"
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role};\n"
        f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO {role};\n"
    )


def script(schema: str = SCHEMA, role: str | None = None) -> str:
    """A psql script for an administrator who creates the schema by hand and lets this role use it."""
    check_name(schema)
    parts = ["BEGIN;", f"CREATE SCHEMA IF NOT EXISTS {schema};", making(schema)]
    if role is not None:
        parts.append(grants(schema, '"' + role.replace('"', '""') + '"'))
    return "\n".join([*parts, "COMMIT;"])
