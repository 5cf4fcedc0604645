"""Something that happens in one home, now, beside what the generator lets happen; for those who want to see it arrive.

python -m examples.home_security.inject FOLDER HOME SENSOR STATE [ARMED]
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import convert

from evenflow import Event, Hub
from evenflow.errors import Misconfigured
from examples.home_security.places import Place
from examples.home_security.reports import ARMED, MEANING, Armed, Report, body_of, key_of
from examples.home_security.truth import write_injected

if TYPE_CHECKING:
    from collections.abc import Sequence


async def inject(place: Place, home: int, said: Sequence[tuple[str, str]], armed: Armed) -> None:
    """These sensors say so, one after the other. It is in the hub, and in the account, when this returns."""
    scene = place.scene()
    if not 0 <= home < scene.town.homes:
        raise Misconfigured(f"There is no home {home}: there are 0 to {scene.town.homes - 1}.")
    if unknown := [one for one in said if one not in MEANING]:
        raise Misconfigured(f"No sensor says {' '.join(unknown[0])}. Some do: {_examples()}.")
    now_ms = scene.pace.home_ms(time.time() * 1000)
    reports = [Report(now_ms + place, sensor, state, armed) for place, (sensor, state) in enumerate(said)]
    async with Hub(place.hub) as hub:
        await hub.send([Event(body_of(report), key_of(home)) for report in reports])
    for report in reports:
        write_injected(place, home, report)


def _examples() -> str:
    return ", ".join(f"{sensor} {state}" for sensor, state in MEANING)


def main() -> None:
    folder, home, sensor, state, *rest = sys.argv[1:]
    armed = rest[0] if rest else ARMED[0]
    asyncio.run(inject(Place(Path(folder)), int(home), [(sensor, state)], convert(armed, Armed)))


if __name__ == "__main__":
    main()
