"""Looks to test the console with: made from plain records, without a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenflow.console.history import GroupHistory
from evenflow.console.sections import InstanceTags, PageContext
from evenflow.model import Bounds, Checkpoint, Cursor, Group, GroupState, Lease, Ledger, Member, Move, Owner, Position
from evenflow.operate.inspect.duplicates import DuplicateEstimator
from evenflow.operate.inspect.silences import SilenceHistory
from evenflow.operate.inspect.survey import Survey
from evenflow.operate.inspect.watcher import GroupWatcher

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from evenflow.model import Action
    from evenflow.operate.inspect.watcher import GroupSnapshot

GROUP = Group("local", "homes", "alerts")
WALL_S = 1_000_000.0
TTL_S, HEARTBEAT_S = 8.0, 2.0


def member(number: int, mark: int = 1, *, heartbeat_at: float = WALL_S) -> Member:
    return Member(
        id=f"node-{number}", nonce=str(number), incarnation=number, mark=mark, ttl_s=TTL_S, heartbeat_s=HEARTBEAT_S,
        host="here",
        version="1", pid=100 + number, started_at=WALL_S - 60 + number, heartbeat_at=heartbeat_at,
    )  # fmt: skip


def lease(partition: str, owner: int | None, epoch: int = 1, reason: str = "claimed: nobody owned it") -> Lease:
    held = Owner(f"node-{owner}", owner) if owner is not None else None
    return Lease(
        partition=partition, owner=held, epoch=epoch, revision=epoch, ttl_s=TTL_S, reason=reason, changed_at=WALL_S - 30
    )


def record(partition: str, sequence: int, epoch: int = 1, begun: int = 0) -> Checkpoint:
    place = Position(str(sequence), sequence)
    return Checkpoint(
        partition=partition, epoch=epoch, position=place, ordinal=sequence + 1, begun=begun, changed_at=WALL_S - 1
    )


def move(partition: str, before: int | None, after: int | None, epoch: int, reason: str, at: float = WALL_S) -> Move:
    names = [None if one is None else f"node-{one}" for one in (before, after)]
    return Move(partition=partition, before=names[0], after=names[1], epoch=epoch, reason=reason, at=at)


def found(
    *,
    members: Sequence[Member] = (),
    leases: Sequence[Lease] = (),
    records: Sequence[Checkpoint] = (),
    newest: Mapping[str, int] | None = None,
    moves: Sequence[Move] = (),
    state: GroupState | None = None,
    problems: tuple[str, ...] = (),
) -> Survey:
    ledger = Ledger(
        cursor=Cursor("here", 0, 1), me=None, whole=True, leases=tuple(leases), members=tuple(members),
        state=state or GroupState(),
    )  # fmt: skip
    bounds = {name: Bounds(Position("0", 0), Position(str(last), last)) for name, last in (newest or {}).items()}
    names = sorted({one.partition for one in leases} | set(bounds))
    return Survey(
        group=GROUP, ledger=ledger, checkpoints=records, moves=moves, partitions=names, bounds=bounds, problems=problems
    )


def look_at(survey: Survey, now_s: float = 0.0, watcher: GroupWatcher | None = None) -> GroupSnapshot:
    return (watcher or GroupWatcher()).observe(survey, now_s, WALL_S + now_s)


def known(
    moves: Sequence[Move] = (), actions: Sequence[Action] = (), duplicates: DuplicateEstimator | None = None
) -> PageContext:
    return PageContext(
        moves=moves,
        actions=actions,
        duplicates=duplicates or DuplicateEstimator(),
        silence_history=SilenceHistory(),
        history=GroupHistory(),
        tags=InstanceTags(),
        watched_since=WALL_S,
    )
