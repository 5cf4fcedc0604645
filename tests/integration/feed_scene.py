"""An embedded container that is written to all the time, and real hosts of a change feed processor that follow it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack, contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, NamedTuple

from evenflow.embedded.container import Container
from evenflow.model import Group
from evenflow.operate.inspect.survey import conform
from evenflow.sources.cosmos.source import CosmosSource
from evenflow.stores.cosmos.store import CosmosLeasesStore, from_url
from evenflow.stores.sqlite.store import SQLiteStore
from evenflow.testing.cosmos import cosmos
from tests.integration.programs import PATIENCE_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from evenflow.model import Checkpoint, Lease, Ledger

DOCUMENTS = 40


class Line(NamedTuple):
    """A change that a host has handled."""

    at_s: float
    lease: str
    lsn: int
    id: str
    version: int


class Host:
    def __init__(self, scene: FeedScene, name: str, wishes: dict[str, Any]) -> None:
        self.name = name
        self._diary, self._log = scene.folder / f"{name}.diary", scene.folder / f"{name}.log"
        program = [sys.executable, "-m", "tests.integration.feed_host", scene.url, scene.leases_url, str(self._diary)]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*program, name, json.dumps(wishes)], stdin=subprocess.PIPE, stdout=log, stderr=log
            )

    @property
    def lines(self) -> list[Line]:
        """All that it handled. Of one that was killed the last may be cut."""
        text = self._diary.read_text() if self._diary.exists() else ""
        found = (line.split() for line in text[: text.rfind("\n") + 1].splitlines())
        return [Line(float(at), lease, int(lsn), id, int(version)) for at, lease, lsn, id, version in found]

    @property
    def log(self) -> str:
        return self._log.read_text()

    def end(self) -> int:
        """Drained, as a deployment does it; its exit code."""
        self.process.terminate()
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)
        if self.process.stdin is not None:
            self.process.stdin.close()
        print(f"--- {self.name}\n{self.log}")


class FeedScene:
    """A container with so many ranges, whose documents get one version after the other."""

    group = Group("container", "orders", "mails")
    pause_s = 0.02
    """Between two rounds of writing."""

    def __init__(self, folder: Path, ranges: int) -> None:
        self.folder = folder
        self.hosts: list[Host] = []
        self.versions: Counter[str] = Counter()
        """The last version of each document."""
        self._ends = ExitStack()
        self._make(ranges)

    def _make(self, ranges: int) -> None:
        self.url, self.leases_url = f"container:{self.folder}/orders", f"sqlite:{self.folder}/leases"
        self.container = Container.create(self.folder / "orders", ranges=ranges, retention_s=None)
        self._ends.callback(self.container.close)

    def host(self, name: str, **wishes: Any) -> Host:
        host = Host(self, name, wishes)
        self._ends.callback(host.close)
        self.hosts.append(host)
        return host

    def write(self, rounds: int = 1) -> None:
        """The next version of every document, so many times."""
        for _ in range(rounds):
            for number in range(DOCUMENTS):
                self.versions[f"o-{number}"] += 1
            self.container.upsert_many({"id": id, "version": version} for id, version in self.versions.items())

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Meanwhile somebody writes."""
        end = Event()

        def write() -> None:
            while not end.wait(self.pause_s):
                self.write()

        writer = Thread(target=write)
        writer.start()
        try:
            yield
        finally:
            end.set()
            writer.join(PATIENCE_S)

    # --- what there is to see
    @property
    def leases(self) -> dict[str, Lease]:
        ledger, _ = asyncio.run(self._look())
        return {} if ledger is None else {lease.partition: lease for lease in ledger.leases}

    @property
    def checkpoints(self) -> dict[str, Checkpoint]:
        _, records = asyncio.run(self._look())
        return {record.partition: record for record in records}

    async def _look(self) -> tuple[Ledger | None, Sequence[Checkpoint]]:
        store = await self._store()
        try:
            return await store.peek(self.group), await store.checkpoints(self.group)
        finally:
            await store.aclose()

    async def _store(self) -> SQLiteStore | CosmosLeasesStore:
        return SQLiteStore(self.folder / "leases")

    def shares(self) -> dict[str, int]:
        """How many ranges each host has, and how many nobody ("")."""
        open_ones = [lease for lease in self.leases.values() if not lease.ended]
        return dict(Counter(lease.owner.id if lease.owner is not None else "" for lease in open_ones))

    def await_shares(self, **shares: int) -> None:
        found: dict[str, int] = {}

        def look() -> bool:
            nonlocal found
            found = self.shares()
            return found == shares

        try:
            wait_for(look, f"{shares}")
        except AssertionError as error:
            raise AssertionError(f"{error}, and there is {found}") from None

    def lines(self) -> list[Line]:
        """Of all hosts, in the order in which they were handled."""
        return sorted(line for host in self.hosts for line in host.lines)

    def has_lines(self, count: int) -> bool:
        return len(self.lines()) >= count

    def await_all(self) -> None:
        """Every version of every document is handled."""
        wanted = {(id, version) for id, last in self.versions.items() for version in range(1, last + 1)}
        wait_for(lambda: wanted == {(line.id, line.version) for line in self.lines()}, "every change to be handled")

    def out_of_order(self) -> list[Line]:
        """The versions of a document follow each other; what was not checkpointed may come again, from there on."""
        last: Counter[str] = Counter()
        wrong = []
        for line in self.lines():
            if line.version > last[line.id] + 1:
                wrong.append(line)
            last[line.id] = line.version
        return wrong

    def repeats(self) -> int:
        lines = self.lines()
        return len(lines) - len({(line.id, line.version) for line in lines})

    def close(self) -> None:
        self._ends.close()


class CosmosFeedScene(FeedScene):
    """The same behind the local endpoint of Cosmos DB, with a lease container beside the monitored one."""

    pause_s = 0.2  # it is served by this very process

    def _make(self, ranges: int) -> None:
        server = self._ends.enter_context(cosmos(ranges=ranges))
        server.account.create_database("shop")
        for name in ("orders", "leases"):
            server.account.create_container("shop", {"id": name, "partitionKey": {"paths": ["/id"]}})
        where = f"127.0.0.1:{server.port}/shop"
        self.group = Group(f"127.0.0.1:{server.port}", "shop/orders", "mails")
        self.url, self.leases_url = f"cosmos://{where}/orders?poll_s=0.1", f"cosmos-leases://{where}/leases"
        self.container = server.container("shop", "orders")

    async def _store(self) -> CosmosLeasesStore:
        store, source = from_url(self.leases_url), CosmosSource(self.url)
        await conform(store, self.group, source)
        await source.aclose()
        return store
