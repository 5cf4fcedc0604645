"""Ways to break one rule of the protocol in the real code, each with the bounds within which the search finds it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from msgspec import structs

from evenflow.core import decide, view
from evenflow.core.liveness import watch
from evenflow.runtime.coordinator import Coordinator
from evenflow.runtime.hold import Hold
from evenflow.runtime.memory import Memory
from evenflow.stores import rules
from tests.exhaustive import instance
from tests.exhaustive.model import Bounds
from tests.sim import sabotage as sim

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


def pump_does_not_look() -> AbstractContextManager[Any]:
    return patch.object(Hold, "may_begin", lambda hold, now_s: not hold.stopping)


def seals_do_not_fence() -> AbstractContextManager[Any]:
    """A seal under a lower epoch than the record's is obeyed."""
    sealed = rules.seal

    def careless(record: Any, partition: Any, epoch: int, *args: Any, **named: Any) -> Any:
        lower = record if record is None or record.epoch <= epoch else structs.replace(record, epoch=epoch - 1)
        return sealed(lower, partition, epoch, *args, **named)

    return patch.object(rules, "seal", careless)


def late_commits_count() -> AbstractContextManager[Any]:
    return patch.object(rules, "is_late_commit", lambda record, checkpoint: False)


def own_ttl_is_waited_for() -> AbstractContextManager[Any]:
    """Others wait for their own time-to-live, not for the owner's."""
    decided = decide.decide

    def careless(now: Any) -> Any:
        leases = {name: structs.replace(lease, ttl_s=now.me.ttl_s) for name, lease in now.view.leases.items()}
        return decided(structs.replace(now, view=structs.replace(now.view, leases=leases)))

    return patch.object(instance, "decide", careless)


def resumed_under_the_same_epoch() -> AbstractContextManager[Any]:
    """Who stopped goes on where it was as soon as a heartbeat shows it as the owner."""
    end = Coordinator._end

    def careless(self: Any, hold: Any, reason: Any) -> None:
        end(self, hold, reason)
        self._last_epochs[hold.partition] = hold.epoch - 1

    return patch.object(Coordinator, "_end", careless)


def claims_last_from_the_answer() -> AbstractContextManager[Any]:
    """A claim's deadline counts from the last heartbeat answered by now."""
    begin = Coordinator._begin

    def careless(self: Any, lease: Any, deadline_s: float, jump: Any = None) -> bool:
        return begin(self, lease, self._clock.now() + self._settings.patience_s, jump)

    return patch.object(Coordinator, "_begin", careless)


def every_answer_moves_the_deadline() -> AbstractContextManager[Any]:
    """Whoever it shows as the owner."""

    def careless(self: Any, hold: Any, shown: int) -> None:
        hold.deadline_s = self._patience_ends_s

    return patch.object(Coordinator, "_compare", careless)


def histories_are_not_in_epochs() -> AbstractContextManager[Any]:
    return patch.object(view, "next_epoch", lambda epoch, history: epoch + 1)


def deadlines_do_not_count_for_reclaiming() -> AbstractContextManager[Any]:
    held = Memory._held_until_now
    return patch.object(Memory, "_held_until_now", lambda self, before, now_s: held(self, before, float("-inf")))


def passed_on_and_reclaimed() -> AbstractContextManager[Any]:
    held = Memory._held_until_now

    def careless(self: Any, before: Any, now_s: float) -> Any:
        kept = self._tenures
        self._tenures = {name: structs.replace(one, passing=False) for name, one in kept.items()}
        try:
            return held(self, before, now_s)
        finally:
            self._tenures = kept

    return patch.object(Memory, "_held_until_now", careless)


def marks_of_a_lost_store_are_believed() -> AbstractContextManager[Any]:
    """An emptied store gives marks again, and one of before looks as if it had stood still."""
    take_in = Coordinator._take_in

    def careless(self: Any, ledger: Any, sent_s: float) -> None:
        before = self._sightings if self._clock.now() - self._heartbeat_sent_s <= self._gap_s else None
        take_in(self, ledger, sent_s)
        self._sightings = watch(before, ledger, self.view, self._clock.now())

    return patch.object(Coordinator, "_take_in", careless)


def bounds(ticks: int, **more: Any) -> Bounds:
    return Bounds(ticks=ticks, **more)


WAYS: dict[str, tuple[Callable[[], AbstractContextManager[Any]], Bounds]] = {
    "no compare-and-set": (sim.no_compare_and_set, bounds(0, begins="nothing")),
    "takeover without the mark": (sim.takeover_without_mark, bounds(3)),
    "commit without the epoch": (sim.commit_without_epoch, bounds(1, deletes=1)),
    "deadline from the answer": (sim.deadline_from_the_answer, bounds(3, slow=2)),
    "pump does not look": (pump_does_not_look, bounds(2)),
    "never stops itself": (sim.never_stops_itself, bounds(2)),
    "seals do not fence": (seals_do_not_fence, bounds(2, begins="claimed", given_up=1)),
    "late commits count": (late_commits_count, bounds(0, events=2, given_up=1)),
    "own ttl is waited for": (own_ttl_is_waited_for, bounds(3, ttls=(5, 3))),
    "resumed under the same epoch": (resumed_under_the_same_epoch, bounds(1, handoff=True, given_up=1)),
    "claims last from the answer": (claims_last_from_the_answer, bounds(3, slow=2)),
    "every answer moves the deadline": (every_answer_moves_the_deadline, bounds(3, slow=1)),
    "occupied is claimed": (sim.occupied_is_claimed, bounds(2)),
    "doubt is undone": (sim.doubt_is_undone, bounds(1, handoff=True, given_up=1)),
    "no incarnations": (sim.no_incarnations, bounds(0, twins=True, begins="nothing")),
    "epochs begin anew": (sim.epochs_begin_anew, bounds(0, deletes=1)),
    "histories are not in epochs": (histories_are_not_in_epochs, bounds(0, empties=1)),
    "late seals make records": (
        sim.late_seals_make_records,
        bounds(1, handoff=True, start="latest", appends=1, empties=1),
    ),
    "everyone claims at once": (sim.everyone_claims_at_once, bounds(1, handoff=True, losses=1)),
    "deadlines do not count for reclaiming": (
        deadlines_do_not_count_for_reclaiming,
        bounds(2, ttls=(2, 2), losses=1),
    ),
    "passed on and reclaimed": (passed_on_and_reclaimed, bounds(1, handoff=True, losses=1, given_up=1)),
    "missing leases are free": (sim.missing_leases_are_free, bounds(1, empties=1)),
    "restored over what was sealed since": (
        sim.restored_over_what_was_sealed_since,
        bounds(1, handoff=True, begins="handled", events=2, losses=1),
    ),
    "marks of a lost store are believed": (marks_of_a_lost_store_are_believed, bounds(3, empties=1)),
}
"""Where two instances and one partition show it. What needs an outage, a transaction or a third instance is in
`tests/sim/sabotage.py`."""
