"""What all parts of a processor share: the time limit around a request to the store."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from evenflow import StoreUnavailable

if TYPE_CHECKING:
    from tests.unit.runtime.stage import Stage


async def test_a_request_that_takes_too_long_says_what_the_store_had_said_before(stage: Stage) -> None:
    """A store that tries again by itself knows why."""
    parts = stage.parts()

    async def ask() -> None:
        async with parts.answered():
            try:
                raise StoreUnavailable("it is locked")
            except StoreUnavailable:
                await asyncio.sleep(1_000.0)

    with pytest.raises(StoreUnavailable, match=r"not answered for 3\.5 s.* The last that was heard: it is locked"):
        await ask()


async def test_where_it_has_said_nothing_only_the_time_is_told(stage: Stage) -> None:
    parts = stage.parts()
    with pytest.raises(StoreUnavailable, match=r"cut off\.$"):
        async with parts.answered(1.0):
            await asyncio.sleep(1_000.0)
