"""Looking again and again: an unreachable store or source leaves what is known in place, and it is said."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from evenflow.console import registry as registry_module
from evenflow.console import watch as watch_module
from evenflow.console.registry import GroupRegistry
from evenflow.console.stream import changes
from evenflow.console.watch import GroupWatch, Subject
from evenflow.errors import SourceUnavailable, StoreUnavailable
from evenflow.model import Change, Checkpoint, Group, Member, Position
from evenflow.runtime.clock import system_clock
from evenflow.stores.memory import MemoryStore
from evenflow.testing.fakes import FakeSource

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

GROUP = Group("fake", "fake", "alerts")


class Trouble:
    """A store and a source that can be unreachable."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.source = FakeSource(2)
        self.subject = Subject(store=self.store, source=self.source)

    async def run(self) -> None:
        """One instance has claimed both partitions."""
        identity = await self.source.identity()
        self.group = Group(identity.namespace, identity.hub, "alerts")
        ledger = await self.store.heartbeat(self.group, Member(id="one", nonce="1", ttl_s=8.0), None)
        assert ledger.me is not None
        owner = ledger.me.owner
        for name in ("0", "1"):
            change = Change(partition=name, revision=0, history=0, owner=owner, epoch=1, ttl_s=8.0, reason="claimed")
            await self.store.swap(self.group, [change])
            first = Checkpoint(partition=name, epoch=1, position=Position("-1", -1), ordinal=0)
            await self.store.seal(self.group, name, 1, first)
            self.source.append(name, b"hello")

    def watch(self, every_s: float = 0.02, **options: Any) -> GroupWatch:
        return GroupWatch(
            self.subject, self.group, system_clock(), every_s=every_s, **{"unseen_every_s": 0.02} | options
        )

    def count_looks(self) -> list[float]:
        snapshots, peek = list[float](), self.store.peek

        async def counted(*given: Any, **named: Any) -> Any:
            snapshots.append(0.0)
            return await peek(*given, **named)

        self.store.peek = counted  # type: ignore[method-assign]
        return snapshots


def scene(test: Callable[[Trouble], Awaitable[None]]) -> None:
    async def run() -> None:
        trouble = Trouble()
        await trouble.run()
        await test(trouble)

    asyncio.run(run())


def section(watch: GroupWatch, name: str) -> Any:
    return msgspec.json.decode(watch.fragments[name])


async def until(watch: GroupWatch, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await watch.version.wait(watch.version.number, 1.0)


def test_a_look_becomes_sections() -> None:
    async def test(trouble: Trouble) -> None:
        watch = trouble.watch()
        await watch.refresh()
        assert section(watch, "head")["owned"] == 2
        assert section(watch, "sums")["lag"] == 2
        assert section(watch, "now")["stale"] is None
        assert [one["kind"] for one in section(watch, "story")] == ["claimed"]

    scene(test)


def test_a_store_that_is_away_leaves_the_picture_and_says_since_when() -> None:
    async def test(trouble: Trouble) -> None:
        watch = trouble.watch()
        watch.start()
        await until(watch, lambda: watch.snapshot is not None)

        async def away(*_: Any) -> Any:
            raise StoreUnavailable("The store is at lunch.")

        back, trouble.store.peek = trouble.store.peek, away  # type: ignore[method-assign, assignment]
        await until(watch, lambda: watch.stale is not None)
        assert section(watch, "head")["owned"] == 2
        assert section(watch, "now")["stale"]["why"] == "The store is at lunch."
        assert section(watch, "now")["stale"]["since"] == pytest.approx(watch.snapshot.wall_s if watch.snapshot else 0)
        trouble.store.peek = back  # type: ignore[method-assign]
        watch.hurry()
        await until(watch, lambda: watch.stale is None)
        assert section(watch, "now")["stale"] is None
        await watch.aclose()

    scene(test)


def test_a_source_that_is_away_hides_only_lag() -> None:
    async def test(trouble: Trouble) -> None:
        async def away(*_: Any) -> Any:
            raise SourceUnavailable("The hub is at lunch.")

        trouble.source.identity = trouble.source.partitions = trouble.source.bounds = away  # type: ignore[method-assign, assignment]
        watch = trouble.watch()
        await watch.refresh()
        assert section(watch, "head")["owned"] == 2
        assert section(watch, "sums")["lag"] is None
        assert any("The hub is at lunch." in problem for problem in section(watch, "head")["problems"])

    scene(test)


def test_a_source_that_hangs_is_left_alone_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "LIMIT_S", 0.1)
    asked: list[str] = []

    async def test(trouble: Trouble) -> None:
        async def hang(*_: Any) -> Any:
            asked.append("bounds")
            await asyncio.Event().wait()

        trouble.source.bounds = hang  # type: ignore[method-assign, assignment]
        watch = trouble.watch()
        for _ in range(2):
            await watch.refresh()
            assert section(watch, "head")["owned"] == 2
            assert "did not answer" in section(watch, "head")["problems"][0]
        assert asked == ["bounds"]

    scene(test)


