"""The store in a container of Azure Blob Storage, in the layout that Azure's own processors use.

No two blobs can be changed in one step, so that every lease is renewed by its owner's heartbeats: its ETag is then the
revision and the sign of life in one, and a takeover that is conditional on it comes before a renewal or not at all.
Epochs outlive whoever drops what is ours from a blob: they have a floor in a blob of their own. What is listed and told
is in `azblob_room`, checkpoints are in `azblob_progress`, and what people ask for is in `azblob_people`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evenflow.errors import StoreUnavailable
from evenflow.model import Cursor, GroupState, Outcome, Owner
from evenflow.stores import rules
from evenflow.stores.azblob.checkpoints import Progress
from evenflow.stores.azblob.client import Link
from evenflow.stores.azblob.group_cache import Room, needs_content
from evenflow.stores.azblob.group_record import Charters
from evenflow.stores.azblob.leases import Leases
from evenflow.stores.azblob.members import Rows
from evenflow.stores.azblob.operations import People
from evenflow.stores.azblob.options import PEER_EXPIRY_S, TIMEOUT_S, Address, address, connection
from evenflow.stores.ledgers import is_ahead, wait_for_all

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from evenflow.model import (
        Action,
        Change,
        Checkpoint,
        Group,
        Ledger,
        Member,
        Move,
        PartitionId,
        Steering,
    )

LOOKS = 5
"""As often a heartbeat begins anew when its group is gone at the end of it, or has lost writes."""


def from_url(url: str, *, create: bool = True) -> AzureBlobStore:
    """`azblob://ACCOUNT/CONTAINER`, or `azblob:///CONTAINER?connection_string_env=NAME`. It makes no container."""
    return AzureBlobStore._at(address(url))


class AzureBlobStore:
    """The contracts of Store, Shared, Operable and Steerable. Nothing is opened before the first operation.

    `credential` is an account key, a SAS, or a credential of azure-core or azure-identity (`azure.identity.aio`);
    without one it is DefaultAzureCredential. With `shared=False` no processor of another make takes part in a group.
    """

    def __init__(
        self,
        account_url: str,
        container: str,
        *,
        credential: Any = None,
        api_version: str | None = None,
        timeout_s: float = TIMEOUT_S,
        shared: bool = True,
        peer_expiry_s: float = PEER_EXPIRY_S,
    ) -> None:
        self._address = Address(account_url, container, credential, api_version, timeout_s, shared, peer_expiry_s)
        self._link = self._line()
        self._rooms: dict[Group, Room] = {}
        self._charters = Charters(self._link)
        self._rows = Rows(self._link, self._charters)
        self._leases = Leases(self._link, self._charters, self._rows)
        self._progress = Progress(self._link, self._charters, self._leases)
        self._people = People(self._link, self._charters)

    def _line(self) -> Link:
        return Link(self._address)

    @classmethod
    def from_connection_string(cls, text: str, container: str, **options: Any) -> AzureBlobStore:
        account_url, credential = connection(text)
        return cls(account_url, container, credential=credential, **options)

    @classmethod
    def _at(cls, where: Address) -> AzureBlobStore:
        options = {name: getattr(where, name) for name in ("api_version", "timeout_s", "shared", "peer_expiry_s")}
        return cls(where.account_url, where.container, credential=where.credential, **options)

    def __repr__(self) -> str:
        return f"AzureBlobStore({str(self._address)!r})"

    @property
    def shared(self) -> bool:
        return self._address.shared

    # --- the ledger
    async def heartbeat(self, group: Group, member: Member, since: Cursor | None) -> Ledger:
        rules.check_group(group)
        rules.check_instance(member.id)
        room = self._room(group)
        if not room.is_listed:
            await self._look(room)
        for _ in range(LOOKS):
            await self._charters.found(room, since)
            await self._charters.witness(room, since)
            if room.has_departed(member.nonce):
                return room.ledger(None, since)
            store = room.lineage, room.history
            seen, mark = room.highest, room.number()
            if member.incarnation:
                mine = room.of(member.owner)
                entry, _ = await wait_for_all(
                    [self._rows.enter(room, member, mark), self._leases.renew(room, mine, mark)]
                )
            else:
                entry = await self._rows.enter(room, member, mark)
            await wait_for_all([self._look(room), self._progress.keep(room, member.owner)])
            if not room.exists:
                continue  # it was deleted, or lost with all of its blobs
            if room.has_departed(member.nonce):
                await self._rows.withdraw(room, member)
                return room.ledger(None, since)
            owner = Owner(member.id, entry.incarnation)
            await self._leases.renew_rest(room, owner, mark)
            seen = max(seen, entry.mark_before, room.highest_but(member.id))
            if entry.has_gone_back or room.has_lost(since) or is_ahead(since, room.cursor(), seen):
                await self._charters.lose(room, since.history if since is not None else room.history)
            me = await self._rows.stay_or_leave(room, member, owner)
            await self._rows.tidy(room, member, since)
            if (room.lineage, room.history) == store:
                return room.ledger(me, since)
            # What was listed may be lost: told as of the new history, it would pass for lost once more.
        raise StoreUnavailable(f"The group {group} is deleted, or loses writes, whenever it is listed.")

    async def swap(self, group: Group, changes: Sequence[Change]) -> Sequence[Outcome]:
        rules.check_group(group)
        room = self._room(group)
        await self._charters.refresh(room)
        if not room.exists:
            return [Outcome(partition=change.partition, ok=False, why="owner") for change in changes]
        rows = await self._leases.rows(room, changes)
        turns: dict[PartitionId, list[int]] = {}
        for number, change in enumerate(changes):
            turns.setdefault(change.partition, []).append(number)
        outcomes: dict[int, Outcome] = {}
        moves: dict[int, Move] = {}

        async def in_turn(numbers: Iterable[int]) -> None:
            for number in numbers:
                outcomes[number], move = await self._leases.swap(room, changes[number], rows)
                if move is not None:
                    moves[number] = move

        await wait_for_all(in_turn(numbers) for numbers in turns.values())
        if moves:
            await self._people.keep_moves(room, [moves[number] for number in sorted(moves)])
        return [outcomes[number] for number in range(len(changes))]

    # --- progress
    async def seal(
        self, group: Group, partition: PartitionId, epoch: int, default: Checkpoint, *, unplanned: bool = False
    ) -> Checkpoint:
        rules.check_group(group)
        return await self._progress.seal(self._room(group), partition, epoch, default, unplanned=unplanned)

    async def commit(self, group: Group, checkpoints: Sequence[Checkpoint]) -> Sequence[Outcome]:
        rules.check_group(group)
        room = self._room(group)
        return await wait_for_all(self._progress.commit(room, checkpoint) for checkpoint in checkpoints)

    async def aclose(self) -> None:
        await self._link.aclose()

    # --- for people
    async def groups(self) -> Sequence[Group]:
        return await self._people.groups()

    async def peek(self, group: Group) -> Ledger | None:
        room = self._room(group)
        await self._look(room)
        return room.ledger(None, None) if room.exists or room.held else None

    async def checkpoints(self, group: Group) -> Sequence[Checkpoint]:
        return await self._progress.all(self._room(group))

    async def moves(self, group: Group, limit: int = 100) -> Sequence[Move]:
        return await self._people.moves(self._room(group), limit)

    async def delete(self, group: Group) -> None:
        room = self._room(group)
        del self._rooms[group]
        await self._charters.refresh(room)
        await self._people.delete(room)
        self._progress.forget(group)

    # --- for people who steer
    async def steer(self, group: Group, steering: Steering, action: Action) -> GroupState:
        rules.check_group(group)
        return await self._people.steer(self._room(group), steering, action)

    async def record(self, group: Group, action: Action) -> None:
        rules.check_group(group)
        await self._people.record(self._room(group), action)

    async def actions(self, group: Group, limit: int = 100) -> Sequence[Action]:
        return await self._people.actions(self._room(group), limit)

    # --- inside
    def _room(self, group: Group) -> Room:
        if group not in self._rooms:
            self._rooms[group] = Room(group, self._address.peer_expiry_s, self._link.wall)
        return self._rooms[group]

    async def _look(self, room: Room) -> None:
        """One listing, and what it only points at: the group's state when that has changed, facts of some members."""
        seen = room.seen
        blobs = await self._link.list(room.names.heartbeats)
        charter = next((blob for blob in blobs if blob.name == room.names.group), None)
        if charter is None or charter.etag != room.charter_etag:
            await self._charters.refresh(room)
        pointers = [blob.name for blob in blobs if blob.name.startswith(room.names.members) and needs_content(blob)]
        contents = dict(zip(pointers, await wait_for_all(self._rows.facts(name) for name in pointers), strict=True))
        there = [blob for blob in blobs if contents.get(blob.name, True) is not None]
        await self._leases.learn_floors(room, [blob for blob in there if blob.name.startswith(room.names.leases)])
        room.take_in(there, {name: facts for name, facts in contents.items() if facts is not None}, seen)
