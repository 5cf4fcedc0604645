"""Names the damaged record when a store request fails.

A failed request does not say which record could not be decoded. The store then reads the group's records one by one;
the error names the first damaged one and says how to repair it.
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

DECODE_ERRORS = (ValueError, TypeError, MsgspecError)
"""Raised while decoding a damaged record."""


class DamageFinder(Protocol):
    async def find_damage(self, group: Group) -> Corrupt | None:
        """Returns an error for the first record that cannot be decoded, or None if all can."""
        ...


def names_damaged_record(method: M) -> M:
    """Decorates a store request whose first argument is the group."""

    @wraps(method)
    async def named(store: DamageFinder, group: Group, *args: Any, **kwargs: Any) -> Any:
        try:
            return await method(store, group, *args, **kwargs)
        except (NotDone, *DECODE_ERRORS) as error:
            found = await store.find_damage(group)
            if found is None:
                raise
            raise found from error

    return cast("M", named)
