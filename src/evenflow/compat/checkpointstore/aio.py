"""evenflow's stores as an azure.eventhub.aio.CheckpointStore, for azure-eventhub's own EventHubConsumerClient."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, cast

from evenflow.compat.checkpointstore.claims import OwnershipClaims
from evenflow.compat.checkpointstore.entries import checkpoint_of, claim_of, group_of, position_of
from evenflow.compat.checkpointstore.official import AsyncCheckpointStore
from evenflow.compat.checkpointstore.owners import ClientTiming, OpenStore
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
"""A store that has not answered after this time counts as unreachable; azure-eventhub continues and retries."""

_PROBE_GROUP = Group("evenflow", "evenflow", "evenflow")
"""For a request that only checks whether the store answers; it does not matter whether the group exists."""


class EvenflowCheckpointStore(AsyncCheckpointStore):
    """`store` is a URL, such as 'postgresql://...', or a store object that nothing else uses at the same time.

    If you set `load_balancing_interval` or `partition_ownership_expiration_interval` on your client, pass the same
    values here: other instances use them to decide when an owner is dead. Use one checkpoint store per client.
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
        self._timing = ClientTiming(load_balancing_interval, partition_ownership_expiration_interval)
        self._clock = clock or system_clock()
        self._opened: OpenStore | None = None
        self._groups: dict[Group, OwnershipClaims] = {}
        self._is_reported = False
        if isinstance(store, str):
            self._open()  # sends no request yet, but raises for a wrong URL

    async def check(self) -> None:
        """Raises `Misconfigured` if the store cannot work as configured: no such container, no rights, another server.

        A store that is unreachable may come back, so that is only logged as a warning.
        """
        try:
            async with self._answered():
                await self._open().peek(_PROBE_GROUP)
        except Transient as error:
            log.warning("The checkpoint store does not answer yet: %s", error)

    async def list_ownership(
        self, fully_qualified_namespace: str, eventhub_name: str, consumer_group: str, **kwargs: Any
    ) -> Iterable[dict[str, Any]]:
        """The owner of each partition, with an etag and the time of the last renewal by the store's clock."""
        names = (fully_qualified_namespace, eventhub_name, consumer_group)
        async with self._answered():
            return await self._claims(group_of(*names)).ownership(names)

    async def claim_ownership(
        self, ownership_list: Iterable[dict[str, Any]], **kwargs: Any
    ) -> Iterable[dict[str, Any]]:
        """The claims that were granted, with new etags. A claim that another owner won is missing from them."""
        claims = [claim_of(entry) for entry in ownership_list]
        granted: list[dict[str, Any]] = []
        async with self._answered():
            for group in dict.fromkeys(claim.group for claim in claims):
                granted += await self._claims(group).claim([claim for claim in claims if claim.group == group])
        return granted

    async def update_checkpoint(self, checkpoint: dict[str, Any], **kwargs: Any) -> None:
        """All events up to here are handled. Raises `LeaseLost` if another owner has claimed the partition since."""
        group, partition, position = position_of(checkpoint)
        async with self._answered():
            await self._claims(group).checkpoints.update(partition, position)

    async def list_checkpoints(
        self, fully_qualified_namespace: str, eventhub_name: str, consumer_group: str, **kwargs: Any
    ) -> Iterable[dict[str, Any]]:
        names = (fully_qualified_namespace, eventhub_name, consumer_group)
        async with self._answered():
            records = await self._claims(group_of(*names)).checkpoints.records()
        return [checkpoint_of(names, record) for record in records]

    async def close(self) -> None:
        """Close the store, unless it was passed as an object: its creator closes it."""
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

    def _claims(self, group: Group) -> OwnershipClaims:
        if group not in self._groups:
            self._groups[group] = OwnershipClaims(self._open(), group, self._timing, self._clock)
        return self._groups[group]

    def _open(self) -> OpenStore:
        if self._opened is None:
            store: object = open_store(self._given)
            if not isinstance(store, Operable):
                raise Misconfigured(f"{type(store).__name__} cannot list its groups; use a store that is Operable.")
            self._opened = cast(OpenStore, store)
        return self._opened

    @asynccontextmanager
    async def _answered(self) -> AsyncIterator[None]:
        """Around each request to the store. azure-eventhub continues after any error, as if there were no events. So an
        error that will not go away is logged, once."""
        try:
            async with asyncio.timeout(ANSWER_S):
                yield
        except TimeoutError as error:
            raise StoreUnavailable(
                f"The store has not answered for {ANSWER_S:.0f} s. Check whether it is locked, overloaded or cut off."
            ) from error
        except Misconfigured as error:
            if not self._is_reported:
                log.error("The checkpoint store cannot work as configured: %s", error)
            self._is_reported = True
            raise
