"""What one run of a processor is made of: handed to coordinator, pumps and committer alike."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct, field

from evenflow.core.notes import whose
from evenflow.errors import HubReplaced, Misconfigured, NoSuchPartition, SourceUnavailable, StoreUnavailable, Transient
from evenflow.operate.inspect.survey import describe_source_error
from evenflow.ports import Mirrored, Naming
from evenflow.runtime.pacer import Lanes
from evenflow.runtime.turns import Turns
from evenflow.runtime.waits import Waits

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping

    from evenflow.model import Event, Group, PartitionId, Position
    from evenflow.ports import Clock, DeadLetters, Source, Store
    from evenflow.runtime.calls import Handler
    from evenflow.runtime.settings import Settings
    from evenflow.runtime.threads import Threads
    from evenflow.signals import Announcer

Hook: TypeAlias = "Callable[..., Awaitable[None] | None]"

SEALS_AT_ONCE = 32


class Handlers(Struct):
    """What the application gave."""

    event: Handler | None = None
    batch: Handler | None = None
    error: Hook | None = None
    errors_once: bool = False
    """Of what a partition waits for, `error` hears when it begins, and not with every try."""
    trouble: Hook | None = None
    """Called with (error) when what is no partition's own begins to fail: the source, or the store, as a whole."""
    partition_start: Hook | None = None
    partition_stop: Hook | None = None
    idle: Hook | None = None
    """Called with (partition), as one of its calls, when nothing came for `idle_s` since the last one."""
    idle_s: float = 0.0
    gathers: bool = False
    """A batch waits until it is full, or until `idle_s` have passed since the last call."""


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
    cut_off: asyncio.Event
    """Set when the deadline for a stop has passed: from then on we cancel what the application runs."""
    dead_letters: DeadLetters | None = None
    served: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when something came of the source: what it refuses from then on was granted once."""
    turns: Turns = field(default_factory=Turns)
    """Around handler calls: of some it must be known that no other ran beside them."""
    waits: Waits = field(default_factory=Waits)
    """What is tried again and again."""
    seals: Lanes = field(default_factory=lambda: Lanes(SEALS_AT_ONCE))
    """Around each seal: a slow store would answer none of a thousand in time."""
    gate: AbstractAsyncContextManager[object] = field(default_factory=nullcontext)
    """Around all that the application runs: no more of it at once than it wants."""
    alarm: Callable[[Exception], None] = lambda error: None
    """Tells the application of trouble that is no partition's own; to be called when it begins."""

    async def check_hub(self) -> None:
        """Another hub under this name is an error: the positions that are known here mean nothing in it."""
        identity = await self.source.identity()
        if identity.made != self.made:
            raise HubReplaced(
                f"hub {identity.hub} was deleted and made again while this instance read it. Its old checkpoints do"
                " not fit the new hub: stop all instances, delete the group (`evenflow group delete`), and start again;"
                " or use another group name."
            )

    def whose(self, event: Event) -> str:
        """Of which document and of which key it is, for people; "": nobody can tell."""
        source: object = self.source
        return whose(source.name_of(event) if isinstance(source, Naming) else "", event.key)

    def committed(self, positions: Mapping[PartitionId, Position]) -> None:
        """The store has these checkpoints: who shows them elsewhere is told."""
        if positions and isinstance(self.source, Mirrored):
            self.source.committed(positions)

    @contextmanager
    def waiting_if_refused(self) -> Iterator[None]:
        """Around a question to the source. Who was never served has a wrong setting, and ends; whom it has served
        before waits, as for one that is away: rights that are taken for a moment must not end a fleet for good."""
        try:
            with self.stopping_no_other():
                yield
        except Misconfigured as error:
            if not self.served.is_set():
                raise
            raise SourceUnavailable(f"{error} (It was not refused before, so it will be tried again.)") from error

    @contextmanager
    def stopping_no_other(self) -> Iterator[None]:
        """Around a question about a partition: a lease for one that there is not, made by hand, stops no other."""
        try:
            yield
        except NoSuchPartition as error:
            raise SourceUnavailable(
                f"{describe_source_error(self.store, self.group, error)} (It will be tried again.)"
            ) from error

    @property
    def request_s(self) -> float:
        """The time limit of one request to the store."""
        return self.settings.patience_s / 2

    @asynccontextmanager
    async def sealing(self) -> AsyncIterator[None]:
        """Around a seal. An instance that starts seals all its partitions, and each waits for its turn."""
        async with self.seals.request(self):
            yield

    @asynccontextmanager
    async def answered(self, limit_s: float | None = None) -> AsyncIterator[None]:
        """Around a request to the store: without an answer within its time limit, an instance tries again."""
        limit_s = self.request_s if limit_s is None else limit_s
        try:
            async with asyncio.timeout(limit_s):
                yield
        except TimeoutError as error:
            raise StoreUnavailable(
                f"The store has not answered for {limit_s:.1f} s. It will be tried again; if this goes on, see whether"
                f" it is locked, overloaded or cut off.{_last_word(error)}"
            ) from error


def _last_word(error: BaseException | None) -> str:
    """What the store had been told when it was cut short while it tried again by itself."""
    while error is not None:
        if isinstance(error, Transient):
            return f" The last that was heard: {error}"
        error = error.__cause__ or error.__context__
    return ""


async def call_hook(threads: Threads, cut_off: asyncio.Event, hook: Hook, *args: Any) -> None:
    """An async hook is awaited here, a plain one runs on a thread."""
    from evenflow.runtime.calls import is_async, refuse_awaitable

    with the_applications_own(cut_off):
        if is_async(hook):
            result: Any = hook(*args)
            await result
        else:
            refuse_awaitable(hook, await threads.run(hook, *args))


@contextmanager
def the_applications_own(cut_off: asyncio.Event) -> Iterator[None]:
    """Around what the application runs: that it was cancelled, but not by us, is a failure like any other. So is an
    exit: what is deep in a handler, and gives up on one event, does not end the process for all the others."""
    try:
        yield
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or cut_off.is_set():
            raise
        while task.cancelling():
            task.uncancel()
        raise RuntimeError("it was cancelled from within: it, or something that it awaited") from error
    except (Exception, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        raise RuntimeError(f"it raised {type(error).__name__}, which would have ended the process") from error
