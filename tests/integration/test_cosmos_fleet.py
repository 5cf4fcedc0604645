"""Two real instances on a served container whose ranges split and merge: one is killed, the server is restarted, and
every version of every document is handled, those of each document in order."""

from __future__ import annotations

from contextlib import ExitStack
from threading import Event, Thread
from typing import TYPE_CHECKING

import pytest
from azure.cosmos import CosmosClient, PartitionKey

from evenflow.embedded.container import Container
from tests.integration.feed_workers import Worker, out_of_order
from tests.integration.programs import PATIENCE_S, wait_for
from tests.servers.cosmos import CosmosServer

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

DOCUMENTS = 40


class Writer:
    """Writes versions of documents, one after the other, without a pause that matters."""

    def __init__(self, folder: Path) -> None:
        self._container = Container(folder)
        self._end = Event()
        self._thread = Thread(target=self._write)
        self.versions = dict.fromkeys(range(DOCUMENTS), -1)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(PATIENCE_S)
        self._container.close()

    def _write(self) -> None:
        while not self._end.wait(0.01):
            for id, version in self.versions.items():
                self._container.upsert({"id": str(id), "version": version + 1})
                self.versions[id] = version + 1

    def reshape(self, *, merge: bool) -> None:
        first, second, *_ = self._container.ranges()
        if merge:
            self._container.merge(first.id, second.id)
        else:
            self._container.split(first.id)


def test_every_version_is_handled_in_order(tmp_path: Path) -> None:
    with ExitStack() as ends:
        server = ends.enter_context(CosmosServer(tmp_path / "data", "--ranges", "4"))
        with CosmosClient(server.url, server.key) as client:
            client.create_database("shop").create_container("orders", PartitionKey("/id"))
        source = f"cosmos://127.0.0.1:{server.port}/shop/orders?mode=all&poll_s=0.2"
        one, two = (Worker(tmp_path, name, source) for name in ("one", "two"))
        ends.callback(one.close)
        ends.callback(two.close)
        with Writer(tmp_path / "data" / "shop" / "orders") as writer:
            wait_for(lambda: len(one.lines) > 100 and len(two.lines) > 100, "both to handle something")
            writer.reshape(merge=False)
            wait_for(lambda: _partitions(one, two) > 5, "children to be handled")
            one.process.kill()
            writer.reshape(merge=True)
            before = len(two.lines)
            wait_for(lambda: len({line.partition for line in two.lines[before:]}) == 4, "the other to take over")
            server.kill()
            server.start()
            writer.reshape(merge=False)
            before = len(two.lines)
            wait_for(lambda: len({line.partition for line in two.lines[before:]}) == 5, "it to go on")
        wanted = {(id, version) for id, last in writer.versions.items() for version in range(last + 1)}
        wait_for(lambda: wanted <= {line[2:] for line in one.lines + two.lines}, "every version to be handled")
        assert out_of_order(sorted(one.lines + two.lines)) == []


def _partitions(*workers: Worker) -> int:
    return len({line.partition for worker in workers for line in worker.lines})
