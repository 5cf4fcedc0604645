"""Signals about instances and their group: joining, leaving, and what operators requested."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, ClassVar

from evenflow.signals.base import Signal, partition_or_group
from evenflow.text import units_of

if TYPE_CHECKING:
    from evenflow.model import PartitionId


class Joined(Signal, frozen=True, kw_only=True):
    incarnation: int

    def __str__(self) -> str:
        return f"{self.instance} joined {self.group} (incarnation {self.incarnation})"


class Left(Signal, frozen=True, kw_only=True):
    def __str__(self) -> str:
        return f"{self.instance} left {self.group}"


class Retiring(Signal, frozen=True, kw_only=True):
    """An operator asked this instance to retire: it drains, hands over its partitions, and leaves."""

    level: ClassVar[int] = logging.WARNING
    by: str
    why: str

    def __str__(self) -> str:
        why = f": {self.why}" if self.why else ""
        return f"{self.instance} is retiring, as requested by {self.by or 'an operator'}{why}"


class Paused(Signal, frozen=True, kw_only=True):
    """An operator paused a partition, or (`partition` is None) the whole group: its events are not handled."""

    level: ClassVar[int] = logging.WARNING
    partition: PartitionId | None
    by: str
    why: str

    def __str__(self) -> str:
        why = f": {self.why}" if self.why else ""
        what = partition_or_group(self.partition, self.group)
        return f"{what} was paused by {self.by or 'an operator'}{why} (its events wait until it is resumed)"


class Resumed(Signal, frozen=True, kw_only=True):
    """The pause of a partition, or (`partition` is None) of the whole group, has ended."""

    partition: PartitionId | None

    def __str__(self) -> str:
        return f"{partition_or_group(self.partition, self.group)} was resumed"


class HistoryLost(Signal, frozen=True, kw_only=True):
    """The store lost writes or was emptied: all partitions stop and are claimed again."""

    level: ClassVar[int] = logging.ERROR
    before: int
    after: int

    def __str__(self) -> str:
        return f"the store lost data (history {self.before} -> {self.after}); reclaiming all partitions"


class Spent(Signal, frozen=True, kw_only=True):
    """When an instance ends: the units that the services of its source and store charged, by kind of operation."""

    units: dict[str, float]

    def __str__(self) -> str:
        return f"{self.instance} used {units_of(self.units)}"
