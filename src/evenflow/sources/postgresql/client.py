"""The connections of a source to its database, and one look at a feed: how far it may be read.

What is asked of a feed goes by its number; a table that is not watched, or no longer, is an error that says what to do.
"""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from evenflow.drivers.postgresql.driver import FunctionError, PostgreSQLOptions, PostgreSQLUse, check_name, undecoded
from evenflow.drivers.postgresql.pool import ConnectionFactory, ConnectionPool
from evenflow.errors import Misconfigured, SourceUnavailable
from evenflow.model import Delay
from evenflow.sources.postgresql.schema import HISTORY_BITS, SCHEMA, VERSION, filled_in

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    from evenflow.drivers.postgresql.driver import Connection

T = TypeVar("T")

SERVER_VERSION_LEAST = 140_000
LINES = 3


class Unwatched(Misconfigured):
    """Nobody watches this table."""


PURPOSE = PostgreSQLUse(
    "source",
    SourceUnavailable,
    Unwatched,
    ("table", "mode", "poll_s", "schema", "listen", "namespace"),
    "`evenflow table watch URL --reader ROLE`, run by the table's owner, gives a role what it needs to read",
)

_FIND = """
SELECT (SELECT prosrc FROM pg_proc WHERE pronamespace = to_regnamespace('@schema@') AND proname = 'version'),
    to_regclass($1)::oid,
    (SELECT format('%I.%I', nspname, relname) FROM pg_class JOIN pg_namespace space ON space.oid = relnamespace
     WHERE pg_class.oid = to_regclass($1)), current_database(),
    ARRAY(SELECT quote_ident(space) || '.' || $1 FROM unnest(current_schemas(false)) space)"""
_FEED = """
SELECT id, name, relation, partitions, previous, is_filled, keep_s, key,
    previous OR to_regclass('@schema@.log_' || id || '_later') IS NOT NULL
FROM @schema@.feeds WHERE name = ANY($1)"""
_WRITERS = """
SELECT pid, min(coalesce(xact_start, prepared)), gid, max(below)
FROM @schema@.writers(@feed@, $1) held LEFT JOIN pg_stat_activity USING (pid)
LEFT JOIN pg_prepared_xacts ready ON '-1/' || ready.transaction = held.transaction
GROUP BY pid, gid ORDER BY 2"""
_HELD = """
SELECT place, waiting.changes, waiting.seconds, pid, coalesce(xact_start, prepared), gid, below
FROM (SELECT DISTINCT ON (place) * FROM @schema@.writers(@feed@, $1) WHERE below > 0 ORDER BY place, below DESC) held
LEFT JOIN pg_stat_activity USING (pid)
LEFT JOIN pg_prepared_xacts ready ON '-1/' || ready.transaction = held.transaction
CROSS JOIN LATERAL (
    SELECT count(*) AS changes,
        (extract(epoch FROM clock_timestamp()) - min(at_us) / 1000000.0)::double precision AS seconds
    FROM @schema@.log_@feed@ WHERE partition = place AND sequence > $1[place + 1] - below) waiting
WHERE waiting.changes > 0"""
"""The one that holds each partition back the furthest, and what is committed behind it."""
_LOOK = "SELECT * FROM @schema@.look($1, $2, $3)"
READ_ONLY = "25006"
"""What the server says when a transaction may only read."""


class Feed(NamedTuple):
    """A watched table, as its schema has it."""

    id: int
    name: str
    relation: int
    partitions: int
    previous: bool
    is_filled: bool
    keep_s: float | None
    key: list[str]
    """Its columns."""
    has_later: bool
    """There is an index that tells whether a change was replaced since."""


class Writer(NamedTuple):
    """A transaction that has changed the table and is not at its end: nothing after its first change can be read."""

    pid: int | None
    """None: it is prepared."""
    since: datetime | None
    """None where the server does not tell this role."""
    prepared: str | None
    holds_back: int
    """How many numbers at least were drawn since its first one, in one partition."""

    def __str__(self) -> str:
        return f"process {self.pid}" if self.pid is not None else f"prepared transaction {self.prepared}"


class Look(NamedTuple):
    """All lists have one entry for each partition."""

    trouble: str | None
    made: str
    ends: str
    open: int
    """How many have drawn numbers and are not at their end."""
    lasts: list[int]
    """The numbers drawn last."""
    horizons: list[int]
    """Up to here everything there will ever be is there."""
    newest: list[int]
    floors: list[int]
    has_large: bool
    """Some changes may be so large that they are kept apart."""

    def end_of(self, history: int, place: int) -> int | None:
        """The last number of a history that has ended; None when it has not."""
        found = msgspec.json.decode(self.ends, type=dict[str, list[int]]).get(str(history))
        return None if found is None else found[place]


