"""Since when an owner was silent: by its last heartbeat, as looks showed it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from evenflow.operate.inspect.silences import SilenceHistory
from evenflow.operate.inspect.watcher import GroupWatcher
from tests.unit.console.scenes import WALL_S, found, lease, look_at, member, move

if TYPE_CHECKING:
    from evenflow.model import Member

TAKEN_OVER, TAKEN_AGAIN = "taken over: no heartbeat of node-1 for 8.1 s", "taken again: it had stopped"


def beating(number: int, heartbeat_s: float, incarnation: int | None = None) -> Member:
    """One whose last heartbeat was then."""
    there = member(number, int(heartbeat_s * 10), heartbeat_at=WALL_S + heartbeat_s)
    return there if incarnation is None else replace(there, incarnation=incarnation)


class Watched:
    """Looks at instances, of which the first has partition 0 until another takes it."""

    def __init__(self) -> None:
        self.silence_history, self._watcher = SilenceHistory(), GroupWatcher()

    def observe(self, now_s: float, *members: Member, taken: tuple[int, float] | None = None) -> None:
        """`taken`: by whom, and when."""
        owner, moves = 1, [move("0", None, 1, 1, "claimed", WALL_S - 30)]
        if taken is not None:
            owner, at_s = taken
            moves.insert(0, move("0", 1, owner, 2, TAKEN_AGAIN if owner == 1 else TAKEN_OVER, WALL_S + at_s))
        leases = [lease("0", owner, len(moves))]
        self.silence_history.observe(
            look_at(found(members=members, leases=leases, moves=moves), now_s, self._watcher), moves
        )


def test_the_last_heartbeat_before_a_takeover_is_kept() -> None:
    watched = Watched()
    for now_s in range(14):
        watched.observe(now_s, beating(1, min(now_s - 0.5, 3.5)), beating(2, now_s))
    assert watched.silence_history.silent_since == {"node-1": WALL_S + 3.5}
    assert watched.silence_history.silences == {}
    watched.observe(14, beating(2, 14.0), taken=(2, 13.2))
    assert watched.silence_history.silences == {("0", 2): WALL_S + 3.5}
    assert watched.silence_history.silent_since == {}


def test_one_that_comes_back_was_silent_before_and_heartbeats_again_after() -> None:
    watched = Watched()
    for now_s in range(4):
        watched.observe(now_s, beating(1, now_s))
    watched.observe(15, beating(1, 14.9), taken=(1, 14.5))
    watched.observe(16, beating(1, 16.0), taken=(1, 14.5))
    assert watched.silence_history.silences == {("0", 2): WALL_S + 3.0}


def test_one_that_gave_it_up_and_took_it_again_was_not_silent() -> None:
    watched = Watched()
    for now_s in range(4):
        watched.observe(now_s, beating(1, now_s))
    watched.observe(5, beating(1, 5.0), taken=(1, 4.5))
    assert watched.silence_history.silences == {}


def test_another_process_of_the_same_name_is_another_one() -> None:
    """Started again before its lease was taken over, which is still the first one's."""
    watched = Watched()
    for now_s in range(4):
        watched.observe(now_s, beating(1, now_s))
    watched.observe(9, beating(1, 3.0), beating(1, 9.0, incarnation=7))
    watched.observe(12, beating(1, 12.0, incarnation=7), beating(2, 12.0), taken=(2, 11.0))
    assert watched.silence_history.silences == {("0", 2): WALL_S + 3.0}


def test_unobserved_silences_are_not_made_up() -> None:
    watched = Watched()
    watched.observe(14, beating(1, 3.5), beating(2, 14.0), taken=(2, 13.2))
    assert watched.silence_history.silences == {}
