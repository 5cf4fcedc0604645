"""Places in the feed of a range: an LSN for all of it, or one for each of its pieces.

A range that was merged has the logs of its parents in it, each with LSNs of its own: so a place may have several
pieces, which become one as they are read. Several documents may also have one LSN, when they were written in one
transaction, or came from two parents: then a mark says which of them are passed.

A place says of which piece of the space of EPKs it tells, unless that is all of it, as a lease of .NET's does. For who
asks where a child begins may never have seen its parents, and the service forgets them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from evenflow.errors import PositionOutOfRange
from evenflow.model import BEGINNING, Position

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

EPK_MIN, EPK_MAX = "", "FF"
ALL = "~"
"""The mark that says that all of an LSN is passed: above all others."""
_DIGITS, _FILLED = 32, "~"
"""The ends of most ranges are filled up with F, which is not written out."""

Span: TypeAlias = tuple[str, str]
"""From one EPK to before another."""


class Spot(NamedTuple):
    """All below the LSN is passed, and of the LSN itself those up to the mark."""

    lsn: int
    mark: str = ALL

    def __str__(self) -> str:
        return str(self.lsn) if self.mark == ALL else f"{self.lsn}+{self.mark}"

    @property
    def passed(self) -> int:
        """The LSN up to which nothing is missing."""
        return self.lsn if self.mark == ALL else self.lsn - 1


class Piece(NamedTuple):
    """From one EPK to before another, all is passed up to a spot."""

    low: str
    high: str
    spot: Spot

    def cut(self, low: str, high: str) -> Piece:
        return Piece(max(self.low, low), min(self.high, high), self.spot)


Place: TypeAlias = tuple[Piece, ...]
"""Pieces that follow each other without gaps, no two neighbours with the same spot."""


def place_at(span: Span, lsn: int) -> Place:
    return (Piece(*span, Spot(lsn)),)


def place_of(position: Position) -> Place:
    if position == BEGINNING:
        return place_at((EPK_MIN, EPK_MAX), 0)
    try:
        return _read(position.offset)
    except ValueError:
        raise PositionOutOfRange(
            f"The offset {position.offset!r:.100} is none of a change feed's, which are LSNs. Was it another source's?"
        ) from None


def _read(text: str) -> Place:
    if "@" not in text:
        return (Piece(EPK_MIN, EPK_MAX, _spot(text)),)
    told, _, high = text.rpartition("-")
    parts = [one.partition("@") for one in told.split(",")]
    lows = [_long(low) for _, _, low in parts]
    ends = [*lows[1:], _long(high)]
    if any(low >= end for low, end in zip(lows, ends, strict=True)):
        raise ValueError
    return tuple(Piece(low, end, _spot(spot)) for (spot, _, _), low, end in zip(parts, lows, ends, strict=True))


def _spot(text: str) -> Spot:
    lsn, plus, mark = text.partition("+")
    if not lsn.isascii() or not lsn.isdecimal() or (plus and not mark.isalnum()):
        raise ValueError
    return Spot(int(lsn), mark or ALL)


def text_of(place: Place) -> str:
    """`8`; of a part of the space `8@0F-1F`; of two pieces `8@0F,3@17-1F`; and inside an LSN `8+5a3f`."""
    if is_plain(place):
        return str(place[0].spot)
    return ",".join(f"{piece.spot}@{_short(piece.low)}" for piece in place) + f"-{_short(place[-1].high)}"


def position_of(place: Place) -> Position:
    """All of it up to the sequence is passed, and of some pieces more."""
    return Position(text_of(place), _passed(place))


def lsn_of(position: Position) -> int:
    """The continuation that processors of another make understand: all up to this LSN is passed, or more."""
    return _passed(place_of(position))


def _passed(place: Place) -> int:
    return min(piece.spot.passed for piece in place)


def is_plain(place: Place) -> bool:
    """It says nothing of pieces: it is of the only range there was, or of who knows of none."""
    return len(place) == 1 and place[0][:2] == (EPK_MIN, EPK_MAX)


def within(place: Place, span: Span) -> Place:
    """The place in a range. PositionOutOfRange when it is another range's."""
    if is_plain(place):
        return (Piece(*span, place[0].spot),)
    if place[0].low > span[0] or place[-1].high < span[1]:
        raise PositionOutOfRange(
            f"The position {text_of(place)} is of another range than this one, from {_short(span[0])!r} to"
            f" {_short(span[1])!r}."
        )
    return _cut(place, span)


def advanced(place: Place, piece: Piece, spot: Spot) -> Place:
    """The place, once this piece of it was passed up to a spot."""
    return _joined([one._replace(spot=spot) if one == piece else one for one in place])


def next_of(place: Place) -> tuple[Piece, Spot | None]:
    """What is to be read next: the piece that is furthest behind; and up to where, None is without end."""
    found = min(place, key=lambda piece: piece.spot)
    above = [piece.spot for piece in place if piece.spot > found.spot]
    return found, min(above) if above else None


def child_place(span: Span, parents: Iterable[Place]) -> Place:
    """Where a child begins: everywhere after the furthest that those before it had come.

    Where none of them says that it had it, it is after the least of those that do not say; and without those nobody
    has had it, and it begins at its beginning.
    """
    plain: list[Spot] = []
    told: list[Piece] = []
    for place in parents:
        if is_plain(place):
            plain.append(place[0].spot)
        else:
            told += _cut(place, span)
    rest = min(plain, default=Spot(0))
    cuts = sorted({span[0], *(end for piece in told for end in piece[:2] if span[0] < end < span[1])})
    pieces = []
    for low, high in zip(cuts, [*cuts[1:], span[1]], strict=True):
        spots = [piece.spot for piece in told if piece.low <= low and high <= piece.high]
        pieces.append(Piece(low, high, max(spots, default=rest)))
    return _joined(pieces)


def _cut(place: Place, span: Span) -> Place:
    pieces = (piece.cut(*span) for piece in place)
    return tuple(piece for piece in pieces if piece.low < piece.high)


def _joined(pieces: Sequence[Piece]) -> Place:
    found: list[Piece] = []
    for piece in pieces:
        if found and found[-1].spot == piece.spot:
            found[-1] = found[-1]._replace(high=piece.high)
        else:
            found.append(piece)
    return tuple(found)


def _short(epk: str) -> str:
    cut = epk.rstrip("F")
    return f"{cut}{_FILLED}" if len(epk) == _DIGITS and len(cut) < _DIGITS - 1 else epk


def _long(text: str) -> str:
    epk = text[:-1].ljust(_DIGITS, "F") if text.endswith(_FILLED) else text
    if not set("0123456789ABCDEF").issuperset(epk):
        raise ValueError
    return epk
