"""A PostgreSQL table as a source: a trigger logs its changes, in partitions by a hash of the primary key.

    PostgreSQLTable("postgresql://app@db.example/shop", "public.orders")

A position is a number in the partition's log. Numbers have gaps where transactions were rolled back; readers skip them.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from math import inf
from typing import TYPE_CHECKING, Any

from evenflow.drivers.postgresql.driver import parse_switch, split_options
from evenflow.drivers.postgresql.listener import NotificationListener
from evenflow.errors import Misconfigured, PositionOutOfRange
from evenflow.model import BEGINNING, MICROSECONDS, Bounds, Identity, Partition, Position
from evenflow.sources.postgresql.client import PURPOSE, TableClient, TableFeed, TableNotWatched, history_of
from evenflow.sources.postgresql.horizon import HorizonPoller
from evenflow.sources.postgresql.numbers import COLUMNS, decoder
from evenflow.sources.postgresql.reader import TableReader, gone, position_at
from evenflow.sources.postgresql.schema import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from evenflow.model import Delay, PartitionId
    from evenflow.ports import Reader, Start
    from evenflow.sources.postgresql.client import FeedHorizon

SCHEME = "postgresql-table"
MODES = {"latest": False, "all": True}
"""Whether the feed has all versions and deletes."""
TIDY_MOST_S = 600.0
"""Generous, because a log of latest versions is scanned completely."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_ENDS = """
SELECT place, (SELECT sequence FROM @schema@.log_@feed@ WHERE partition = place ORDER BY sequence LIMIT 1),
    newest.sequence, newest.at_us
FROM unnest($1::integer[]) place LEFT JOIN LATERAL (
    SELECT sequence, at_us FROM @schema@.log_@feed@ WHERE partition = place ORDER BY sequence DESC LIMIT 1
) newest ON true"""
"""Everything that is committed, even beyond the horizon, since it counts as lag."""
_BEFORE = "SELECT @schema@.before(@feed@, $1, $2)"
_WAITING = """
SELECT place, (SELECT at_us FROM @schema@.log_@feed@ WHERE partition = place AND sequence > handled
    ORDER BY sequence LIMIT 1)
FROM unnest($1::integer[], $2::bigint[]) wanted(place, handled)"""
_TIDY = "SELECT @schema@.tidy(@feed@)"


def from_url(url: str) -> PostgreSQLTable:
    """`postgresql-table://USER:PASSWORD@HOST:PORT/DATABASE?table=SCHEMA.TABLE`, with the driver's options behind it."""
    rest, given = split_options(url, PURPOSE.options)
    if not given.get("table"):
        raise Misconfigured(
            f"The URL lacks table=: write for instance {SCHEME}://app@db.example/shop?table=public.orders."
        )
    return PostgreSQLTable(
        rest.replace(SCHEME, "postgresql", 1),
        given["table"],
        mode=given.get("mode", "latest"),
        poll_s=given.get("poll_s"),
        schema=given.get("schema", SCHEMA),
        listen=parse_switch("listen", given.get("listen", "on")),
        namespace=given.get("namespace"),
    )


