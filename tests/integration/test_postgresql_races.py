"""Who comes second at a PostgreSQL store waits for the first, and then sees what it did. Without chance: the first is
held open in a transaction until the second is seen to wait."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from evenflow.errors import LeaseLost
from evenflow.model import Group, Member, next_epoch
from evenflow.stores.postgresql import codec as records
from evenflow.stores.postgresql.store import PostgreSQLStore
from evenflow.testing.store.scene import after, at, first, granted, present
from tests.servers.postgres import shared_or_skip

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from evenflow.model import Change, Checkpoint, Cursor
    from tests.servers.postgres import Postgres

pytestmark = pytest.mark.process

GROUP = Group("homes.example", "sensors", "alerts")
KEY = ("homes.example", "sensors", "alerts")
PATIENCE_S = 60.0
LATER = next_epoch(0, 1)


class First:
    """Somebody else's step, taken and not yet committed."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def heartbeat(self, member: Member, since: Cursor | None = None) -> None:
        facts = records.facts_of(member)
        said = member.id, member.nonce, member.incarnation, False, "", facts.digest, facts.text
        cursor = (since.lineage, since.history, since.revision) if since else (None, None, None)
        self._call("heartbeat", *said, *cursor)

    def swap(self, *changes: Change) -> None:
        self._call("swap", records.changes_text(changes))

    def commit(self, *checkpoints: Checkpoint) -> None:
        self._call("commit", records.checkpoints_text(checkpoints))

    def seal(self, epoch: int) -> None:
        self._call("seal", "0", epoch, False, "-1", -1, 0, "{}", 0.0, False)

    def delete(self) -> None:
        self._call("delete")

    def _call(self, function: str, *values: object) -> None:
        places = ", ".join(["%s"] * (len(KEY) + len(values)))
        self._connection.execute(f"SELECT evenflow.{function}({places})".encode(), (*KEY, *values))

    def commit_it(self) -> None:
        self._connection.commit()

    def is_waited_for(self, server: Postgres) -> bool:
        return (
            server.sql(
                f"SELECT 1 FROM pg_stat_activity WHERE {self._connection.info.backend_pid} = ANY(pg_blocking_pids(pid))"
            )
            != []
        )


class Stage:
    def __init__(self, server: Postgres) -> None:
        self.server = server
        self.database = server.make_database()
        self.store = PostgreSQLStore(server.url(self.database))

    @contextmanager
    def first(self) -> Iterator[First]:
        with psycopg.connect(self.server.url(self.database)) as connection:
            yield First(connection)
            connection.rollback()

    async def second(self, first: First, request: Coroutine[Any, Any, Any]) -> Any:
        """What the request comes to, when the first is committed once the request waits for it, or has not."""
        task = asyncio.ensure_future(request)
        async with asyncio.timeout(PATIENCE_S):
            while not task.done() and not await asyncio.to_thread(first.is_waited_for, self.server):
                await asyncio.wait([task], timeout=0.01)
        first.commit_it()
        return await task


def play(scene: Any) -> None:
    async def run() -> None:
        stage = Stage(shared_or_skip())
        try:
            await scene(stage)
        finally:
            await stage.store.aclose()

    asyncio.run(run())


async def _two(stage: Stage) -> tuple[Member, Member]:
    a, b = [present(await stage.store.heartbeat(GROUP, Member(id=id, nonce=id, ttl_s=8.0), None)) for id in "ab"]
    return a, b


def test_of_two_claims_one_wins() -> None:
    async def scene(stage: Stage) -> None:
        a, b = await _two(stage)
        with stage.first() as one:
            one.swap(first("0", a.owner))
            (outcome,) = await stage.second(one, stage.store.swap(GROUP, [first("0", b.owner)]))
        assert (outcome.ok, outcome.why, outcome.lease.owner) == (False, "revision", a.owner)

    play(scene)


def test_a_takeover_waits_for_the_silent_ones_heartbeat_and_is_refused() -> None:
    async def scene(stage: Stage) -> None:
        silent, taker = await _two(stage)
        lease = granted((await stage.store.swap(GROUP, [first("0", silent.owner)]))[0])
        with stage.first() as one:
            one.heartbeat(silent)
            take = after(lease, taker.owner, still=(silent.owner, silent.mark))
            (outcome,) = await stage.second(one, stage.store.swap(GROUP, [take]))
        assert (outcome.ok, outcome.why) == (False, "mark")

    play(scene)


def test_a_heartbeat_waits_for_the_takeover_and_is_told() -> None:
    async def scene(stage: Stage) -> None:
        silent, taker = await _two(stage)
        lease = granted((await stage.store.swap(GROUP, [first("0", silent.owner)]))[0])
        since = (await stage.store.heartbeat(GROUP, silent, None)).cursor
        mark = since.revision
        with stage.first() as one:
            one.swap(after(lease, taker.owner, still=(silent.owner, mark)))
            ledger = await stage.second(one, stage.store.heartbeat(GROUP, silent, since))
        assert [found.owner for found in ledger.leases] == [taker.owner]

    play(scene)


