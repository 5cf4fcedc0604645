"""What one run of a processor is made of: handed to coordinator, pumps and committer alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from evenflow.model import Group
    from evenflow.observe.happenings import Announcer
    from evenflow.ports import Clock, Source, Store
    from evenflow.runtime.calls import Handler
    from evenflow.runtime.settings import Settings
    from evenflow.runtime.threads import Threads

Hook: TypeAlias = "Callable[..., Awaitable[None] | None]"


class Handlers(Struct):
    """What the application gave."""

    event: Handler | None = None
    batch: Handler | None = None
    error: Hook | None = None
    partition_start: Hook | None = None
    partition_stop: Hook | None = None


class Parts(Struct, frozen=True):
    group: Group
    made: str
    """Which making of the hub this is."""
    source: Source
    store: Store
    clock: Clock
    settings: Settings
    handlers: Handlers
    announce: Announcer
    threads: Threads


async def call_hook(parts: Parts, hook: Hook, *args: Any) -> None:
    """An async hook is awaited here, a plain one runs on a thread."""
    from evenflow.runtime.calls import is_async

    if is_async(hook):
        result: Any = hook(*args)
        await result
    else:
        await parts.threads.run(hook, *args)
