"""Places in the change feed of a range: one LSN for the whole range, or one for each of its pieces.

A merged range contains the logs of its parents, each with its own LSNs. So a place may have several pieces, which are
joined as they are read. Several documents may share one LSN, if they were written in one transaction or come from two
parents; then a mark says which of them are passed.

A place includes its span of the EPK space, as a .NET lease does, because a reader that asks where a child starts may
never have seen the parents, and the service forgets them. A container's only range needs no span: nothing came before
it.

A place that was set by a time keeps that time until the end of the range is reached: in a merged log, older changes
appear between the wanted ones, and the service does not show where one log ends and the next begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from evenflow.errors import PositionOutOfRange
from evenflow.model import BEGINNING, Position

if TYPE_CHECKING:
    from collections.abc import Iterable

EPK_MIN, EPK_MAX = "", "FF"
ALL = "~"
"""The mark for a completely passed LSN; sorts above all others."""
_DIGITS, _FILLED = 32, "~"
"""Most range ends are padded with F; the padding is abbreviated to this character."""

Span: TypeAlias = tuple[str, str]
"""From one EPK up to, not including, another."""
WHOLE: Span = (EPK_MIN, EPK_MAX)


class Range(NamedTuple):
    """A range as the service lists it."""

    id: str
    span: Span
    parents: tuple[str, ...] = ()
    """All ancestors."""

    @property
    def is_first(self) -> bool:
        """Whether it is the container's only range and has no parents."""
        return self.span == WHOLE and not self.parents


class Spot(NamedTuple):
    """Everything below the LSN is passed, and within the LSN everything up to the mark."""

    lsn: int
    mark: str = ALL

    def __str__(self) -> str:
        return str(self.lsn) if self.mark == ALL else f"{self.lsn}+{self.mark}"

    @property
    def passed(self) -> int:
        """The LSN up to which nothing is missing."""
        return self.lsn if self.mark == ALL else self.lsn - 1


class Piece(NamedTuple):
    """A span of EPKs in which everything up to a spot is passed."""

    low: str
    high: str
    spot: Spot


class Place(NamedTuple):
    pieces: tuple[Piece, ...]
    """They follow each other without gaps, and no two neighbours have the same spot."""
    has_span: bool
    """Whether its text includes the span. Otherwise it has one piece, and the caller knows the range."""
    since_s: int | None = None
    """Changes before this time count as passed, wherever they are."""

    def __str__(self) -> str:
        """`8`; with a span `8@0F-1F`; two pieces `8@0F,3@17-1F`; inside an LSN `8+5a3f`; changes since a time
        `8@0F-1F;1700000000`."""
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
        """The piece to read next, which is the one furthest behind, and the spot to read up to (None: no limit)."""
        found = min(self.pieces, key=lambda piece: piece.spot)
        above = [piece.spot for piece in self.pieces if piece.spot > found.spot]
        return found, min(above) if above else None

    def advanced(self, piece: Piece, spot: Spot) -> Place:
        """The place after this piece was read up to a spot."""
        return self._replace(pieces=_joined(one._replace(spot=spot) if one == piece else one for one in self.pieces))

    def within(self, range: Range) -> Place:
        """The part of this place inside a range. Raises PositionOutOfRange if it belongs to another range."""
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
            f"The offset {position.offset!r:.100} is not a change feed position (expected an LSN). Was it written by"
            " another source?"
        ) from None


def _read(text: str) -> Place:
    where, semicolon, since = text.partition(";")
    since_s = _number(since) if semicolon else None
    if "@" not in where:
        return Place((Piece(*WHOLE, _spot(where)),), has_span=False, since_s=since_s)
    lows_text, _, high = where.rpartition("-")
    parts = [one.partition("@") for one in lows_text.split(",")]
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
    """The continuation for third-party processors: at least everything up to this LSN is passed."""
    return place_of(position).passed


def child_place(range: Range, parents: Iterable[Place]) -> Place:
    """Where a child starts: in every part of its span, after the furthest place of any parent.

    In parts that no parent's span covers, it starts after the lowest place without a span, or at the beginning if there
    is none. A time is kept only if all parts have the same one, because other parts may need older changes.
    """
    places = list(parents)
    rest = min((place.pieces[0].spot for place in places if not place.has_span), default=Spot(0))
    known = [(piece, place.since_s) for place in places if place.has_span for piece in cut(place.pieces, range.span)]
    low, high = range.span
    cuts = sorted({low, *(end for piece, _ in known for end in piece[:2] if low < end < high)})
    pieces, times = [], set()
    for start, end in zip(cuts, [*cuts[1:], high], strict=True):
        found = [(piece.spot, since_s) for piece, since_s in known if piece.low <= start and end <= piece.high]
        spot, since_s = max(found, key=lambda one: (one[0], one[1] is None), default=(rest, None))
        pieces.append(Piece(start, end, spot))
        times.add(since_s)
    return Place(_joined(pieces), not range.is_first, times.pop() if len(times) == 1 else None)


def of_the_youngest(generations: Iterable[Place]) -> list[Place]:
    """Of several generations, oldest first, the parts that no younger one covers: a younger one may have been
    rewound."""
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
    """The parts of the pieces inside a span."""
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