def test_no_change_that_commits_late_is_skipped() -> None:
    """The reader's cursor never passes a change that it was not told of."""

    async def scene(stage: Stage) -> None:
        a, b = await _two(stage)
        since = (await stage.store.heartbeat(GROUP, b, None)).cursor
        with stage.first() as one:
            one.swap(first("0", a.owner), first("1", a.owner))
            ledger = await stage.second(one, stage.store.heartbeat(GROUP, b, since))
            again = await stage.store.heartbeat(GROUP, b, ledger.cursor)
        told = {lease.partition for found in (ledger, again) for lease in found.leases}
        assert told == {"0", "1"}

    play(scene)


def test_who_leaves_waits_for_a_pass_and_stays() -> None:
    async def scene(stage: Stage) -> None:
        a, heir = await _two(stage)
        lease = granted((await stage.store.swap(GROUP, [first("0", a.owner)]))[0])
        with stage.first() as one:
            one.swap(after(lease, heir.owner))
            leaving = Member(id=heir.id, nonce=heir.nonce, incarnation=heir.incarnation, ttl_s=8.0, leaving=True)
            ledger = await stage.second(one, stage.store.heartbeat(GROUP, leaving, None))
        assert ledger.me is not None

    play(scene)


def test_a_seal_waits_for_a_commit_and_returns_it() -> None:
    async def scene(stage: Stage) -> None:
        await stage.store.seal(GROUP, "0", 1, at(0))
        with stage.first() as one:
            one.commit(at(9))
            record = await stage.second(one, stage.store.seal(GROUP, "0", LATER, at(7)))
        assert record.ordinal == 9

    play(scene)


def test_a_commit_waits_for_a_seal_and_is_refused() -> None:
    async def scene(stage: Stage) -> None:
        await stage.store.seal(GROUP, "0", 1, at(0))
        with stage.first() as one:
            one.seal(2)
            (outcome,) = await stage.second(one, stage.store.commit(GROUP, [at(5)]))
        assert (outcome.ok, outcome.why) == (False, "epoch")
        assert (await stage.store.seal(GROUP, "0", 2, at(0))).ordinal == 0

    play(scene)


def test_a_lower_seal_waits_for_a_higher_one_and_is_refused() -> None:
    async def scene(stage: Stage) -> None:
        await stage.store.seal(GROUP, "0", 1, at(0))
        with stage.first() as one:
            one.seal(5)
            with pytest.raises(LeaseLost):
                await stage.second(one, stage.store.seal(GROUP, "0", 3, at(0)))

    play(scene)


def test_two_first_seals_make_one_record() -> None:
    async def scene(stage: Stage) -> None:
        await stage.store.groups()
        with stage.first() as one:
            one.seal(1)
            record = await stage.second(one, stage.store.seal(GROUP, "0", 2, at(4)))
        assert (record.epoch, record.ordinal) == (2, 0)

    play(scene)


def test_what_was_on_its_way_when_a_group_is_deleted_waits_and_makes_nothing() -> None:
    async def scene(stage: Stage) -> None:
        await stage.store.seal(GROUP, "0", 1, at(3))
        with stage.first() as one:
            one.delete()
            with pytest.raises(LeaseLost, match="was deleted"):
                await stage.second(one, stage.store.seal(GROUP, "0", 1, at(9)))
        assert list(await stage.store.checkpoints(GROUP)) == []
        stage.server.sql("UPDATE evenflow.meta SET history = 1", stage.database)
        with stage.first() as one:
            await stage.store.seal(GROUP, "0", LATER, at(3))
            one.delete()
            (outcome,) = await stage.second(one, stage.store.commit(GROUP, [at(9, partition="1")]))
        assert not outcome.ok, "what is remembered of a deleted group is not restored"
        assert list(await stage.store.checkpoints(GROUP)) == []

    play(scene)


def test_a_group_that_is_made_again_waits_for_the_delete_and_goes_on_above_its_epochs() -> None:
    async def scene(stage: Stage) -> None:
        await stage.store.seal(GROUP, "0", 7, at(3))
        with stage.first() as one:
            one.delete()
            made = await stage.second(one, stage.store.heartbeat(GROUP, Member(id="a", nonce="a", ttl_s=8.0), None))
        assert made.epoch_floor == 8

    play(scene)


def test_a_transaction_waits_for_a_seal_and_is_refused() -> None:
    async def scene(stage: Stage) -> None:
        await stage.store.seal(GROUP, "0", 1, at(0))

        async def transact() -> None:
            async with stage.store.transaction(GROUP, at(5), committed=0, start=0, limit_s=PATIENCE_S):
                pass

        with stage.first() as one:
            one.seal(2)
            with pytest.raises(LeaseLost):
                await stage.second(one, transact())

    play(scene)
