"""A store for many machines on a Redis or Valkey server.

Decisions are made by Lua scripts, each one atomic step and one round trip; they implement `rules`. This module encodes
their arguments and decodes their answers. The client also remembers the newest cursor of each group and sends it with
every request, so that a server that has lost writes detects the loss.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import TYPE_CHECKING, Any

from msgspec import structs

from evenflow.errors import Corrupt, LeaseLost, Misconfigured, StoreUnavailable
from evenflow.model import Outcome
from evenflow.stores import rules
from evenflow.stores.damage import DECODE_ERRORS, names_damaged_record
from evenflow.stores.redis import codec as wire
from evenflow.stores.redis.client import RedisClient, script
from evenflow.stores.redis.damage import find_damage
from evenflow.stores.redis.options import RedisOptions, options_from_url
from evenflow.stores.redis.wakeups import ChannelListener

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from evenflow.model import (
        Action,
        Change,
        Checkpoint,
        Cursor,
        Group,
        GroupState,
        Ledger,
        Member,
        Move,
        PartitionId,
        Steering,
    )

log = logging.getLogger(__name__)

LAYOUT = 1
LEASES, PROGRESS = "leases", "progress"
STEER_TRIES = 100


def from_url(url: str, *, create: bool = True) -> RedisStore:
    """`redis://[USER:PASSWORD@]HOST[:PORT][/DB][?prefix=...]`; also rediss, valkey, valkeys, redis+unix."""
    return RedisStore(options_from_url(url), create=create)


class RedisStore:
    """The contracts of Store, Watchable, Operable and Steerable, on one server or cluster.

    Nothing is opened before the first operation. With `create=False`, for read-only tools, it is an error if nothing
    was ever stored under this prefix.
    """

    def __init__(self, where: RedisOptions | str, *, create: bool = True) -> None:
        self._options = options_from_url(where) if isinstance(where, str) else where
        self._client = RedisClient(self._options)
        self._create = create
        self._is_checked = False
        self._enlisted: set[Group] = set()
        self._seen: dict[Group, Cursor] = {}
        """The newest cursor of each group. A server that is behind it has lost writes."""
        self._listeners: set[ChannelListener] = set()
        self._steering = asyncio.Lock()

    def __repr__(self) -> str:
        return f"RedisStore({str(self._options)!r})"

    # --- the ledger
    @names_damaged_record
    async def heartbeat(self, group: Group, member: Member, since: Cursor | None) -> Ledger:
        rules.check_group(group)
        rules.check_instance(member.id)
        await self._enlist(group)
        fresh = secrets.token_hex(8), str(rules.FORGOTTEN_AFTER_S)
        witness = *wire.cursor_args(since), *self._witness(group)
        args = *wire.member_args(member), *fresh, *witness
        status, *rest = await self._run(LEASES, "heartbeat", group, wire.HEARTBEAT_KEYS, args)
        if status == b"superseded":
            rules.admit_incarnation(wire.member(rest[0]), member, newest=0, history=0)
        made, incarnation, at, *answer = rest
        if made and since is not None:
            self._enlisted.discard(group)  # the list of groups was lost too
        me = (
            structs.replace(member, incarnation=wire.narrow(incarnation), heartbeat_at=float(at))
            if incarnation
            else None
        )
        ledger = wire.ledger(answer, me and structs.replace(me, mark=int(answer[0][2]), leaving=False))
        self._saw(group, answer[0])
        return ledger

    @names_damaged_record
    async def swap(self, group: Group, changes: Sequence[Change]) -> Sequence[Outcome]:
        rules.check_group(group)
        await self._check()
        args = [*self._witness(group), str(rules.MOVES_KEPT)]
        for change in changes:
            args += wire.change_args(change)
        _, seen, answers = await self._run(LEASES, "swap", group, wire.SWAP_KEYS, args)
        self._saw(group, seen)
        whys = [(why.decode(), wire.lease(text) if text else None) for why, text in wire.by(2, answers)]
        return [
            Outcome(partition=change.partition, ok=not why, why=why, lease=lease)
            for change, (why, lease) in zip(changes, whys, strict=True)
        ]

    # --- progress
    @names_damaged_record
    async def seal(
        self, group: Group, partition: PartitionId, epoch: int, default: Checkpoint, *, unplanned: bool = False
    ) -> Checkpoint:
        rules.check_group(group)
        await self._enlist(group)
        default = structs.replace(default, partition=partition)
        fields = partition, wire.wide(epoch), *wire.default_args(default), "1" if unplanned else "0"
        args = *self._witness(group), *fields
        status, *rest = await self._run(PROGRESS, "seal", group, wire.SEAL_KEYS, args)
        if status == b"hole":
            raise LeaseLost(f"Partition {partition!r}: checkpoints were deleted from the store {self._options}.")
        seen, text, history, floor = rest
        self._saw(group, seen)
        record = wire.checkpoint(text) if text else None
        if record is None or status == b"over":
            rules.seal(record, partition, epoch, default, 0.0, history=int(history), floor=wire.narrow(floor))
            raise AssertionError(f"The script refused a seal that the rules allow: {record}, {epoch}, {history}.")
        return record

    @names_damaged_record
    async def commit(self, group: Group, checkpoints: Sequence[Checkpoint]) -> Sequence[Outcome]:
        rules.check_group(group)
        await self._check()
        args = [arg for checkpoint in checkpoints for arg in wire.commit_args(checkpoint)]
        _, answers = await self._run(PROGRESS, "commit", group, wire.COMMIT_KEYS, args)
        return [
            Outcome(partition=checkpoint.partition, ok=bool(ok), why="" if ok else "epoch")
            for checkpoint, ok in zip(checkpoints, answers, strict=True)
        ]

    async def aclose(self) -> None:
        listeners = list(self._listeners)
        for listener in listeners:
            listener.end()
        await asyncio.gather(*(listener.task for listener in listeners), return_exceptions=True)
        await self._client.aclose()

    # --- waking
    def watch(self, group: Group, instance: str, wake: Callable[[], None]) -> Callable[[], None]:
        channels = wire.channels(self._options.prefix, group, instance)
        listener = ChannelListener(self._options, channels, wake)
        self._listeners.add(listener)
        listener.task.add_done_callback(lambda _: self._listeners.discard(listener))
        return listener.end

    # --- for operators: reads
    async def groups(self) -> Sequence[Group]:
        await self._check()
        names = await self._client.ask(LEASES, "HKEYS", self._list)
        found = [self._group(name) for name in names if name != b"layout"]
        there = await asyncio.gather(*(self._operation(group, "exists") for group in found))
        return sorted((group for group, (_, exists) in zip(found, there, strict=True) if exists), key=str)

    @names_damaged_record
    async def peek(self, group: Group) -> Ledger | None:
        status, *rest = await self._operation(group, "peek")
        return wire.ledger(rest[3:], None) if status == b"ok" else None

    @names_damaged_record
    async def checkpoints(self, group: Group) -> Sequence[Checkpoint]:
        _, records = await self._operation(group, "checkpoints")
        return [wire.checkpoint(text) for text in records]

    @names_damaged_record
    async def moves(self, group: Group, limit: int = 100) -> Sequence[Move]:
        _, moves = await self._operation(group, "moves", str(limit))
        return [wire.move(text) for text in moves]

    @names_damaged_record
    async def delete(self, group: Group) -> None:
        await self._operation(group, "delete")
        self._enlisted.discard(group)
        await self._client.ask(LEASES, "HDEL", self._list, wire.group_text(group))

    # --- for operators: changes
    @names_damaged_record
    async def steer(self, group: Group, steering: Steering, action: Action) -> GroupState:
        rules.check_group(group)
        async with self._steering:  # requests of this client take turns, so they do not conflict with each other
            for _ in range(STEER_TRIES):
                if (state := await self._try_steer(group, steering, action)) is not None:
                    return state
        raise StoreUnavailable(
            f"Too many concurrent operator requests for group {group}; gave up after {STEER_TRIES} attempts. Try again."
        )

    @names_damaged_record
    async def record(self, group: Group, action: Action) -> None:
        rules.check_group(group)
        kept = rules.stamp_action(action, 0.0)
        await self._operation(group, "record", wire.action_text(kept), str(rules.ACTIONS_KEPT))

    @names_damaged_record
    async def actions(self, group: Group, limit: int = 100) -> Sequence[Action]:
        _, actions = await self._operation(group, "actions", str(limit))
        return [wire.action(text) for text in actions]

    async def _try_steer(self, group: Group, steering: Steering, action: Action) -> GroupState | None:
        """Returns None if another operator request was written in between."""
        status, *rest = await self._operation(group, "state")
        if status == b"none":
            raise rules.no_such_group(group)
        at, version, source, steered, retired = rest
        kept = rules.stamp_action(action, float(at))
        state = rules.steer(wire.state(source, steered, retired), steering, rules.request_of(kept))
        texts = wire.state_text(state), f"{at.decode()}\n{wire.action_text(kept)}", str(rules.ACTIONS_KEPT)
        args = version.decode(), *texts, *wire.retired_args(state)
        status, *_ = await self._operation(group, "steer", *args)
        if status == b"none":
            raise rules.no_such_group(group)
        return state if status == b"ok" else None

    async def find_damage(self, group: Group) -> Corrupt | None:
        return await find_damage(self._client, LEASES, self._options.prefix, group)

    # --- private
    @property
    def _list(self) -> str:
        return f"{self._options.prefix}:groups"

    def _group(self, name: bytes) -> Group:
        try:
            return wire.group(name)
        except DECODE_ERRORS as error:
            shown = name.decode(errors="backslashreplace")
            raise self._damaged_list(shown, f"HDEL {self._list} {shown}") from error

    def _damaged_list(self, field: str, command: str) -> Corrupt:
        return Corrupt(
            f"The store {self._options}: field {field!r} of the key {self._list!r} cannot be read: it was changed by"
            f" hand. Repair it with `{command}`."
        )

    async def _operation(self, group: Group, what: str, *args: str) -> Any:
        await self._check()
        return await self._run(LEASES, "operations", group, wire.OPERATION_KEYS, (what, *args))

    async def _run(self, lane: str, name: str, group: Group, keys: tuple[str, ...], args: Sequence[str]) -> Any:
        named = wire.keys(self._options.prefix, group, keys)
        reply = await self._client.run(lane, script(name), named, args)
        if reply[0] == b"layout":
            raise self._too_new(reply[1])
        self._client.has_served |= name != "operations"  # a user with read access may not be allowed to write
        return reply

    def _witness(self, group: Group) -> tuple[str, ...]:
        return wire.cursor_args(self._seen.get(group))

    def _saw(self, group: Group, seen: Sequence[bytes]) -> None:
        """Remembers the newest cursor. Answers may arrive out of order, so within one history the highest revision
        counts. An empty cursor means that the group does not exist."""
        if not seen:
            return
        known, cursor = self._seen.get(group), wire.cursor(seen)
        stale = known is not None and (known.lineage, known.history) == (cursor.lineage, cursor.history)
        if not (stale and known is not None and known.revision > cursor.revision):
            self._seen[group] = cursor

    async def _enlist(self, group: Group) -> None:
        """Adds the group to the list for operators, before the group is created, so that the list is complete."""
        await self._check()
        if group not in self._enlisted:
            named = wire.group_text(group)
            await self._client.ask(LEASES, "HSET", self._list, "layout", str(LAYOUT), named, "1")
            self._enlisted.add(group)

    # --- the first request
    async def _check(self) -> None:
        if self._is_checked:
            return
        layout = await self._client.ask(LEASES, "HGET", self._list, "layout")
        if layout is not None and not layout.isdigit():
            raise self._damaged_list("layout", f"HSET {self._list} layout {LAYOUT}")
        if layout is not None and int(layout) > LAYOUT:
            raise self._too_new(layout)
        if layout is None and not self._create:
            raise Misconfigured(
                f"The store {self._options} contains no evenflow data under the prefix {self._options.prefix!r}. Check"
                " ?prefix= in its URL, and that an instance has run with it."
            )
        await self._check_eviction()
        self._is_checked = True

    async def _check_eviction(self) -> None:
        if self._options.accepts_eviction:
            return
        try:
            memory = await self._client.ask(LEASES, "INFO", "memory")
        except Misconfigured:
            log.warning(
                "Cannot read the eviction policy of the store %s. Make sure that maxmemory-policy is noeviction or one"
                " of the volatile policies.",
                self._options,
            )
            return
        policy, limit = str(memory.get("maxmemory_policy", "")), memory.get("maxmemory", 0)
        if policy.startswith("allkeys") and limit:
            raise Misconfigured(
                f"The server of the store {self._options} may evict any key when its memory is full, including"
                f" checkpoints (maxmemory-policy {policy}). Set it to noeviction or to one of the volatile policies,"
                " which never evict evenflow's keys, or use another server."
            )

    def _too_new(self, layout: bytes) -> Misconfigured:
        return Misconfigured(
            f"The store {self._options} was written by a newer evenflow (layout {layout.decode()}; this version"
            f" supports {LAYOUT}). Upgrade evenflow here, or use another ?prefix=."
        )