class Link:
    def __init__(self, url: str, table: str, schema: str = SCHEMA) -> None:
        self.address = PostgreSQLOptions(url, PURPOSE)
        self.schema = check_name(schema)
        self.table = table
        self.door = ConnectionFactory(self.address)
        self.database = ""
        self._lines = ConnectionPool(self.door, LINES)
        self._is_strict = False
        """Whether a look needs other transactions than those that the server begins by itself."""
        self._known: dict[int, list[int]] = {}
        """How far each feed could be read when it was last looked at."""

    def __str__(self) -> str:
        return f"table {self.table} of {self.address}"

    def text(self, statement: str, **values: object) -> bytes:
        return self.filled(statement, **values).encode()

    def filled(self, statement: str, **values: object) -> str:
        return filled_in(statement, schema=self.schema, **values)

    async def run(self, work: Callable[[Connection], Awaitable[T]], within_s: float | None = None) -> T:
        if self.door.closed.is_set():
            raise self.door.is_closed()
        return await (self._lines.run(work) if within_s is None else self._lines.run(work, within_s))

    async def rows(
        self, statement: str, *values: object, within_s: float | None = None, **filled: object
    ) -> list[tuple[Any, ...]]:
        text = self.text(statement, **filled)

        async def ask(connection: Connection) -> list[tuple[Any, ...]]:
            cursor = undecoded(connection)
            await cursor.execute(text, values)
            return await cursor.fetchall()

        return await self.run(ask, within_s)

    # --- the feed
    async def feed(self) -> Feed:
        """Unwatched when there is none."""
        names = await self.qualified()
        try:
            rows = await self.rows(_FEED, names)
        except Unwatched:
            rows = []
        if not rows:
            raise self._unwatched()
        return Feed(*rows[0])

    def _unwatched(self) -> Unwatched:
        place = str(self.address).removeprefix("postgresql://")
        schema = "" if self.schema == SCHEMA else f"&schema={self.schema}"
        return Unwatched(
            f"{self} is not watched: nothing notes its changes. Let its owner run: "
            f"evenflow table watch 'postgresql-table://OWNER@{place}?table={self.table}{schema}'"
        )

    async def qualified(self) -> list[str]:
        """The table's whole name, once it is sure that this server and the schema will do; several where there is no
        such table (any more), and nobody knows which schema it was in."""
        try:
            version, relation, name, database, others = (await self.run(self._find))[0]
        except SourceUnavailable as error:
            if getattr(error.__cause__, "sqlstate", None) in ("42601", "42602", "0A000"):
                raise Misconfigured(f"table={self.table!r} is no name of a table. Write SCHEMA.TABLE.") from error
            raise
        self.database = database
        found = int(version.split()[-1]) if version else VERSION
        if found > VERSION:
            raise Misconfigured(
                f"Schema {self.schema} of {self.address} was made by a newer evenflow (its version is {found}, this one"
                f" knows {VERSION}). Update evenflow here."
            )
        return [str(name)] if relation is not None else [self.table, *others]

    async def _find(self, connection: Connection) -> list[tuple[Any, ...]]:
        if connection.info.server_version < SERVER_VERSION_LEAST:
            had = connection.info.server_version // 10_000
            raise Misconfigured(f"{self.address} is PostgreSQL {had}; evenflow needs 14 or later.")
        cursor = await connection.execute(self.text(_FIND), (self.table,))
        return await cursor.fetchall()

    async def look(self, feed: Feed, sleep_ms: int = 0) -> Look:
        try:
            look = Look(*(await self.run(lambda connection: self._look(connection, feed, sleep_ms)))[0])
        except Unwatched as error:
            raise self._unwatched() from error
        except (FunctionError, SourceUnavailable) as error:
            return await self._look_again(feed, sleep_ms, error)
        if look.trouble is not None:
            raise self.broken(look.trouble)
        self._known[feed.id] = look.horizons
        return look

    async def _look_again(self, feed: Feed, sleep_ms: int, error: FunctionError | SourceUnavailable) -> Look:
        """In a transaction that is begun on purpose, where the others are too strict, or may only read."""
        if isinstance(error, FunctionError) and error.code == "EV012":
            raise SourceUnavailable(f"{self.address} is a standby: a feed is read from its primary.") from error
        is_read_only = getattr(error.__cause__, "sqlstate", None) == READ_ONLY
        if self._is_strict or not (is_read_only or isinstance(error, FunctionError)):
            raise error
        self._is_strict = True
        return await self.look(feed, sleep_ms)

    async def writers(self, feed: Feed, look: Look) -> list[Writer]:
        return [Writer(*row) for row in await self.rows(_WRITERS, look.lasts, feed=feed.id)]

    async def held_back(self, feed: Feed, look: Look) -> dict[int, Delay]:
        """What is committed and cannot be read yet, in each partition that has any."""
        rows = await self.rows(_HELD, look.lasts, feed=feed.id)
        return {place: Delay(seconds, _waiting(changes, Writer(*who))) for place, changes, seconds, *who in rows}

    def broken(self, trouble: str) -> Unwatched:
        return Unwatched(
            f"{self}: {trouble}. Let its owner run `evenflow table unwatch` and `evenflow table watch`: that begins a"
            " new log, and copies all rows into it."
        )

    async def _look(self, connection: Connection, feed: Feed, sleep_ms: int) -> list[tuple[Any, ...]]:
        values = (feed.id, sleep_ms, self._known.get(feed.id))
        if not self._is_strict:
            cursor = await connection.execute(self.text(_LOOK), values, binary=True)
            return await cursor.fetchall()
        await connection.set_read_only(False)
        async with connection.transaction():
            cursor = await connection.execute(self.text(_LOOK), values, binary=True)
            return await cursor.fetchall()

    def close(self) -> None:
        self.door.closed.set()
        self._lines.close()


def _waiting(changes: int, writer: Writer) -> str:
    since = f", open since {writer.since.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if writer.since is not None else ""
    waits = "1 change that is committed waits" if changes == 1 else f"{changes} changes that are committed wait"
    return (
        f"{waits} for the transaction of {writer}{since}" if writer.pid is not None else f"{waits} for {writer}{since}"
    )


def history_of(number: int) -> int:
    return number >> HISTORY_BITS
