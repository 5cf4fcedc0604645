"""Splitting and merging ranges: each is one transaction, after which the parents are gone and their children are there.

Documents and the log go to the children with the LSNs that they have, and the children go on counting from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from evenflow.embedded.container.facts import one_row
from evenflow.embedded.container.feed import range_of
from evenflow.embedded.container.opened import CONTAINER_SLOT, slot_of
from evenflow.embedded.container.ranges import RANGES_MAX, Range, check_cut, middle
from evenflow.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from evenflow.embedded.container.pen import Turn
    from evenflow.local.long_work import LongWork

T = TypeVar("T")


def signed(sign: LongWork, step: Callable[[Turn], T]) -> Callable[[Turn], T]:
    """The step, and a sign for writers in other processes to wait for its end."""

    def shown(turn: Turn) -> T:
        with sign.announced():
            return step(turn)

    return shown


def split(id: str, at: str | None) -> Callable[[Turn], tuple[Range, Range]]:
    """The step that cuts a range in two, in the middle of its part of the space or where somebody says."""

    def step(turn: Turn) -> tuple[Range, Range]:
        parent = range_of(turn.connection, id)
        (count,) = one_row(turn.connection, "SELECT count(*) FROM ranges WHERE NOT gone")
        if count >= RANGES_MAX:
            raise Misconfigured(f"A container has up to {RANGES_MAX} ranges. Merge some first.")
        cut = middle(parent.min, parent.max) if at is None else check_cut(parent.min, parent.max, at)
        first, second = _made(turn, [(parent.min, cut), (cut, parent.max)], [parent])
        return first, second

    return step


def merge(first_id: str, second_id: str) -> Callable[[Turn], Range]:
    """The step that makes one range of two neighbours."""

    def step(turn: Turn) -> Range:
        pair = sorted((range_of(turn.connection, id) for id in (first_id, second_id)), key=lambda one: one.min)
        if pair[0].max != pair[1].min:
            raise Misconfigured(f"The ranges {first_id} and {second_id} are no neighbours, and cannot be merged.")
        (child,) = _made(turn, [(pair[0].min, pair[1].max)], pair)
        return child

    return step


def _made(turn: Turn, bounds: Sequence[tuple[str, str]], parents: Sequence[Range]) -> list[Range]:
    ancestors = tuple(dict.fromkeys(id for parent in parents for id in (*parent.parents, parent.id)))
    (revision,) = one_row(turn.connection, "UPDATE facts SET revision = revision + 1 RETURNING revision")
    lsn = max(parent.lsn for parent in parents)
    children = [_child(turn, low, high, ancestors, lsn, revision) for low, high in bounds]
    for parent in parents:
        _pass_on(turn, parent, children)
        for child in children:
            _inherit_floors(turn, parent, child)
        turn.connection.execute("DELETE FROM floors WHERE range = ?", (int(parent.id),))
        turn.connection.execute("UPDATE ranges SET gone = ? WHERE id = ?", (revision, int(parent.id)))
    turn.rung.update((CONTAINER_SLOT, *(slot_of(int(one.id)) for one in (*parents, *children))))
    return children


def _child(turn: Turn, low: str, high: str, ancestors: tuple[str, ...], lsn: int, revision: int) -> Range:
    (id,) = one_row(
        turn.connection,
        "INSERT INTO ranges (min, max, parents, lsn, revision, gone) VALUES (?, ?, ?, ?, ?, 0) RETURNING id",
        (low, high, msgspec.json.encode(ancestors).decode(), lsn, revision),
    )
    return Range(id=str(id), min=low, max=high, parents=ancestors, lsn=lsn, revision=revision)


def _pass_on(turn: Turn, parent: Range, children: Sequence[Range]) -> None:
    values = {"parent": int(parent.id), "cut": children[0].max}
    values |= {"first": int(children[0].id), "last": int(children[-1].id)}
    for table in ("documents", "changes"):
        turn.connection.execute(
            f"UPDATE {table} SET range = CASE WHEN epk < :cut THEN :first ELSE :last END WHERE range = :parent",  # noqa: S608
            values,
        )


def _inherit_floors(turn: Turn, parent: Range, child: Range) -> None:
    values = {"child": int(child.id), "parent": int(parent.id), "low": child.min, "high": child.max}
    turn.connection.execute(
        "INSERT INTO floors SELECT :child, max(min, :low), min(max, :high), lsn FROM floors "
        "WHERE range = :parent AND min < :high AND :low < max",
        values,
    )
