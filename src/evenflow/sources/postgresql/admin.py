"""What the owner of a table does: watch and unwatch it, copy its existing rows, show its status, prune its log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from evenflow.drivers.postgresql.driver import split_options
from evenflow.errors import EvenflowError, Misconfigured, SourceUnavailable
from evenflow.sources.postgresql.client import PURPOSE, FeedHorizon, FeedWriter, TableClient, TableFeed
from evenflow.sources.postgresql.schema import SCHEMA, common
from evenflow.sources.postgresql.source import SCHEME
from evenflow.sources.postgresql.trigger import (
    MADE_BY,
    PARTITIONS_MOST,
    STEADY,
    KeyColumn,
    WatchedTable,
    drop,
    log,
    trigger,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from evenflow.drivers.postgresql.driver import Connection

LOCK_S = 5
"""How long to wait for the table's lock. All later writers queue behind this wait, so it is short."""
SETUP_S = 60.0
FILL_ROWS = 1000
PRUNE_ROWS = 20_000
LOCKED = "55P03"
"""SQLSTATE when a lock is not available at once, or within the timeout."""

_TABLE = """
SELECT pg_class.oid, format('%I.%I', nspname, relname), relkind::text, relpersistence::text,
    row_security_active(pg_class.oid), indimmediate, indkey::text,
    ARRAY(SELECT ROW(attname, quote_ident(attname), format('%I.%I', types.nspname, typname),
              quote_ident(operators.nspname))
          FROM unnest(indkey, indclass) WITH ORDINALITY k(number, class, at)
          JOIN pg_attribute ON attrelid = pg_class.oid AND attnum = number
          JOIN pg_type ON pg_type.oid = atttypid JOIN pg_namespace types ON types.oid = typnamespace
          JOIN pg_opclass ON pg_opclass.oid = class
          JOIN pg_amop ON amopfamily = opcfamily AND amoplefttype = opcintype AND amoprighttype = opcintype
              AND amopstrategy = 3
          JOIN pg_operator ON pg_operator.oid = amopopr JOIN pg_namespace operators ON operators.oid = oprnamespace
          ORDER BY at),
    NOT EXISTS (SELECT 1 FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid
                WHERE attrelid = pg_class.oid AND attnum > 0 AND NOT attisdropped AND typtype <> 'e'
                    AND (typnamespace <> 'pg_catalog'::regnamespace OR typname <> ALL($2)))
FROM pg_class JOIN pg_namespace space ON space.oid = relnamespace
LEFT JOIN pg_index ON indrelid = pg_class.oid AND indisprimary WHERE pg_class.oid = to_regclass($1)"""
_MAKE = """
INSERT INTO @schema@.feeds (name, relation, partitions, previous, key, key_at, keep_s, timeline, floors, is_filled)
VALUES ($1, $2, $3, $4, $5, $6, $7, @schema@.timeline(), array_fill(0::bigint, ARRAY[$3]), $8) RETURNING id"""
_RELATED = """
SELECT name FROM @schema@.feeds WHERE relation <> $1 AND relation IN (
    SELECT relid FROM pg_partition_tree($1) UNION ALL SELECT relid FROM pg_partition_ancestors($1))"""
_FOUND = """
SELECT id, name, relation, partitions, previous, @schema@.trouble(id) FROM @schema@.feeds
WHERE name = $1 OR relation = $2 ORDER BY relation <> $2"""
_CHANGE = "UPDATE @schema@.feeds SET key = $2, keep_s = coalesce($3, keep_s) WHERE id = $1"
_GRANTS = """
GRANT USAGE ON SCHEMA @schema@ TO @role@;
GRANT SELECT ON @schema@.feeds, @schema@.log_@feed@ TO @role@;
"""
_FILL = "SELECT @schema@.fill_@feed@((SELECT filled FROM @schema@.feeds WHERE id = @feed@ FOR UPDATE), $1)"
_FILLED = "UPDATE @schema@.feeds SET filled = $1, is_filled = $1::text[] IS NULL WHERE id = @feed@"
_UNFILLED = "UPDATE @schema@.feeds SET filled = NULL, is_filled = false WHERE id = @feed@"
_PRUNE = "SELECT @schema@.prune(@feed@, $1, $2)"
_NOTER = "SELECT prosrc FROM pg_proc WHERE oid = to_regproc('@schema@.note_@feed@')"
_COUNTS = """
SELECT partition, count(*), min(at_us) FROM @schema@.log_@feed@ GROUP BY partition ORDER BY partition"""


class WatchOptions(NamedTuple):
    """How to watch a table. None keeps the current value, or uses the default."""

    partitions: int | None = None
    all_versions: bool | None = None
    keep_s: float | None = None
    fill: bool = True
    reader: str | None = None
    """A role that may read the feed."""


