"""What somebody asks of a consumer client, in this project's own words: times, places, and who is called."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from evenflow.model import Position
from evenflow.sources.eventhubs.options import PREFETCH

if TYPE_CHECKING:
    from collections.abc import Callable

    from evenflow.model import PartitionId
    from evenflow.ports import Start

LATEST = "@latest"
EARLIEST = "-1"
INCLUSIVE = ">="
"""Before an offset whose own event is wanted too."""
HEARTBEAT_S = 2.0
LEAST_HEARTBEAT_S = 0.05
"""Also for an interval of 0, with which the official client never rests."""
TTL_S = 8.0
LEAST_TTL_S = 0.2
MARGIN_S = 1.0
LONGEST_TTL_S = 60.0
MILLISECOND = timedelta(milliseconds=1)


class Terms(Struct, frozen=True, kw_only=True):
    """The arguments of one `receive` or `receive_batch`."""

    handler: Callable[..., Any]
    batch: bool
    max_batch_size: int = 300
    max_wait_time: float | None = None
    partition_id: str | None = None
    owner_level: int | None = None
    prefetch: int | None = PREFETCH
    track_last_enqueued_event_properties: bool = False
    starting_position: Any = None
    starting_position_inclusive: Any = False
    on_error: Callable[..., Any] | None = None
    on_partition_initialize: Callable[..., Any] | None = None
    on_partition_close: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        """What is no place is told at once, and not when a partition without a checkpoint is taken."""
        place = self.starting_position
        for one in place.values() if isinstance(place, Mapping) else [place]:
            _start(LATEST if one is None else one, inclusive=False)

    @property
    def credit(self) -> int:
        """How many events the service may send ahead; 0 and None mean the default, as for the official client."""
        return self.prefetch or PREFETCH

    def start_of(self, partition: PartitionId) -> Start:
        """Where a partition without a checkpoint begins; one that a mapping does not name does so at its beginning."""
        place, inclusive = self.starting_position, self.starting_position_inclusive
        if isinstance(place, Mapping):
            place = place.get(partition, EARLIEST)
        if isinstance(inclusive, Mapping):
            inclusive = inclusive.get(partition, False)
        return _start(LATEST if place is None else place, inclusive=bool(inclusive))


def _start(place: object, *, inclusive: bool) -> Start:
    if isinstance(place, datetime):
        # As the official client: without a time zone it is UTC, and below a millisecond nothing counts.
        moment = place.replace(tzinfo=UTC) if place.tzinfo is None else place
        moment = moment.replace(microsecond=moment.microsecond // 1000 * 1000)
        return moment if inclusive else moment + MILLISECOND
    if isinstance(place, int) and not isinstance(place, bool):
        after = place - 1 if inclusive else place
        return Position(f"#{after}", after)
    if not isinstance(place, str) or not place:
        raise ValueError(f"starting_position={place!r}: give '-1', '@latest', an offset, a sequence number or a time.")
    if place.lower() == LATEST:
        return "latest"
    if place == EARLIEST:
        return "earliest"
    return Position(f"{INCLUSIVE}{place}" if inclusive else place)


def times(interval_s: float, expires_s: float | None) -> dict[str, float]:
    """Heartbeat and time-to-live. An interval only makes them shorter; an expiration that somebody chose is kept."""
    heartbeat_s, ttl_s, margin_s = min(HEARTBEAT_S, max(LEAST_HEARTBEAT_S, interval_s)), TTL_S, MARGIN_S
    if expires_s is not None:
        ttl_s = max(LEAST_TTL_S, expires_s)
        heartbeat_s, margin_s = min(heartbeat_s, ttl_s / 4), min(margin_s, ttl_s / 4)
    return {
        "heartbeat_s": heartbeat_s,
        "ttl_s": ttl_s,
        "margin_s": margin_s,
        "longest_ttl_s": max(LONGEST_TTL_S, ttl_s),
    }
