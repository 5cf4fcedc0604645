"""Places in the feed of a container's range: an LSN, or one for each of its parts.

A range that was merged has the logs of its parents in it, each with LSNs of its own. So a place may consist of parts:
where each begins in the space of EPKs, and after which LSN it is gone on with. Parts become one as they are read. After
a merge two changes may also have the same LSN, with EPKs of different parents: the place between them has two parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from evenflow.embedded.container.keys import EPK_MAX, EPK_MIN
from evenflow.errors import PositionOutOfRange
from evenflow.model import Position

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Span: TypeAlias = tuple[str, str]
"""From one EPK to before another."""


class Part(NamedTuple):
    low: str
    """Where it begins; it goes up to the next one. The first begins where its range does, whatever is written here."""
    lsn: int


Place: TypeAlias = tuple[Part, ...]


class Piece(NamedTuple):
    """A part with both its ends."""

    low: str
    high: str
    lsn: int


def place_of(position: Position) -> Place:
    try:
        if position.sequence is not None and "," not in position.offset:
            return (Part(EPK_MIN, max(0, position.sequence)),)
        first, *rest = position.offset.split(",")
        cuts = [text.partition("@") for text in rest]
        return (Part(EPK_MIN, max(0, int(first))), *(Part(low, int(lsn)) for lsn, _, low in cuts))
    except ValueError:
        raise PositionOutOfRange(
            f"The offset {position.offset!r:.100} is none of a container's, which are LSNs. Was it another source's?"
        ) from None


def position_of(place: Place) -> Position:
    """All of the range up to its sequence is passed, and of some parts more."""
    return Position(text_of(place), min(part.lsn for part in place))


def text_of(place: Place) -> str:
    """`8`, or `8,3@1FFF`: after LSN 8, but from the EPK 1FFF on after LSN 3."""
    return ",".join([str(place[0].lsn), *(f"{part.lsn}@{part.low}" for part in place[1:])])


def joined(parts: Iterable[Part]) -> Place:
    """Neighbours with the same LSN are one."""
    found: list[Part] = []
    for part in parts:
        if not found or found[-1].lsn != part.lsn:
            found.append(part)
    return Part(EPK_MIN, found[0].lsn), *found[1:]


def pieces(place: Place, span: Span) -> list[Piece]:
    """The parts of a place in a part of the space."""
    ends = [part.low for part in place[1:]] + [EPK_MAX]
    cut = (Piece(max(part.low, span[0]), min(end, span[1]), part.lsn) for part, end in zip(place, ends, strict=True))
    return [piece for piece in cut if piece.low < piece.high]


def raised(place: Place, span: Span, piece: Piece) -> Place:
    """The place, once a piece of the range was passed up to an LSN."""
    return _furthest(span, [*pieces(place, span), piece])


def child_place(span: Span, parents: Iterable[tuple[Span, Place]]) -> Place:
    """Where a child begins: everywhere after where the youngest of those before it was; the oldest come first. An older
    one may be further, where somebody has rewound its child."""
    told: list[Piece] = []
    for parent, place in parents:
        told = [*_beside(told, parent), *pieces(place, parent)]
    return _furthest(span, [Piece(*span, 0), *told])


def _beside(told: Iterable[Piece], span: Span) -> list[Piece]:
    cut = [(Piece(low, min(high, span[0]), lsn), Piece(max(low, span[1]), high, lsn)) for low, high, lsn in told]
    return [piece for pair in cut for piece in pair if piece.low < piece.high]


def _furthest(span: Span, told: Sequence[Piece]) -> Place:
    inside = [one for one in told if one.low < span[1] and span[0] < one.high]
    cuts = sorted({max(one.low, span[0]) for one in inside} | {one.high for one in inside if one.high < span[1]})
    return joined(Part(cut, max(one.lsn for one in inside if one.low <= cut < one.high)) for cut in cuts)


def lowest(place: Place, span: Span) -> tuple[Piece, int | None]:
    """What is to be read next: the piece that is furthest behind; and up to which LSN, None is without end."""
    found = min(pieces(place, span), key=lambda piece: piece.lsn)
    above = [part.lsn for part in place if part.lsn > found.lsn]
    return found, min(above) if above else None


def places_after(place: Place, span: Span, piece: Piece, changes: Sequence[tuple[int, str]]) -> Iterator[Place]:
    """The place after each of these changes of a piece, of which LSN and EPK are told, in the order of both."""
    for number, (lsn, epk) in enumerate(changes):
        is_twin = number + 1 < len(changes) and changes[number + 1][0] == lsn
        before = raised(place, span, Piece(piece.low, piece.high, lsn - 1))
        # Nothing lies between a text and the same with a zero behind it.
        high = epk + "0" if is_twin else piece.high
        yield raised(before, span, Piece(piece.low, high, lsn))
