"""The schemas of the two files of a SQLite store. A change raises VERSION and adds an upgrade."""

from __future__ import annotations

LEASES, PROGRESS = "leases.sqlite", "progress.sqlite"

VERSION = 3
APPLICATION_IDS = {LEASES: 0x65764C73, PROGRESS: 0x65765073}
"""Identify each file, in its header."""

LEASES_SCHEMA = """
CREATE TABLE meta (
    lineage TEXT NOT NULL, history INTEGER NOT NULL,
    progress TEXT NOT NULL,             -- the id of the progress.sqlite that belongs to this file
    revision_floor INTEGER NOT NULL,    -- the highest of all deleted groups;
    incarnation_floor INTEGER NOT NULL  -- a group that is created again starts above them
) STRICT;
CREATE TABLE groups (
    id INTEGER PRIMARY KEY, namespace TEXT NOT NULL, hub TEXT NOT NULL, name TEXT NOT NULL,
    born INTEGER NOT NULL,              -- its revision when it was created
    revision INTEGER NOT NULL,          -- grows with every heartbeat and every swap
    roster_revision INTEGER NOT NULL,   -- when a member last joined, left or changed
    newest INTEGER NOT NULL,            -- the highest incarnation assigned or seen
    moves INTEGER NOT NULL,             -- the number of moves so far
    source TEXT NOT NULL,
    state TEXT NOT NULL DEFAULT '{}',   -- pauses, retired, redrives
    began INTEGER NOT NULL DEFAULT 0,       -- the history in which the group was created
    epoch_floor INTEGER NOT NULL DEFAULT 0, -- of its name, when it was created
    UNIQUE (namespace, hub, name)
) STRICT;
CREATE TABLE epoch_floors (             -- for names of deleted groups: above all their epochs
    namespace TEXT NOT NULL, hub TEXT NOT NULL, name TEXT NOT NULL, epoch INTEGER NOT NULL,
    PRIMARY KEY (namespace, hub, name)
) STRICT, WITHOUT ROWID;
CREATE TABLE members (
    group_id INTEGER NOT NULL, id TEXT NOT NULL, incarnation INTEGER NOT NULL,
    mark INTEGER NOT NULL,              -- the group's revision at its last heartbeat
    heartbeat_at REAL NOT NULL, facts TEXT NOT NULL,
    PRIMARY KEY (group_id, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX members_by_mark ON members (group_id, mark);
CREATE TABLE departed (                 -- the last members that left
    group_id INTEGER NOT NULL, nonce TEXT NOT NULL, revision INTEGER NOT NULL,
    PRIMARY KEY (group_id, nonce)
) STRICT, WITHOUT ROWID;
CREATE TABLE leases (
    group_id INTEGER NOT NULL, partition TEXT NOT NULL, owner TEXT, incarnation INTEGER,
    epoch INTEGER NOT NULL, revision INTEGER NOT NULL, history INTEGER NOT NULL, ttl_s REAL NOT NULL,
    late INTEGER NOT NULL, ended INTEGER NOT NULL, reason TEXT NOT NULL, changed_at REAL NOT NULL,
    PRIMARY KEY (group_id, partition)
) STRICT, WITHOUT ROWID;
CREATE INDEX leases_by_revision ON leases (group_id, revision);
CREATE TABLE moves (
    group_id INTEGER NOT NULL, number INTEGER NOT NULL, partition TEXT NOT NULL, before TEXT, after TEXT,
    epoch INTEGER NOT NULL, reason TEXT NOT NULL, at REAL NOT NULL,
    PRIMARY KEY (group_id, number)
) STRICT, WITHOUT ROWID;
CREATE TABLE actions (                  -- operator actions; they outlive their group
    number INTEGER PRIMARY KEY, namespace TEXT NOT NULL, hub TEXT NOT NULL, consumer_group TEXT NOT NULL,
    kind TEXT NOT NULL, done_by TEXT NOT NULL, why TEXT NOT NULL, what TEXT NOT NULL, at REAL NOT NULL
) STRICT;
CREATE VIEW ownership AS  -- for operators
    SELECT namespace, hub, name AS consumer_group, owner, partition, epoch,
           strftime('%Y-%m-%dT%H:%M:%fZ', changed_at, 'unixepoch') AS last_modified, reason
    FROM leases JOIN groups ON groups.id = leases.group_id;
"""

