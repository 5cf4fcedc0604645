"""A store in files that is locked for a while, or deleted under the instances' feet."""

from __future__ import annotations

import shutil
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.integration import outages
from tests.integration.calls import repeats
from tests.integration.outages import LONG_S, SHORT_S
from tests.integration.scene import LEASES, PATIENT_TTL_S, PROGRESS, TTL_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.integration.scene import Scene

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    ("names", "seconds", "ttl_s"), [((LEASES, PROGRESS), SHORT_S, PATIENT_TTL_S), ((PROGRESS,), LONG_S, TTL_S)]
)
def test_a_short_lock_or_one_of_progress_alone_interrupts_nothing(
    scene: Scene, names: Sequence[str], seconds: float, ttl_s: float
) -> None:
    outages.an_outage_interrupts_nothing(scene, partial(scene.locked, *names), seconds, ttl_s)


@pytest.mark.parametrize("names", [(LEASES,), (LEASES, PROGRESS)], ids=["leases", "both"])
def test_at_a_long_lock_everybody_stops_in_time_and_goes_on_by_itself(scene: Scene, names: Sequence[str]) -> None:
    says = "StoreUnavailable: The store has not answered for 1.0 s. It will be tried again"
    away = outages.at_a_long_outage_everybody_stops_in_time_and_goes_on(scene, partial(scene.locked, *names), says)
    if PROGRESS not in names:
        assert not repeats(away.calls), "progress was not locked, so the last commit could be written"


@pytest.mark.parametrize("names", [("one", "two"), ("two", "one")])
def test_a_store_that_is_deleted_is_made_anew_and_nothing_is_lost(scene: Scene, names: Sequence[str]) -> None:
    """Who came first decides who has what; in the new store the names alone do. So in one of the two cases everybody
    goes on with what it remembers, and in the other with what it never had."""

    def delete() -> None:
        away = scene.folder / "deleted"
        scene.store.rename(away)
        shutil.rmtree(away)

    remembered = outages.a_store_that_lost_everything_is_made_anew(scene, delete, names)
    assert len(remembered) == (4 if names == ("one", "two") else 0)
