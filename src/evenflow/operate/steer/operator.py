"""The operator who steers a group, and the checks that every operation on a group starts with."""

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
    """The operator's name and reason: both are recorded with every action."""

    by: str
    why: str

    def did(self, kind: str, what: str, why: str = "") -> Action:
        return Action(kind=kind, by=self.by, why=why or self.why, what=what)


def steerable(store: Store) -> Steerable:
    if not isinstance(store, Steerable):
        raise Misconfigured(
            f"{type(store).__name__} cannot steer groups: it does not store operator requests. Use another store."
        )
    return store


async def ledger_of(store: Store, group: Group) -> Ledger:
    """The current state of the group; Misconfigured when it does not exist."""
    ledger = await operable(store).peek(group)
    if ledger is None:
        known = ", ".join(str(one) for one in await operable(store).groups()) or "none yet"
        raise Misconfigured(
            f"The store has no group {group}: no instance has run in it yet, or it was deleted. It has: {known}."
        )
    return ledger


def is_its_hub(whose: str, source: str, identity: Identity) -> bool:
    """Whether positions of `source`, as recorded by a group, are valid in this hub; Misconfigured when the mode differs
    from the one they were made with."""
    (made, mode), (own, wanted) = made_and_mode(source), made_and_mode(identity.source)
    if made == own and mode != wanted:
        raise Misconfigured(
            f"{whose} with mode={mode}, but the source named here has mode={wanted}. Name the source with ?mode={mode}."
        )
    return made in ("", own)


def check_partitions(wanted: Iterable[PartitionId], known: Iterable[PartitionId]) -> None:
    there = set(known)
    missing = [partition for partition in wanted if partition not in there]
    if missing:
        raise Misconfigured(f"There is no partition {listed(missing)}. There are: {listed(there) or 'none yet'}.")


def called(partitions: Iterable[PartitionId]) -> str:
    """partition 0; partitions 0, 1, 2. Names all of them, for the record."""
    names = sorted(partitions, key=natural)
    return f"partition {names[0]}" if len(names) == 1 else f"partitions {', '.join(names)}"


def listed(partitions: Iterable[PartitionId]) -> str:
    return ", ".join(sorted(partitions, key=natural))
