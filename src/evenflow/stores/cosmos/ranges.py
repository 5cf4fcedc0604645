"""Which lease document belongs to which partition, where leases are named by where a range begins and ends.

Pure. A partition is a range of the container as it is now. A lease of another make may cover just that; or, since
ranges split and merge, a part of it, or several. The first kind is used as it is. The others are read, and done away
with once every partition that they cover has a document of its own that goes on from them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from evenflow.drivers.cosmos.positions import Piece, Place, Range, Spot, child_place, cut, lsn_of, place_of
from evenflow.model import BEGINNING
from evenflow.stores.cosmos import layouts

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from evenflow.drivers.cosmos.positions import Span
    from evenflow.model import PartitionId, Position
    from evenflow.stores.cosmos.layouts import LeaseDocument

    Spans: TypeAlias = Mapping[PartitionId, Span]


class Places(NamedTuple):
    homes: dict[PartitionId, LeaseDocument]
    """The document of each partition."""
    covers: Mapping[PartitionId, tuple[LeaseDocument, ...]]
    """Others that speak of a partition's range, or of a part of it."""


def places(
    found: Iterable[LeaseDocument],
    past: Mapping[PartitionId, LeaseDocument],
    spans: Spans,
    ours: Mapping[str, PartitionId],
) -> Places:
    """`past` are the documents of partitions that have ended, wherever else they have one; `ours` are the ids of those
    that ours wrote last, who say of which partition they are, also when its range is there no more."""
    homes: dict[PartitionId, LeaseDocument] = {}
    by_range: list[LeaseDocument] = []
    for one in found:
        if one.id in ours:
            homes[ours[one.id]] = one
        elif one.is_by_range and one.span is not None and spans:
            by_range.append(one)
        else:
            homes[one.token] = one
    exact = {span: partition for partition, span in spans.items()}
    covers: dict[PartitionId, list[LeaseDocument]] = {}
    for one in by_range:
        assert one.span is not None
        partition = exact.get(one.span)
        if partition is not None and partition not in homes:
            homes[partition] = one
            continue
        for name in covered(one.span, spans):
            covers.setdefault(name, []).append(one)
    return Places({**homes, **past}, {name: tuple(ones) for name, ones in covers.items()})


def replaced(now: Places, going_on: Collection[PartitionId], spans: Spans) -> list[LeaseDocument]:
    """The documents that nobody needs any more: all that they cover goes on in documents of its own."""
    ones = {one.id: one for covering in now.covers.values() for one in covering}
    return [
        one
        for one in ones.values()
        if one.span is not None and all(name in going_on for name in covered(one.span, spans))
    ]


def go_on_after(covering: Iterable[LeaseDocument], span: Span, default: Position) -> Position:
    """Where a partition goes on that others speak of: each piece of it where its lease is, and at `default` what none
    of them speaks of."""
    told: list[Place] = []
    reached = span[0]
    for one in sorted(covering, key=lambda one: one.span or span):
        low, high = one.span or span
        position = layouts.position_of(one.continuation) or BEGINNING
        told.append(Place((Piece(low, high, Spot(lsn_of(position))),), has_span=True))
        told += _between(default, reached, min(low, span[1]))
        reached = max(reached, high)
    told += _between(default, reached, span[1])
    return child_place(Range("", span), told).position


def left_alone(span: Span, covering: Iterable[LeaseDocument], past: Iterable[LeaseDocument]) -> list[LeaseDocument]:
    """Of leases that have ended, latest first: those that were for a part of this range that no other speaks of."""
    spoken_of = [one.span for one in covering if one.span is not None]
    found: list[LeaseDocument] = []
    for one in past:
        if one.span is None or not (span[0] <= one.span[0] and one.span[1] <= span[1]):
            continue
        if not any(one.span[0] < high and low < one.span[1] for low, high in spoken_of):
            found.append(one)
            spoken_of.append(one.span)
    return found


def _between(default: Position, low: str, high: str) -> Iterator[Place]:
    if pieces := cut(place_of(default).pieces, (low, high)):
        yield Place(tuple(pieces), has_span=True)


def covered(span: Span, spans: Spans) -> list[PartitionId]:
    """The partitions whose range, or a part of it, is in this one."""
    return [name for name, (low, high) in spans.items() if span[0] < high and low < span[1]]
