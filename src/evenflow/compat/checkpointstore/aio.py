"""evenflow's stores as an azure.eventhub.aio.CheckpointStore, for azure-eventhub's own EventHubConsumerClient."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, cast

from evenflow.compat.checkpointstore.claims import Claims
from evenflow.compat.checkpointstore.entries import checkpoint_of, claim_of, group_of, position_of
from evenflow.compat.checkpointstore.official import AsyncCheckpointStore
from evenflow.compat.checkpointstore.owners import OpenStore, Pace
from evenflow.errors import Misconfigured, StoreUnavailable, Transient
from evenflow.model import Group
from evenflow.ports import Operable, Store
from evenflow.runtime.clock import system_clock
from evenflow.urls import open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from types import TracebackType

    from evenflow.ports import Clock

log = logging.getLogger("evenflow.compat.checkpointstore")

ANSWER_S = 30.0
"""A store that has not answered by then counts as away; azure-eventhub goes on with what it has, and asks again."""

_NOBODYS = Group("evenflow", "evenflow", "evenflow")
"""To ask a store for something: whether there is such a group is of no interest."""


class EvenflowCheckpointStore(AsyncCheckpointStore):
    """`store` is a URL, such as 'postgresql://...', or a store that nothing else uses at the same time.

    Give it the `load_balancing_interval` and the `partition_ownership_expiration_interval` of your client, if you set
    them there: they tell others when its owners are dead. One such object a client.
    """

    def __init__(
        self,
        store: Store | str,
        *,
        load_balancing_interval: float = 30.0,
        partition_ownership_expiration_interval: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._given = store
        self._pace = Pace(load_balancing_interval, partition_ownership_expiration_interval)
        self._clock = clock or system_clock()
        self._opened: OpenStore | None = None
        self._groups: dict[Group, Claims] = {}
        self._is_told = False
        if isinstance(store, str):
            self._open()  # nothing is asked yet, but a wrong URL is told here

    async def check(self) -> None:
        """`Misconfigured` when the store can never work as it is: no such container, no rights, somebody else's server.

        A store that is only away now may come back: that is told by a warning, and is no error here.
        """
        try:
            async with self._answered():
                await self._open().peek(_NOBODYS)
        except Transient as error:
            log.warning("The checkpoint store does not answer yet: %s", error)

    async def list_ownership(
        self, fully_qualified_namespace: str, eventhub_name: str, consumer_group: str, **kwargs: Any
    ) -> Iterable[dict[str, Any]]:
        """Who has which partition, with an etag, and when it was last renewed, by the store's clock."""
        names = (fully_qualified_namespace, eventhub_name, consumer_group)
        async with self._answered():
            return await self._claims(group_of(*names)).ownership(names)

    async def claim_ownership(
        self, ownership_list: Iterable[dict[str, Any]], **kwargs: Any
    ) -> Iterable[dict[str, Any]]:
        """Those that were granted, with new etags; who was too late for one does not find it among them."""
        claims = [claim_of(entry) for entry in ownership_list]
        granted: list[dict[str, Any]] = []
        async with self._answered():
            for group in dict.fromkeys(claim.group for claim in claims):
                granted += await self._claims(group).claim([claim for claim in claims if claim.group == group])
        return granted

    async def update_checkpoint(self, checkpoint: dict[str, Any], **kwargs: Any) -> None:
        """All up to here is handled. `LeaseLost` when somebody else has claimed the partition meanwhile."""
        group, partition, position = position_of(checkpoint)
        async with self._answered():
            await self._claims(group).progress.update(partition, position)

    async def list_checkpoints(
        self, fully_qualified_namespace: str, eventhub_name: str, consumer_group: str, **kwargs: Any
    ) -> Iterable[dict[str, Any]]:
        names = (fully_qualified_namespace, eventhub_name, consumer_group)
        async with self._answered():
            records = await self._claims(group_of(*names)).progress.records()
        return [checkpoint_of(names, record) for record in records]

    async def close(self) -> None:
        """Of a store that was given as an object, its own owner takes care."""
        opened, self._opened = self._opened, None
        groups, self._groups = self._groups, {}
        for claims in groups.values():
            with suppress(StoreUnavailable):
                async with self._answered():
                    await claims.close()
        if opened is not None and opened is not self._given:
            await opened.aclose()

    async def __aenter__(self) -> EvenflowCheckpointStore:
        try:
            await self.check()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _claims(self, group: Group) -> Claims:
        if group not in self._groups:
            self._groups[group] = Claims(self._open(), group, self._pace, self._clock)
        return self._groups[group]

    def _open(self) -> OpenStore:
        if self._opened is None:
            store: object = open_store(self._given)
            if not isinstance(store, Operable):
                raise Misconfigured(f"{type(store).__name__} cannot be listed; this needs a store that is Operable.")
            self._opened = cast(OpenStore, store)
        return self._opened

    @asynccontextmanager
    async def _answered(self) -> AsyncIterator[None]:
        """Around a question to the store. azure-eventhub goes on whatever it raises, as if there were nothing to
        receive: so what will never work is said aloud, once."""
        try:
            async with asyncio.timeout(ANSWER_S):
                yield
        except TimeoutError as error:
            raise StoreUnavailable(
                f"The store has not answered for {ANSWER_S:.0f} s. See whether it is locked, overloaded or cut off."
            ) from error
        except Misconfigured as error:
            if not self._is_told:
                log.error("The checkpoint store cannot work as it is: %s", error)
            self._is_told = True
            raise
