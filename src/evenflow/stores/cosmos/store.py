"""The store in a lease container of Azure Cosmos DB, in the documents of .NET's change feed processor.

So a host of ours shares the lease container of a .NET or Java host, or takes it over, and the other way round. No two
documents can be changed in one step; how a heartbeat renews all leases with one document all the same is told in
`cosmos_leases_rows`. What documents mean is in `cosmos_leases_room`, leases are in `cosmos_leases_swaps`, checkpoints
in `cosmos_leases_progress`, and what people ask for is in `cosmos_leases_people`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from evenflow.drivers.cosmos.client import Link
from evenflow.errors import Misconfigured, StoreUnavailable
from evenflow.model import Cursor, GroupState, Outcome, Owner
from evenflow.stores import rules
from evenflow.stores.cosmos.checkpoints import Progress
from evenflow.stores.cosmos.client import Papers
from evenflow.stores.cosmos.group_cache import Room
from evenflow.stores.cosmos.group_record import Charters
from evenflow.stores.cosmos.members import Rows
from evenflow.stores.cosmos.names import Names, checked_prefix, is_prefix, prefix_of
from evenflow.stores.cosmos.neighbours import begins_as, meet, neighbours
from evenflow.stores.cosmos.operations import People
from evenflow.stores.cosmos.options import (
    PEER_EXPIRY_S,
    TIMEOUT_S,
    address,
    options,
    purpose,
)
from evenflow.stores.cosmos.swaps import Leases
from evenflow.stores.ledgers import is_ahead, wait_for_all

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from evenflow.model import (
        Action,
        Change,
        Checkpoint,
        Convention,
        Group,
        Ledger,
        Member,
        Move,
        PartitionId,
        Steering,
    )

LOOKS = 5
"""As often a heartbeat begins anew when its group is gone at the end of it, or has lost writes."""


def from_url(url: str, *, create: bool = True) -> CosmosLeasesStore:
    """`cosmos-leases://HOST[:PORT]/DATABASE/CONTAINER?...`. It makes no container."""
    where, how, timeout_s = address(url)
    return CosmosLeasesStore(where, timeout_s=timeout_s, **how._asdict())


class CosmosLeasesStore:
    """The contracts of Store, Shared, Conforming, Documented, Charged, Operable and Steerable.

    `where` is a container of the official client (`azure.cosmos.aio.ContainerProxy`, which stays its owner's), or what
    a URL says. Nothing is asked before the first operation.
    """

    def __init__(
        self,
        where: Any,
        *,
        shared: str = "auto",
        peer_expiry_s: float = PEER_EXPIRY_S,
        prefix: str = "",
        layout: str = "dotnet",
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._options = options(shared, peer_expiry_s, prefix, layout)
        self._link = Link(where, purpose(timeout_s))
        self._papers = Papers(self._link)
        self._rooms: dict[Group, Room] = {}
        self._conventions: dict[Group, Convention] = {}
        self._found: dict[Group, list[str]] = {}
        """Prefixes of groups that were listed, the latest last: a hub that was made again has leases under another."""
        self._by_names: set[Group] = set()
        """Those whose leases are under the prefix that is made from names."""
        self._charters = Charters(self._papers)
        self._rows = Rows(self._papers, self._charters)
        self._leases = Leases(self._papers, self._charters, self._rows)
        self._progress = Progress(self._charters, self._leases)
        self._people = People(self._papers, self._charters)

    def __repr__(self) -> str:
        return f"CosmosLeasesStore({str(self._link.address)!r})"

    @property
    def shared(self) -> bool:
        return self._options.shared != "no"

    def conform(self, group: Group, convention: Convention) -> None:
        checked_prefix(convention.prefix)
        self._conventions[group] = convention
        room = self._rooms.get(group)
        if room is not None and room.names.prefix != self._prefix(group):
            del self._rooms[group]
        elif room is not None:
            room.learn(convention.spans, convention.mode)

    def lease_at(self, group: Group, partition: PartitionId) -> str:
        room = self._room(group)
        held = room.held.get(partition)
        name = held.document.id if held is not None and held.document is not None else room.names.lease(partition)
        return f"the document {name!r} (by its LeaseToken) in the {self._link}"

    def charges(self) -> Mapping[str, float]:
        return self._link.charges()

    def requests(self) -> Counter[str]:
        """How many were sent, of each kind: those of `charges`."""
        return Counter(self._papers.requests)

    # --- the ledger
    async def heartbeat(self, group: Group, member: Member, since: Cursor | None) -> Ledger:
        rules.check_group(group)
        rules.check_instance(member.id)
        self._check_apart(group)
        room = self._room(group)
        if not room.is_listed:
            await self._look(room)
        for _ in range(LOOKS):
            await self._meet(room)
            await self._charters.found(room, since)
            await self._charters.witness(room, since)
            store = room.lineage, room.history
            if room.beaten_in != store:
                # What was lost before the history rose is not among the documents that changed.
                room.is_listed, room.beaten_in = False, store
            seen = room.numbers.highest
            entry = await self._rows.enter(room, member, room.numbers.next())
            if entry is None:
                return room.ledger(None, since)
            # Whoever's row is not as it was left it looks at everything: more may be missing.
            room.is_listed = room.is_listed and entry.is_smooth
            await self._look(room)
            if not room.exists:
                continue  # it was deleted, or lost with all of its documents
            owner = Owner(member.id, entry.incarnation)
            if not entry.is_smooth:
                await self._leases.make_sure(room, owner)
            await self._leases.renew(room, owner)
            seen = max(seen, entry.mark_before, room.highest_but(member.id))
            if entry.has_gone_back or room.has_lost(since) or is_ahead(since, room.cursor(), seen):
                await self._charters.lose(room, since.history if since is not None else room.history)
            me = await self._rows.stay_or_leave(room, member, owner)
            await self._rows.tidy(room, member, since)
            await self._leases.tidy(room)
            if (room.lineage, room.history) == store:
                return room.ledger(me, since)
            # What was listed may be lost: told as of the new history, it would pass for lost once more.
        raise StoreUnavailable(f"The group {group} is deleted, or loses writes, whenever it is listed.")

    async def swap(self, group: Group, changes: Sequence[Change]) -> Sequence[Outcome]:
        rules.check_group(group)
        room = await self._known(group)
        if not room.exists:
            return [Outcome(partition=change.partition, ok=False, why="owner") for change in changes]
        outcomes, moves = await self._leases.swap(room, changes)
        if moves:
            await self._people.keep_moves(room, moves)
        return outcomes

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
        await self._papers.aclose()

    # --- for people
    async def groups(self) -> Sequence[Group]:
        self._found = {}
        for group, prefix in await self._people.groups():
            if self._options.prefix in ("", prefix):
                self._found.setdefault(group, []).append(prefix)
        return sorted(self._found, key=str)

    async def foreign(self) -> Mapping[str, int]:
        known = {prefix for prefixes in self._found.values() for prefix in prefixes}
        return {one.prefix: one.leases for one in await neighbours(self._papers) if one.prefix not in known}

    async def peek(self, group: Group) -> Ledger | None:
        room = self._room(group)
        await self._look(room)
        return room.ledger(None, None) if room.exists or room.leases() else None

    async def checkpoints(self, group: Group) -> Sequence[Checkpoint]:
        room = self._room(group)
        await self._look(room)
        return self._progress.all(room)

    async def moves(self, group: Group, limit: int = 100) -> Sequence[Move]:
        return await self._people.moves(await self._looked(group), limit)

    async def delete(self, group: Group) -> None:
        room = await self._looked(group)
        await self._charters.refresh(room)
        await self._people.delete(room)
        del self._rooms[group]

    # --- for people who steer
    async def steer(self, group: Group, steering: Steering, action: Action) -> GroupState:
        rules.check_group(group)
        return await self._people.steer(await self._known(group), steering, action)

    async def record(self, group: Group, action: Action) -> None:
        rules.check_group(group)
        await self._people.record(await self._looked(group), action)

    async def actions(self, group: Group, limit: int = 100) -> Sequence[Action]:
        return await self._people.actions(await self._looked(group), limit)

    # --- inside
    def _room(self, group: Group) -> Room:
        if (room := self._rooms.get(group)) is None:
            prefix = self._prefix(group)
            room = self._rooms[group] = Room(group, prefix, self._options, self._papers.key_of, str(self._link))
            if (convention := self._conventions.get(group)) is not None:
                room.learn(convention.spans, convention.mode)
        return room

    def _check_apart(self, group: Group) -> None:
        address = self._link.address
        if (group.namespace, group.hub) == (address.host, f"{address.database}/{address.container}"):
            raise Misconfigured(
                f"The {self._link} is the very container that is monitored: every heartbeat would be a change"
                " of its own."
                " Name another container for the leases, partitioned by /id."
            )

    def _prefix(self, group: Group) -> str:
        if self._options.prefix:
            return self._options.prefix
        convention = self._conventions.get(group)
        found = self._found.get(group, [])
        if convention is None:
            return found[-1] if found else prefix_of(group)
        if found and not any(begins_as(prefix, group, convention) for prefix in found):
            return found[-1]  # whoever ran in it was told a prefix, and whoever only looks need not be
        return convention.prefix_by_names if group in self._by_names else convention.prefix

    async def _known(self, group: Group) -> Room:
        """As it is now. One that processors of another make alone have run in becomes ours, too, when it is changed."""
        room = self._room(group)
        await self._look(room)
        if not room.exists and room.leases():
            await self._charters.found(room)
        return room

    async def _looked(self, group: Group) -> Room:
        """Under the prefix that its leases have, if there are two that they may have."""
        room = self._room(group)
        if not room.is_listed and group in self._conventions:
            await self._list(room)
        return room

    async def _is_elsewhere(self, room: Room) -> bool:
        """Whether its leases are under the prefix that is made from names. Asked only while ours have not run under
        the other one; whoever comes later finds what the first one did."""
        convention = self._conventions.get(room.group)
        if self._options.prefix or convention is None or room.names.prefix != convention.prefix:
            return False
        if not is_prefix(convention.prefix_by_names):
            return False  # names may be longer than numbers are: no lease of ours could be there
        there = Names(convention.prefix_by_names)
        found = {str(one["id"]) for one in await self._papers.changed(there.heartbeats, 0)}
        are_leases = any(name.startswith(there.leases) for name in found)
        if room.leases():
            if are_leases and there.group in found:
                raise Misconfigured(
                    f"There are leases of {room.group} under {there.prefix!r}, which ours have worked with, and others"
                    f" under {room.names.prefix!r}. Say by prefix= in the URL of the store which of them are meant."
                )
            return False
        if are_leases or there.group in found:
            self._by_names.add(room.group)
            room.move_to(there.prefix)
            return True
        return False

    async def _look(self, room: Room) -> None:
        await self._list(room)
        self._check_group(room)

    async def _list(self, room: Room) -> None:
        """What has changed, or everything."""
        for _ in range(LOOKS):
            seen, since = room.seen, room.since()
            documents = await self._papers.changed(room.names.heartbeats, since)
            if not room.take_in(documents, seen, whole=not since):
                break
            room.is_listed = False
        if room.charter is None and await self._is_elsewhere(room):
            await self._list(room)

    async def _meet(self, room: Room) -> None:
        """Whoever is new here may have meant leases that are there under another prefix."""
        convention = self._conventions.get(room.group)
        if convention is not None and not self._options.prefix and room.charter is None and not room.held:
            meet(room.group, convention, await neighbours(self._papers), str(self._link))

    def _check_group(self, room: Room) -> None:
        if room.charter is not None and room.charter.group != room.group:
            raise Misconfigured(
                f"The leases under {room.names.prefix!r} belong to the group {room.charter.group}, and not to"
                f" {room.group}: two processors would take each other's for their own. Give them different names, or"
                " different prefixes."
            )
        if (other := room.of_another_mode()) is not None:
            raise Misconfigured(
                f"The lease document {other.id!r} in the {self._link} has the Mode {other.mode!r}, and this processor"
                f" reads the {room.mode!r}: they would take each other's changes. Use the mode that the leases have, or"
                " another processor name."
            )