class PostgreSQLTable:
    def __init__(
        self,
        url: str,
        table: str,
        *,
        mode: str = "latest",
        poll_s: float | str | None = None,
        schema: str = SCHEMA,
        listen: bool = True,
        namespace: str | None = None,
    ) -> None:
        """`mode` is "latest" (the latest version of each row) or "all" (all versions and deletes).

        Transactions notify readers (LISTEN/NOTIFY); every `poll_s`, readers also poll. `schema` holds the log. Use
        `listen=False` with a connection pooler in transaction mode: readers then only poll. `namespace` replaces the
        database's name in the store.
        """
        if mode not in MODES:
            raise Misconfigured(f"mode={mode!r} is unknown: write latest, or all for all versions and deletes.")
        self._client = TableClient(url, table, schema)
        self._whole = MODES[mode]
        self._namespace = namespace
        self._listener = (
            NotificationListener(self._client.door, self._client.schema, self._on_notify) if listen else None
        )
        self._feed: TableFeed | None = None
        self._decode = decoder((), whole=self._whole)
        self._poller = HorizonPoller(self._poll_horizon, self._tidy, self._listener, _seconds(poll_s))

    def __repr__(self) -> str:
        return f"<PostgreSQLTable {self._client}>"

    # --- identity and partitions
    async def identity(self) -> Identity:
        feed = await self._client.feed()  # queried each time: the table may have been unwatched and watched again
        self._feed = feed
        horizon = await self._query_horizon(feed)
        return Identity(self._namespace or self._client.database, feed.name, horizon.made, "all" if self._whole else "")

    async def partitions(self) -> Sequence[Partition]:
        feed = await self._found()
        self._check_mode(feed)  # here as well, so that a wrong mode fails before any partition is claimed
        # Refreshed regularly: a column may have been added or changed its type.
        self._decode = decoder(await self._client.rows(COLUMNS, feed.relation), whole=self._whole)
        return [Partition(str(place)) for place in range(feed.partitions)]

    # --- starts
    async def resolve(self, partition: PartitionId, start: Start) -> Position:
        feed = await self._found()
        place, horizon = self._number_of(partition, feed), await self._query_horizon(feed)
        if start == "earliest":
            return position_at(horizon.floors[place])
        if start == "latest":
            return position_at(horizon.horizons[place])
        if isinstance(start, datetime):
            return await self._at_time(feed, place, start, horizon)
        if not isinstance(start, Position):
            raise Misconfigured(f'start={start!r} is invalid: give "earliest", "latest", a time or a position.')
        number = _number(start)
        self._check(place, number, horizon)
        return position_at(number)

    async def _at_time(self, feed: TableFeed, place: int, time: datetime, horizon: FeedHorizon) -> Position:
        if time.tzinfo is None:
            raise Misconfigured(f"The start {time} has no time zone. Give it one, for instance tzinfo=UTC.")
        time_us = (time - EPOCH) // timedelta(microseconds=1)
        ((before,),) = await self._client.rows(_BEFORE, place, time_us, feed=feed.id)
        # Never beyond the horizon: a transaction from that time may still commit with a lower number.
        return position_at(horizon.horizons[place] if before is None else min(before, horizon.horizons[place]))

    def _check(self, place: int, after: int, horizon: FeedHorizon) -> None:
        if after < horizon.floors[place]:
            raise gone(self._client, after, horizon.floors[place])
        end = horizon.end_of(history_of(after), place)
        if end is not None and after > end:
            raise PositionOutOfRange(
                f"Changes up to {after} of {self._client} were handled, but the server that took over (a standby or a"
                f" backup) has them only up to {end}. Check what it lost, then start at {end} or elsewhere."
            )
        if after > horizon.lasts[place]:
            raise PositionOutOfRange(
                f"Position {after} is beyond the end of partition {place} of {self._client}, which is"
                f" {horizon.lasts[place]}."
            )

    # --- reading
    async def open(self, partition: PartitionId, after: Position, *, epoch: int) -> Reader:
        feed = await self._found()
        self._check_mode(feed)
        place, horizon, number = self._number_of(partition, feed), await self._query_horizon(feed), _number(after)
        self._check(place, number, horizon)
        return TableReader(self._client, self._poller, feed, place, number, horizon.made, whole=self._whole)

    def decoder(self) -> Callable[[bytes], Any]:
        return self._decode

    # --- bounds
    async def bounds(self, partitions: Sequence[PartitionId]) -> Mapping[PartitionId, Bounds]:
        feed = await self._found()
        horizon = await self._query_horizon(feed)
        places = [self._number_of(partition, feed) for partition in partitions]
        rows = await self._client.rows(_ENDS, places, feed=feed.id)
        return {str(place): _bounds(horizon.horizons[place], *found) for place, *found in rows}

    async def waiting_since(self, after: Mapping[PartitionId, Position]) -> Mapping[PartitionId, datetime]:
        feed = await self._found()
        places = [self._number_of(partition, feed) for partition in after]
        rows = await self._client.rows(_WAITING, places, [_number(place) for place in after.values()], feed=feed.id)
        return {str(place): _moment(at_us) for place, at_us in rows if at_us is not None}

    async def held_back(self, partitions: Sequence[PartitionId]) -> Mapping[PartitionId, Delay]:
        feed = await self._found()
        horizon = await self._query_horizon(feed)
        places = {self._number_of(partition, feed) for partition in partitions}
        if all(horizon.horizons[place] == horizon.lasts[place] for place in places):
            return {}
        found = await self._client.held_back(feed, horizon)
        return {str(place): delay for place, delay in found.items() if place in places}

    async def aclose(self) -> None:
        self._client.close()
        await self._poller.aclose(self._client.door.is_closed())
        if self._listener is not None:
            await self._listener.aclose()

    # --- inside
    async def _found(self) -> TableFeed:
        if self._feed is None:
            self._feed = await self._client.feed()
        return self._feed

    async def _poll_horizon(self, sleep_ms: int) -> FeedHorizon:
        return await self._query_horizon(await self._found(), sleep_ms)

    async def _query_horizon(self, feed: TableFeed, sleep_ms: int = 0) -> FeedHorizon:
        try:
            horizon = await self._client.horizon(feed, sleep_ms)
        except TableNotWatched:
            self._feed = None  # the next query finds a feed that replaced it
            raise
        self._client.address.has_served = True
        return horizon

    async def _tidy(self) -> None:
        feed = await self._found()
        if feed.keep_s is not None:
            await self._client.rows(_TIDY, feed=feed.id, within_s=TIDY_MOST_S)

    def _on_notify(self, feed: str) -> None:
        """A notification for one feed; an empty text means all feeds."""
        if self._feed is None or feed in ("", str(self._feed.id)):
            self._poller.notify()

    def _check_mode(self, feed: TableFeed) -> None:
        if self._whole and not feed.previous:
            raise Misconfigured(
                f"{self._client} is watched for its latest versions only. For mode=all, its owner must run"
                " `evenflow table unwatch`, then `evenflow table watch --all-versions`."
            )

    def _number_of(self, partition: PartitionId, feed: TableFeed) -> int:
        if not partition.isdecimal() or int(partition) >= feed.partitions:
            raise Misconfigured(
                f"{self._client} has no partition {partition!r}: its partitions are 0 to {feed.partitions - 1}."
            )
        return int(partition)


def _seconds(poll_s: float | str | None) -> float | None:
    try:
        found = None if poll_s is None else float(poll_s)
    except ValueError:
        found = 0.0
    if found is not None and not 0 < found < inf:
        raise Misconfigured(f"{SCHEME}: poll_s={poll_s!r} is invalid: give a number of seconds above 0.")
    return found


def _number(position: Position) -> int:
    if position.sequence is not None:
        return max(0, position.sequence)
    try:
        return max(0, int(position.offset))
    except ValueError:
        raise PositionOutOfRange(
            f"{position.offset!r} is not a number of a log (expected an integer). Was it stored by another source?"
        ) from None


def _bounds(horizon: int, oldest: int | None, newest: int | None, at_us: int | None) -> Bounds:
    if oldest is None or newest is None or at_us is None:
        return Bounds(position_at(horizon + 1), position_at(horizon) if horizon else BEGINNING)
    return Bounds(position_at(oldest), position_at(newest), _moment(at_us))


def _moment(at_us: int) -> datetime:
    return datetime.fromtimestamp(at_us / MICROSECONDS, UTC)
