"""A table of PostgreSQL as a source: its changes, as a trigger notes them, in hash ranges of its key.

    PostgreSQLTable("postgresql://app@db.example/shop", "public.orders")

A position is a number of the partition's log. Numbers have gaps, where transactions were rolled back; a reader's
positions go past them.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from math import inf
from typing import TYPE_CHECKING, Any

from evenflow.drivers.postgresql.driver import parse_switch, split_options
from evenflow.drivers.postgresql.listener import NotificationListener
from evenflow.errors import Misconfigured, PositionOutOfRange
from evenflow.model import BEGINNING, MICROSECONDS, Bounds, Identity, Partition, Position
from evenflow.sources.postgresql.client import PURPOSE, Feed, Link, Unwatched, history_of
from evenflow.sources.postgresql.horizon import Tide
from evenflow.sources.postgresql.numbers import COLUMNS, decoder
from evenflow.sources.postgresql.reader import TableReader, gone, position_at
from evenflow.sources.postgresql.schema import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from evenflow.model import Delay, PartitionId
    from evenflow.ports import Reader, Start
    from evenflow.sources.postgresql.client import Look

SCHEME = "postgresql-table"
MODES = {"latest": False, "all": True}
"""Whether all versions and deletes are given."""
TIDY_MOST_S = 600.0
"""All of a log is looked through, where it keeps the latest version of each row."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_ENDS = """
SELECT place, (SELECT sequence FROM @schema@.log_@feed@ WHERE partition = place ORDER BY sequence LIMIT 1),
    newest.sequence, newest.at_us
