"""The processes of a demo."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from evenflow.cli.demo.fleet import Fleet
from evenflow.runtime.clock import system_clock

if TYPE_CHECKING:
    from pathlib import Path


def test_two_that_are_added_at_the_same_time_have_names_of_their_own(tmp_path: Path) -> None:
    """As when somebody presses the button twice."""

    async def scenario() -> list[str]:
        fleet = Fleet(tmp_path, system_clock(), consumer="this", name="consumer")
        try:
            added = await asyncio.gather(fleet.add(), fleet.add())
            assert [*fleet.consumers] == [*added]
            return [one.name for one in added]
        finally:
            await fleet.end(within_s=0.0)

    assert asyncio.run(scenario()) == ["consumer-1", "consumer-2"]
