"""The consumer processes of the demo."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from evenflow.runtime.clock import system_clock
from examples.home_security.fleet import Fleet

if TYPE_CHECKING:
    from pathlib import Path


def test_two_that_are_added_at_the_same_time_have_names_of_their_own(tmp_path: Path) -> None:
    """As when an operator presses the button twice."""

    async def scenario() -> list[str]:
        fleet = Fleet(tmp_path, system_clock(), consumer="this", name="consumer", logs=tmp_path)
        try:
            added = await asyncio.gather(fleet.add(), fleet.add())
            assert [*fleet.consumers] == [*added]
            return [one.name for one in added]
        finally:
            await fleet.end(within_s=0.0)

    assert asyncio.run(scenario()) == ["consumer-1", "consumer-2"]
