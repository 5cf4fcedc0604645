"""A hub, a store, and instances in real processes that are killed, stopped and asked to end; and what they did.

Everything that a scene starts it ends, by its process id, also when a test has failed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, TypeVar

import apsw
import msgspec

from evenflow.embedded.hub import Hub
from evenflow.local.database import lock_holder
from evenflow.model import Group
from evenflow.ports import Operable
from evenflow.urls import open_store
from tests.integration.calls import Call, Diaries, boot_s, lost, violations
from tests.integration.instance import Orders, held_by
from tests.integration.programs import PATIENCE_S, slowness, wait_for

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from evenflow.model import Checkpoint, Lease, Ledger, PartitionId

T = TypeVar("T")

HEARTBEAT_S = 0.5
TTL_S = 2.5
PATIENT_TTL_S = 12.0
"""Of instances that nothing must interrupt, however long a busy machine takes to answer them."""
MARGIN_S = 0.5
TIMES = {"heartbeat_s": HEARTBEAT_S, "ttl_s": TTL_S, "margin_s": MARGIN_S, "refresh_s": HEARTBEAT_S, "stop_s": 10.0}

LEASES, PROGRESS = "leases.sqlite", "progress.sqlite"


def slack_s() -> float:
    """What may be added to a time that is promised: a second, and more on a machine that is busy with other things."""
    return 1.0 * slowness()


class Instance:
    """One process that runs one processor."""

    def __init__(self, scene: Scene, name: str, orders: Orders) -> None:
        self.name = name
        self._scene = scene
        self._log = scene.folder / f"{name}.log"
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.integration.instance", msgspec.json.encode(orders).decode()],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )
        self.pid = self.process.pid

    def __repr__(self) -> str:
        return f"<{self.name}, process {self.pid}>"

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def last_line(self) -> str:
        return self.log.splitlines()[-1]

    @property
    def calls(self) -> list[Call]:
        return [call for call in self._scene.calls() if call.pid == self.pid]

    def kill(self) -> float:
        """As if its machine had died; when that was."""
        killed_s = boot_s()
        self.process.kill()
        self.process.wait(PATIENCE_S)
        return killed_s

    @contextmanager
    def held(self) -> Iterator[None]:
        """Meanwhile, its handler does not return from slow events."""
        file = held_by(self._scene.diaries.folder, self.pid)
        file.touch()
        try:
            yield
        finally:
            file.unlink()

    def ask_to_stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def exit_code(self, within_s: float = PATIENCE_S) -> int:
        return self.process.wait(within_s)

    def pause(self) -> None:
        """SIGSTOP, outside of any write transaction.

        Who is stopped inside one keeps the file's lock: then nobody can take over before it goes on.
        """
        for _ in range(100):
            self.process.send_signal(signal.SIGSTOP)
            wait_for(self._is_paused, f"{self} to stand still")
            if self.pid not in self._scene.lock_holders():
                return
            self.resume()
        raise AssertionError(f"{self} is always inside a transaction")

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)
        if self.process.stdin is not None:
            self.process.stdin.close()

    def _is_paused(self) -> bool:
        tasks = f"/proc/{self.pid}/task"
        return all(_state(f"{tasks}/{task}/stat") == "T" for task in os.listdir(tasks))


def _state(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()[0]


class Load:
    """A sender on a thread of its own: some events to each partition, again and again."""

    def __init__(self, path: Path, every_s: float, events: int) -> None:
        self._path, self._every_s, self._events = path, every_s, events
        self._end = Event()
        self._error: BaseException | None = None
        self._thread = Thread(target=self._live, name="load")
        self._thread.start()

    def end(self) -> None:
        self._end.set()
        self._thread.join(PATIENCE_S)
        if self._error is not None:
            raise self._error

    def _live(self) -> None:
        try:
            asyncio.run(self._send())
        except Exception as error:
            self._error = error

    async def _send(self) -> None:
        async with Hub(self._path) as hub:
            while not self._end.is_set():
                partitions = range(len(hub.info().partitions))
                await asyncio.gather(*(hub.send([b"load"] * self._events, partition=one) for one in partitions))
                await asyncio.sleep(self._every_s)


class Scene:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hub = folder / "homes"
        self.store = folder / "leases"
        self.store_url = self.look_url = f"sqlite:{self.store}"
        """Where its instances go, and where a test looks: another way, when the first is to be cut."""
        self.source_url: str | None = None
        self.namespace, self.name = "local", "homes"
        self.instances: list[Instance] = []
        self.partitions = 0
        self.diaries = Diaries(folder / "diaries")
        self.diaries.folder.mkdir(parents=True)
        self._ends = ExitStack()

    def close(self) -> None:
        """What it prints is shown when the test has failed."""
        self._ends.close()
        for instance in self.instances:
            print(f"--- {instance}\n{instance.log}")

    # --- the stream
    def make_hub(self, partitions: int) -> None:
        Hub.create(self.hub, partitions).close()
        self.partitions = partitions

    def add_partitions(self, more: int) -> None:
        with Hub(self.hub) as hub:
            self.partitions = hub.add_partitions(more)

    def send(self, events: Iterable[bytes], partition: int) -> None:
        with Hub(self.hub) as hub:
            asyncio.run(hub.send(list(events), partition=partition))

    def send_to_all(self, events: Sequence[bytes]) -> None:
        async def send() -> None:
            async with Hub(self.hub) as hub:
                await asyncio.gather(*(hub.send(events, partition=one) for one in range(self.partitions)))

        asyncio.run(send())

    @contextmanager
    def load(self, every_s: float = 0.05, events: int = 3) -> Iterator[None]:
        load = Load(self.hub, every_s, events)
        try:
            yield
        finally:
            load.end()

    def newest(self) -> dict[PartitionId, int]:
        with Hub(self.hub) as hub:
            return {one.id: one.newest for one in hub.info().partitions if one.newest is not None}

    # --- the instances
    def start(self, name: str, *, group: str = "alerts", **options: Any) -> Instance:
        """`options` are those of Orders, and the rest settings of a processor."""
        mine = {key: options.pop(key) for key in list(options) if key in Orders.__struct_fields__}
        orders = Orders(
            hub=str(self.hub),
            source=self.source_url,
            store=self.store_url,
            group=group,
            diaries=str(self.diaries.folder),
            settings={"instance_id": name, **TIMES, **options},
            **mine,
        )
        instance = Instance(self, name, orders)
        self._ends.callback(instance.close)
        self.instances.append(instance)
        return instance

    def start_even(self, *names: str, **options: Any) -> list[Instance]:
        """Instances that have come to an even share each."""
        instances = [self.start(name, **options) for name in names]
        self.wait_until_even(*instances, group=options.get("group", "alerts"))
        return instances

    # --- what the store says
    def ledger(self, group: str = "alerts") -> Ledger | None:
        if self.store_url.startswith("sqlite:") and not (self.store / LEASES).exists():
            return None
        return asyncio.run(self._ask(lambda store: store.peek(Group(self.namespace, self.name, group))))

    def checkpoints(self, group: str = "alerts") -> dict[PartitionId, Checkpoint]:
        found = asyncio.run(self._ask(lambda store: store.checkpoints(Group(self.namespace, self.name, group))))
        return {record.partition: record for record in found}

    async def _ask(self, question: Callable[[Operable], Awaitable[T]]) -> T:
        store = open_store(self.look_url)
        assert isinstance(store, Operable)
        try:
            return await question(store)
        finally:
            await store.aclose()

    def leases(self, group: str = "alerts") -> dict[PartitionId, Lease]:
        ledger = self.ledger(group)
        return {lease.partition: lease for lease in ledger.leases} if ledger is not None else {}

    def epochs(self, group: str = "alerts") -> dict[PartitionId, int]:
        return {partition: lease.epoch for partition, lease in self.leases(group).items()}

    def owned(self, instance: Instance, group: str = "alerts") -> set[PartitionId]:
        """What the store says that this very process owns."""
        ledger = self.ledger(group)
        mine = {member.owner for member in ledger.members if member.pid == instance.pid} if ledger else set()
        return {lease.partition for lease in ledger.leases if lease.owner in mine} if ledger else set()

    def pids(self, group: str = "alerts") -> set[int]:
        """The processes that are members."""
        ledger = self.ledger(group)
        return {member.pid for member in ledger.members} if ledger else set()

    def lock_holders(self) -> set[int | None]:
        return {lock_holder(self.store / name) for name in (LEASES, PROGRESS)}

    @contextmanager
    def locked(self, *names: str) -> Iterator[None]:
        """Files of the store, locked by somebody else: this process."""
        with ExitStack() as ends:
            for name in names:
                connection = apsw.Connection(str(self.store / name))
                ends.callback(connection.close)
                connection.set_busy_timeout(10_000)
                connection.execute("BEGIN EXCLUSIVE")
            yield

    # --- waiting
    def wait_for_heartbeats(self, count: int, group: str = "alerts") -> None:
        """Every member has beaten so often."""
        marks: dict[int, set[int]] = {}

        def all_have() -> bool:
            ledger = self.ledger(group)
            for member in ledger.members if ledger is not None else ():
                marks.setdefault(member.pid, set()).add(member.mark)
            return all(len(seen) > count for seen in marks.values())

        wait_for(all_have, f"{count} heartbeats of everybody")

    def wait_until_even(self, *instances: Instance, group: str = "alerts", within_s: float = PATIENCE_S) -> None:
        """These own everything, and their shares differ by one at most."""

        def is_even() -> bool:
            shares = [len(self.owned(instance, group)) for instance in instances]
            return sum(shares) == self.partitions and max(shares) - min(shares) <= 1

        wait_for(is_even, f"even shares of {instances}", within_s)

    def wait_for_calls(self, instance: Instance, after_s: float = 0.0) -> None:
        """It has handled something in every partition that it owns, since then."""

        def has_handled() -> bool:
            handled = {call.partition for call in instance.calls if call.ended_s and call.began_s > after_s}
            return self.owned(instance) <= handled

        wait_for(has_handled, f"{instance} to handle something of everything it owns")

    def wait_until_handled(self, *, within_s: float = PATIENCE_S) -> list[Call]:
        """Everything that was sent is handled, without a violation: all the calls."""
        newest = self.newest()
        wait_for(lambda: not lost(self.calls(), newest), "everything that was sent to be handled", within_s)
        return self.checked_calls()

    # --- what they did
    def calls(self) -> list[Call]:
        return list(self.diaries.read())

    def checked_calls(self) -> list[Call]:
        calls = self.calls()
        assert not violations(calls), "\n".join(violations(calls))
        return calls
