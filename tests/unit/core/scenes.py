"""Short words that the tests of decisions share: members, leases, and a moment in the life of one instance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evenflow.core.decide import Situation
from evenflow.core.liveness import Sighting
from evenflow.core.view import View
from evenflow.model import EVERYTHING, Cursor, GroupState, Lease, Member, Owner, Wish

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

SENT_S = 1000.0
"""When the last answered heartbeat was sent."""
TTL_S = 8.0
LONGEST_TTL_S = 60.0


def member(name: str = "me", incarnation: int = 1, **facts: Any) -> Member:
    return Member(
        id=name, nonce=f"{name}{incarnation}", incarnation=incarnation, **{"ttl_s": TTL_S, "mark": 5, **facts}
    )


def owner(name: str | Owner | None) -> Owner | None:
    """`name`, or `name#2` for its second incarnation."""
    if not isinstance(name, str):
        return name
    plain, _, incarnation = name.partition("#")
    return Owner(plain, int(incarnation or 1))


def lease(partition: str, who: str | None = None, epoch: int = 3, **facts: Any) -> Lease:
    return Lease(
        partition=partition, owner=owner(who), epoch=epoch, **{"revision": 7, "ttl_s": TTL_S if who else 0.0, **facts}
    )


def view(
    leases: Collection[Lease] = (),
    members: Collection[Member] = (),
    history: int = 0,
    state: GroupState = GroupState(),  # noqa: B008 - it is immutable
) -> View:
    return View(
        Cursor("store", history, 99),
        {one.id: one for one in members},
        {one.partition: one for one in leases},
        state,
    )


def situation(
    *leases: Lease,
    me: Member | None = None,
    others: Collection[Member] = (),
    partitions: str = "",
    held: Mapping[str, int] | None = None,
    silent: Mapping[str, float] | None = None,
    unmoved: str = "",
    history: int = 0,
    paused: str = "",
    **facts: Any,
) -> Situation:
    """Everybody was seen to heartbeat half a second ago, but for the `silent` (since so long) and the `unmoved`.

    `paused` are partitions, or "all".
    """
    me = me if me is not None else member()
    pauses = {EVERYTHING if name == "all" else name: Wish("anna", "disk", 1.0) for name in paused.split()}
    seen = view(leases, [me, *others], history, GroupState(pauses=pauses))
    watched = {one.owner for one in others} | {one.owner for one in leases if one.owner is not None}
    quiet = {owner(name): silent_s for name, silent_s in (silent or {}).items()}
    still = {owner(name) for name in unmoved.split()}
    sightings = {
        one: Sighting(
            seen.members[one.id].mark if seen.has(one) else None, SENT_S - quiet.get(one, 0.5), one not in still
        )
        for one in watched
    }
    return Situation(
        me=me,
        view=seen,
        sightings=sightings,
        partitions=partitions.split(),
        held=held or {},
        **{
            "busy": (),
            "last_epochs": {},
            "heartbeat_sent_s": SENT_S,
            "history_since_s": SENT_S - 5.0,
            "longest_ttl_s": LONGEST_TTL_S,
            **facts,
        },
    )
