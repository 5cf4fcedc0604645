"""Redis streams where a server refuses, stands still, is killed or fails over."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from evenflow import Event, Misconfigured
from evenflow.errors import SourceUnavailable, Transient
from evenflow.sources.redis_streams.source import RedisStreamsServer, RedisStreamsSource, from_url
from tests.integration.calls import boot_s, repeats
from tests.integration.programs import wait_for
from tests.integration.redis_streams_run import LONG_S, SAFE, Run, events, opened, texts, until
from tests.integration.redis_streams_scene import RedisStreamsScene
from tests.leaks import lasting
from tests.servers.processes import free_port, standing_still
from tests.servers.redis import RedisServer, packed_program, program_of, skip_unless_counting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"), *SAFE).start()
    try:
        skip_unless_counting(server)
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("older"), program=packed_program()).start()
    yield server
    server.kill()


@pytest.mark.parametrize("find_program", [packed_program, partial(program_of, "valkey")], ids=["older", "valkey"])
def test_who_may_not_and_what_is_no_stream_is_told(tmp_path: Path, find_program: Callable[[], str | None]) -> None:
    async def main(server: RedisServer) -> None:
        for user, password in ((None, None), (None, "wrong"), ("reader", "read"), ("runner", "run")):
            address = RedisStreamsServer(server.place.address, server.port, username=user, password=password)
            source = RedisStreamsSource(address, "other", partitions=1)
            with pytest.raises(Misconfigured, match="rejected the credentials"):
                await Run(source).processor.serve()
            await source.aclose()
        own = from_url(f"redis-streams://reader:read@{server.place.address}:{server.port}/homes?partitions=1")
        await own.partitions()
        assert (await own.identity()).made == "", "who may only read leaves no mark"
        server.ask("SET", "homes:0", "text", password="secret")
        with pytest.raises(Misconfigured, match="holds another type"):
            await own.resolve("0", "earliest")
        await own.aclose()

    server = RedisServer(tmp_path, "--requirepass", "secret", program=find_program()).start()
    rights = ("on", ">read", "~homes:*", "+@read", "+@scripting", "+@connection")
    server.ask("ACL", "SETUSER", "reader", *rights, password="secret")
    may_run = ("on", ">run", "~*", "+@scripting", "+@connection")  # and nothing that a script does
    server.ask("ACL", "SETUSER", "runner", *may_run, password="secret")
    try:
        asyncio.run(main(server))
    finally:
        server.kill()


def test_rights_that_are_taken_away_for_a_moment_end_nothing(tmp_path: Path) -> None:
    async def main(server: RedisServer) -> None:
        source = opened(server)
        await source.send(events(0, 3), "0")
        server.ask("ACL", "SETUSER", "default", "-@stream")
        with pytest.raises(SourceUnavailable, match=r"rejected the credentials.*Previously authorized"):
            await source.resolve("0", "latest")
        server.ask("ACL", "SETUSER", "default", "+@all")
        await source.resolve("0", "latest")
        await source.aclose()

    server = RedisServer(tmp_path, program=packed_program()).start()
    try:
        asyncio.run(main(server))
    finally:
        server.kill()


def test_a_server_that_cannot_just_now_is_waited_for(tmp_path: Path) -> None:
    """A start meets a failover, a full memory, a cluster that is being made: none of it ends a program."""

    async def told(server: RedisServer, **options: Any) -> Exception:
        source = RedisStreamsSource(
            RedisStreamsServer(server.place.address, server.port, **options), "homes", partitions=1
        )
        try:
            with pytest.raises(Transient) as found:
                await source.identity()
        finally:
            await source.aclose()
        return found.value

    alone = RedisServer(tmp_path / "alone").start()
    nodes = RedisServer(tmp_path / "nodes", "--cluster-enabled", "yes").start()
    try:
        alone.ask("REPLICAOF", "127.0.0.1", free_port())
        assert "read only replica" in str(asyncio.run(told(alone)))
        alone.ask("REPLICAOF", "NO", "ONE")
        alone.ask("CONFIG", "SET", "maxmemory", 1)
        assert "cannot store more data" in str(asyncio.run(told(alone)))
        assert "not served" in str(asyncio.run(told(nodes)))
        assert "does not answer" in str(asyncio.run(told(nodes, cluster=True)))
    finally:
        alone.kill()
        nodes.kill()


def test_a_cluster_that_is_none_and_a_server_that_is_one_is_told(older: RedisServer, tmp_path: Path) -> None:
    async def main(server: RedisServer, *, cluster: bool) -> None:
        address = RedisStreamsServer(server.place.address, server.port, cluster=cluster)
        source = RedisStreamsSource(address, "homes", partitions=1)
        try:
            await source.identity()
        finally:
            await source.aclose()

    with pytest.raises(Misconfigured, match="remove cluster=yes"):
        asyncio.run(main(older, cluster=True))
    one, other = (RedisServer(tmp_path / name, "--cluster-enabled", "yes").start() for name in ("one", "other"))
    try:
        one.take_all_slots()
        other.ask("CLUSTER", "MEET", one.place.address, one.port)
        wait_for(other.knows_every_slot, "it to know who has the slots")
        with pytest.raises(Misconfigured, match="add cluster=yes"):
            asyncio.run(main(other, cluster=False))
    finally:
        one.kill()
        other.kill()


def test_what_is_sent_and_read_in_a_cluster_goes_on_after_a_failover(tmp_path: Path) -> None:
    """Also when the node that dies is the one that the URL names."""

    async def main(master: RedisServer, replica: RedisServer) -> None:
        address = RedisStreamsServer(master.place.address, master.port, cluster=True)
        source, sender = (RedisStreamsSource(address, "homes", partitions=2) for _ in range(2))
        run = Run(source)
        async with run.processor:
            await sender.send(events(0, 3), "1")
            await until(lambda: run.bodies(1) == texts(0, 3), "the first")
            await until(lambda: replica.offset >= master.offset, "the replica to have them")
            await asyncio.to_thread(master.kill)
            with pytest.raises(SourceUnavailable) as told:
                await sender.send([Event(b"secret")], "1")
            assert "secret" not in str(told.value)
            replica.ask("CLUSTER", "FAILOVER", "TAKEOVER")
            await until(replica.knows_every_slot, "it to be the master")

            async def is_sent() -> bool:
                try:
                    await sender.send(events(3, 6), "1")
                except SourceUnavailable:
                    return False
                return True

            async with asyncio.timeout(LONG_S):
                while not await is_sent():  # noqa: ASYNC110 - nobody else knows
                    await asyncio.sleep(0.1)
            await until(lambda: run.bodies(1) == texts(0, 6), "the others")
        await source.aclose()
        await sender.aclose()

    more = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--cluster-require-full-coverage", "no")
    master, replica = (RedisServer(tmp_path / name, *more).start() for name in ("one", "other"))
    try:
        master.take_all_slots()
        replica.ask("CLUSTER", "MEET", master.place.address, master.port)
        wait_for(replica.knows_every_slot, "it to know who has the slots")
        replica.ask("CLUSTER", "REPLICATE", master.ask("CLUSTER", "MYID"))
        wait_for(lambda: replica.ask("INFO", "replication").get("master_link_status") == "up", "a replica")
        wait_for(lambda: str(replica.port) in str(master.ask("CLUSTER", "SLOTS")), "its master to tell of it")
        asyncio.run(main(master, replica))
    finally:
        master.kill()
        replica.kill()


@contextmanager
def killed(server: RedisServer) -> Iterator[None]:
    server.kill()
    try:
        yield
    finally:
        with lasting():  # it is shared by all tests of this file
            server.start()


@pytest.fixture
def scene(counting: RedisServer, tmp_path: Path) -> Iterator[RedisStreamsScene]:
    counting.ask("FLUSHALL")
    scene = RedisStreamsScene(tmp_path / "scene", counting)
    try:
        yield scene
    finally:
        scene.close()


@pytest.mark.process
def test_a_server_that_stands_still_or_is_killed_costs_nothing_but_time(
    scene: RedisStreamsScene, counting: RedisServer
) -> None:
    scene.make_hub(4)
    with scene.load():
        instances = scene.start_even("one", "other")
        scene.wait_for_all_calls(instances)
        epochs = scene.epochs()
        for fault in standing_still, killed:
            reported = [instance.log.count("does not answer") for instance in instances]
            with fault(counting):
                wait_for(
                    lambda: all(
                        instance.log.count("does not answer") > before
                        for instance, before in zip(instances, reported, strict=True)  # noqa: B023
                    ),
                    "both to report the trouble",
                )
            scene.wait_for_all_calls(instances, after_s=boot_s())
    assert scene.epochs() == epochs, "a lease moved although only the source was away"
    assert not repeats(scene.wait_until_handled())
