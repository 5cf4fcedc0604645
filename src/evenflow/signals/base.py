"""The root of all signals, and the words that their sentences share."""

from __future__ import annotations

import logging
from shlex import quote
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import Struct
from msgspec.structs import asdict

if TYPE_CHECKING:
    from evenflow.model import PartitionId, Position


class Signal(Struct, frozen=True, kw_only=True):
    """The root of all signals. `at` is wall-clock time, for display."""

    level: ClassVar[int] = logging.INFO
    at: float = 0.0
    instance: str = ""
    group: str = ""
    group_name: str = ""
    """The group as a command-line flag names it: without its namespace and hub, which may both contain slashes."""

    @property
    def severity(self) -> int:
        """The log level of this signal; never above that of its class."""
        return self.level

    def as_dict(self) -> dict[str, Any]:
        facts = asdict(self)
        return {"signal": type(self).__name__} | {
            name: str(value) if isinstance(value, BaseException) else value for name, value in facts.items()
        }


def partition_or_group(partition: PartitionId | None, group: str) -> str:
    return f"group {group}" if partition is None else f"partition {partition}"


def describe_event(position: Position, whose: str) -> str:
    return f"event {position} ({whose})" if whose else f"event {position}"


def as_sentence(error: str) -> str:
    """The error with the full stop of a sentence, unless it is a question."""
    return error if error.endswith("?") else f"{error.removesuffix('.')}."


def command_flags(partition: PartitionId, group_name: str) -> str:
    return f"--partition {quote(partition)} --group {quote(group_name)}"


def show_seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 0.95 else f"{seconds:.2f} s"
