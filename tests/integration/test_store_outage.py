"""A store in files that is locked for a while, or deleted while instances use it."""

from __future__ import annotations

import shutil
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.integration import outages
from tests.integration.calls import repeats
from tests.integration.outages import LONG_S, SHORT_S
from tests.integration.scene import LEASES, PROGRESS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.integration.scene import Scene

pytestmark = pytest.mark.process


@pytest.mark.parametrize(("names", "seconds"), [((LEASES, PROGRESS), SHORT_S), ((PROGRESS,), LONG_S)])
def test_a_short_lock_or_one_of_progress_alone_interrupts_nothing(
    scene: Scene, names: Sequence[str], seconds: float
) -> None:
    outages.an_outage_interrupts_nothing(scene, partial(scene.locked, *names), seconds)


def test_at_a_long_lock_of_leases_everybody_stops_in_time_and_goes_on_by_itself(scene: Scene) -> None:
    says = f"{LEASES} is locked by another process"
    away = outages.at_a_long_outage_everybody_stops_in_time_and_goes_on(scene, partial(scene.locked, LEASES), says)
    assert not repeats(away.calls), "progress was not locked, so the last commit could be written"


def test_a_store_that_is_deleted_is_made_again_and_nothing_is_lost(scene: Scene) -> None:
    """A plan for the new store alone would give each instance what the other one had: it goes by their names, and they
    came to the old store in the other order. Owners have their partitions back."""

    def delete() -> None:
        deleted = scene.folder / "deleted"
        scene.store.rename(deleted)
        shutil.rmtree(deleted)

    kept = outages.a_store_that_lost_everything_is_made_anew(scene, delete, ("two", "one"))
    assert kept == {"0", "1", "2", "3"}
