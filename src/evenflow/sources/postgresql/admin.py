"""What the owner of a table does: have it watched, copy the rows that it has, look at it, prune its log, end it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from evenflow.drivers.postgresql.driver import split_options
from evenflow.errors import EvenflowError, Misconfigured, SourceUnavailable
from evenflow.sources.postgresql.client import PURPOSE, Feed, Link, Look, Writer
from evenflow.sources.postgresql.schema import SCHEMA, common
from evenflow.sources.postgresql.source import SCHEME
from evenflow.sources.postgresql.trigger import MADE_BY, PARTITIONS_MOST, STEADY, Column, Table, drop, log, trigger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from evenflow.drivers.postgresql.driver import Connection

LOCK_S = 5
"""So long it is waited until nobody writes to the table: longer, and everybody else who wants to would wait behind."""
SETUP_S = 60.0
FILL_ROWS = 1000
PRUNE_ROWS = 20_000
LOCKED = "55P03"
"""What the server says when a lock is not to be had at once, or in time."""

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


class Terms(NamedTuple):
    """How a table is to be watched. None: as it is, or as is usual."""

    partitions: int | None = None
    all_versions: bool | None = None
    keep_s: float | None = None
    fill: bool = True
    reader: str | None = None
    """A role that may read the feed."""


class Standing(NamedTuple):
    feed: Feed
    look: Look
    kept: Mapping[int, tuple[int, int]]
    """How many rows the log of a partition has, and the time of the oldest, in microseconds since 1970."""
    writers: Sequence[Writer]
    is_old: bool
    """An older evenflow made its trigger."""


def opened(url: str) -> Link:
    """From the source's own URL."""
    rest, given = split_options(url, PURPOSE.options)
    if not url.startswith(f"{SCHEME}://") or not given.get("table"):
        raise Misconfigured(f"Give the table as {SCHEME}://USER@HOST/DATABASE?table=SCHEMA.TABLE.")
    return Link(rest.replace(SCHEME, "postgresql", 1), given["table"], given.get("schema", SCHEMA))


async def watch(link: Link, terms: Terms, told: Callable[[int], None] = lambda rows: None) -> Feed:
    """The table is watched afterwards, whoever else asks for that at the same time, and its rows are in the log.

    A feed that is there already is brought up to date; its partitions and what is kept of changes stay.
    """
    await link.qualified()
    try:
        await link.run(lambda connection: _make(connection, link, terms), SETUP_S)
    except Misconfigured as error:
        if _code(error) == "42501":
            raise Misconfigured(
                f"{link}: {link.address.user} may not do that ({error.__cause__}). The table's owner may, where it may"
                f" also CREATE in the database, or in a schema {link.schema} that it owns."
            ) from error
        raise
    except SourceUnavailable as error:
        if _code(error) == LOCKED:
            raise SourceUnavailable(
                f"{link}: somebody has been writing to it for {LOCK_S} s. Try again when long transactions have ended."
            ) from error
        raise
    feed = await link.feed()
    if terms.fill and not feed.is_filled:
        await fill(link, told)
    return await link.feed()


async def _make(connection: Connection, link: Link, terms: Terms) -> None:
    async with connection.transaction():
        await connection.execute(
            b"SELECT pg_advisory_xact_lock(hashtextextended('evenflow ' || $1, 0))", (link.schema,)
        )
        await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_S}s'".encode())
        table = await _table(connection, link)
        cursor = await connection.execute(b"SELECT to_regnamespace($1) IS NOT NULL", (link.schema,))
        ((is_there,),) = await cursor.fetchall()
        if not is_there:
            await connection.execute(f"CREATE SCHEMA {link.schema}".encode())
        await connection.execute(common(link.schema).encode())
        cursor = await connection.execute(link.text(_RELATED), (table.relation,))
        if related := await cursor.fetchall():
            raise Misconfigured(
                f"{link} and {related[0][0]}, which is watched already, are a table and its partition: the trigger of"
                " one would take the other's place. Run `evenflow table unwatch` for that one first."
            )
        cursor = await connection.execute(link.text(_FOUND), (table.name, table.relation))
        rows = await cursor.fetchall()
        if rows:
            feed, partitions, previous = _unchanged(link, table, terms, rows[0])
            columns = [column.bare for column in table.key]
            await connection.execute(link.text(_CHANGE), (feed, columns, terms.keep_s))
        else:
            feed, partitions, previous = await _add(connection, link, table, terms)
        text = trigger(link.schema, feed, table, partitions, previous=previous)
        await connection.execute(text.encode())
        if terms.reader is not None:
            role = '"' + terms.reader.replace('"', '""') + '"'
            await connection.execute(link.text(_GRANTS, role=role, feed=feed))


