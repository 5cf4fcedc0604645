"""A folder with a hub, a store and dead letters, and a thread that answers as the owner of the partitions."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from msgspec import structs

from evenflow.embedded.hub import Hub
from evenflow.model import Change, DeadLetter, Event, Group, Member, Verdict
from evenflow.operate.dead_letters.redrive import read_filed
from evenflow.stores.sqlite.store import SQLiteStore
from evenflow.urls import open_dead_letters

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from evenflow.model import DeadLetterRecord

GROUP = Group("local", "homes", "alerts")
WHERE = ("--dead-letters", "jsonl:dead", "--group", "alerts")
STORE = ("--store", "sqlite:leases")
TRACE = 'Traceback (most recent call last):\n  File "app.py", line 3, in handle\nValueError: no such home\n'


def dead_letter(number: int, partition: str = "0", **more: Any) -> DeadLetter:
    body, key = more.pop("body", f"door {number}".encode()), more.pop("key", f"home-{number}")
    event = Event(body, key, more.pop("properties", None), number, 1_700_000_000_000_000)
    known = {"reason": "poison", "error": "ValueError: no such home", "traceback": TRACE, "attempts": 5}
    return DeadLetter(
        **{"partition": partition, "event": event, "instance": "one", "epoch": 3, "at": 1.7e9, **known, **more}
    )


DEAD_LETTERS = [
    dead_letter(7),
    dead_letter(9, key="home-7", reason="parked", error="an earlier event of this key", traceback="", attempts=0),
    dead_letter(
        2, "1", error="TimeoutError: slow\nvery", body=b"\x00\xff\x10", key=None, properties={"b": b"\x01", "n": 1}
    ),
]


class Place:
    """The folder, its dead-letter target, and which dead letters the owner handles and fails."""

    def __init__(self, folder: Path, target: str) -> None:
        self.folder = folder
        self.target = f"{target.partition(':')[0]}:{folder / 'dead'}"
        self.failing: set[str] = set()
        self.handled: list[str] = []
        self.most = 1_000
        Hub.create(folder / "homes", 2).close()
        asyncio.run(self._make())

    async def _make(self) -> None:
        store = SQLiteStore(self.folder / "leases")
        member = Member(id="one", nonce="n", ttl_s=8.0)
        ledger = await store.heartbeat(GROUP, member, None)
        assert ledger.me is not None
        self.me = ledger.me
        history = ledger.cursor.history
        claims = [
            Change(partition=name, revision=0, history=history, owner=self.me.owner, epoch=(history << 32) + 1, ttl_s=8)
            for name in "01"
        ]
        assert all(outcome.ok for outcome in await store.swap(GROUP, claims))
        await store.aclose()
        await self.file(*DEAD_LETTERS)

    async def file(self, *records: DeadLetterRecord) -> None:
        dead_letters = open_dead_letters(self.target)
        for record in records:
            partition = record.partition if isinstance(record, DeadLetter) else record.dead_letter.partition("@")[0]
            await dead_letters.file(GROUP, partition, [record])
        await dead_letters.aclose()

    def states(self) -> dict[str, str]:
        async def read() -> dict[str, str]:
            dead_letters = open_dead_letters(self.target)
            found: dict[str, str] = {one.dead_letter.id: one.state for one in await read_filed(dead_letters, GROUP)}
            await dead_letters.aclose()
            return found

        return asyncio.run(read())

    def verdicts(self, kind: str) -> list[Verdict]:
        async def read() -> list[Verdict]:
            dead_letters = open_dead_letters(self.target)
            found = [one async for one in dead_letters.read(GROUP) if isinstance(one, Verdict) and one.kind == kind]
            await dead_letters.aclose()
            return found

        return asyncio.run(read())

    def actions(self) -> list[tuple[str, str, str]]:
        async def read() -> list[tuple[str, str, str]]:
            store = SQLiteStore(self.folder / "leases")
            found = [(one.kind, one.why, one.what) for one in await store.actions(GROUP)]
            await store.aclose()
            return found

        return asyncio.run(read())

    async def leave(self) -> None:
        """The owner releases both partitions, and leaves."""
        store = SQLiteStore(self.folder / "leases")
        ledger = await store.peek(GROUP)
        assert ledger is not None
        releases = [
            Change(
                partition=lease.partition,
                revision=lease.revision,
                history=lease.history,
                owner=None,
                epoch=lease.epoch + 1,
            )
            for lease in ledger.leases
        ]
        await store.swap(GROUP, releases)
        left = await store.heartbeat(GROUP, structs.replace(self.me, leaving=True), None)
        assert left.me is None
        await store.aclose()
        self.me = Member(id="two", nonce="n2", ttl_s=8.0)

    @contextmanager
    def owner(self) -> Iterator[None]:
        """Inside the block, a thread acts as the owner of both partitions: it heartbeats and handles redrives."""
        over = threading.Event()
        thread = threading.Thread(target=lambda: asyncio.run(self._own(over)))
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    async def _own(self, over: threading.Event) -> None:
        store, dead_letters = SQLiteStore(self.folder / "leases"), open_dead_letters(self.target)
        while not over.is_set():
            ledger = await store.heartbeat(GROUP, self.me, None)
            for partition in ledger.state.redrives:
                for one in await read_filed(dead_letters, GROUP, partition):
                    if one.state != "again":
                        continue
                    if len(self.handled) < self.most:
                        self.handled.append(one.dead_letter.id)
                        error = "ValueError: still no" if one.dead_letter.id in self.failing else None
                        await dead_letters.file(GROUP, partition, [one.answered(error, by="one", at=time.time())])
            await asyncio.sleep(0.05)
        await store.aclose()
        await dead_letters.aclose()
