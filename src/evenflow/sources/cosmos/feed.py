"""The feed of one container, in one mode: what is asked of a range of it, and what a refusal means."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from evenflow.drivers.cosmos.client import BadRequest
from evenflow.drivers.cosmos.positions import Piece, Spot
from evenflow.errors import Misconfigured, PositionGone, PositionOutOfRange
from evenflow.sources.cosmos.client import NOW, Ask, read_page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.drivers.cosmos.client import Link
    from evenflow.drivers.cosmos.positions import Place, Range
    from evenflow.sources.cosmos.client import Page
    from evenflow.sources.cosmos.codec import Change, Teller


ITEMS_MOST = 1_000


class Feed(NamedTuple):
    """All methods may raise `RangeGone`, and `HubReplaced` when there is another container of the same name."""

    link: Link
    rid: str
    teller: Teller
    whole: bool
    """All versions and deletes."""
    poll_s: float
    max_items: int | None

    async def read(self, range: Range, piece: Piece, max_items: int, since_s: int | None = None) -> Page:
        """What comes after a piece's spot; where that is inside an LSN, its whole LSN comes again. With a time, hardly
        anything that is older: see `since`.

        `BadRequest` when it cannot be gone on from there: see `refusal`.
        """
        after = None if since_s is None else _before(since_s)
        ask = Ask(range, piece.spot.passed, piece[:2], max_items, whole=self.whole, rid=self.rid, since=after)
        return await read_page(self.link, ask)

    async def newest(self, range: Range) -> int:
        """The last LSN of a range."""
        page = await read_page(self.link, Ask(range, NOW, range.span, 1, whole=self.whole, rid=self.rid))
        return page.after or 0

    async def before(self, range: Range, time: datetime) -> tuple[int, int | None]:
        """The LSN before the first change since then, and then, if there is one. The service knows times in whole
        seconds."""
        wanted_s = int(time.timestamp())
        page = await self._since(range, wanted_s)
        while changes := self.changes(page):
            for change in changes:
                if change.at_s >= wanted_s:
                    return change.lsn - 1, wanted_s
            page = await self.read(range, Piece(*range.span, Spot(changes[-1].lsn)), ITEMS_MOST, wanted_s)
        return page.after or 0, None

    async def _since(self, range: Range, time_s: int) -> Page:
        ask = Ask(range, 0, range.span, 1, whole=self.whole, rid=self.rid, since=_before(time_s))
        try:
            return await read_page(self.link, ask)
        except BadRequest as error:
            if not self.whole:
                raise
            raise Misconfigured(
                f"The {self.link}: all versions and deletes can be read from now on alone, or from a checkpoint. Begin"
                f' with start="latest". ({error})'
            ) from error

    async def first(self, range: Range, piece: Piece, since_s: int | None) -> tuple[Change | None, bool]:
        """The first change of a piece; and if there is none, whether that is certain."""
        page = await self.read(range, piece, 1, since_s)
        while (changes := self.changes(page)) and not since(changes, since_s):
            page = await self.read(range, piece._replace(spot=Spot(changes[-1].lsn)), ITEMS_MOST, since_s)
        reached = page.after is not None and page.end is not None and page.after >= page.end
        return next(iter(since(changes, since_s)), None), reached

    def changes(self, page: Page) -> Sequence[Change]:
        return self.teller.changes(page.body) if page.body else ()

    def refusal(self, place: Place, error: BadRequest) -> PositionOutOfRange:
        """The service does not say why it cannot go on from somewhere, but in a sentence."""
        if self.whole:
            return PositionGone(f"Changes after {place} are no longer kept, or were never. {error}")
        return PositionOutOfRange(f"The position {place} is not in the feed. {error}")


def since(changes: Sequence[Change], time_s: int | None) -> Sequence[Change]:
    """Those that are not older."""
    return changes if time_s is None else [change for change in changes if change.at_s >= time_s]


def _before(time_s: int) -> datetime:
    """What the service is asked for. It leaves out that very second, where the local one does not."""
    return datetime.fromtimestamp(max(0, time_s - 1), UTC)