def _unchanged(link: Link, table: Table, terms: Terms, row: tuple[Any, ...]) -> tuple[int, int, bool]:
    feed, name, relation, partitions, previous, trouble = row
    if relation != table.relation:
        raise Misconfigured(
            f"{link} was dropped and made again since it was watched. Run `evenflow table unwatch` first: the log of"
            " the old one goes with it."
        )
    if name != table.name:
        raise Misconfigured(
            f"{link} is watched already, as {name}: it had this name then. Go on with that, or run `evenflow table"
            " unwatch` for it first."
        )
    if trouble is not None:  # only noting what is changed from now on would hide it
        raise link.broken(trouble)
    if terms.partitions not in (None, partitions) or terms.all_versions not in (None, previous):
        raise Misconfigured(
            f"{link} is watched already, with {partitions} partition{'' if partitions == 1 else 's'} and"
            f" {'all' if previous else 'latest'} versions: that stays. To change it run `evenflow table unwatch` first."
        )
    return feed, partitions, previous


async def _add(connection: Connection, link: Link, table: Table, terms: Terms) -> tuple[int, int, bool]:
    partitions, previous = terms.partitions or 16, bool(terms.all_versions)
    if not 1 <= partitions <= PARTITIONS_MOST:
        raise Misconfigured(f"partitions={partitions}: give a number from 1 to {PARTITIONS_MOST}.")
    columns = [column.bare for column in table.key]
    values = (table.name, table.relation, partitions, previous, columns, table.key_at, terms.keep_s, not terms.fill)
    cursor = await connection.execute(link.text(_MAKE), values)
    ((feed,),) = await cursor.fetchall()
    await connection.execute(log(link.schema, feed, partitions, previous=previous).encode())
    return feed, partitions, previous


async def _table(connection: Connection, link: Link) -> Table:
    cursor = await connection.execute(_TABLE.encode(), (link.table, sorted(STEADY)))
    rows = await cursor.fetchall()
    if not rows:
        raise Misconfigured(f"There is no {link}. Correct the name: SCHEMA.TABLE.")
    relation, name, kind, persistence, is_hidden, is_immediate, key_at, columns, is_steady = rows[0]
    if kind not in ("r", "p"):
        raise Misconfigured(f"{link} is no table: views and foreign tables have no changes of their own.")
    if persistence != "p":
        raise Misconfigured(f"{link} is temporary or unlogged: the server empties it without a change.")
    if is_immediate is None:
        raise Misconfigured(
            f"{link} has no primary key: nobody can tell which changes are of the same row. Give it one."
        )
    if not is_immediate:
        raise Misconfigured(f"The primary key of {link} is deferrable: changes of a row would have no order.")
    if is_hidden:
        raise Misconfigured(
            f"Row-level security hides rows of {link} from {link.address.user}. Let its owner watch it, with NO FORCE"
            " ROW LEVEL SECURITY, or a role with BYPASSRLS own it."
        )
    key = tuple(Column(*column) for column in columns)
    return Table(relation, name, kind == "p", key, key_at, is_steady)


async def fill(link: Link, told: Callable[[int], None] = lambda rows: None, *, again: bool = False) -> None:
    """Copy all rows into the log, in the order of the key, some at a time. It goes on where another one stopped."""
    feed = await link.feed()
    if again:
        await link.run(lambda connection: connection.execute(link.text(_UNFILLED, feed=feed.id)))

    async def some(connection: Connection, rows: int) -> bool:
        async with connection.transaction():
            cursor = await connection.execute(link.text(_FILL, feed=feed.id), (rows,))
            ((last,),) = await cursor.fetchall()
            await connection.execute(link.text(_FILLED, feed=feed.id), (last,))
        return last is not None

    copied, rows = 0, FILL_ROWS
    while True:
        try:
            if not await link.run(lambda connection: some(connection, rows), SETUP_S):  # noqa: B023
                return
        except SourceUnavailable as error:
            if _code(error) != LOCKED or rows == 1:
                raise
            rows = 1  # one of them is being changed: it is waited for alone
            continue
        copied += rows
        rows = FILL_ROWS
        told(copied)


def _code(error: EvenflowError) -> str | None:
    """The server's own."""
    return getattr(error.__cause__, "sqlstate", None)


async def prune(link: Link, older_s: float) -> int:
    """Remove what is older from the log; how much that was."""
    feed, removed = await link.feed(), 0

    async def some(connection: Connection) -> int:
        cursor = await connection.execute(link.text(_PRUNE, feed=feed.id), (older_s, PRUNE_ROWS))
        ((count,),) = await cursor.fetchall()
        return int(count)

    while count := await link.run(some, SETUP_S):
        removed += count
    return removed


async def standing(link: Link) -> Standing:
    feed = await link.feed()
    look = await link.look(feed)
    kept = {place: (count, at_us) for place, count, at_us in await link.rows(_COUNTS, feed=feed.id)}
    noters = await link.rows(_NOTER, feed=feed.id)
    is_old = not any(MADE_BY in noter for (noter,) in noters)
    return Standing(feed, look, kept, await link.writers(feed, look), is_old)


async def unwatch(link: Link) -> None:
    """Nothing of it is left but the schema, and other tables' feeds."""
    feed = await link.feed()

    async def work(connection: Connection) -> None:
        async with connection.transaction():
            await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_S}s'".encode())
            await connection.execute(drop(link.schema, feed.id, feed.partitions).encode())

    await link.run(work, SETUP_S)
