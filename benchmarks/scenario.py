"""The scenario of the whole project: 100,000 homes, two groups of three consumers, one killed and one added.

First for two minutes at real speed, with what the aggregates in blobs say compared with what was sent, home by home and
minute by minute. Then the homes' time goes faster and faster, in short trials, to find what this machine holds.
"""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.harness import Result, at_least, at_most, figure, say
from evenflow.runtime.clock import system_clock
from examples.home_security.consuming import percentile_s, read_delays
from examples.home_security.places import AGGREGATE, ALERTS, GROUPS
from examples.home_security.session import BEGIN_S, Session, Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from benchmarks.harness import Bar, Figure

HOMES = 100_000
SECONDS = 120.0
ADD_AT, KILL_AT = 0.25, 0.5
EVENING_S = datetime(2024, 10, 2, 17, 30, tzinfo=UTC).timestamp()
"""A Wednesday, at an hour at which people come home, and some forget that the alarm is set."""

TRIAL_S, SETTLE_S = 15.0, 5.0
BEHIND_S_MOST, GROWTH_S_MOST = 2.0, 1.0
"""A speed is held when, after some seconds to settle, sending and handling together are never further behind than the
first, and are at the end no more than the second further behind than at the beginning."""
SPEED_FIRST, SPEED_MOST, BISECTIONS = 4.0, 64.0, 3


class Sample(NamedTuple):
    """How far the slowest is behind: the generator's pace, and the group with the larger lag."""

    sending_s: float
    handling_s: float

    @property
    def behind_s(self) -> float:
        return self.sending_s + self.handling_s


def run(seconds: float = SECONDS) -> Result:
    figures, bars = asyncio.run(play(seconds))
    speed = asyncio.run(search())
    figures.append(figure("highest speed that is held", [speed], "x"))
    bars.append(at_least("speed that is held", speed, SPEED_FIRST))
    return Result(figures, bars)


async def play(seconds: float) -> tuple[list[Figure], list[Bar]]:
    async with started(1.0) as session:
        say(f"{HOMES:,} homes at real speed, for {seconds:g} s ...")
        clock = system_clock()
        begin_s = clock.now()
        await clock.sleep(BEGIN_S + seconds * ADD_AT)
        added = await session.fleets[AGGREGATE].add()
        say(f"{added.name} was added")
        await clock.sleep(seconds * (KILL_AT - ADD_AT))
        steady = {group: read_delays(session.place.group(group)) for group in GROUPS}
        say(session.kill(AGGREGATE, session.fleets[AGGREGATE].running[0]))
        await clock.sleep(BEGIN_S + seconds - (clock.now() - begin_s))
        await session.look()
        behind_s = session.account.behind_s if session.account is not None else float("inf")
        await session.drain()
        summary = await session.summary()
    verdict = summary.verdict
    blob_s, alert_s = (percentile_s(steady[group], 0.99) for group in (AGGREGATE, ALERTS))
    figures = [
        figure("events produced", [summary.sent], "events"),
        figure("events aggregated", [verdict.counted], "events"),
        figure("events lost", [verdict.lost], "events"),
        figure("events counted twice", [verdict.twice], "events"),
        figure("homes compared", [verdict.homes], "homes"),
        figure("alerts raised", [verdict.alerts], "alerts"),
        figure("alerts missing or too many", [verdict.alerts_wrong], "alerts"),
        figure("sensor to blob, 99 %, before the kill", [blob_s], "s"),
        figure("sensor to blob, 99 %, with the takeover", [summary.delays_s[AGGREGATE][1]], "s"),
        figure("sensor to alert, 99 %", [summary.delays_s[ALERTS][1]], "s"),
        figure("handled again after the kill", [summary.tallies[AGGREGATE].again], "events"),
        figure("behind real speed at the end", [behind_s], "s"),
    ]
    bars = [
        at_most("events lost", verdict.lost, 0),
        at_most("events counted twice", verdict.twice, 0),
        at_most("events that were not looked at", summary.sent - verdict.expected, 0),
        at_most("minutes with another state", verdict.wrong, 0),
        at_most("alerts missing or too many", verdict.alerts_wrong, 0),
        at_most("events handled twice on planned moves", sum(one.twice for one in summary.tallies.values()), 0),
        at_most("sensor to blob before the kill, s", blob_s, 3.0),
        at_most("sensor to alert, s", max(alert_s, summary.delays_s[ALERTS][1]), 1.0),
        at_most("behind real speed at the end, s", behind_s, 1.0),
        at_most("processes that died", len(summary.died), 0),
    ]
    return figures, bars


async def search() -> float:
    """By doubling, then by halves: the highest speed that was held."""
    held, speed = 1.0, SPEED_FIRST
    while speed <= SPEED_MOST and await holds(speed):
        held, speed = speed, speed * 2
    failed = speed
    for _ in range(BISECTIONS):
        middle = (held + failed) / 2
        if await holds(middle):
            held = middle
        else:
            failed = middle
    return held


async def holds(speed: float) -> bool:
    async with started(speed) as session:
        clock = system_clock()
        await clock.sleep(BEGIN_S + SETTLE_S)
        samples = [await sample(session)]
        while len(samples) < TRIAL_S:
            await clock.sleep(1.0)
            samples.append(await sample(session))
    is_held = verdict_of(samples)
    worst = max(samples, key=lambda one: one.behind_s)
    say(f"{speed:g} x: {'held' if is_held else 'not held'}, at most {worst.behind_s:.1f} s behind")
    return is_held


def verdict_of(samples: list[Sample]) -> bool:
    third = len(samples) // 3
    first, last = samples[:third], samples[-third:]
    growth_s = sum(one.behind_s for one in last) / third - sum(one.behind_s for one in first) / third
    return max(one.behind_s for one in samples) <= BEHIND_S_MOST and growth_s <= GROWTH_S_MOST


async def sample(session: Session) -> Sample:
    before = session.account
    await session.look()
    account = session.account
    if account is None or before is None:
        return Sample(0.0, 0.0)
    rate = max(1.0, account.sent / max(0.001, (account.until_ms - account.begin_ms) / 1000 / session.speed))
    return Sample(account.behind_s, max(session.counts[group].lag for group in GROUPS) / rate)


@asynccontextmanager
async def started(speed: float) -> AsyncIterator[Session]:
    with tempfile.TemporaryDirectory(prefix="evenflow-scenario-", ignore_cleanup_errors=True) as folder:
        session = Session(Path(folder), system_clock(), Settings(homes=HOMES, speed=speed, begin_s=EVENING_S))
        try:
            await session.start()
            yield session
        finally:
            await session.close()
