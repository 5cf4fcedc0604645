"""Positions in the change feed of a container's range: one LSN, or one for each of its parts.

A merged range contains the logs of its parents, each with its own LSNs. So a position may consist of parts: where each
part begins in the space of EPKs (effective partition keys), and the LSN after which reading continues there. Parts are
merged as they are read. After a merge, two changes may also have the same LSN and EPKs of different parents: the
position between them has two parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from evenflow.embedded.container.keys import EPK_MAX, EPK_MIN
from evenflow.errors import PositionOutOfRange
from evenflow.model import Position

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Span: TypeAlias = tuple[str, str]
"""From one EPK, inclusive, to another, exclusive."""


class PositionPart(NamedTuple):
    low: str
    """Where the part begins; it ends where the next begins. The first part begins with its range in any case."""
    lsn: int


FeedPosition: TypeAlias = tuple[PositionPart, ...]


class RangePiece(NamedTuple):
    """A part with both of its bounds."""

    low: str
    high: str
    lsn: int


def parse_position(position: Position) -> FeedPosition:
    try:
        if position.sequence is not None and "," not in position.offset:
            return (PositionPart(EPK_MIN, max(0, position.sequence)),)
        first, *rest = position.offset.split(",")
        cuts = [text.partition("@") for text in rest]
        return (PositionPart(EPK_MIN, max(0, int(first))), *(PositionPart(low, int(lsn)) for lsn, _, low in cuts))
    except ValueError:
        raise PositionOutOfRange(
            f"{position.offset!r:.100} is not an offset of a container (expected LSNs). Was it stored by another"
            " source?"
        ) from None


def to_position(place: FeedPosition) -> Position:
    """Its sequence is the lowest LSN of all parts: everything up to it has been read, in some parts more."""
    return Position(to_text(place), min(part.lsn for part in place))


def to_text(place: FeedPosition) -> str:
    """`8` is after LSN 8. `8,3@1FFF` is after LSN 8 below the EPK 1FFF, and after LSN 3 from there on."""
    return ",".join([str(place[0].lsn), *(f"{part.lsn}@{part.low}" for part in place[1:])])


def merge_equal(parts: Iterable[PositionPart]) -> FeedPosition:
    """Merges neighbours with the same LSN."""
    found: list[PositionPart] = []
    for part in parts:
        if not found or found[-1].lsn != part.lsn:
            found.append(part)
    return PositionPart(EPK_MIN, found[0].lsn), *found[1:]


def pieces(place: FeedPosition, span: Span) -> list[RangePiece]:
    """The parts of a position, cut to a span."""
    ends = [part.low for part in place[1:]] + [EPK_MAX]
    cut = (
        RangePiece(max(part.low, span[0]), min(end, span[1]), part.lsn) for part, end in zip(place, ends, strict=True)
    )
    return [piece for piece in cut if piece.low < piece.high]


def advance(place: FeedPosition, span: Span, piece: RangePiece) -> FeedPosition:
    """The position after a piece of the range was read up to its LSN."""
    return _furthest(span, [*pieces(place, span), piece])


def child_position(span: Span, parents: Iterable[tuple[Span, FeedPosition]]) -> FeedPosition:
    """Where a child starts. `parents` are ordered from the oldest ancestor to the youngest, and the youngest counts: an
    older one may be ahead of it, if its child was rewound."""
    known: list[RangePiece] = []
    for parent, place in parents:
        known = [*_beside(known, parent), *pieces(place, parent)]
    return _furthest(span, [RangePiece(*span, 0), *known])


def _beside(known: Iterable[RangePiece], span: Span) -> list[RangePiece]:
    cut = [
        (RangePiece(low, min(high, span[0]), lsn), RangePiece(max(low, span[1]), high, lsn)) for low, high, lsn in known
    ]
    return [piece for pair in cut for piece in pair if piece.low < piece.high]


def _furthest(span: Span, known: Sequence[RangePiece]) -> FeedPosition:
    inside = [one for one in known if one.low < span[1] and span[0] < one.high]
    cuts = sorted({max(one.low, span[0]) for one in inside} | {one.high for one in inside if one.high < span[1]})
    return merge_equal(PositionPart(cut, max(one.lsn for one in inside if one.low <= cut < one.high)) for cut in cuts)


def next_piece(place: FeedPosition, span: Span) -> tuple[RangePiece, int | None]:
    """What to read next: the piece that is furthest behind, and up to which LSN (None: to the end)."""
    found = min(pieces(place, span), key=lambda piece: piece.lsn)
    above = [part.lsn for part in place if part.lsn > found.lsn]
    return found, min(above) if above else None


def positions_after(
    place: FeedPosition, span: Span, piece: RangePiece, changes: Sequence[tuple[int, str]]
) -> Iterator[FeedPosition]:
    """The position after each of these changes of a piece, given as (LSN, EPK), in that order."""
    for number, (lsn, epk) in enumerate(changes):
        is_twin = number + 1 < len(changes) and changes[number + 1][0] == lsn
        before = advance(place, span, RangePiece(piece.low, piece.high, lsn - 1))
        # No EPK lies between a text and the same text followed by a zero.
        high = epk + "0" if is_twin else piece.high
        yield advance(before, span, RangePiece(piece.low, high, lsn))
