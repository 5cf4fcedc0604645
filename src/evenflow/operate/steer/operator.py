"""Who steers, through which store, and what of a group is there to be steered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from evenflow.errors import Misconfigured
from evenflow.model import Action, made_and_mode
from evenflow.operate.inspect.survey import operable
from evenflow.ports import Steerable
from evenflow.text import natural

if TYPE_CHECKING:
    from collections.abc import Iterable

    from evenflow.model import Group, Identity, Ledger, PartitionId
    from evenflow.ports import Store


class Operator(Struct, frozen=True):
    """A person, and the reason: both are kept with whatever is done."""

    by: str
    why: str

    def did(self, kind: str, what: str, why: str = "") -> Action:
        return Action(kind=kind, by=self.by, why=why or self.why, what=what)


def steerable(store: Store) -> Steerable:
    if not isinstance(store, Steerable):
        raise Misconfigured(f"{type(store).__name__} cannot be steered: it keeps no state of a group.")
    return store


async def ledger_of(store: Store, group: Group) -> Ledger:
    """The group as it is; Misconfigured when there is none."""
    ledger = await operable(store).peek(group)
    if ledger is None:
        known = ", ".join(str(one) for one in await operable(store).groups()) or "none yet"
        raise Misconfigured(
            f"The store knows no group {group}: nobody has run in it yet, or it was deleted. It has: {known}."
        )
    return ledger


def is_its_hub(whose: str, source: str, identity: Identity) -> bool:
    """Whether positions of `source`, as a group keeps it, mean something in this hub; Misconfigured when it is read in
    another way than they were made."""
    (made, mode), (own, wanted) = made_and_mode(source), made_and_mode(identity.source)
    if made == own and mode != wanted:
        raise Misconfigured(
            f"{whose} with mode={mode}, and the source that is named has mode={wanted}: give the source the same mode."
        )
    return made in ("", own)


def check_partitions(wanted: Iterable[PartitionId], known: Iterable[PartitionId]) -> None:
    there = set(known)
    missing = [partition for partition in wanted if partition not in there]
    if missing:
        raise Misconfigured(f"There is no partition {listed(missing)}. There are: {listed(there) or 'none yet'}.")


def called(partitions: Iterable[PartitionId]) -> str:
    """partition 0; partitions 0, 1, 2. All of them: for the record."""
    names = sorted(partitions, key=natural)
    return f"partition {names[0]}" if len(names) == 1 else f"partitions {', '.join(names)}"


def listed(partitions: Iterable[PartitionId]) -> str:
    return ", ".join(sorted(partitions, key=natural))
