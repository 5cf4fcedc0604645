"""Something that happens in one home, now, beside what the generator lets happen; for those who want to see it arrive.

python -m examples.home_security.inject FOLDER HOME SENSOR STATE [ARMED]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from evenflow import Event, Hub
from evenflow.errors import EvenflowError, Misconfigured
from examples.home_security.generator import nothing_sent, read_account
from examples.home_security.places import Place, machine_ms
from examples.home_security.reports import ARMED, MEANING, Armed, Report, body_of, key_of
from examples.home_security.tallying import LATE_MS
from examples.home_security.truth import write_injected

if TYPE_CHECKING:
    from collections.abc import Sequence

    from examples.home_security.places import Pace


async def inject(place: Place, home: int, said: Sequence[tuple[str, str]], armed: Armed) -> None:
    """These sensors say so, one after the other. It is in the hub, and in the account, when this returns."""
    scene = place.scene()
    if not 0 <= home < scene.town.homes:
        raise Misconfigured(f"There is no home {home}: there are 0 to {scene.town.homes - 1}.")
    if unknown := [one for one in said if one not in MEANING]:
        raise Misconfigured(f"No sensor says {' '.join(unknown[0])}. {_examples()}")
    now_ms = _now_ms(place, scene.pace)
    reports = [Report(now_ms + later, sensor, state, armed) for later, (sensor, state) in enumerate(said)]
    async with Hub(place.hub) as hub:
        await hub.send([Event(body_of(report), key_of(home)) for report in reports])
    for report in reports:
        write_injected(place, home, report)


def _now_ms(place: Place, pace: Pace) -> int:
    """What the homes' clocks say; though never far ahead of what the homes have come to.

    The generator may be behind. A report from ahead of it would make its next ones late, and the minutes in which they
    were made final.
    """
    reached_ms = (read_account(place) or nothing_sent(pace)).until_ms
    return min(pace.home_ms(machine_ms()), reached_ms + LATE_MS // 2)


def _examples() -> str:
    return f"Sensors say: {', '.join(f'{sensor} {state}' for sensor, state in MEANING)}."


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.home_security.inject", description=_examples())
    parser.add_argument("folder", type=Path, help="of a demo that runs: it prints it when it starts")
    parser.add_argument("home", type=int, help="its number")
    parser.add_argument("sensor")
    parser.add_argument("state")
    parser.add_argument("armed", nargs="?", choices=ARMED, default=ARMED[0], help="how the alarm is set")
    asked = parser.parse_args()
    try:
        asyncio.run(inject(Place(asked.folder), asked.home, [(asked.sensor, asked.state)], asked.armed))
    except EvenflowError as error:
        print(f"inject: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
