"""The feed of one container, in one mode: what is asked of a range of it, and what a refusal means."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from evenflow.drivers.cosmos import BadRequest
from evenflow.drivers.cosmos_places import Piece, Spot
from evenflow.errors import Misconfigured, PositionGone, PositionOutOfRange
from evenflow.sources.cosmos_client import NOW, Ask, read_page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.drivers.cosmos import Link
    from evenflow.drivers.cosmos_places import Place, Range
    from evenflow.sources.cosmos_client import Page
    from evenflow.sources.cosmos_events import Change, Teller


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

    async def read(self, range: Range, piece: Piece, max_items: int) -> Page:
        """What comes after a piece's spot; where that is inside an LSN, its whole LSN comes again.

        `BadRequest` when it cannot be gone on from there: see `refusal`.
        """
        ask = Ask(range, piece.spot.passed, piece[:2], max_items, whole=self.whole, rid=self.rid)
        return await read_page(self.link, ask)

    async def newest(self, range: Range) -> int:
        """The last LSN of a range."""
        page = await read_page(self.link, Ask(range, NOW, range.span, 1, whole=self.whole, rid=self.rid))
        return page.after or 0

    async def before(self, range: Range, time: datetime) -> int:
        """The LSN before the first change since then. The service knows times in whole seconds.

        It leaves out the second that it is asked for, where the local one does not: so it is asked for the one before.
        """
        wanted_s = int(time.timestamp())
        since = datetime.fromtimestamp(max(0, wanted_s - 1), UTC)
        page = await self._since(range, since)
        while changes := self.changes(page):
            for change in changes:
                if change.at_s >= wanted_s:
                    return change.lsn - 1
            page = await self.read(range, Piece(*range.span, Spot(changes[-1].lsn)), ITEMS_MOST)
        return page.after or 0

    async def _since(self, range: Range, time: datetime) -> Page:
        ask = Ask(range, 0, range.span, 1, whole=self.whole, rid=self.rid, since=time)
        try:
            return await read_page(self.link, ask)
        except BadRequest as error:
            if not self.whole:
                raise
            raise Misconfigured(
                f"The {self.link}: all versions and deletes can be read from now on alone, or from a checkpoint. Begin"
                f' with start="latest". ({error})'
            ) from error

    async def first(self, range: Range, piece: Piece) -> tuple[Change | None, bool]:
        """The first change of a piece; and if there is none, whether that is certain."""
        page = await self.read(range, piece, 1)
        reached = page.after is not None and page.end is not None and page.after >= page.end
        return next(iter(self.changes(page)), None), reached

    def changes(self, page: Page) -> Sequence[Change]:
        return self.teller.changes(page.body) if page.body else ()

    def refusal(self, place: Place, error: BadRequest) -> PositionOutOfRange:
        """The service does not say why it cannot go on from somewhere, but in a sentence."""
        if self.whole:
            return PositionGone(f"Changes after {place} are no longer kept, or were never. {error}")
        return PositionOutOfRange(f"The position {place} is not in the feed. {error}")
