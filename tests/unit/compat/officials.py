"""azure-eventhub's processors in virtual time: their own ownership manager, and receivers as far as it matters."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from azure.eventhub._eventprocessor.common import LoadBalancingStrategy
from azure.eventhub.aio._eventprocessor._ownership_manager import OwnershipManager

from evenflow.compat.checkpointstore.aio import EvenflowCheckpointStore
from tests.unit.runtime.stage import GROUP

if TYPE_CHECKING:
    from tests.unit.runtime.stage import Stage

Entry: TypeAlias = dict[str, Any]

INTERVAL_S = 30.0
EXPIRY_S = 6 * INTERVAL_S
NAMES = {"fully_qualified_namespace": GROUP.namespace, "eventhub_name": GROUP.hub, "consumer_group": GROUP.name}


def entry(partition: str, owner: str, **rest: Any) -> Entry:
    return {**NAMES, "partition_id": partition, "owner_id": owner, **rest}


def checkpoint(partition: str, sequence: int) -> Entry:
    return {**NAMES, "partition_id": partition, "offset": str(sequence), "sequence_number": sequence}


def store_of(stage: Stage) -> EvenflowCheckpointStore:
    return EvenflowCheckpointStore(stage.store, clock=stage.clock())


class Official:
    """What EventProcessor does with its ownership manager, without events."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.name = name
        self.checkpoints = store_of(stage)
        self.owned: set[str] = set()
        self.started: list[tuple[str, str | None]] = []
        """Each partition that it began to receive from, and after which offset."""
        ids = stage.source.partition_ids

        async def partition_ids() -> list[str]:
            return list(ids)

        client: Any = SimpleNamespace(
            _address=SimpleNamespace(hostname=GROUP.namespace),
            eventhub_name=GROUP.hub,
            get_partition_ids=partition_ids,
        )
        self._manager = OwnershipManager(
            client, GROUP.name, name, cast(Any, self.checkpoints), EXPIRY_S, LoadBalancingStrategy.GREEDY, None
        )
        self._task: asyncio.Task[None] | None = None

    async def cycle(self) -> None:
        claimed = set(await self._manager.claim_ownership())
        if new := claimed - self.owned:
            known = await self._manager.get_checkpoints()
            self.started += [(name, known[name]["offset"] if name in known else None) for name in sorted(new)]
        self.owned = claimed

    async def handled(self, partition: str, sequence: int) -> None:
        await self.checkpoints.update_checkpoint(checkpoint(partition, sequence))

    def run(self) -> None:
        async def go_round() -> None:
            while True:
                await self.cycle()
                await asyncio.sleep(INTERVAL_S)

        self._task = asyncio.get_running_loop().create_task(go_round())

    def kill(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def stop(self) -> None:
        self.kill()
        for partition in sorted(self.owned):
            await self._manager.release_ownership(partition)
        self.owned = set()
