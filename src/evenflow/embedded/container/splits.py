"""Splits and merges of ranges. Each is one transaction that replaces the parents with their children.

Documents and the log move to the children and keep their LSNs, and the children continue from the highest one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from evenflow.embedded.container.feed import range_of
from evenflow.embedded.container.metadata import one_row
from evenflow.embedded.container.open_container import CONTAINER_SLOT, slot_of
from evenflow.embedded.container.ranges import RANGES_MAX, PartitionKeyRange, check_cut, middle
from evenflow.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from evenflow.embedded.container.write_queue import WriteTransaction
    from evenflow.local.long_work import LongWork

T = TypeVar("T")


def with_sign(sign: LongWork, operation: Callable[[WriteTransaction], T]) -> Callable[[WriteTransaction], T]:
    """The operation, with a sign that makes writers in other processes wait for its end."""

    def shown(transaction: WriteTransaction) -> T:
        with sign.announced():
            return operation(transaction)

    return shown


def split(id: str, at: str | None) -> Callable[[WriteTransaction], tuple[PartitionKeyRange, PartitionKeyRange]]:
    """An operation that splits a range, in the middle of its hashes or at the given EPK."""

    def operation(transaction: WriteTransaction) -> tuple[PartitionKeyRange, PartitionKeyRange]:
        parent = range_of(transaction.connection, id)
        (count,) = one_row(transaction.connection, "SELECT count(*) FROM ranges WHERE NOT gone")
        if count >= RANGES_MAX:
            raise Misconfigured(f"The container already has the maximum of {RANGES_MAX} ranges. Merge some first.")
        cut = middle(parent.min, parent.max) if at is None else check_cut(parent.min, parent.max, at)
        first, second = _create_children(transaction, [(parent.min, cut), (cut, parent.max)], [parent])
        return first, second

    return operation


def merge(first_id: str, second_id: str) -> Callable[[WriteTransaction], PartitionKeyRange]:
    """An operation that merges two adjacent ranges."""

    def operation(transaction: WriteTransaction) -> PartitionKeyRange:
        pair = sorted((range_of(transaction.connection, id) for id in (first_id, second_id)), key=lambda one: one.min)
        if pair[0].max != pair[1].min:
            raise Misconfigured(f"The ranges {first_id} and {second_id} are not adjacent, so they cannot be merged.")
        (child,) = _create_children(transaction, [(pair[0].min, pair[1].max)], pair)
        return child

    return operation


def _create_children(
    transaction: WriteTransaction, bounds: Sequence[tuple[str, str]], parents: Sequence[PartitionKeyRange]
) -> list[PartitionKeyRange]:
    ancestors = tuple(dict.fromkeys(id for parent in parents for id in (*parent.parents, parent.id)))
    (revision,) = one_row(transaction.connection, "UPDATE facts SET revision = revision + 1 RETURNING revision")
    lsn = max(parent.lsn for parent in parents)
    children = [_insert_child(transaction, low, high, ancestors, lsn, revision) for low, high in bounds]
    for parent in parents:
        _move_contents(transaction, parent, children)
        for child in children:
            _inherit_floors(transaction, parent, child)
        transaction.connection.execute("DELETE FROM floors WHERE range = ?", (int(parent.id),))
        transaction.connection.execute("UPDATE ranges SET gone = ? WHERE id = ?", (revision, int(parent.id)))
    transaction.slots_to_ring.update((CONTAINER_SLOT, *(slot_of(int(one.id)) for one in (*parents, *children))))
    return children


def _insert_child(
    transaction: WriteTransaction, low: str, high: str, ancestors: tuple[str, ...], lsn: int, revision: int
) -> PartitionKeyRange:
    (id,) = one_row(
        transaction.connection,
        "INSERT INTO ranges (min, max, parents, lsn, revision, gone) VALUES (?, ?, ?, ?, ?, 0) RETURNING id",
        (low, high, msgspec.json.encode(ancestors).decode(), lsn, revision),
    )
    return PartitionKeyRange(id=str(id), min=low, max=high, parents=ancestors, lsn=lsn, revision=revision)


def _move_contents(
    transaction: WriteTransaction, parent: PartitionKeyRange, children: Sequence[PartitionKeyRange]
) -> None:
    values = {"parent": int(parent.id), "cut": children[0].max}
    values |= {"first": int(children[0].id), "last": int(children[-1].id)}
    for table in ("documents", "changes"):
        transaction.connection.execute(
            f"UPDATE {table} SET range = CASE WHEN epk < :cut THEN :first ELSE :last END WHERE range = :parent",  # noqa: S608
            values,
        )


def _inherit_floors(transaction: WriteTransaction, parent: PartitionKeyRange, child: PartitionKeyRange) -> None:
    values = {"child": int(child.id), "parent": int(parent.id), "low": child.min, "high": child.max}
    transaction.connection.execute(
        "INSERT INTO floors SELECT :child, max(min, :low), min(max, :high), lsn FROM floors "
        "WHERE range = :parent AND min < :high AND :low < max",
        values,
    )
