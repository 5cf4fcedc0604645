"""What the tests of a PostgreSQL store in this process share: a client that is closed, and patience with the server."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from evenflow.errors import Transient
from evenflow.model import Group, Member
from evenflow.stores.postgresql import PostgreSQLStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from evenflow.model import Ledger

GROUP = Group("homes.example", "sensors", "alerts")
ME = Member(id="me", nonce="1", ttl_s=8.0)
PATIENCE_S = 20.0


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[PostgreSQLStore]:
    store = PostgreSQLStore(url)
    try:
        yield store
    finally:
        await store.aclose()


async def patiently(ask: Callable[[], Awaitable[Ledger]]) -> Ledger:
    """As the runtime does: ask again while the store is away."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with suppress(Transient):
                return await ask()
            await asyncio.sleep(0.05)
