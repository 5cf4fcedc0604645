"""How people live: what every home's sensors report in every minute. Pure; the same town lives the same days again.

Each home has its own habits (when they get up, leave, come back and go to bed, whether they set the alarm) and its own
second of the minute in which all its sensors report. What happens in one minute of one home follows from the town's
seed, the home and the minute alone, so all reports can be generated again later, for any home, without being stored.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from examples.home_security.reports import ACTIVE, ARMED, MINUTE_MS, QUIET, SENSORS, Armed, Report, body_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from examples.home_security.places import Town

DAY_MINUTES = 1_440
BREAK_IN_MINUTES = 4
AIRING_MINUTES = 25
"""How long a window stays open."""
_MASK = (1 << 64) - 1
_MOTION, _DOOR, _WINDOW, _GLASS, _CO = range(len(SENSORS))


class Habits(NamedTuple):
    """A home on one day. Times are minutes of the day."""

    up: int
    leaves: int
    """The home is empty from then on; the same as `back` if they stay."""
    back: int
    to_bed: int
    sets_alarm: bool
    """When they leave. (At night, half of those.)"""
    sets_at_night: bool
    incident: int
    """When there is a break-in, the residents forget to switch the alarm off, or a heater fails; -1: never."""
    forgets: bool


class Minute(NamedTuple):
    """What a home's sensors say in one minute, each (sensor, is active), in order; and how the alarm is set."""

    said: tuple[tuple[int, bool], ...]
    armed: Armed


def mixed(*numbers: int) -> int:
    """64 bits that look as if they were drawn by chance, and follow from the numbers."""
    found = 0x9E3779B97F4A7C15
    for number in numbers:
        found = ((found ^ number) * 0xBF58476D1CE4E5B9) & _MASK
        found ^= found >> 29
    found = found * 0x94D049BB133111EB & _MASK
    return found ^ found >> 32


def phase_ms(town: Town, home: int) -> int:
    """When in each minute the home reports."""
    return mixed(town.seed, home, 1) % (MINUTE_MS - 100)


def habits(town: Town, home: int, day: int) -> Habits:
    chance = mixed(town.seed, home, day, 2)
    character = mixed(town.seed, home, 3)
    is_weekend = day % 7 in (2, 3)  # 1970 began on a Thursday
    works_out = character % 100 < 65 and not is_weekend
    up = 330 + character % 120 + (60 if is_weekend else 0) + chance % 30
    leaves = up + 45 + (chance >> 8) % (60 if works_out else 480)
    away = 480 + (chance >> 16) % 120 if works_out else (chance >> 16) % 240
    back = min(leaves + away, 1_230)
    to_bed = 1_290 + (chance >> 24) % 120
    luck = (chance >> 32) % 1_000
    incident = -1
    if luck < 5 and back > leaves + 20:
        incident = leaves + 10 + (chance >> 44) % (back - leaves - 10)
    elif luck < 55:
        incident = back
    return Habits(
        up=up,
        leaves=leaves,
        back=back,
        to_bed=to_bed,
        sets_alarm=character >> 8 & 15 != 0,
        sets_at_night=bool(character >> 12 & 1),
        incident=incident,
        forgets=luck >= 5,
    )


def minute_of(town: Town, home: int, minute: int, known: Habits | None = None) -> Minute:
    """Without carbon monoxide: see `detector`."""
    day, now = divmod(minute, DAY_MINUTES)
    day_habits = known if known is not None else habits(town, home, day)
    return _MINUTES[_situation(day_habits, now, _chance(town, home, minute))]


def detector(town: Town, home: int, minute: int) -> bool:
    """Whether the carbon-monoxide detector finds too much of it: for ten minutes, in one home of 3,000 a day."""
    slot = mixed(town.seed, home, minute // 10, 4)
    return slot % (3_000 * 144) == 0


def _chance(town: Town, home: int, minute: int) -> int:
    """What is left to it in this minute; the lowest bit is for windows, which stay as they are for a while."""
    aired = mixed(town.seed, home, minute // AIRING_MINUTES, 5) % 6 == 0
    return mixed(town.seed, home, minute) << 1 | aired


# --- situations: a few dozen different minutes, each with what it sounds like
def _situation(habits: Habits, now: int, chance: int) -> tuple[str, Armed, int]:
    """What kind of minute it is, how the alarm is set, and which variant of it."""
    if now >= habits.to_bed or now < habits.up:
        return "asleep", "night" if habits.sets_at_night else "off", int((chance >> 1) % 400 == 0)
    if habits.leaves <= now < habits.back:
        armed: Armed = "away" if habits.sets_alarm else "off"
        if now == habits.leaves:
            return "door", "off", 0
        if habits.incident <= now < habits.incident + BREAK_IN_MINUTES and not habits.forgets and habits.incident >= 0:
            return "break-in", armed, now - habits.incident
        return "away", armed, 0
    if now == habits.back:
        forgot = habits.forgets and habits.incident == now and habits.sets_alarm
        return "door", "away" if forgot else "off", 0
    return "awake", "off", chance % 16


def _said(kind: str, variant: int) -> tuple[tuple[int, bool], ...]:
    """Each sensor reports once; what happens beside that is reported when it does."""
    motion, window, extra = False, False, []
    if kind == "asleep":
        motion = variant == 1
    elif kind == "door":
        motion, extra = True, [(_DOOR, True), (_MOTION, True)]
    elif kind == "break-in":
        motion = True
        extra = [(_GLASS, True), (_WINDOW, True)] if variant == 0 else [(_MOTION, True)]
        window = True
    elif kind == "awake":
        motion, window = variant // 2 % 2 == 0, variant % 2 == 1
        extra = [(_MOTION, True)] if variant // 2 in (2, 4, 6) else []
    return (*extra, (_MOTION, motion), (_DOOR, False), (_WINDOW, window), (_GLASS, False))


_VARIANTS = {"asleep": 2, "door": 1, "break-in": BREAK_IN_MINUTES, "away": 1, "awake": 16}
_MINUTES: dict[tuple[str, Armed, int], Minute] = {
    (kind, armed, variant): Minute(_said(kind, variant), armed)
    for kind, variants in _VARIANTS.items()
    for armed in ARMED
    for variant in range(variants)
}


def reports_in(town: Town, home: int, minute: int, *, has_detector: bool) -> list[Report]:
    """What the home reports in this minute, in order, a millisecond apart."""
    found = minute_of(town, home, minute)
    said: Sequence[tuple[int, bool]] = found.said
    if has_detector:
        said = (*said, (_CO, detector(town, home, minute)))
    at_ms = minute * MINUTE_MS + phase_ms(town, home)
    return [
        Report(at_ms + place, SENSORS[index], (ACTIVE if is_active else QUIET)[index], found.armed)
        for place, (index, is_active) in enumerate(said)
    ]


@cache
def templates(found: Minute, detected: bool | None) -> tuple[bytes, ...]:
    """The bodies of these reports with a place for the time: filling it in costs less than encoding each."""
    said = found.said if detected is None else (*found.said, (_CO, detected))
    bodies = [
        body_of(Report(_TIME, SENSORS[index], (ACTIVE if is_active else QUIET)[index], found.armed))
        for index, is_active in said
    ]
    return tuple(body.replace(str(_TIME).encode(), b"%d") for body in bodies)


_TIME = 1_234_567_890_123
