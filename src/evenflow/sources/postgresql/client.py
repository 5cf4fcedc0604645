"""The connections of a source to its database, and the query for how far a feed may be read (its horizon).

Queries identify a feed by its number. A table that is not watched, or no longer, is an error that says what to do.
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


class TableNotWatched(Misconfigured):
    """The table has no trigger that logs its changes."""


PURPOSE = PostgreSQLUse(
    "source",
    SourceUnavailable,
    TableNotWatched,
    ("table", "mode", "poll_s", "schema", "listen", "namespace"),
    "`evenflow table watch URL --reader ROLE`, run by the table's owner, grants a role the rights to read",
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
"""For each partition, the transaction that holds it back the furthest, and the committed changes behind it."""
_HORIZON = "SELECT * FROM @schema@.look($1, $2, $3)"
READ_ONLY = "25006"
"""SQLSTATE of a write in a read-only transaction."""


class TableFeed(NamedTuple):
    """A watched table, as the table `feeds` describes it."""

    id: int
    name: str
    relation: int
    partitions: int
    previous: bool
    is_filled: bool
    keep_s: float | None
    key: list[str]
    """The columns of the primary key."""
    has_later: bool
    """There is an index to check whether a later change has replaced a change."""


class FeedWriter(NamedTuple):
    """An open transaction that has changed the table: changes after its first one cannot be read yet."""

    pid: int | None
    """None for a prepared transaction."""
    since: datetime | None
    """None if the server does not show it to this role."""
    prepared: str | None
    holds_back: int
    """At least how many numbers were drawn since its first one, in one partition."""

    def __str__(self) -> str:
        return f"process {self.pid}" if self.pid is not None else f"prepared transaction {self.prepared}"


class FeedHorizon(NamedTuple):
    """All lists have one entry for each partition."""

    trouble: str | None
    made: str
    ends: str
    open: int
    """How many open transactions have drawn numbers."""
    lasts: list[int]
    """The last numbers drawn."""
    horizons: list[int]
    """Up to here, no further change can appear."""
    newest: list[int]
    floors: list[int]
    has_large: bool
    """Some changes may be so large that the server stores them out of line (TOAST)."""

    def end_of(self, history: int, place: int) -> int | None:
        """The last number of a history that has ended; None if it has not ended."""
        found = msgspec.json.decode(self.ends, type=dict[str, list[int]]).get(str(history))
        return None if found is None else found[place]


class TableClient:
    def __init__(self, url: str, table: str, schema: str = SCHEMA) -> None:
        self.address = PostgreSQLOptions(url, PURPOSE)
        self.schema = check_name(schema)
        self.table = table
        self.door = ConnectionFactory(self.address)
        self.database = ""
        self._lines = ConnectionPool(self.door, LINES)
        self._is_strict = False
        """Whether the query needs an explicit transaction, because the default one is too strict or read-only."""
        self._known: dict[int, list[int]] = {}
        """The last known horizons of each feed."""

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
    async def feed(self) -> TableFeed:
        """Raises TableNotWatched if there is none."""
        names = await self.qualified()
        try:
            rows = await self.rows(_FEED, names)
        except TableNotWatched:
            rows = []
        if not rows:
            raise self._not_watched()
        return TableFeed(*rows[0])

    def _not_watched(self) -> TableNotWatched:
        place = str(self.address).removeprefix("postgresql://")
        schema = "" if self.schema == SCHEMA else f"&schema={self.schema}"
        return TableNotWatched(
            f"{self} is not watched, so its changes are not logged. Its owner must run: "
            f"evenflow table watch 'postgresql-table://OWNER@{place}?table={self.table}{schema}'"
        )

    async def qualified(self) -> list[str]:
        """The table's qualified name, after checking the server's and the schema's version. Several candidates if the
        table does not exist (any more), since its schema is then unknown."""
        try:
            version, relation, name, database, others = (await self.run(self._find))[0]
        except SourceUnavailable as error:
            if getattr(error.__cause__, "sqlstate", None) in ("42601", "42602", "0A000"):
                raise Misconfigured(f"table={self.table!r} is not a table's name. Write SCHEMA.TABLE.") from error
            raise
        self.database = database
        found = int(version.split()[-1]) if version else VERSION
        if found > VERSION:
            raise Misconfigured(
                f"Schema {self.schema} of {self.address} was created by a newer evenflow (its version is {found}, this"
                f" one supports {VERSION}). Update evenflow here."
            )
        return [str(name)] if relation is not None else [self.table, *others]

    async def _find(self, connection: Connection) -> list[tuple[Any, ...]]:
        if connection.info.server_version < SERVER_VERSION_LEAST:
            had = connection.info.server_version // 10_000
            raise Misconfigured(f"{self.address} is PostgreSQL {had}; evenflow needs 14 or later.")
        cursor = await connection.execute(self.text(_FIND), (self.table,))
        return await cursor.fetchall()

    async def horizon(self, feed: TableFeed, sleep_ms: int = 0) -> FeedHorizon:
        try:
            horizon = FeedHorizon(
                *(await self.run(lambda connection: self._query_horizon(connection, feed, sleep_ms)))[0]
            )
        except TableNotWatched as error:
            raise self._not_watched() from error
        except (FunctionError, SourceUnavailable) as error:
            return await self._query_again(feed, sleep_ms, error)
        if horizon.trouble is not None:
            raise self.broken(horizon.trouble)
        self._known[feed.id] = horizon.horizons
        return horizon

    async def _query_again(
        self, feed: TableFeed, sleep_ms: int, error: FunctionError | SourceUnavailable
    ) -> FeedHorizon:
        """Repeats the query in an explicit transaction if the default one is too strict or read-only."""
        if isinstance(error, FunctionError) and error.code == "EV012":
            raise SourceUnavailable(f"{self.address} is a standby. Connect to the primary to read a feed.") from error
        is_read_only = getattr(error.__cause__, "sqlstate", None) == READ_ONLY
        if self._is_strict or not (is_read_only or isinstance(error, FunctionError)):
            raise error
        self._is_strict = True
        return await self.horizon(feed, sleep_ms)

    async def writers(self, feed: TableFeed, horizon: FeedHorizon) -> list[FeedWriter]:
        return [FeedWriter(*row) for row in await self.rows(_WRITERS, horizon.lasts, feed=feed.id)]

    async def held_back(self, feed: TableFeed, horizon: FeedHorizon) -> dict[int, Delay]:
        """The committed changes that cannot be read yet, for each partition that has some."""
        rows = await self.rows(_HELD, horizon.lasts, feed=feed.id)
        return {place: Delay(seconds, _waiting(changes, FeedWriter(*who))) for place, changes, seconds, *who in rows}

    def broken(self, trouble: str) -> TableNotWatched:
        return TableNotWatched(
            f"{self}: {trouble}. Its owner must run `evenflow table unwatch` and `evenflow table watch`, which starts a"
            " new log and copies all rows into it."
        )

    async def _query_horizon(self, connection: Connection, feed: TableFeed, sleep_ms: int) -> list[tuple[Any, ...]]:
        values = (feed.id, sleep_ms, self._known.get(feed.id))
        if not self._is_strict:
            cursor = await connection.execute(self.text(_HORIZON), values, binary=True)
            return await cursor.fetchall()
        await connection.set_read_only(False)
        async with connection.transaction():
            cursor = await connection.execute(self.text(_HORIZON), values, binary=True)
            return await cursor.fetchall()

    def close(self) -> None:
        self.door.closed.set()
        self._lines.close()


def _waiting(changes: int, writer: FeedWriter) -> str:
    since = f", open since {writer.since.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if writer.since is not None else ""
    waits = "1 committed change waits" if changes == 1 else f"{changes} committed changes wait"
    return (
        f"{waits} for the transaction of {writer}{since}" if writer.pid is not None else f"{waits} for {writer}{since}"
    )


def history_of(number: int) -> int:
    return number >> HISTORY_BITS
