"""The arguments of `receive` and `receive_batch`, translated to start positions and timing of a processor."""

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
"""Marks an offset whose own event is included."""
HEARTBEAT_S = 2.0
LEAST_HEARTBEAT_S = 0.05
"""The lower limit, also for an interval of 0, with which the official client never pauses."""
TTL_S = 8.0
LEAST_TTL_S = 0.2
MARGIN_S = 1.0
LONGEST_TTL_S = 60.0
MILLISECOND = timedelta(milliseconds=1)


class ReceiveOptions(Struct, frozen=True, kw_only=True):
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
        """Reject an invalid starting position at once, not when the first partition without a checkpoint starts."""
        positions = self.starting_position
        for one in positions.values() if isinstance(positions, Mapping) else [positions]:
            _start(LATEST if one is None else one, inclusive=False)

    @property
    def credit(self) -> int:
        """How many events the service may send ahead; 0 and None mean the default, as in the official client."""
        return self.prefetch or PREFETCH

    def start_of(self, partition: PartitionId) -> Start:
        """Where a partition without a checkpoint starts: at the earliest event if a mapping does not name it."""
        position, inclusive = self.starting_position, self.starting_position_inclusive
        if isinstance(position, Mapping):
            position = position.get(partition, EARLIEST)
        if isinstance(inclusive, Mapping):
            inclusive = inclusive.get(partition, False)
        return _start(LATEST if position is None else position, inclusive=bool(inclusive))


def _start(position: object, *, inclusive: bool) -> Start:
    if isinstance(position, datetime):
        # As in the official client, a time without a zone is UTC, and fractions of a millisecond are ignored.
        moment = position.replace(tzinfo=UTC) if position.tzinfo is None else position
        moment = moment.replace(microsecond=moment.microsecond // 1000 * 1000)
        return moment if inclusive else moment + MILLISECOND
    if isinstance(position, int) and not isinstance(position, bool):
        after = position - 1 if inclusive else position
        return Position(f"#{after}", after)
    if not isinstance(position, str) or not position:
        raise ValueError(
            f"starting_position={position!r}: give '-1', '@latest', an offset, a sequence number or a time."
        )
    if position.lower() == LATEST:
        return "latest"
    if position == EARLIEST:
        return "earliest"
    return Position(f"{INCLUSIVE}{position}" if inclusive else position)


def timing(interval_s: float, expires_s: float | None) -> dict[str, float]:
    """Heartbeat and time-to-live. The load-balancing interval only shortens them; an explicit expiration is kept."""
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
