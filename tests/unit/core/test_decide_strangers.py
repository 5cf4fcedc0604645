"""In a group that is shared with processors of another make, which neither drain nor hand over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenflow.core.decide import decide
from evenflow.model import Owner
from tests.unit.core.scenes import lease, member, situation

if TYPE_CHECKING:
    from evenflow.model import Lease, Member

ME = Owner("me", 1)
EXPIRY_S = 180.0


def stranger(name: str = "azure") -> Member:
    return member(name, 0, foreign=True, ttl_s=EXPIRY_S, heartbeat_s=36.0)


def theirs(partition: str, name: str = "azure") -> Lease:
    return lease(partition, f"{name}#0", ttl_s=EXPIRY_S)


def test_what_a_stranger_has_too_much_is_stolen() -> None:
    now = situation(*[theirs(name) for name in "0123"], others=[stranger()])
    decision = decide(now)
    assert len(decision.swaps) == 2, "half of it, and no more"
    for swap in decision.swaps:
        assert (swap.owner, swap.still, swap.revision, swap.epoch) == (ME, None, 7, 4)
        assert swap.reason == "stolen from azure: azure had 4, its share is 2"


def test_what_somebody_else_has_written_in_my_name_is_taken_again_and_says_so() -> None:
    """Somebody who edits a lease by hand leaves its owner's name in it: nobody was robbed, and there is no share."""
    (swap,) = decide(situation(theirs("0", "me"))).swaps
    assert swap.reason == "taken again: somebody else had written the lease, in this name"
    assert swap.owner == ME


def test_then_nothing_moves() -> None:
    mine = {"0": 3, "1": 3}
    now = situation(lease("0", "me"), lease("1", "me"), theirs("2"), theirs("3"), others=[stranger()], held=mine)
    decision = decide(now)
    assert (decision.swaps, decision.heirs, decision.adopt) == ((), {}, ())


def test_an_odd_one_stays_where_it_is() -> None:
    """Their own balance leaves it alone, too: they steal below the share that is rounded down."""
    now = situation(lease("0", "me"), theirs("1"), theirs("2"), others=[stranger()], held={"0": 3})
    assert decide(now).swaps == ()


def test_what_a_stranger_should_have_is_drained_and_set_free() -> None:
    """Not every make takes up what is written down as its own; all take what is free."""
    held = dict.fromkeys("012", 3)
    now = situation(*[lease(name, "me") for name in held], theirs("3"), others=[stranger()], held=held)
    assert list(decide(now).heirs.values()) == [None]


def test_what_was_set_free_for_a_stranger_is_left_to_it() -> None:
    now = situation(
        lease("0", "me"), lease("1", "me"), lease("2"), theirs("3"), others=[stranger()], held={"0": 3, "1": 3}
    )
    decision = decide(now)
    assert decision.plan.owners["2"] == "azure"
    assert decision.swaps == ()


def test_nothing_is_set_free_for_a_stranger_that_has_fallen_silent() -> None:
    held = dict.fromkeys("012", 3)
    leases = [*[lease(name, "me") for name in held], theirs("3")]
    now = situation(*leases, others=[stranger()], held=held, silent={"azure#0": 100.0})
    assert decide(now).heirs == {}


def test_a_stranger_is_dead_after_its_own_expiry() -> None:
    leases = [theirs("0"), theirs("1")]
    alive = decide(situation(*leases, others=[stranger()], silent={"azure#0": EXPIRY_S - 1}))
    assert [swap.reason.partition(":")[0] for swap in alive.swaps] == ["stolen from azure"]
    dead = decide(situation(*leases, others=[stranger()], silent={"azure#0": EXPIRY_S}))
    assert {swap.reason for swap in dead.swaps} == {"taken over: no heartbeat of azure for 180.0 s"}
    assert {swap.still for swap in dead.swaps} == {(Owner("azure", 0), 5)}


def test_what_was_stolen_is_begun_when_its_loser_has_noticed() -> None:
    waiting = decide(situation(lease("0", "me", settled=False)))
    assert (waiting.adopt, waiting.swaps, waiting.waiting) == ((), (), 1)
    assert [one.partition for one in decide(situation(lease("0", "me"))).adopt] == ["0"]


def test_who_leaves_passes_on_at_once_what_it_has_not_begun() -> None:
    """The store knows that somebody may still be handling it, and tells whoever has it next."""
    now = situation(lease("0", "me", settled=False), me=member(retiring=True), others=[member("ada")])
    assert [swap.owner for swap in decide(now).swaps] == [Owner("ada", 1)]
    alone = situation(lease("0", "me", settled=False), theirs("1"), me=member(retiring=True), others=[stranger()])
    assert [swap.owner for swap in decide(alone).swaps] == [None]


def test_who_leaves_sets_free_what_a_stranger_is_to_have() -> None:
    now = situation(lease("0", "me"), theirs("1"), me=member(retiring=True), others=[stranger()], held={"0": 3})
    assert decide(now).heirs == {"0": None}