class FeedStatus(NamedTuple):
    feed: TableFeed
    horizon: FeedHorizon
    kept: Mapping[int, tuple[int, int]]
    """How many rows the log of a partition has, and the time of the oldest, in microseconds since 1970."""
    writers: Sequence[FeedWriter]
    is_old: bool
    """An older evenflow created its trigger."""


def opened(url: str) -> TableClient:
    """A client for the source's URL."""
    rest, given = split_options(url, PURPOSE.options)
    if not url.startswith(f"{SCHEME}://") or not given.get("table"):
        raise Misconfigured(f"This is not a table's URL: write {SCHEME}://USER@HOST/DATABASE?table=SCHEMA.TABLE.")
    return TableClient(rest.replace(SCHEME, "postgresql", 1), given["table"], given.get("schema", SCHEMA))


async def watch(
    client: TableClient, options: WatchOptions, on_progress: Callable[[int], None] = lambda rows: None
) -> TableFeed:
    """Watches the table and copies its rows into the log. Safe to run concurrently.

    An existing feed is upgraded; its partitions and its mode stay.
    """
    await client.qualified()
    try:
        await client.run(lambda connection: _make(connection, client, options), SETUP_S)
    except Misconfigured as error:
        if _code(error) == "42501":
            raise Misconfigured(
                f"{client}: {client.address.user} lacks a right ({error.__cause__}). Run this as the table's owner, who"
                f" also needs CREATE on the database, or must own the schema {client.schema}."
            ) from error
        raise
    except SourceUnavailable as error:
        if _code(error) == LOCKED:
            raise SourceUnavailable(
                f"{client}: other transactions have held the table's lock for {LOCK_S} s. Try again when long"
                " transactions have ended."
            ) from error
        raise
    feed = await client.feed()
    if options.fill and not feed.is_filled:
        await fill(client, on_progress)
    return await client.feed()


async def _make(connection: Connection, client: TableClient, options: WatchOptions) -> None:
    async with connection.transaction():
        await connection.execute(
            b"SELECT pg_advisory_xact_lock(hashtextextended('evenflow ' || $1, 0))", (client.schema,)
        )
        await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_S}s'".encode())
        table = await _table(connection, client)
        cursor = await connection.execute(b"SELECT to_regnamespace($1) IS NOT NULL", (client.schema,))
        ((is_there,),) = await cursor.fetchall()
        if not is_there:
            await connection.execute(f"CREATE SCHEMA {client.schema}".encode())
        await connection.execute(common(client.schema).encode())
        cursor = await connection.execute(client.text(_RELATED), (table.relation,))
        if related := await cursor.fetchall():
            raise Misconfigured(
                f"{client} and {related[0][0]}, which is watched already, are a table and its partition: the trigger of"
                f" one would replace the other's. Run `evenflow table unwatch` for {related[0][0]} first."
            )
        cursor = await connection.execute(client.text(_FOUND), (table.name, table.relation))
        rows = await cursor.fetchall()
        if rows:
            feed, partitions, previous = _unchanged(client, table, options, rows[0])
            columns = [column.bare for column in table.key]
            await connection.execute(client.text(_CHANGE), (feed, columns, options.keep_s))
        else:
            feed, partitions, previous = await _add(connection, client, table, options)
        text = trigger(client.schema, feed, table, partitions, previous=previous)
        await connection.execute(text.encode())
        if options.reader is not None:
            role = '"' + options.reader.replace('"', '""') + '"'
            await connection.execute(client.text(_GRANTS, role=role, feed=feed))


def _unchanged(
    client: TableClient, table: WatchedTable, options: WatchOptions, row: tuple[Any, ...]
) -> tuple[int, int, bool]:
    feed, name, relation, partitions, previous, trouble = row
    if relation != table.relation:
        raise Misconfigured(
            f"{client} was dropped and recreated since it was watched. Run `evenflow table unwatch` first, which drops"
            " the old table's log."
        )
    if name != table.name:
        raise Misconfigured(
            f"{client} is watched already under its earlier name {name}. Use that name, or run `evenflow table unwatch`"
            " for it first."
        )
    if trouble is not None:  # logging changes only from now on would hide the missing ones
        raise client.broken(trouble)
    if options.partitions not in (None, partitions) or options.all_versions not in (None, previous):
        raise Misconfigured(
            f"{client} is watched already, with {partitions} partition{'' if partitions == 1 else 's'} and"
            f" {'all' if previous else 'latest'} versions. To change that, run `evenflow table unwatch` first."
        )
    return feed, partitions, previous


