"""The stores that benchmarks can be run on: an empty one each, and an honest count of what goes to it and comes back.

A store that is added gets a line in PLACES, and a way to count: round trips and bytes are counted on the wire where
there is one, writes by the server itself.
"""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import apsw
import psycopg
from msgspec import json

from benchmarks._fleet import Times
from tests.servers.azurite import Azurite
from tests.servers.moto import Moto
from tests.servers.postgres import Postgres
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from evenflow.model import Ledger, Member


class Tally(NamedTuple):
    """What has happened since the store was opened."""

    round_trips: int
    size_bytes: int
    writes: int

    def since(self, before: Tally) -> Tally:
        return Tally(*(now - then for now, then in zip(self, before, strict=True)))


class Place(NamedTuple):
    url: str
    tally: Callable[[], Tally]
    beaten: Callable[[Member, Ledger], None] = lambda member, ledger: None
    """Told of every heartbeat, where there is no wire to count on."""
    renews: bool = False
    """A heartbeat renews each lease of its instance: what it costs grows with the partitions."""


@contextmanager
def sqlite() -> Iterator[Place]:
    """There is no wire: a round trip is a transaction, and its bytes are those of the question and the answer."""
    commits, carried = [0], [0]

    def hook(connection: apsw.Connection) -> None:
        def committed() -> bool:
            commits[0] += 1
            return False

        connection.set_commit_hook(committed)

    def beaten(member: Member, ledger: Ledger) -> None:
        carried[0] += len(json.encode(member)) + len(json.encode(ledger))

    apsw.connection_hooks.append(hook)
    try:
        with tempfile.TemporaryDirectory() as folder:
            yield Place(f"sqlite:{folder}/store", lambda: Tally(commits[0], carried[0], commits[0]), beaten)
    finally:
        apsw.connection_hooks.remove(hook)


@contextmanager
def postgresql() -> Iterator[Place]:
    """Through a proxy that counts. Every transaction that writes takes a number of the server's."""
    server = Postgres(fsync=True)
    try:
        with Proxy(server.port) as proxy, psycopg.connect(server.url(), autocommit=True) as looker:

            def tally() -> Tally:
                row = looker.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint").fetchone()
                assert row is not None
                count = proxy.count
                return Tally(count.round_trips, count.sent_bytes + count.answered_bytes, row[0])

            yield Place(server.url(port=proxy.port), tally)
    finally:
        server.remove()


@contextmanager
def redis() -> Iterator[Place]:
    """Through a proxy that counts. Every script that is run is one step, and one write at most."""
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(Path(folder), "--appendonly", "yes").start()
        try:
            with Proxy(server.port) as proxy:

                def tally() -> Tally:
                    told, count = server.ask("INFO", "commandstats"), proxy.count
                    scripts = (told.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha"))
                    return Tally(count.round_trips, count.sent_bytes + count.answered_bytes, sum(scripts))

                yield Place(f"redis://127.0.0.1:{proxy.port}", tally)
        finally:
            server.stop()


@contextmanager
def objects() -> Iterator[Place]:
    """On S3, through a proxy that counts. Every request is a round trip; writes are puts that were let through."""
    server = Moto()
    try:
        with Proxy(server.port) as proxy:

            def tally() -> Tally:
                count = proxy.count
                return Tally(count.round_trips, count.sent_bytes + count.answered_bytes, server.puts())

            yield Place(server.url(port=proxy.port), tally)
    finally:
        server.remove()


@contextmanager
def azblob() -> Iterator[Place]:
    """On Azurite, through a proxy that counts bytes. Requests and writes are in the server's own log: one that a client
    sends again, because its connection was being closed, counts once."""
    with tempfile.TemporaryDirectory() as folder:
        server = Azurite(Path(folder) / "log", tells=True).start()
        try:
            with Proxy(server.port) as proxy:

                def tally() -> Tally:
                    count = proxy.count
                    return Tally(server.requests(), count.sent_bytes + count.answered_bytes, server.puts())

                yield Place(server.url(port=proxy.port, more="&timeout_s=30"), tally, renews=True)
        finally:
            server.stop()


OBJECTS = Times(heartbeat_s=5.0, ttl_s=20.0)
"""Where every put costs money, and there is nobody to wake an heir."""
TIMES = dict.fromkeys(("s3", "gs", "az", "azure", "azblob"), OBJECTS)
"""The times that suit a kind of store, where the processor's own do not."""

PLACES: dict[str, Callable[[], AbstractContextManager[Place]]] = {
    "sqlite": sqlite,
    "postgresql": postgresql,
    "redis": redis,
    "s3": objects,
    "azblob": azblob,
}
