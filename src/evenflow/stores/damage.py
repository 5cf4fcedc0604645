"""When something that a store keeps cannot be read: the error says which record it is, and what to do about it.

What fails is a request, and it does not tell the record. So the group is looked through then, each record alone.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from msgspec import MsgspecError

from evenflow.drivers.network import NotDone

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from evenflow.errors import Corrupt
    from evenflow.model import Group

M = TypeVar("M", bound="Callable[..., Coroutine[Any, Any, Any]]")

UNREADABLE = (ValueError, TypeError, MsgspecError)
"""What reading a garbled record raises."""


class Inspected(Protocol):
    async def damage(self, group: Group) -> Corrupt | None:
        """The first record that cannot be read; None when all can."""
        ...


def naming_damage(method: M) -> M:
    """For a store's requests; a group is the first thing that each is told."""

    @wraps(method)
    async def named(store: Inspected, group: Group, *args: Any, **kwargs: Any) -> Any:
        try:
            return await method(store, group, *args, **kwargs)
        except (NotDone, *UNREADABLE) as error:
            found = await store.damage(group)
            if found is None:
                raise
            raise found from error

    return cast("M", named)