# Applications keep tables of their own in this file, for effects in one transaction with a checkpoint.
PROGRESS_SCHEMA = """
CREATE TABLE evenflow_meta (id TEXT NOT NULL, history INTEGER NOT NULL) STRICT;
CREATE TABLE evenflow_checkpoints (
    namespace TEXT NOT NULL, hub TEXT NOT NULL, consumer_group TEXT NOT NULL, partition TEXT NOT NULL,
    epoch INTEGER NOT NULL, "offset" TEXT NOT NULL, sequence INTEGER, ordinal INTEGER NOT NULL,
    notes TEXT NOT NULL, changed_at REAL NOT NULL,
    event_at REAL NOT NULL DEFAULT 0, begun INTEGER NOT NULL DEFAULT 0, fruitless INTEGER NOT NULL DEFAULT 0,
    effects INTEGER NOT NULL DEFAULT 0,  -- whether a transaction ever wrote it
    edition INTEGER NOT NULL DEFAULT 0,  -- orders records of one epoch and one ordinal
    PRIMARY KEY (namespace, hub, consumer_group, partition)
) STRICT, WITHOUT ROWID;
CREATE TABLE evenflow_epoch_floors (     -- for names of deleted groups, as in leases.sqlite
    namespace TEXT NOT NULL, hub TEXT NOT NULL, consumer_group TEXT NOT NULL, epoch INTEGER NOT NULL,
    PRIMARY KEY (namespace, hub, consumer_group)
) STRICT, WITHOUT ROWID;
"""

UPGRADES = {
    LEASES: {
        1: """
ALTER TABLE groups ADD COLUMN state TEXT NOT NULL DEFAULT '{}';
ALTER TABLE groups DROP COLUMN paused; ALTER TABLE groups DROP COLUMN paused_by;
ALTER TABLE groups DROP COLUMN paused_why;
CREATE TABLE actions (
    number INTEGER PRIMARY KEY, namespace TEXT NOT NULL, hub TEXT NOT NULL, consumer_group TEXT NOT NULL,
    kind TEXT NOT NULL, done_by TEXT NOT NULL, why TEXT NOT NULL, what TEXT NOT NULL, at REAL NOT NULL
) STRICT;
""",
        2: """
ALTER TABLE groups ADD COLUMN began INTEGER NOT NULL DEFAULT 0;
ALTER TABLE groups ADD COLUMN epoch_floor INTEGER NOT NULL DEFAULT 0;
CREATE TABLE epoch_floors (
    namespace TEXT NOT NULL, hub TEXT NOT NULL, name TEXT NOT NULL, epoch INTEGER NOT NULL,
    PRIMARY KEY (namespace, hub, name)
) STRICT, WITHOUT ROWID;
CREATE TABLE departed (
    group_id INTEGER NOT NULL, nonce TEXT NOT NULL, revision INTEGER NOT NULL,
    PRIMARY KEY (group_id, nonce)
) STRICT, WITHOUT ROWID;
""",
    },
    PROGRESS: {
        1: """
ALTER TABLE evenflow_checkpoints ADD COLUMN event_at REAL NOT NULL DEFAULT 0;
ALTER TABLE evenflow_checkpoints ADD COLUMN begun INTEGER NOT NULL DEFAULT 0;
ALTER TABLE evenflow_checkpoints ADD COLUMN fruitless INTEGER NOT NULL DEFAULT 0;
ALTER TABLE evenflow_checkpoints ADD COLUMN effects INTEGER NOT NULL DEFAULT 0;
""",
        2: """
ALTER TABLE evenflow_checkpoints ADD COLUMN edition INTEGER NOT NULL DEFAULT 0;
CREATE TABLE evenflow_epoch_floors (
    namespace TEXT NOT NULL, hub TEXT NOT NULL, consumer_group TEXT NOT NULL, epoch INTEGER NOT NULL,
    PRIMARY KEY (namespace, hub, consumer_group)
) STRICT, WITHOUT ROWID;
""",
    },
}
"""Upgrades a file from this version to the next."""

SCHEMAS = {LEASES: LEASES_SCHEMA, PROGRESS: PROGRESS_SCHEMA}
