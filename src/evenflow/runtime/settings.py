"""The options of a processor, checked once, with messages that say what to change."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from msgspec import Struct

from evenflow.core.checkpointing import Every, Manual
from evenflow.core.failure import Breaker, Retry
from evenflow.core.numbers import is_positive, is_whole
from evenflow.core.seats import WEIGHT_LEAST, WEIGHT_MOST
from evenflow.errors import Misconfigured
from evenflow.model import PartitionId, Position

if TYPE_CHECKING:
    from evenflow.ports import Start

StartOption: TypeAlias = "Start | Mapping[PartitionId, Start]"

LONGEST_NAME = 256
HEARTBEAT_LEAST_S = 0.01
CLOCKS_DIFFER_S = 10.0
"""So far the clock that a start was read from may be ahead of this machine's."""
COUNTS = ("concurrency", "max_partitions", "min_partitions", "batch_events", "prefetch_events", "prefetch_bytes")
NUMBERS = (
    "weight",
    "load_s",
    "heartbeat_s",
    "ttl_s",
    "margin_s",
    "longest_ttl_s",
    "refresh_s",
    "stop_s",
    "stalled_after_s",
)


class Settings(Struct, frozen=True, kw_only=True):
    group: str
    instance_id: str | None = None
    start: Any = "earliest"
    checkpoint: Every | Manual = Every(seconds=1.0)
    retry: Retry = Retry()
    on_poison: str | None = None
    on_gone: str = "stop"
    on_lost: str = "earliest"
    dead_letter: Any = None
    dead_letter_order: str | None = None
    breaker: Breaker | None = Breaker()
    handler_timeout_s: float | None = None
    stalled_after_s: float = 60.0
    concurrency: int | None = None
    max_partitions: int | None = None
    min_partitions: int | None = None
    weight: float = 1.0
    balance: str = "count"
    load_s: float = 30.0
    heartbeat_s: float = 2.0
    ttl_s: float = 8.0
    margin_s: float = 1.0
    longest_ttl_s: float = 60.0
    refresh_s: float = 10.0
    stop_s: float = 30.0
    batch_events: int = 1000
    prefetch_events: int = 4000
    prefetch_bytes: int = 16 * 1024 * 1024

    def __post_init__(self) -> None:
        _check_name("group", self.group)
        if self.instance_id is not None:
            _check_name("instance_id", self.instance_id)
        check_start(self.start)
        if not isinstance(self.checkpoint, Every | Manual):
            raise Misconfigured(f"checkpoint={self.checkpoint!r}: give Every(events=, seconds=) or Manual().")
        for name in COUNTS:
            value = getattr(self, name)
            if value is not None and not is_whole(value, 1):
                raise Misconfigured(f"{name}={value!r}: give a whole number of at least 1.")
        self._check_balance()
        for name in NUMBERS:
            value = getattr(self, name)
            if not is_positive(value):
                raise Misconfigured(f"{name}={value!r}: give a number above 0.")
        if not WEIGHT_LEAST <= self.weight <= WEIGHT_MOST:
            raise Misconfigured(f"weight={self.weight!r}: give a number from {WEIGHT_LEAST:g} to {WEIGHT_MOST:g}.")
        self._check_failure()
        self._check_times()

    def _check_balance(self) -> None:
        if self.balance not in ("count", "load"):
            raise Misconfigured(f"balance={self.balance!r}: give 'count' or 'load'.")
        least, most = self.min_partitions, self.max_partitions
        if least is not None and most is not None and least > most:
            raise Misconfigured(f"min_partitions={least} is above max_partitions={most}: nobody can have both.")
        if least is not None and self.balance == "load":
            raise Misconfigured(
                f"min_partitions={least} is a number of partitions, and balance='load' does not go by numbers. Leave"
                " one of them out."
            )

    def _check_failure(self) -> None:
        if not isinstance(self.retry, Retry):
            raise Misconfigured(f"retry={self.retry!r}: give Retry(attempts=, first_s=, most_s=).")
        if self.breaker is not None and not isinstance(self.breaker, Breaker):
            raise Misconfigured(f"breaker={self.breaker!r}: give Breaker(share=, events=), or None for none.")
        if self.on_poison not in (None, "stop", "skip"):
            raise Misconfigured(f"on_poison={self.on_poison!r}: give 'stop' or 'skip'; or give dead_letter= instead.")
        if self.on_gone not in ("stop", "earliest", "latest"):
            raise Misconfigured(f"on_gone={self.on_gone!r}: give 'stop', 'earliest' or 'latest'.")
        if self.on_lost not in ("earliest", "stop"):
            raise Misconfigured(
                f"on_lost={self.on_lost!r}: give 'earliest' or 'stop'. ('latest' would pass over events: seek there,"
                " once the partition has stopped.)"
            )
        if self.on_poison is not None and self.dead_letter is not None:
            raise Misconfigured(
                f"on_poison={self.on_poison!r} and dead_letter= contradict each other: a poison event goes into the"
                " dead letters, or it does not. Leave one of them out."
            )
        if self.dead_letter_order not in (None, "key"):
            raise Misconfigured(f"dead_letter_order={self.dead_letter_order!r}: give 'key', or leave it out.")
        if self.dead_letter_order is not None and self.dead_letter is None:
            raise Misconfigured("dead_letter_order='key' needs dead_letter=, where the events of a parked key go.")
        limit_s = self.handler_timeout_s
        if limit_s is not None and not is_positive(limit_s):
            raise Misconfigured(f"handler_timeout_s={limit_s!r}: give a number above 0, or leave it out.")

    @property
    def poison(self) -> Literal["stop", "skip", "dead letter"]:
        """What becomes of an event that failed too often."""
        if self.dead_letter is not None:
            return "dead letter"
        return "skip" if self.on_poison == "skip" else "stop"

    def _check_times(self) -> None:
        if self.heartbeat_s < HEARTBEAT_LEAST_S:
            raise Misconfigured(f"heartbeat_s={self.heartbeat_s} is too short: give at least {HEARTBEAT_LEAST_S:g}.")
        if self.ttl_s < 2 * self.heartbeat_s + self.margin_s:
            raise Misconfigured(
                f"ttl_s={self.ttl_s} is too short for heartbeat_s={self.heartbeat_s} and"
                f" margin_s={self.margin_s}: one late heartbeat"
                f" would cost every partition. Make ttl_s at least 2 * heartbeat_s + margin_s."
            )
        if self.ttl_s > self.longest_ttl_s:
            raise Misconfigured(
                f"ttl_s={self.ttl_s} is above longest_ttl_s={self.longest_ttl_s}, which all instances of the group"
                " rely on. Lower ttl_s, or raise longest_ttl_s everywhere."
            )

    @property
    def patience_s(self) -> float:
        """How long after the sending of an answered heartbeat this instance may begin handler calls."""
        return self.ttl_s - self.margin_s

    def start_of(self, partition: PartitionId, *, late: bool) -> Start:
        if isinstance(self.start, Mapping):
            chosen: Start = self.start.get(partition, "earliest")
            return chosen
        fallback: Start = self.start
        return "earliest" if late else fallback