async def _add(
    connection: Connection, client: TableClient, table: WatchedTable, options: WatchOptions
) -> tuple[int, int, bool]:
    partitions, previous = options.partitions or 16, bool(options.all_versions)
    if not 1 <= partitions <= PARTITIONS_MOST:
        raise Misconfigured(f"partitions={partitions} is out of range: give a number from 1 to {PARTITIONS_MOST}.")
    columns = [column.bare for column in table.key]
    values = (table.name, table.relation, partitions, previous, columns, table.key_at, options.keep_s, not options.fill)
    cursor = await connection.execute(client.text(_MAKE), values)
    ((feed,),) = await cursor.fetchall()
    await connection.execute(log(client.schema, feed, partitions, previous=previous).encode())
    return feed, partitions, previous


async def _table(connection: Connection, client: TableClient) -> WatchedTable:
    cursor = await connection.execute(_TABLE.encode(), (client.table, sorted(STEADY)))
    rows = await cursor.fetchall()
    if not rows:
        raise Misconfigured(f"The {client} does not exist. Correct the name: SCHEMA.TABLE.")
    relation, name, kind, persistence, is_hidden, is_immediate, key_at, columns, is_steady = rows[0]
    if kind not in ("r", "p"):
        raise Misconfigured(f"{client} is a view or a foreign table, which has no changes of its own. Watch a table.")
    if persistence != "p":
        raise Misconfigured(
            f"{client} is temporary or unlogged: the server may empty it without running triggers. Watch a logged"
            " table."
        )
    if is_immediate is None:
        raise Misconfigured(
            f"{client} has no primary key, which is needed to know which changes belong to the same row. Add one."
        )
    if not is_immediate:
        raise Misconfigured(
            f"The primary key of {client} is deferrable, so changes of a row would have no order. Make it NOT"
            " DEFERRABLE."
        )
    if is_hidden:
        raise Misconfigured(
            f"Row-level security hides rows of {client} from {client.address.user}. Run this as its owner, with NO"
            " FORCE ROW LEVEL SECURITY on the table, or let a role with BYPASSRLS own it."
        )
    key = tuple(KeyColumn(*column) for column in columns)
    return WatchedTable(relation, name, kind == "p", key, key_at, is_steady)


async def fill(
    client: TableClient, on_progress: Callable[[int], None] = lambda rows: None, *, again: bool = False
) -> None:
    """Copies all rows into the log in the order of the key, in portions. Continues where an earlier run stopped."""
    feed = await client.feed()
    if again:
        await client.run(lambda connection: connection.execute(client.text(_UNFILLED, feed=feed.id)))

    async def portion(connection: Connection, rows: int) -> bool:
        async with connection.transaction():
            cursor = await connection.execute(client.text(_FILL, feed=feed.id), (rows,))
            ((last,),) = await cursor.fetchall()
            await connection.execute(client.text(_FILLED, feed=feed.id), (last,))
        return last is not None

    copied, rows = 0, FILL_ROWS
    while True:
        try:
            if not await client.run(lambda connection: portion(connection, rows), SETUP_S):  # noqa: B023
                return
        except SourceUnavailable as error:
            if _code(error) != LOCKED or rows == 1:
                raise
            rows = 1  # another transaction is changing one of them: wait for that row alone
            continue
        copied += rows
        rows = FILL_ROWS
        on_progress(copied)


def _code(error: EvenflowError) -> str | None:
    """The server's SQLSTATE."""
    return getattr(error.__cause__, "sqlstate", None)


async def prune(client: TableClient, older_s: float) -> int:
    """Removes older changes from the log and returns how many."""
    feed, removed = await client.feed(), 0

    async def portion(connection: Connection) -> int:
        cursor = await connection.execute(client.text(_PRUNE, feed=feed.id), (older_s, PRUNE_ROWS))
        ((count,),) = await cursor.fetchall()
        return int(count)

    while count := await client.run(portion, SETUP_S):
        removed += count
    return removed


async def feed_status(client: TableClient) -> FeedStatus:
    feed = await client.feed()
    horizon = await client.horizon(feed)
    kept = {place: (count, at_us) for place, count, at_us in await client.rows(_COUNTS, feed=feed.id)}
    noters = await client.rows(_NOTER, feed=feed.id)
    is_old = not any(MADE_BY in noter for (noter,) in noters)
    return FeedStatus(feed, horizon, kept, await client.writers(feed, horizon), is_old)


async def unwatch(client: TableClient) -> None:
    """Removes the feed. The schema and the feeds of other tables stay."""
    feed = await client.feed()

    async def work(connection: Connection) -> None:
        async with connection.transaction():
            await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_S}s'".encode())
            await connection.execute(drop(client.schema, feed.id, feed.partitions).encode())

    await client.run(work, SETUP_S)
