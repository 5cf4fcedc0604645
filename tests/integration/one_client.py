"""One client of a store in this process while its server, or the way there, has faults: the scenes of every store."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Protocol, TypeVar

import pytest
from msgspec import structs

from evenflow.errors import StoreUnavailable, Transient
from evenflow.model import Group, Member
from evenflow.ports import Operable, Store
from evenflow.testing.store.scene import at, first, present

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from contextlib import AbstractContextManager

    from evenflow.model import Ledger

GROUP = Group("homes.example", "sensors", "alerts")
ME = Member(id="me", nonce="1", ttl_s=8.0)
PATIENCE_S = 90.0
SOON_S = 1.0
"""After this a client that hears nothing gives up; what is answered at all is answered sooner on a busy machine too."""


class Whole(Store, Operable, Protocol):
    """A store as all of evenflow's own are."""


S = TypeVar("S", bound=Store)
T = TypeVar("T")


@asynccontextmanager
async def opened(make: Callable[[str], S], url: str) -> AsyncIterator[S]:
    store = make(url)
    try:
        yield store
    finally:
        await store.aclose()


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """As the runtime does: ask again while the store is away."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with suppress(Transient):
                return await ask()
            await asyncio.sleep(0.02)


async def heartbeats_go_on_after(store: Store, stop: Callable[[], object], start: Callable[[], object]) -> None:
    """A restart of the server in the middle of heartbeats costs only the time that it takes.

    A heartbeat that is sent while the server is down may be refused, or wait until it is back: that depends on the
    store, and on how long the start takes."""
    ledger = await patiently(lambda: store.heartbeat(GROUP, ME, None))
    me = present(ledger)
    is_down, was_asked = threading.Event(), threading.Event()

    def restart() -> None:
        stop()
        is_down.set()
        assert was_asked.wait(PATIENCE_S)
        start()

    restarting = asyncio.create_task(asyncio.to_thread(restart))
    while not restarting.done():
        if is_down.is_set():
            was_asked.set()
        with suppress(StoreUnavailable):
            ledger = await store.heartbeat(GROUP, me, ledger.cursor)
        await asyncio.sleep(0.002)
    await restarting
    later = await patiently(lambda: store.heartbeat(GROUP, me, ledger.cursor))
    assert present(later).incarnation == me.incarnation
    assert (later.cursor.history, later.whole, later.roster) == (ledger.cursor.history, False, False), (
        "nothing was lost"
    )
    assert later.cursor.revision > ledger.cursor.revision


async def lost_answers_leave_one_effect(
    store: Whole, other: Whole, losing_answers: Callable[[], AbstractContextManager[None]]
) -> None:
    """What was written is in doubt, and nothing sends it twice: one claim is one move. Who asks again finds it done."""

    async def lose_the_answer(
        request: Callable[[], Awaitable[object]], took_effect: Callable[[], Awaitable[object]]
    ) -> None:
        # There are connections, and the server knows what it will be asked: it is this very answer that is lost.
        await store.swap(GROUP, [])
        await store.commit(GROUP, [])
        await store.seal(GROUP, "warm", 1, at(0))
        with losing_answers():
            asking = asyncio.ensure_future(request())
            async with asyncio.timeout(PATIENCE_S):
                while not await took_effect():  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            asking.cancel()
            with pytest.raises((StoreUnavailable, asyncio.CancelledError)):
                await asking
        for lane in (store.swap, store.commit):
            with suppress(StoreUnavailable):
                await lane(GROUP, [])

    async def leases() -> object:
        return present_ledger(await other.peek(GROUP)).leases

    async def has_late() -> bool:
        return late.id in [member.id for member in present_ledger(await other.peek(GROUP)).members]

    async def ordinals() -> list[int]:
        return [record.ordinal for record in await other.checkpoints(GROUP) if record.partition == "0"]

    async def is_committed() -> bool:
        return await ordinals() == [3]

    me = present(await store.heartbeat(GROUP, ME, None))
    late, claim = structs.replace(ME, id="late"), first("0", me.owner)
    await lose_the_answer(lambda: store.swap(GROUP, [claim]), leases)
    await lose_the_answer(lambda: store.seal(GROUP, "0", 1, at(0)), ordinals)
    await lose_the_answer(lambda: store.commit(GROUP, [at(3)]), is_committed)
    await lose_the_answer(lambda: store.heartbeat(GROUP, late, None), has_late)
    assert len(await other.moves(GROUP)) == 1
    (again,) = await store.swap(GROUP, [claim])
    assert (again.ok, again.why, again.lease and again.lease.owner) == (False, "revision", me.owner)
    assert (await store.commit(GROUP, [at(3)]))[0].ok
    assert (await other.seal(GROUP, "0", 1, at(0))).ordinal == 3
    ledger = present_ledger(await other.peek(GROUP))
    (there,) = (member for member in ledger.members if member.id == late.id)
    again_late = present(await store.heartbeat(GROUP, late, None))
    assert again_late.incarnation == there.incarnation == me.incarnation + 1, "the same start, reported twice"


def present_ledger(ledger: Ledger | None) -> Ledger:
    assert ledger is not None
    return ledger