def check_start(start: object) -> None:
    if isinstance(start, Mapping):
        for partition, one in start.items():
            if not isinstance(partition, str) or isinstance(one, Mapping):
                raise Misconfigured(
                    f"start={{{partition!r}: {one!r}}}: give partition ids as text, each with its start."
                )
            check_start(one)
    elif isinstance(start, datetime):
        if start.tzinfo is None:
            raise Misconfigured(f"start={start!r} has no time zone: use datetime(..., tzinfo=UTC).")
    elif start not in ("earliest", "latest") and not isinstance(start, Position) and not _is_the_sources_own(start):
        raise Misconfigured(
            f"start={start!r}: give 'earliest', 'latest', a datetime with a time zone, a Position,"
            " or a mapping of partition ids to these."
        )


def check_is_past(start: object, wall_s: float) -> None:
    """A source would begin with what comes next, not when the time has come. Clocks may differ a little."""
    for one in start.values() if isinstance(start, Mapping) else [start]:
        if isinstance(one, datetime) and one.timestamp() > wall_s + CLOCKS_DIFFER_S:
            raise Misconfigured(
                f"start={one.isoformat()} is in the future: events are begun with at a time that has been. Start it"
                " then; or give 'latest' ('now' of a change feed), to begin with what comes next."
            )


def _is_the_sources_own(start: object) -> bool:
    """Whether it means something is for the source to say: `group:NAME`, for instance."""
    return isinstance(start, str) and ":" in start


def _check_name(what: str, name: object) -> None:
    if not isinstance(name, str) or not name.strip() or len(name) > LONGEST_NAME or not name.isprintable():
        raise Misconfigured(f"{what}={name!r}: give a text of 1 to {LONGEST_NAME} printable characters.")
