"""What the addresses of links, and the audiences of tokens, name: a path of hub, group and partition."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

Path: TypeAlias = "tuple[str, ...]"

CBS = "$cbs"
MANAGEMENT = "$management"


class EntityAddress(NamedTuple):
    """A hub, or a partition of one, or one that is read by a group."""

    hub: str
    partition: str | None = None
    group: str | None = None

    def __str__(self) -> str:
        parts = [self.hub]
        parts += ["ConsumerGroups", self.group] if self.group is not None else []
        parts += ["Partitions", self.partition] if self.partition is not None else []
        return "/".join(parts)


def path_of(address: str) -> Path:
    """The parts of an address, whether or not it begins with a scheme and a host."""
    _, scheme, rest = address.partition("://")
    if scheme:
        address = rest.partition("/")[2]
    return tuple(part for part in address.split("/") if part)


def entity_of(path: Path) -> EntityAddress | None:
    """None when it is no place that there could be."""
    match [part.lower() for part in path]:
        case [_]:
            return EntityAddress(path[0])
        case [_, "partitions", _]:
            return EntityAddress(path[0], path[2])
        case [_, "consumergroups", _, "partitions", _]:
            return EntityAddress(path[0], path[4], path[2])
    return None


def covers(granted: Path, wanted: Path) -> bool:
    """Whether a right to one path is also one to another below it. Names of the service have no case."""
    return [part.lower() for part in wanted[: len(granted)]] == [part.lower() for part in granted]
