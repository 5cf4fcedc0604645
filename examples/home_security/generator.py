"""The process that plays the homes: sends what their sensors report, at the pace of their clock, until it is stopped.

    python -m examples.home_security.generator FOLDER

It keeps an account of what was acknowledged: up to which moment of the homes' time, and since when there are
carbon-monoxide detectors. With the town's seed, that is every single event.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from bisect import bisect_left
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec import Struct

from evenflow import Hub, Transient
from evenflow.cli import parent_watch
from evenflow.embedded.hub.keys import partition_of
from evenflow.model import Event
from examples.home_security.days import DAY_MINUTES, Habits, detector, habits, minute_of, phase_ms, templates
from examples.home_security.places import Place, machine_ms
from examples.home_security.reports import MINUTE_MS, key_of

if TYPE_CHECKING:
    from examples.home_security.places import Pace, Town

TICK_S = 0.2
TICK_EVENTS = 20_000
"""About so many are sent at once when it has to catch up."""
EVENTS_A_MINUTE = 4


class Account(Struct, kw_only=True):
    """What was acknowledged: all reports of all homes made from `begin_ms` on and before `until_ms`."""

    begin_ms: int
    until_ms: int
    detectors_ms: int | None = None
    """Reports made from then on include the carbon-monoxide detectors'."""
    sent: int = 0
    behind_s: float = 0.0
    """How far the last tick was behind the pace."""


class Home(NamedTuple):
    phase_ms: int
    number: int
    key: str


class Street:
    """The homes of one partition, in the order in which they report within a minute."""

    def __init__(self, town: Town, homes: list[int]) -> None:
        self._town = town
        self._homes = sorted(Home(phase_ms(town, home), home, key_of(home)) for home in homes)
        self._phases = [home.phase_ms for home in self._homes]
        self._habits: dict[int, Habits] = {}
        self._day = -1

    def events(self, from_ms: int, to_ms: int, detectors_ms: int | None) -> list[Event]:
        """Of all homes whose moment is in this time, in order."""
        events: list[Event] = []
        for minute in range(from_ms // MINUTE_MS, (to_ms - 1) // MINUTE_MS + 1):
            start_ms = minute * MINUTE_MS
            first, last = (bisect_left(self._phases, bound - start_ms) for bound in (from_ms, to_ms))
            self._collect(minute, self._homes[first:last], detectors_ms, events)
        return events

    def _collect(self, minute: int, homes: list[Home], detectors_ms: int | None, events: list[Event]) -> None:
        town, known, start_ms = self._town, self._habits_on(minute // DAY_MINUTES), minute * MINUTE_MS
        day = self._day
        for phase, number, key in homes:
            mine = known.get(number)
            if mine is None:
                mine = known[number] = habits(town, number, day)
            at_ms = start_ms + phase
            detected = detector(town, number, minute) if detectors_ms is not None and at_ms >= detectors_ms else None
            for body in templates(minute_of(town, number, minute, mine), detected):
                events.append(Event(body % at_ms, key))
                at_ms += 1

    def _habits_on(self, day: int) -> dict[int, Habits]:
        if day != self._day:
            self._day = day
            self._habits = {}
        return self._habits


def streets(town: Town, partitions: int) -> dict[int, Street]:
    homes: dict[int, list[int]] = {number: [] for number in range(partitions)}
    for home in range(town.homes):
        homes[partition_of(key_of(home), partitions)].append(home)
    return {number: Street(town, mine) for number, mine in homes.items() if mine}


def nothing_sent(pace: Pace) -> Account:
    return Account(begin_ms=pace.begin_ms, until_ms=pace.begin_ms)


def read_account(place: Place) -> Account | None:
    with suppress(FileNotFoundError):
        return msgspec.json.decode(place.account.read_bytes(), type=Account)
    return None


class Generator:
    def __init__(self, place: Place, hub: Hub) -> None:
        scene = place.scene()
        self._place = place
        self._hub = hub
        self._pace = scene.pace
        self._streets = streets(scene.town, len(hub.info().partitions))
        self._tick_ms = max(1, TICK_EVENTS * MINUTE_MS // (scene.town.homes * EVENTS_A_MINUTE))
        self.account = nothing_sent(self._pace)

    async def run(self, stop: asyncio.Event) -> None:
        await self._save()
        while not stop.is_set():
            now_ms = self._pace.home_ms(machine_ms())
            due_ms = now_ms - self.account.until_ms
            self.account.behind_s = max(0.0, due_ms / 1000 / self._pace.speed - TICK_S)
            if due_ms > 0:
                await self._tick(self.account.until_ms, self.account.until_ms + min(due_ms, self._tick_ms))
            if due_ms <= self._tick_ms:
                with suppress(TimeoutError):
                    async with asyncio.timeout(TICK_S):
                        await stop.wait()

    async def _tick(self, from_ms: int, to_ms: int) -> None:
        if self.account.detectors_ms is None and self._place.detectors.exists():
            self.account.detectors_ms = from_ms
        parts = {
            partition: street.events(from_ms, to_ms, self.account.detectors_ms)
            for partition, street in self._streets.items()
        }
        await asyncio.gather(*[self._send(partition, events) for partition, events in parts.items() if events])
        self.account.until_ms = to_ms
        self.account.sent += sum(map(len, parts.values()))
        await self._save()

    async def _send(self, partition: int, events: list[Event]) -> None:
        while True:
            try:
                await self._hub.send(events, partition=partition)
                return
            except Transient as error:
                # A send to a partition is atomic, so none of these events is stored.
                _print(f"partition {partition}: {error} Retrying.")
                await asyncio.sleep(TICK_S)

    async def _save(self) -> None:
        """Save the account before anything more is sent. On a full disk, this waits until space is freed."""
        fresh, said = self._place.account.with_suffix(".fresh"), msgspec.json.encode(self.account)
        while True:
            try:
                fresh.write_bytes(said)
                os.replace(fresh, self._place.account)
                return
            except OSError as error:
                _print(f"{error}. Retrying.")
                await asyncio.sleep(TICK_S)


def _print(line: str) -> None:
    # The log may be on the full disk, too.
    with suppress(OSError):
        print(line, file=sys.stderr, flush=True)


async def generate(place: Place) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with Hub(place.hub) as hub:
        await Generator(place, hub).run(stop)


if __name__ == "__main__":
    parent_watch.stop_with_parent()
    asyncio.run(generate(Place(Path(sys.argv[1]))))