def test_an_unknown_error_is_logged_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    async def test(trouble: Trouble) -> None:
        async def broken(*_: Any) -> Any:
            raise RuntimeError("password=hunter2")

        trouble.store.peek = broken  # type: ignore[method-assign, assignment]
        watch = trouble.watch()
        watch.start()
        await until(watch, lambda: watch.stale is not None)
        assert "hunter2" not in watch.fragments["now"].decode()
        await watch.aclose()

    scene(test)
    assert "hunter2" in caplog.text


def test_moves_that_were_missed_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "MOVES", 2)

    async def test(trouble: Trouble) -> None:
        watch = trouble.watch()
        await watch.refresh()
        for epoch in range(2, 8):
            ledger = await trouble.store.peek(trouble.group)
            assert ledger is not None
            lease = ledger.leases[0]
            change = Change(
                partition=lease.partition, revision=lease.revision, history=0, owner=lease.owner, epoch=epoch, ttl_s=8.0
            )
            await trouble.store.swap(trouble.group, [change])
        await watch.refresh()
        assert watch.known is not None
        assert len(watch.known.moves) == 8

    scene(test)


def test_the_stream_sends_everything_first_and_then_what_changed() -> None:
    async def test(trouble: Trouble) -> None:
        watch = trouble.watch()
        await watch.refresh()
        over = False
        stream = changes(watch, lambda: over)
        first = msgspec.json.decode((await anext(stream)).removeprefix(b"data: "))
        assert {"head", "members", "rows/0", "bands/0", "now"} <= set(first["sections"])
        trouble.source.append("0", b"one more")
        await watch.refresh()
        second = msgspec.json.decode((await anext(stream)).removeprefix(b"data: "))
        assert {"rows/0", "sums", "now"} <= set(second["sections"])
        assert not {"head", "bands/0", "story"} & set(second["sections"])
        over = True
        watch.version.change()
        last = msgspec.json.decode((await anext(stream)).removeprefix(b"data: "))
        assert last["sections"] == {"ended": True}, "so that a page can say why nothing more comes"
        with pytest.raises(StopAsyncIteration):
            await anext(stream)

    scene(test)


def test_it_looks_once_for_each_who_asks_and_rarely_else() -> None:
    async def test(trouble: Trouble) -> None:
        snapshots = trouble.count_looks()
        watch = trouble.watch(unseen_every_s=3600.0)
        watch.start()
        await watch.freshen()
        assert len(snapshots) == 1, "the first one is waited for, and none is added"
        await asyncio.sleep(0.1)  # longer than two rests of a page
        assert len(snapshots) == 1, "no page is open"
        await watch.freshen()
        assert len(snapshots) == 2
        watch.viewers += 1
        watch.hurry()
        await until(watch, lambda: len(snapshots) > 5)
        await watch.aclose()

    scene(test)


def test_who_asks_just_after_a_look_gets_that() -> None:
    async def test(trouble: Trouble) -> None:
        snapshots = trouble.count_looks()
        watch = trouble.watch(every_s=3600.0)
        watch.start()
        await watch.freshen()
        await watch.freshen()
        assert len(snapshots) == 1
        await watch.aclose()

    scene(test)


def test_a_store_that_hangs_lets_who_asks_have_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "FRESH_WITHIN_S", 0.05)

    async def test(trouble: Trouble) -> None:
        watch = trouble.watch(unseen_every_s=3600.0)
        watch.start()
        await watch.freshen()
        seen = watch.snapshot

        async def hang(*_: Any) -> Any:
            await asyncio.Event().wait()

        trouble.store.peek = hang  # type: ignore[method-assign, assignment]
        await asyncio.sleep(0.03)
        await watch.freshen()
        assert watch.snapshot is seen is not None
        await watch.aclose()

    scene(test)


def test_a_list_that_is_open_has_its_groups_looked_at_and_one_that_is_closed_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch_module, "LIST_EVERY_S", 0.02)
    monkeypatch.setattr(registry_module, "LIST_EVERY_S", 0.02)

    async def test(trouble: Trouble) -> None:
        snapshots = trouble.count_looks()
        registry = GroupRegistry(trouble.subject, system_clock(), every_s=0.02, unseen_every_s=3600.0)
        registry.start()
        await registry.snapshots()
        listed = registry.version.number
        await asyncio.sleep(0.1)
        assert (len(snapshots), registry.version.number) == (1, listed)
        registry.viewers += 1
        registry.hurry()
        async with asyncio.timeout(10):
            while len(snapshots) < 5 or registry.version.number < listed + 5:  # noqa: ASYNC110 - two are waited for
                await asyncio.sleep(0.01)
        await registry.aclose()

    scene(test)