FROM unnest($1::integer[]) place LEFT JOIN LATERAL (
    SELECT sequence, at_us FROM @schema@.log_@feed@ WHERE partition = place ORDER BY sequence DESC LIMIT 1
) newest ON true"""
"""All that is committed, also what nobody may read yet: it is to be handled."""
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
        raise Misconfigured(f"Say which table, as in {SCHEME}://app@db.example/shop?table=public.orders.")
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
        """`mode` is "latest" (of each row the latest version) or "all" (all versions and deletes).

        Changes are told at once; every `poll_s` it is looked for those of which nobody has told. `schema` is where its
        log is. With `listen=False` nobody tells, for poolers in transaction mode: only looks find them. `namespace`
        names the database in the store, where its own name shall not.
        """
        if mode not in MODES:
            raise Misconfigured(f"mode={mode!r}: write latest, or all for all versions and deletes.")
        self._link = Link(url, table, schema)
        self._whole = MODES[mode]
        self._namespace = namespace
        self._listener = NotificationListener(self._link.door, self._link.schema, self._rung) if listen else None
        self._feed: Feed | None = None
        self._decode = decoder((), whole=self._whole)
        self._tide = Tide(self._look_once, self._tidy, self._listener, _seconds(poll_s))

    def __repr__(self) -> str:
        return f"<PostgreSQLTable {self._link}>"

    # --- which it is
    async def identity(self) -> Identity:
        feed = await self._link.feed()  # asked each time: it may have been watched anew
        self._feed = feed
        look = await self._looked(feed)
        return Identity(self._namespace or self._link.database, feed.name, look.made, "all" if self._whole else "")

    async def partitions(self) -> Sequence[Partition]:
        feed = await self._found()
        self._check_mode(feed)  # here as well, so that nobody begins who could never read
        # Now and then: a column may have been added, or have another type.
        self._decode = decoder(await self._link.rows(COLUMNS, feed.relation), whole=self._whole)
        return [Partition(str(place)) for place in range(feed.partitions)]

    # --- where to begin
    async def resolve(self, partition: PartitionId, start: Start) -> Position:
        feed = await self._found()
        place, look = self._place(partition, feed), await self._looked(feed)
        if start == "earliest":
            return position_at(look.floors[place])
        if start == "latest":
            return position_at(look.horizons[place])
        if isinstance(start, datetime):
            return await self._at_time(feed, place, start, look)
        if not isinstance(start, Position):
            raise Misconfigured(f'A start is "earliest", "latest", a time or a position, not {start!r}.')
        number = _number(start)
        self._check(place, number, look)
        return position_at(number)

    async def _at_time(self, feed: Feed, place: int, time: datetime, look: Look) -> Position:
        if time.tzinfo is None:
            raise Misconfigured(f"The start {time} has no time zone. Give it one, for instance tzinfo=UTC.")
        time_us = (time - EPOCH) // timedelta(microseconds=1)
        ((before,),) = await self._link.rows(_BEFORE, place, time_us, feed=feed.id)
        # Never beyond what is complete: one that was made in time may commit yet, with a lower number.
        return position_at(look.horizons[place] if before is None else min(before, look.horizons[place]))

    def _check(self, place: int, after: int, look: Look) -> None:
        if after < look.floors[place]:
            raise gone(self._link, after, look.floors[place])
        end = look.end_of(history_of(after), place)
        if end is not None and after > end:
            raise PositionOutOfRange(
                f"Changes up to {after} of {self._link} were handled, but the database that has taken over (a standby,"
                f" or a backup) knows them only up to {end}. See what it lost, then begin at {end}, or elsewhere."
            )
        if after > look.lasts[place]:
            raise PositionOutOfRange(
                f"Position {after} is beyond the end of partition {place} of {self._link}, which is"
                f" {look.lasts[place]}."
            )

    # --- reading
    async def open(self, partition: PartitionId, after: Position, *, epoch: int) -> Reader:
        feed = await self._found()
        self._check_mode(feed)
        place, look, number = self._place(partition, feed), await self._looked(feed), _number(after)
        self._check(place, number, look)
        return TableReader(self._link, self._tide, feed, place, number, look.made, whole=self._whole)

    def decoder(self) -> Callable[[bytes], Any]:
        return self._decode

    # --- what there is
    async def bounds(self, partitions: Sequence[PartitionId]) -> Mapping[PartitionId, Bounds]:
        feed = await self._found()
        look = await self._looked(feed)
        places = [self._place(partition, feed) for partition in partitions]
        rows = await self._link.rows(_ENDS, places, feed=feed.id)
        return {str(place): _bounds(look.horizons[place], *found) for place, *found in rows}

    async def waiting_since(self, after: Mapping[PartitionId, Position]) -> Mapping[PartitionId, datetime]:
        feed = await self._found()
        places = [self._place(partition, feed) for partition in after]
        rows = await self._link.rows(_WAITING, places, [_number(place) for place in after.values()], feed=feed.id)
        return {str(place): _moment(at_us) for place, at_us in rows if at_us is not None}

    async def held_back(self, partitions: Sequence[PartitionId]) -> Mapping[PartitionId, Delay]:
        feed = await self._found()
        look = await self._looked(feed)
        places = {self._place(partition, feed) for partition in partitions}
        if all(look.horizons[place] == look.lasts[place] for place in places):
            return {}
        found = await self._link.held_back(feed, look)
        return {str(place): delay for place, delay in found.items() if place in places}

    async def aclose(self) -> None:
        self._link.close()
        await self._tide.aclose(self._link.door.is_closed())
        if self._listener is not None:
            await self._listener.aclose()

    # --- inside
    async def _found(self) -> Feed:
        if self._feed is None:
            self._feed = await self._link.feed()
        return self._feed

    async def _look_once(self, sleep_ms: int) -> Look:
        return await self._looked(await self._found(), sleep_ms)

    async def _looked(self, feed: Feed, sleep_ms: int = 0) -> Look:
        try:
            look = await self._link.look(feed, sleep_ms)
        except Unwatched:
            self._feed = None  # whoever asks next finds the one that was made in its place
            raise
        self._link.address.has_served = True
        return look

    async def _tidy(self) -> None:
        feed = await self._found()
        if feed.keep_s is not None:
            await self._link.rows(_TIDY, feed=feed.id, within_s=TIDY_MOST_S)

    def _rung(self, feed: str) -> None:
        """All are meant when nothing is said."""
        if self._feed is None or feed in ("", str(self._feed.id)):
            self._tide.ring()

    def _check_mode(self, feed: Feed) -> None:
        if self._whole and not feed.previous:
            raise Misconfigured(
                f"{self._link} is watched for its latest versions alone. For mode=all let its owner watch it anew:"
                " `evenflow table unwatch`, then `evenflow table watch --all-versions`."
            )

    def _place(self, partition: PartitionId, feed: Feed) -> int:
        if not partition.isdecimal() or int(partition) >= feed.partitions:
            raise Misconfigured(f"{self._link} has no partition {partition!r}: it has 0 to {feed.partitions - 1}.")
        return int(partition)


def _seconds(poll_s: float | str | None) -> float | None:
    try:
        found = None if poll_s is None else float(poll_s)
    except ValueError:
        found = 0.0
    if found is not None and not 0 < found < inf:
        raise Misconfigured(f"{SCHEME}: poll_s={poll_s!r}: give a number of seconds above 0.")
    return found


def _number(position: Position) -> int:
    if position.sequence is not None:
        return max(0, position.sequence)
    try:
        return max(0, int(position.offset))
    except ValueError:
        raise PositionOutOfRange(
            f"The offset {position.offset!r} is none of a log's, which are whole numbers. Was it another source's?"
        ) from None


def _bounds(horizon: int, oldest: int | None, newest: int | None, at_us: int | None) -> Bounds:
    if oldest is None or newest is None or at_us is None:
        return Bounds(position_at(horizon + 1), position_at(horizon) if horizon else BEGINNING)
    return Bounds(position_at(oldest), position_at(newest), _moment(at_us))


def _moment(at_us: int) -> datetime:
    return datetime.fromtimestamp(at_us / MICROSECONDS, UTC)
