"""The store for many machines that share a Redis or Valkey server: what each port method asks of it.

What is decided is decided in scripts, each one atomic step and one round trip; they follow `rules`. Here is what
goes into them, what comes out, and what this client remembers: the newest that it was answered for each group. It is
told with every request, so that a server which has lost it finds out.
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
from evenflow.stores.redis.client import Link, script
from evenflow.stores.redis.damage import damage
from evenflow.stores.redis.options import Address, address
from evenflow.stores.redis.wakeups import Listener

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
    return RedisStore(address(url), create=create)


class RedisStore:
    """The contracts of Store, Watchable, Operable and Steerable, on one server or cluster.

    Nothing is opened before the first operation. With `create=False` a server on which nothing was ever stored under
    this prefix is an error, for tools that only look.
    """

    def __init__(self, where: Address | str, *, create: bool = True) -> None:
        self._address = address(where) if isinstance(where, str) else where
        self._link = Link(self._address)
        self._create = create
        self._is_checked = False
        self._enlisted: set[Group] = set()
        self._seen: dict[Group, Cursor] = {}
        """The newest that was answered: if the server knows less, it has lost writes."""
        self._listeners: set[Listener] = set()
        self._steering = asyncio.Lock()

    def __repr__(self) -> str:
        return f"RedisStore({str(self._address)!r})"

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
        made, incarnation, at, *told = rest
        if made and since is not None:
            self._enlisted.discard(group)  # the list of groups was lost, too
        me = (
            structs.replace(member, incarnation=wire.narrow(incarnation), heartbeat_at=float(at))
            if incarnation
            else None
        )
        ledger = wire.ledger(told, me and structs.replace(me, mark=int(told[0][2]), leaving=False))
        self._saw(group, told[0])
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
        what = partition, wire.wide(epoch), *wire.default_args(default), "1" if unplanned else "0"
        args = *self._witness(group), *what
        status, *rest = await self._run(PROGRESS, "seal", group, wire.SEAL_KEYS, args)
        if status == b"hole":
            raise LeaseLost(f"Partition {partition!r}: checkpoints were deleted from the store {self._address}.")
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
        await self._link.aclose()

    # --- waking
    def watch(self, group: Group, instance: str, wake: Callable[[], None]) -> Callable[[], None]:
        channels = wire.channels(self._address.prefix, group, instance)
        listener = Listener(self._address, channels, wake)
        self._listeners.add(listener)
        listener.task.add_done_callback(lambda _: self._listeners.discard(listener))
        return listener.end

    # --- for people
    async def groups(self) -> Sequence[Group]:
        await self._check()
        names = await self._link.ask(LEASES, "HKEYS", self._list)
        found = [self._group(name) for name in names if name != b"layout"]
        there = await asyncio.gather(*(self._people(group, "exists") for group in found))
        return sorted((group for group, (_, exists) in zip(found, there, strict=True) if exists), key=str)

    @names_damaged_record
    async def peek(self, group: Group) -> Ledger | None:
        status, *rest = await self._people(group, "peek")
        return wire.ledger(rest[3:], None) if status == b"ok" else None

    @names_damaged_record
    async def checkpoints(self, group: Group) -> Sequence[Checkpoint]:
        _, records = await self._people(group, "checkpoints")
        return [wire.checkpoint(text) for text in records]

    @names_damaged_record
    async def moves(self, group: Group, limit: int = 100) -> Sequence[Move]:
        _, moves = await self._people(group, "moves", str(limit))
        return [wire.move(text) for text in moves]

    @names_damaged_record
    async def delete(self, group: Group) -> None:
        await self._people(group, "delete")
        self._enlisted.discard(group)
        await self._link.ask(LEASES, "HDEL", self._list, wire.group_text(group))

    # --- for people who steer
    @names_damaged_record
    async def steer(self, group: Group, steering: Steering, action: Action) -> GroupState:
        rules.check_group(group)
        async with self._steering:  # whoever steers through this client takes turns, and need not try again
            for _ in range(STEER_TRIES):
                if (state := await self._steer(group, steering, action)) is not None:
                    return state
        raise StoreUnavailable(f"The group {group} is being steered by too many at once. Try again.")

    @names_damaged_record
    async def record(self, group: Group, action: Action) -> None:
        rules.check_group(group)
        kept = rules.stamp_action(action, 0.0)
        await self._people(group, "record", wire.action_text(kept), str(rules.ACTIONS_KEPT))

    @names_damaged_record
    async def actions(self, group: Group, limit: int = 100) -> Sequence[Action]:
        _, actions = await self._people(group, "actions", str(limit))
        return [wire.action(text) for text in actions]

    async def _steer(self, group: Group, steering: Steering, action: Action) -> GroupState | None:
        """None when somebody else steered in between."""
        status, *rest = await self._people(group, "state")
        if status == b"none":
            raise rules.no_such_group(group)
        at, version, source, steered, retired = rest
        kept = rules.stamp_action(action, float(at))
        state = rules.steer(wire.state(source, steered, retired), steering, rules.request_of(kept))
        said = wire.state_text(state), f"{at.decode()}\n{wire.action_text(kept)}", str(rules.ACTIONS_KEPT)
        args = version.decode(), *said, *wire.retired_args(state)
        status, *_ = await self._people(group, "steer", *args)
        if status == b"none":
            raise rules.no_such_group(group)
        return state if status == b"ok" else None

    async def find_damage(self, group: Group) -> Corrupt | None:
        return await damage(self._link, LEASES, self._address.prefix, group)

    # --- inside
    @property
    def _list(self) -> str:
        return f"{self._address.prefix}:groups"

    def _group(self, name: bytes) -> Group:
        try:
            return wire.group(name)
        except DECODE_ERRORS as error:
            shown = name.decode(errors="backslashreplace")
            raise self._damaged_list(shown, f"HDEL {self._list} {shown}") from error

    def _damaged_list(self, field: str, command: str) -> Corrupt:
        return Corrupt(
            f"The store {self._address}: field {field!r} of the key {self._list!r} cannot be read: somebody has changed"
            f" it. Set that right (`{command}`)."
        )

    async def _people(self, group: Group, what: str, *args: str) -> Any:
        await self._check()
        return await self._run(LEASES, "people", group, wire.PEOPLE_KEYS, (what, *args))

    async def _run(self, lane: str, name: str, group: Group, keys: tuple[str, ...], args: Sequence[str]) -> Any:
        named = wire.keys(self._address.prefix, group, keys)
        reply = await self._link.run(lane, script(name), named, args)
        if reply[0] == b"layout":
            raise self._too_new(reply[1])
        self._link.has_served |= name != "people"  # who may look may not be allowed to write
        return reply

    def _witness(self, group: Group) -> tuple[str, ...]:
        return wire.cursor_args(self._seen.get(group))

    def _saw(self, group: Group, told: Sequence[bytes]) -> None:
        """Answers may overtake each other; within one history, the highest revision counts. `told`: [] is no group."""
        if not told:
            return
        known, cursor = self._seen.get(group), wire.cursor(told)
        stale = known is not None and (known.lineage, known.history) == (cursor.lineage, cursor.history)
        if not (stale and known is not None and known.revision > cursor.revision):
            self._seen[group] = cursor

    async def _enlist(self, group: Group) -> None:
        """The list of groups is for people alone. Before the group, so that none is missing in it."""
        await self._check()
        if group not in self._enlisted:
            named = wire.group_text(group)
            await self._link.ask(LEASES, "HSET", self._list, "layout", str(LAYOUT), named, "1")
            self._enlisted.add(group)

    # --- the first look
    async def _check(self) -> None:
        if self._is_checked:
            return
        layout = await self._link.ask(LEASES, "HGET", self._list, "layout")
        if layout is not None and not layout.isdigit():
            raise self._damaged_list("layout", f"HSET {self._list} layout {LAYOUT}")
        if layout is not None and int(layout) > LAYOUT:
            raise self._too_new(layout)
        if layout is None and not self._create:
            raise Misconfigured(
                f"The store {self._address} holds nothing of evenflow under the prefix {self._address.prefix!r}: see"
                " its URL (?prefix=), and whether anything has run with it yet."
            )
        await self._check_eviction()
        self._is_checked = True

    async def _check_eviction(self) -> None:
        if self._address.accepts_eviction:
            return
        try:
            memory = await self._link.ask(LEASES, "INFO", "memory")
        except Misconfigured:
            log.warning(
                "The store %s does not let us see whether the server evicts keys. It must not: maxmemory-policy has to"
                " be noeviction, or one of the volatile ones.",
                self._address,
            )
            return
        policy, limit = str(memory.get("maxmemory_policy", "")), memory.get("maxmemory", 0)
        if policy.startswith("allkeys") and limit:
            raise Misconfigured(
                f"The server of the store {self._address} may evict any key when its memory is full (maxmemory-policy"
                f" {policy}), checkpoints too. Set it to noeviction or to one of the volatile policies, which leave"
                " evenflow's keys alone, or use another server."
            )

    def _too_new(self, layout: bytes) -> Misconfigured:
        return Misconfigured(
            f"The store {self._address} was written by a newer evenflow (layout {layout.decode()}, and this one knows"
            f" {LAYOUT}). Upgrade this one, or give it another ?prefix=."
        )
