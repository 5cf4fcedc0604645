"""What is in the schema of a PostgreSQL store: tables, what people may look at, and what guards them.

A change of any of this, or of the functions beside it, raises VERSION and brings a way up from the one before. The
version is what a function of the schema returns, so that it stays when every table is emptied. In these texts
`evenflow.` stands for the schema, whatever its name is.
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
    revision_floor bigint NOT NULL DEFAULT 0,       -- the highest of all deleted groups, so that
    incarnation_floor bigint NOT NULL DEFAULT 0,    -- one that is made again begins above them
    timeline text NOT NULL DEFAULT '',              -- of the server that it was last used on,
    system text NOT NULL DEFAULT '',                -- its own number,
    place text NOT NULL DEFAULT ''                  -- and those of database and table: see current_meta
);
CREATE TABLE IF NOT EXISTS evenflow.groups (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace text NOT NULL, hub text NOT NULL, name text NOT NULL,
    born bigint NOT NULL,                           -- its revision when it was made
    revision bigint NOT NULL,                       -- grows with every heartbeat and every swap, under this row's lock
    roster_revision bigint NOT NULL DEFAULT 0,      -- when somebody last joined, left, or changed more than the mark
    lease_revision bigint NOT NULL DEFAULT 0,       -- when a lease last changed
    newest bigint NOT NULL,                         -- the highest incarnation given or seen
    moves bigint NOT NULL DEFAULT 0,                -- how many there were
    source text NOT NULL DEFAULT '',
    pauses text NOT NULL DEFAULT '{}', retired text NOT NULL DEFAULT '{}', redrives text NOT NULL DEFAULT '{}',
    began bigint NOT NULL DEFAULT 0,                -- the history in which it began, as far as any heartbeat has shown
    epoch_floor bigint NOT NULL DEFAULT 0,          -- of its name, when it was made: see floors
    UNIQUE (namespace, hub, name)
) WITH (fillfactor = 50);
-- The mark has no index, so that a heartbeat's update stays inside its page.
CREATE TABLE IF NOT EXISTS evenflow.members (
    group_id bigint NOT NULL, id text NOT NULL, incarnation bigint NOT NULL, nonce text NOT NULL,
    mark bigint NOT NULL,                           -- the group's revision at its last heartbeat
    heartbeat_at double precision NOT NULL, digest text NOT NULL, facts text NOT NULL,
    PRIMARY KEY (group_id, id)
) WITH (fillfactor = 50);
CREATE TABLE IF NOT EXISTS evenflow.departures (   -- who left last: late heartbeats of theirs change nothing
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
CREATE TABLE IF NOT EXISTS evenflow.actions (      -- what people did; outlives its group
    number bigint GENERATED ALWAYS AS IDENTITY,
    namespace text NOT NULL, hub text NOT NULL, consumer_group text NOT NULL,
    kind text NOT NULL, done_by text NOT NULL, why text NOT NULL, what text NOT NULL, at double precision NOT NULL,
    PRIMARY KEY (namespace, hub, consumer_group, number)
);
CREATE TABLE IF NOT EXISTS evenflow.checkpoints (
    namespace text NOT NULL, hub text NOT NULL, consumer_group text NOT NULL, partition text NOT NULL,
    epoch bigint NOT NULL, "offset" text NOT NULL, sequence bigint, ordinal bigint NOT NULL, notes text NOT NULL,
    event_at double precision NOT NULL, begun bigint NOT NULL, fruitless bigint NOT NULL,
    effects boolean NOT NULL,                       -- whether a transaction wrote it once
    changed_at double precision NOT NULL,
    edition bigint NOT NULL DEFAULT 0,              -- what orders those of one epoch with equal ordinals
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
"""What an application's transaction may read and not write."""
SINCE = {"departures": 2, "floors": 2}
"""The version that a table came with, where that is not the first."""
REMEMBERED = "groups", "floors", "leases", "checkpoints"
"""What only `delete` may remove rows from. Whoever else does makes the store forget: then its history rises."""

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
    2: "SELECT 1",  # functions alone
}
"""What brings the tables of that version to the next one. Functions, views and triggers are replaced as a whole."""


def placed(text: str, schema: str) -> str:
    """The text for the schema of this name."""
    return text.replace("evenflow.", f"{schema}.")


def making(schema: str) -> str:
    """All of it, whatever there is of it already."""
    guards = [_GUARD.format(table=table) for table in GUARDED] + [_REMEMBER.format(table=table) for table in REMEMBERED]
    version = _VERSION.replace("VERSION", str(VERSION))
    return placed("".join([TABLES, FUNCTIONS, VIEWS, *guards, version]), schema)


def grants(schema: str, role: str) -> str:
    """What a role needs that runs instances and may not create anything."""
    return (
        f"GRANT USAGE ON SCHEMA {schema} TO {role};\n"
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role};\n"
        f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO {role};\n"
    )


def script(schema: str = SCHEMA, role: str | None = None) -> str:
    """For an administrator who makes the schema by hand, with psql, and lets this role use it."""
    check_name(schema)
    parts = ["BEGIN;", f"CREATE SCHEMA IF NOT EXISTS {schema};", making(schema)]
    if role is not None:
        parts.append(grants(schema, '"' + role.replace('"', '""') + '"'))
    return "\n".join([*parts, "COMMIT;"])
