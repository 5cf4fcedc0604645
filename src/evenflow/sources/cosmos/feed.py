"""The feed of one container, in one mode: queries about its ranges, and the meaning of the service's errors."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from evenflow.drivers.cosmos.client import BadRequest
from evenflow.drivers.cosmos.positions import Piece, Spot
from evenflow.errors import Misconfigured, PositionGone, PositionOutOfRange
from evenflow.sources.cosmos.client import NOW, PageRequest, read_page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.drivers.cosmos.client import Link
    from evenflow.drivers.cosmos.positions import Place, Range
    from evenflow.sources.cosmos.client import FeedPage
    from evenflow.sources.cosmos.codec import CosmosFeedCodec, FeedChange


ITEMS_MOST = 1_000


class CosmosFeed(NamedTuple):
    """All methods may raise `RangeGone`, and `HubReplaced` when the container was recreated."""

    link: Link
    rid: str
    codec: CosmosFeedCodec
    whole: bool
    """All versions and deletes."""
    poll_s: float
    max_items: int | None

    async def read(self, range: Range, piece: Piece, max_items: int, since_s: int | None = None) -> FeedPage:
        """The changes after a piece's position. If that lies inside an LSN, the whole LSN is read again. With a time,
        few older changes are included: filter them with `since`.

        Raises `BadRequest` when the service cannot continue from there: see `refusal`.
        """
        after = None if since_s is None else _before(since_s)
        request = PageRequest(
            range, piece.spot.passed, piece[:2], max_items, whole=self.whole, rid=self.rid, since=after
        )
        return await read_page(self.link, request)

    async def newest(self, range: Range) -> int:
        """The last LSN of a range."""
        page = await read_page(self.link, PageRequest(range, NOW, range.span, 1, whole=self.whole, rid=self.rid))
        return page.after or 0

    async def before(self, range: Range, time: datetime) -> tuple[int, int | None]:
        """The LSN before the first change at or after the time, and the time in seconds; or the end of the feed and
        None. The service compares whole seconds."""
        wanted_s = int(time.timestamp())
        page = await self._since(range, wanted_s)
        while changes := self.changes(page):
            for change in changes:
                if change.at_s >= wanted_s:
                    return change.lsn - 1, wanted_s
            page = await self.read(range, Piece(*range.span, Spot(changes[-1].lsn)), ITEMS_MOST, wanted_s)
        return page.after or 0, None

    async def _since(self, range: Range, time_s: int) -> FeedPage:
        request = PageRequest(range, 0, range.span, 1, whole=self.whole, rid=self.rid, since=_before(time_s))
        try:
            return await read_page(self.link, request)
        except BadRequest as error:
            if not self.whole:
                raise
            raise Misconfigured(
                f"The {self.link}: all versions and deletes can be read only from now on, or from a checkpoint. Start"
                f' at "latest". ({error})'
            ) from error

    async def first(self, range: Range, piece: Piece, since_s: int | None) -> tuple[FeedChange | None, bool]:
        """The first change of a piece, and if there is none, whether that is certain."""
        page = await self.read(range, piece, 1, since_s)
        while (changes := self.changes(page)) and not since(changes, since_s):
            page = await self.read(range, piece._replace(spot=Spot(changes[-1].lsn)), ITEMS_MOST, since_s)
        reached = page.after is not None and page.end is not None and page.after >= page.end
        return next(iter(since(changes, since_s)), None), reached

    def changes(self, page: FeedPage) -> Sequence[FeedChange]:
        return self.codec.changes(page.body) if page.body else ()

    def refusal(self, place: Place, error: BadRequest) -> PositionOutOfRange:
        """The service explains only in prose why it cannot continue from a position, so the mode decides."""
        if self.whole:
            return PositionGone(f"Changes after {place} are no longer kept, or never existed. {error}")
        return PositionOutOfRange(f"The position {place} is not in the feed. {error}")


def since(changes: Sequence[FeedChange], time_s: int | None) -> Sequence[FeedChange]:
    """The changes that are not older than the time."""
    return changes if time_s is None else [change for change in changes if change.at_s >= time_s]


def _before(time_s: int) -> datetime:
    """The time to send: the service excludes the given second, the local server includes it."""
    return datetime.fromtimestamp(max(0, time_s - 1), UTC)
