"""The served hubs by name, and their consumer groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenflow.amqp.conditions import NOT_FOUND, OUT_OF_RANGE, AmqpError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from evenflow.embedded.hub import Hub

DEFAULT_GROUP = "$Default"


class ServedHub:
    def __init__(self, name: str, hub: Hub, groups: Iterable[str] = ()) -> None:
        self.name = name
        self.hub = hub
        self.groups = {group.lower(): group for group in (DEFAULT_GROUP, *groups)}

    @property
    def partitions(self) -> int:
        return self.hub.opened().metadata().partitions

    def partition_number(self, text: str) -> int:
        count = self.partitions
        if not (text.isascii() and text.isdecimal()) or len(text) > 9 or int(text) >= count:
            raise AmqpError(
                OUT_OF_RANGE,
                f"The specified partition is invalid for an EventHub partition sender or receiver. It should be "
                f"between 0 and {count - 1}.",
            )
        return int(text)

    def check_group(self, group: str) -> None:
        if group.lower() not in self.groups:
            raise AmqpError(
                NOT_FOUND, f"The messaging entity '{self.name}/ConsumerGroups/{group:.200}' could not be found."
            )


class Namespace:
    def __init__(self, hubs: Iterable[ServedHub]) -> None:
        self._hubs = {hub.name.lower(): hub for hub in hubs}

    def __iter__(self) -> Iterator[ServedHub]:
        return iter(self._hubs.values())

    def hub(self, name: str) -> ServedHub:
        """The hub with this name, which is case-insensitive."""
        found = self._hubs.get(name.lower())
        if found is None:
            raise AmqpError(NOT_FOUND, f"The messaging entity '{name:.200}' could not be found.")
        return found
