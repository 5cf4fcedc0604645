"""One group of processors of three kinds, each in a process of its own: ours, and Azure's in Python and JavaScript.

They share a local Event Hubs and a container in Azurite. What each handled, and when, is in its account, by the clock
that all processes of a machine share.
"""

from __future__ import annotations

import os
import shutil
from time import monotonic
from typing import TYPE_CHECKING

import pytest

from benchmarks._mixed import EVENFLOW, JAVASCRIPT, NODE, OFFICIAL, MixedFleet, Pace
from tests.servers.azurite import skip_without_server

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.process

PACE = Pace(interval_s=1.0, expiry_s=12.0, heartbeat_s=1.0, ttl_s=10.0, work_s=0.005, patience_s=120.0)
RATE = 120.0


@pytest.fixture
def fleet() -> Iterator[MixedFleet]:
    skip_without_server()
    if shutil.which("node") is None or not (NODE / "node_modules" / "@azure" / "event-hubs").exists():
        pytest.skip("needs Node and `npm ci` in tests/node")
    # An address of its own, so that the port that clients take where none is named is free.
    number = os.getpid()
    with MixedFleet(partitions=6, pace=PACE, host=f"127.{1 + number // 250 % 250}.{number % 250}.2") as made:
        yield made


@pytest.mark.timeout(600)
def test_three_kinds_share_a_group_and_go_on_from_each_others_checkpoints(fleet: MixedFleet) -> None:
    fleet.produce(RATE)
    kinds = (("javascript", JAVASCRIPT), ("python", OFFICIAL), ("ours", EVENFLOW))
    for instances, (name, kind) in enumerate(kinds, 1):
        fleet.start(name, kind)
        fleet.wait_until_settled(instances)
    settled_s = monotonic()
    stop_and_see_it_gone_on(fleet, "ours", left=2)
    joins_s = monotonic()
    fleet.start("ours again", EVENFLOW)
    fleet.wait_until_settled(3)
    joined_s = monotonic()
    stop_and_see_it_gone_on(fleet, "javascript", left=2)
    stop_and_see_it_gone_on(fleet, "python", left=1)
    fleet.stop_producing()
    fleet.wait_until_all_called()
    fleet.stop("ours again")
    # While they take partitions from each other the JavaScript processor's last call may overlap its heir's first.
    begun_s = [overlap.second.began_s for overlap in fleet.overlaps()]
    assert [at_s for at_s in begun_s if settled_s < at_s < joins_s or at_s > joined_s] == []
    lost, _ = fleet.lost_and_repeated()
    assert lost == 0


def stop_and_see_it_gone_on(fleet: MixedFleet, name: str, *, left: int) -> None:
    """The next owners begin right after its last checkpoint."""
    at_s = monotonic()
    fleet.stop(name)
    fleet.wait_until_settled(left)
    moves = fleet.moves_from(name, at_s)
    assert moves
    assert [move for move in moves if not move.is_exact] == []
