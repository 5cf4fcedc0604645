"""Requests to a lease container: one document at a time by compare-and-set, and queries for many.

No two documents can be changed in one step, since each has a partition key of its own. A request that was not answered
is sent again; if it is refused then, it is looked whether it had taken effect. Whoever is told to come later waits as
long as the service says.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

from azure.core import MatchConditions

from evenflow.drivers.cosmos.client import KeyMismatch, pause_after
from evenflow.drivers.network import refusal
from evenflow.errors import (
    DocumentChanged,
    DocumentExists,
    DocumentMissing,
    HubReplaced,
    Misconfigured,
    RangeGone,
    StoreUnavailable,
)
from evenflow.stores.cosmos.layouts import SYSTEM

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from evenflow.drivers.cosmos.client import Link, Watched

T = TypeVar("T")

KEYS = ("id", "partitionKey")
"""What a lease container may be partitioned by."""
PAGE = 1_000
REQUESTS_AT_ONCE = 16
"""Of heartbeats and swaps; and as many of progress, which never delays a heartbeat."""
LIMIT_FACTOR = 2
"""Waiting for the service to have time again included, a request may take so many times what one try may."""


class Papers:
    """The documents of one container."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self._key = ""
        self._check = asyncio.Lock()
        self._queues: dict[str, asyncio.Semaphore] = {}
        self._closed = False
        self.requests: Counter[str] = Counter()
        """How many were sent, of each kind."""

    async def aclose(self) -> None:
        self._closed = True
        await self.link.aclose()

    async def key(self) -> str:
        """What the container is partitioned by; Misconfigured when it can hold no leases."""
        if not self._key or self.link.is_gone:
            async with self._check:
                if not self._key or self.link.is_gone:
                    self._key = await self._asked_key()
        return self._key

    async def _asked_key(self) -> str:
        properties = await self.link.properties()
        try:
            return _checked(properties, str(self.link))
        except Misconfigured as error:
            # Who has seen leases there remembers them: it must not end because another container is in their place.
            self.link.is_gone = bool(self._key)
            raise refusal(str(error), has_served=bool(self._key)) from error

    def key_of(self, document: Mapping[str, Any]) -> str:
        """What a document is found by."""
        found = document.get(self._key or KEYS[0])
        return found if isinstance(found, str) else str(document.get("id", ""))

    # --- requests
    async def changed(self, prefix: str, since: int) -> Sequence[dict[str, Any]]:
        """Documents whose ids begin so, and that were written at this second or later."""
        if since <= 0:
            return await self.query("query leases", "SELECT * FROM c WHERE STARTSWITH(c.id, @prefix)", prefix=prefix)
        query = "SELECT * FROM c WHERE STARTSWITH(c.id, @prefix) AND c._ts >= @since"
        return await self.query("query leases", query, prefix=prefix, since=since)

    async def query(self, kind: str, query: str, **values: Any) -> Sequence[dict[str, Any]]:
        await self.key()
        parameters = [{"name": f"@{name}", "value": value} for name, value in values.items()]

        async def pages(container: Any, watched: Watched) -> list[dict[str, Any]]:
            found = container.query_items(query, parameters=parameters, max_item_count=PAGE, **watched)
            return [dict(one) async for one in found]

        try:
            return await self._ask(kind, pages)
        except DocumentMissing as error:
            raise self.link.no_container() from error

    async def read(self, name: str, kind: str = "read lease") -> dict[str, Any] | None:
        """By a query: where documents have partition keys of their own, an id alone does not find one."""
        found = await self.query(kind, "SELECT * FROM c WHERE c.id = @id", id=name)
        return min(found, key=self.key_of) if found else None

    async def create(self, document: Mapping[str, Any], kind: str, lane: str = "heartbeats") -> dict[str, Any] | None:
        """As it is kept; None when there is one already."""
        document = await self._keyed(document)
        if self._key != KEYS[0] and await self.read(document["id"]) is not None:
            return None  # others choose other keys for the same id
        return await self._written(kind, document, lambda c, w: c.create_item(dict(document), **w), lane)

    async def replace(
        self, document: Mapping[str, Any], etag: str, kind: str, lane: str = "heartbeats"
    ) -> dict[str, Any] | None:
        """As it is kept; None when it is gone, or not the one that was seen."""
        document = await self._keyed(document)
        condition = {"etag": etag, "match_condition": MatchConditions.IfNotModified}
        return await self._written(
            kind, document, lambda c, w: c.replace_item(document["id"], dict(document), **condition, **w), lane
        )

    async def delete(self, document: Mapping[str, Any], kind: str, etag: str = "") -> bool:
        """Whether it is gone; False when it is another one than was seen."""
        await self.key()
        condition = {"etag": etag, "match_condition": MatchConditions.IfNotModified} if etag else {}

        async def deleted(container: Any, watched: Watched) -> None:
            await container.delete_item(document["id"], self.key_of(document), **condition, **watched)

        try:
            await self._ask(kind, deleted)
        except DocumentMissing:
            return True
        except DocumentChanged:
            return False
        return True

    # --- inside
    async def _keyed(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """With the partition key that it has, or its id for one."""
        key = await self.key()
        return {**document, key: document.get(key) or document["id"]}

    async def _written(
        self,
        kind: str,
        document: Mapping[str, Any],
        request: Callable[[Any, Watched], Awaitable[Mapping[str, Any]]],
        lane: str,
    ) -> dict[str, Any] | None:
        doubts: list[Exception] = []
        try:
            return dict(await self._ask(kind, request, lane, doubts))
        except (DocumentChanged, DocumentExists, DocumentMissing):
            if not doubts:
                return None
        found = await self.read(document["id"])  # an earlier try may have taken effect, and only its answer was lost
        return found if found is not None and content(found) == dict(document) else None

    async def _ask(
        self,
        kind: str,
        request: Callable[[Any, Watched], Awaitable[T]],
        lane: str = "heartbeats",
        doubts: list[Exception] | None = None,
    ) -> T:
        doubts = [] if doubts is None else doubts
        try:
            return await self._ask_patiently(kind, request, lane, doubts)
        except asyncio.CancelledError as cut:
            if doubts:
                cut.__context__ = doubts[-1]  # whoever has no more time tells what was last heard
            raise

    async def _ask_patiently(
        self, kind: str, request: Callable[[Any, Watched], Awaitable[T]], lane: str, doubts: list[Exception]
    ) -> T:
        queue = self._queues.setdefault(lane, asyncio.Semaphore(REQUESTS_AT_ONCE))
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + LIMIT_FACTOR * self.link.purpose.timeout_s
        while True:
            self.requests[kind] += 1
            try:
                async with queue:
                    return await self.link.ask(kind, request)
            except (RangeGone, HubReplaced) as error:
                late: StoreUnavailable = StoreUnavailable(str(error))
                late.__cause__ = error
            except KeyMismatch as error:
                self._key = await self._asked_key()
                late = StoreUnavailable(str(error))
                late.__cause__ = error
            except StoreUnavailable as error:
                late = error
            doubts.append(late)
            pause_s = pause_after(late, len(doubts))
            if self._closed or self.link.is_gone or loop.time() + pause_s >= ends_s:
                raise late
            await self.link.rest(pause_s)


def content(document: Mapping[str, Any]) -> dict[str, Any]:
    """Without what the service adds."""
    return {name: value for name, value in document.items() if name not in SYSTEM}


def _checked(properties: Mapping[str, Any], where: str) -> str:
    paths = (properties.get("partitionKey") or {}).get("paths") or []
    found = str(paths[0]).strip("/") if len(paths) == 1 else ""
    if found not in KEYS:
        told = ", ".join(paths) or "nothing"
        raise Misconfigured(
            f"The container of the {where} is partitioned by {told}, so that it can hold no leases. Make one that is"
            " partitioned by /id (or /partitionKey), and name that."
        )
    ttl_s = properties.get("defaultTtl")
    if isinstance(ttl_s, int) and ttl_s > 0:
        raise Misconfigured(
            f"The container of the {where} deletes every document after {ttl_s} s (its time to live), and leases with"
            " their checkpoints are documents. Switch its time to live off, or on without a default (-1)."
        )
    return found
