"""Places in the feed of a range: an LSN for all of it, or one for each of its pieces.

A range that was merged has the logs of its parents in it, each with LSNs of its own: so a place may have several
pieces, which become one as they are read. Several documents may also have one LSN, when they were written in one
transaction, or came from two parents: then a mark says which of them are passed.

A place tells of which piece of the space of EPKs it is, as a lease of .NET's does. For who asks where a child begins
may never have seen its parents, and the service forgets them. That of a container's first range, if it is alone, need
not: nothing was before it.

A place that somebody named by a time tells that, too, until the end of the range is reached: where logs were merged,
changes from before it come between those that are wanted, and where one log ends and another begins nobody tells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from evenflow.errors import PositionOutOfRange
from evenflow.model import BEGINNING, Position

if TYPE_CHECKING:
    from collections.abc import Iterable

EPK_MIN, EPK_MAX = "", "FF"
ALL = "~"
"""The mark that says that all of an LSN is passed: above all others."""
_DIGITS, _FILLED = 32, "~"
"""The ends of most ranges are filled up with F, which is not written out."""

Span: TypeAlias = tuple[str, str]
"""From one EPK to before another."""
WHOLE: Span = (EPK_MIN, EPK_MAX)


class Range(NamedTuple):
    """A range as the service lists it."""

    id: str
    span: Span
    parents: tuple[str, ...] = ()
    """All those that it came from."""

    @property
    def is_first(self) -> bool:
        """No other range was there before or beside it."""
        return self.span == WHOLE and not self.parents


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


class Place(NamedTuple):
    pieces: tuple[Piece, ...]
    """They follow each other without gaps, and no two neighbours have the same spot."""
    has_span: bool
    """Whether its text includes the span. Otherwise it has one piece, and the caller knows the range."""
    since_s: int | None = None
    """What was changed before this time counts as passed, wherever it is."""

    def __str__(self) -> str:
        """`8`; of a part of the space `8@0F-1F`; of two pieces `8@0F,3@17-1F`; inside an LSN `8+5a3f`; and of what was
        changed since a time `8@0F-1F;1700000000`."""
        since = "" if self.since_s is None else f";{self.since_s}"
        if not self.has_span:
            return f"{self.pieces[0].spot}{since}"
        lows = ",".join(f"{piece.spot}@{_short(piece.low)}" for piece in self.pieces)
        return f"{lows}-{_short(self.pieces[-1].high)}{since}"

    @property
    def passed(self) -> int:
        """The LSN up to which nothing is missing in any of its pieces."""
        return min(piece.spot.passed for piece in self.pieces)

    @property
    def position(self) -> Position:
        return Position(str(self), self.passed)

    def next(self) -> tuple[Piece, Spot | None]:
        """What is to be read next: the piece that is furthest behind; and up to where, None is without end."""
        found = min(self.pieces, key=lambda piece: piece.spot)
        above = [piece.spot for piece in self.pieces if piece.spot > found.spot]
        return found, min(above) if above else None

    def advanced(self, piece: Piece, spot: Spot) -> Place:
        """Once this piece of it was passed up to a spot."""
        return self._replace(pieces=_joined(one._replace(spot=spot) if one == piece else one for one in self.pieces))

    def within(self, range: Range) -> Place:
        """The same in a range. PositionOutOfRange when it is of another one."""
        if not self.has_span:
            return Place((Piece(*range.span, self.pieces[0].spot),), not range.is_first, self.since_s)
        if self.pieces[0].low > range.span[0] or self.pieces[-1].high < range.span[1]:
            raise PositionOutOfRange(
                f"The position {self} is of another range than this one, which goes from {_short(range.span[0])!r} to"
                f" {_short(range.span[1])!r}."
            )
        return Place(tuple(cut(self.pieces, range.span)), not range.is_first, self.since_s)


def place_at(range: Range, lsn: int) -> Place:
    return Place((Piece(*range.span, Spot(lsn)),), not range.is_first)


def place_of(position: Position) -> Place:
    if position == BEGINNING:
        return Place((Piece(*WHOLE, Spot(0)),), has_span=False)
    try:
        return _read(position.offset)
    except ValueError:
        raise PositionOutOfRange(
            f"The offset {position.offset!r:.100} is none of a change feed's, which are LSNs. Was it another source's?"
        ) from None


def _read(text: str) -> Place:
    where, semicolon, since = text.partition(";")
    since_s = _number(since) if semicolon else None
    if "@" not in where:
        return Place((Piece(*WHOLE, _spot(where)),), has_span=False, since_s=since_s)
    told, _, high = where.rpartition("-")
    parts = [one.partition("@") for one in told.split(",")]
    lows = [_long(low) for _, _, low in parts]
    ends = [*lows[1:], _long(high)]
    if any(low >= end for low, end in zip(lows, ends, strict=True)):
        raise ValueError
    spots = [_spot(spot) for spot, _, _ in parts]
    return Place(tuple(map(Piece, lows, ends, spots)), has_span=True, since_s=since_s)


def _spot(text: str) -> Spot:
    lsn, plus, mark = text.partition("+")
    if plus and not mark.isalnum():
        raise ValueError
    return Spot(_number(lsn), mark or ALL)


def _number(text: str) -> int:
    if not text.isascii() or not text.isdecimal():
        raise ValueError
    return int(text)


def lsn_of(position: Position) -> int:
    """The continuation that processors of another make understand: all up to this LSN is passed, or more."""
    return place_of(position).passed


def child_place(range: Range, parents: Iterable[Place]) -> Place:
    """Where a child begins: everywhere after the furthest that those before it had come.

    Where none of them tells that it had it, it is after the least of those that do not tell; and without those nobody
    has had it, and it begins at its beginning. A time counts if it is that of all: others may want what is older.
    """
    places = list(parents)
    rest = min((place.pieces[0].spot for place in places if not place.has_span), default=Spot(0))
    told = [(piece, place.since_s) for place in places if place.has_span for piece in cut(place.pieces, range.span)]
    low, high = range.span
    cuts = sorted({low, *(end for piece, _ in told for end in piece[:2] if low < end < high)})
    pieces, times = [], set()
    for start, end in zip(cuts, [*cuts[1:], high], strict=True):
        found = [(piece.spot, since_s) for piece, since_s in told if piece.low <= start and end <= piece.high]
        spot, since_s = max(found, key=lambda one: (one[0], one[1] is None), default=(rest, None))
        pieces.append(Piece(start, end, spot))
        times.add(since_s)
    return Place(_joined(pieces), not range.is_first, times.pop() if len(times) == 1 else None)


def of_the_youngest(generations: Iterable[Place]) -> list[Place]:
    """Of several generations, the oldest first, what no younger one speaks of: somebody may have rewound that one."""
    found: list[Place] = []
    for place in generations:
        if place.has_span:
            beside = (EPK_MIN, place.pieces[0].low), (place.pieces[-1].high, EPK_MAX)
            found = [left for older in found for left in (_left_of(older, beside) if older.has_span else [older])]
        found.append(place)
    return found


def _left_of(place: Place, spans: Iterable[Span]) -> list[Place]:
    kept = (cut(place.pieces, span) for span in spans)
    return [place._replace(pieces=tuple(pieces)) for pieces in kept if pieces]


def cut(pieces: Iterable[Piece], span: Span) -> list[Piece]:
    """What of them is in a part of the space."""
    found = (Piece(max(low, span[0]), min(high, span[1]), spot) for low, high, spot in pieces)
    return [piece for piece in found if piece.low < piece.high]


def _joined(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
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
