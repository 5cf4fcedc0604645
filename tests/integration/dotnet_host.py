"""A host as .NET's change feed processor is documented to behave, for tests: it makes and lists leases, balances,
renews, checkpoints and releases, all through the official Python client, and knows nothing of evenflow. `page(range,
continuation)` reads the feed for it.

Written from the facts about it, not from its code. Its times are shorter, in the same proportion: a lease expires after
60 s, is renewed every 17 s, and leases are looked for every 13 s. It writes the fields that it knows, and no others; of
`properties` it is not assumed that it keeps them.
"""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import TYPE_CHECKING, Any

from azure.core import MatchConditions
from azure.cosmos.exceptions import (
    CosmosAccessConditionFailedError,
    CosmosHttpResponseError,
    CosmosResourceExistsError,
    CosmosResourceNotFoundError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from azure.cosmos.aio import ContainerProxy

FIELDS = ("id", "version", "LeaseToken", "FeedRange", "Owner", "ContinuationToken", "timestamp", "Mode")
"""What it writes, beside `properties`."""
TRIES = 5


class LeaseLost(Exception):
    """Somebody else has it."""


class Gone(Exception):
    """A range was split into these."""

    def __init__(self, children: Mapping[str, tuple[str, str]]) -> None:
        super().__init__()
        self.children = children


class DotNetHost:
    def __init__(
        self,
        name: str,
        prefix: str,
        leases: ContainerProxy,
        page: Callable[[str, str | None], tuple[list[dict[str, Any]], str]],
        ranges: Mapping[str, tuple[str, str]],
        handle: Callable[[str, str, dict[str, Any]], Awaitable[None]],
        *,
        expiry_s: float,
        keeps_properties: bool = False,
    ) -> None:
        self.name = name
        self._prefix = prefix
        self._leases = leases
        self._page = page
        self._ranges = ranges
        self._handle = handle
        self._expiry_s = expiry_s
        self._keeps_properties = keeps_properties
        self._owned: dict[str, asyncio.Task[None]] = {}
        self._stopping = False

    # --- one run
    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        await self._make_leases()
        for lease in await self._listed():
            if lease["Owner"] == self.name:
                await self._take(lease)
        balancer = asyncio.create_task(self._balance())
        try:
            yield
        finally:
            self._stopping = True
            balancer.cancel()
            for task in [balancer, *self._owned.values()]:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    def kill(self) -> None:
        """No lease is released."""
        self._stopping, self._prefix = True, ""

    # --- leases
    async def _make_leases(self) -> None:
        if await self._found(f"{self._prefix}.info"):
            return
        there = {lease["LeaseToken"] for lease in await self._listed()}
        for token, span in self._ranges.items():
            if token not in there:
                await self._make_lease(token, span, None)
        with contextlib.suppress(CosmosResourceExistsError):
            await self._leases.create_item({"id": f"{self._prefix}.info"})

    async def _make_lease(self, token: str, span: tuple[str, str], continuation: str | None) -> None:
        lease = {
            "id": f"{self._prefix}..{token}",
            "version": 0,
            "LeaseToken": token,
            "FeedRange": {"Range": {"min": span[0], "max": span[1]}},
            "Owner": None,
            "ContinuationToken": continuation,
            "properties": {},
            "timestamp": None,
            "Mode": "Incremental Feed",
        }
        with contextlib.suppress(CosmosResourceExistsError):
            await self._leases.create_item(lease)

    async def _found(self, name: str) -> bool:
        return bool([one async for one in self._query("c.id = @p", name)])

    async def _listed(self) -> list[dict[str, Any]]:
        return [dict(one) async for one in self._query("STARTSWITH(c.id, @p)", f"{self._prefix}..")]

    def _query(self, condition: str, value: str) -> Any:
        query = f"SELECT * FROM c WHERE {condition}"
        return self._leases.query_items(query, parameters=[{"name": "@p", "value": value}])

    async def _update(self, lease: dict[str, Any], owner: str | None, **change: Any) -> dict[str, Any]:
        """Replace with If-Match; on a conflict it is read again, and is lost when it has another owner."""
        for _ in range(TRIES):
            if lease["Owner"] != owner:
                raise LeaseLost
            known = {name: lease.get(name) for name in FIELDS}
            properties = dict(lease.get("properties") or {}) if self._keeps_properties else {}
            wanted = {**known, "properties": properties, **change, "timestamp": _now()}
            try:
                return dict(
                    await self._leases.replace_item(
                        lease["id"], wanted, etag=lease["_etag"], match_condition=MatchConditions.IfNotModified
                    )
                )
            except CosmosAccessConditionFailedError:
                lease = await self._read(lease)
            except CosmosResourceNotFoundError:
                raise LeaseLost from None
        raise LeaseLost

    async def _read(self, lease: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return dict(await self._leases.read_item(lease["id"], lease["id"]))
        except CosmosResourceNotFoundError:
            raise LeaseLost from None

    # --- balance
    async def _balance(self) -> None:
        while True:
            with contextlib.suppress(CosmosHttpResponseError):
                for lease in self._wanted(await self._listed()):
                    with contextlib.suppress(LeaseLost):
                        await self._take(lease)
            await asyncio.sleep(self._expiry_s * 13 / 60)

    def _wanted(self, leases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Up to ceil(leases / hosts): what has expired; or else one of whoever has most."""
        free = [lease for lease in leases if not (lease["Owner"] or "").strip() or self._has_expired(lease)]
        counts = {self.name: 0}
        for lease in leases:
            if lease not in free:
                counts[lease["Owner"]] = counts.get(lease["Owner"], 0) + 1
        target = ceil(len(leases) / len(counts))
        missing = target - counts[self.name]
        if missing <= 0:
            return []
        if free:
            return free[:missing]
        busiest = max(counts, key=lambda name: counts[name])
        if counts[busiest] <= target - (missing > 1):
            return []
        return [next(lease for lease in leases if lease["Owner"] == busiest)]

    def _has_expired(self, lease: Mapping[str, Any]) -> bool:
        if lease["timestamp"] is None:
            return datetime.fromtimestamp(lease["_ts"], UTC) + timedelta(seconds=self._expiry_s) < datetime.now(UTC)
        told = datetime.fromisoformat(lease["timestamp"][:26] + "+00:00")
        return told + timedelta(seconds=self._expiry_s) < datetime.now(UTC)

    async def _take(self, lease: dict[str, Any]) -> None:
        token = lease["LeaseToken"]
        if token in self._owned and not self._owned[token].done():
            return
        taken = await self._update(lease, lease["Owner"], Owner=self.name)
        self._owned[token] = asyncio.create_task(self._own(taken))

    # --- one lease
    async def _own(self, lease: dict[str, Any]) -> None:
        """Process and renew, until one of them ends; then release, unless it is lost."""
        working = [asyncio.create_task(self._process(lease)), asyncio.create_task(self._renew(lease))]
        try:
            await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in working:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, LeaseLost, CosmosHttpResponseError):
                    await task
            if self._prefix:
                with contextlib.suppress(LeaseLost):
                    await self._update(await self._read(lease), self.name, Owner=None)

    async def _renew(self, lease: dict[str, Any]) -> None:
        renew_s = self._expiry_s * 17 / 60
        await asyncio.sleep(renew_s / 2)
        while True:
            await self._update(await self._read(lease), self.name)
            await asyncio.sleep(renew_s)

    async def _process(self, lease: dict[str, Any]) -> None:
        token, continuation = lease["LeaseToken"], lease["ContinuationToken"]
        while True:
            try:
                found, continuation = self._page(token, continuation)
            except Gone as gone:
                for child, span in gone.children.items():
                    await self._make_lease(child, span, continuation)
                await self._leases.delete_item(lease["id"], lease["id"])
                return
            for document in found:
                await self._handle(self.name, token, document)
            if found:
                await self._update(await self._read(lease), self.name, ContinuationToken=continuation)
            else:
                await asyncio.sleep(0.1)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f0Z")
