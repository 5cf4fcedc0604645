"""What the tests of the store contract have in common: two clients of one empty store, and a few short words."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from evenflow.model import BEGINNING, Change, Checkpoint, Group, Member, Position, next_epoch
from evenflow.ports import Operable, Steerable, Store, Transaction, Transactional, Watchable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from evenflow.model import Cursor, Lease, Ledger, Outcome, Owner, PartitionId

PATIENCE_S = 60.0
"""So long a test waits for what must happen at once, before it fails."""


class Stage:
    """What a test class brings: stores to play with."""

    def make_store(self) -> Store:
        """A store that is empty, and shares nothing with that of any other test."""
        raise NotImplementedError

    def make_client(self, store: Store) -> Store:
        """Another client of the same store, as another process would have it."""
        raise NotImplementedError


class Scene:
    """Two clients of one store that was empty when the test began, as two processes would have them."""

    group = Group("homes.example", "sensors", "alerts")

    def __init__(self, store: Store, other: Store) -> None:
        self.store = store
        self.other = other

    @property
    def operable(self) -> Operable:
        if not isinstance(self.store, Operable):
            pytest.skip("this store is not Operable")
        return self.store

    @property
    def steerable(self) -> Steerable:
        if not isinstance(self.store, Steerable):
            pytest.skip("this store is not Steerable")
        return self.store

    @property
    def watchable(self) -> Watchable:
        """The other client: what the first one does must wake those who wait there."""
        if not isinstance(self.other, Watchable):
            pytest.skip("this store is not Watchable")
        return self.other

    def transaction(
        self,
        checkpoint: Checkpoint,
        *,
        start: int | None = None,
        committed: int = 0,
        limit_s: float = PATIENCE_S,
        other: bool = False,
    ) -> AbstractAsyncContextManager[Transaction]:
        """Of the first client, or the other one; by default of one event."""
        client = self.other if other else self.store
        if not isinstance(client, Transactional):
            pytest.skip("this store is not Transactional")
        first = checkpoint.ordinal - 1 if start is None else start
        return client.transaction(self.group, checkpoint, committed=committed, start=first, limit_s=limit_s)

    async def join(self, instance: str, nonce: str = "", **facts: Any) -> Member:
        """A first heartbeat; returns the member as the store knows it then."""
        member = Member(id=instance, nonce=nonce or f"nonce of {instance}", **{"ttl_s": 8.0, **facts})
        return present(await self.store.heartbeat(self.group, member, None))

    async def heartbeat(self, member: Member, since: Cursor | None = None) -> Ledger:
        return await self.store.heartbeat(self.group, member, since)

    async def swap(self, change: Change) -> Outcome:
        (outcome,) = await self.store.swap(self.group, [change])
        return outcome

    async def claim(self, member: Member, partition: PartitionId = "0") -> Lease:
        """`member` becomes the first owner of the partition."""
        ledger = await self.heartbeat(member)
        epoch = next_epoch(ledger.epoch_floor, ledger.cursor.history)
        change = first(partition, member.owner, history=ledger.cursor.history, epoch=epoch)
        return granted(await self.swap(change))

    async def seal(self, epoch: int, default: Checkpoint | None = None, partition: PartitionId = "0") -> Checkpoint:
        return await self.store.seal(self.group, partition, epoch, default or at(0, epoch=epoch, partition=partition))

    async def commit(self, checkpoint: Checkpoint) -> Outcome:
        (outcome,) = await self.store.commit(self.group, [checkpoint])
        return outcome


def scene(test: Callable[[Any, Scene], Awaitable[None]]) -> Callable[[Stage], None]:
    """Make an async test of a scene into a plain one, which any runner of tests can run."""

    def played(self: Stage) -> None:
        asyncio.run(_play(self, test))

    played.__name__, played.__qualname__, played.__doc__ = test.__name__, test.__qualname__, test.__doc__
    return played


async def _play(stage: Stage, test: Callable[[Any, Scene], Awaitable[None]]) -> None:
    store = stage.make_store()
    other = stage.make_client(store)
    try:
        await test(stage, Scene(store, other))
    finally:
        await other.aclose()
        await store.aclose()


def present(ledger: Ledger) -> Member:
    assert ledger.me is not None, "the store does not know who heartbeats"
    return ledger.me


def granted(outcome: Outcome) -> Lease:
    assert outcome.ok, outcome
    assert outcome.lease is not None
    return outcome.lease


def first(partition: PartitionId, owner: Owner | None, *, history: int = 0, **more: Any) -> Change:
    """Make the lease of a partition that has none."""
    epoch = next_epoch(0, history)
    return Change(
        partition=partition, revision=0, history=history, owner=owner, **{"epoch": epoch, "ttl_s": 8.0, **more}
    )


def after(lease: Lease, owner: Owner | None, **more: Any) -> Change:
    """Change a lease as it was seen."""
    seen = {"partition": lease.partition, "revision": lease.revision, "history": lease.history}
    return Change(**{**seen, "owner": owner, "epoch": lease.epoch + 1, "ttl_s": 8.0, **more})


def at(
    ordinal: int, *, epoch: int = 1, partition: PartitionId = "0", notes: dict[str, Any] | None = None
) -> Checkpoint:
    """The checkpoint after so many events."""
    position = Position(str(ordinal - 1), ordinal - 1) if ordinal else BEGINNING
    return Checkpoint(partition=partition, epoch=epoch, position=position, ordinal=ordinal, notes=notes or {})
