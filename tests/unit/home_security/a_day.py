"""A whole day of a small town, in blobs: what a residents' page looks like without having to wait for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from examples.home_security.alarms import alarms_in
from examples.home_security.alerts import raise_alerts
from examples.home_security.keeping import Keeper
from examples.home_security.layout import ABOUT, LAYOUT, About, pack
from examples.home_security.places import Town
from examples.home_security.reports import reports_of
from tests.unit.home_security.streams import a_morning, report, stored

if TYPE_CHECKING:
    from evenflow.model import Event
    from examples.home_security.blobs import Folder

HOMES = 50
BURGLED = 42


async def a_day_in(blobs: Folder, minutes: int = 1_500, burgled: int = BURGLED) -> list[Event]:
    """One partition; in the end, a door is opened that should be closed."""
    await announced_in(blobs)
    return await lived_in(blobs, minutes, burgled)


async def announced_in(blobs: Folder) -> None:
    """There are homes, and none has reported yet."""
    await blobs.put(ABOUT, pack(About(LAYOUT, 1, HOMES)), None)


async def lived_in(blobs: Folder, minutes: int, burgled: int = BURGLED) -> list[Event]:
    events = a_morning(minutes, Town(homes=HOMES, seed=7))
    last_ms = reports_of([events[-1].body])[0].at
    events = stored([*events, report(burgled, last_ms + 500)])
    keeper = Keeper(blobs, "0", 1)
    await keeper.start()
    for at in range(0, len(events), 20_000):
        some = events[at : at + 20_000]
        keeper.add(some)
        await keeper.write()
        await raise_alerts(blobs, "0", alarms_in(some, reports_of([event.body for event in some])))
    return events
