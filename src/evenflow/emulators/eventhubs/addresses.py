"""Parses the addresses of links and the audiences of tokens into hub, consumer group and partition."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

Path: TypeAlias = "tuple[str, ...]"

CBS = "$cbs"
MANAGEMENT = "$management"


class EntityAddress(NamedTuple):
    """A hub, a partition of a hub, or a partition as read by a consumer group."""

    hub: str
    partition: str | None = None
    group: str | None = None

    def __str__(self) -> str:
        parts = [self.hub]
        parts += ["ConsumerGroups", self.group] if self.group is not None else []
        parts += ["Partitions", self.partition] if self.partition is not None else []
        return "/".join(parts)


def parse_path(address: str) -> Path:
    """The path segments of an address, with or without a scheme and a host."""
    _, scheme, rest = address.partition("://")
    if scheme:
        address = rest.partition("/")[2]
    return tuple(part for part in address.split("/") if part)


def parse_entity(path: Path) -> EntityAddress | None:
    """The entity that a path names; None if the path is not valid."""
    match [part.lower() for part in path]:
        case [_]:
            return EntityAddress(path[0])
        case [_, "partitions", _]:
            return EntityAddress(path[0], path[2])
        case [_, "consumergroups", _, "partitions", _]:
            return EntityAddress(path[0], path[4], path[2])
    return None


def covers(granted: Path, wanted: Path) -> bool:
    """Whether a grant for one path includes another. Names are case-insensitive, as in the service."""
    return [part.lower() for part in wanted[: len(granted)]] == [part.lower() for part in granted]
