"""What the states of the model are made of, interned: equal records have one number, so states are small tuples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from msgspec import Struct, msgpack

if TYPE_CHECKING:
    from evenflow.core.liveness import Sighting
    from evenflow.core.view import View
    from evenflow.model import Change, Checkpoint, Cursor, GroupState, Lease, Ledger, Member, Outcome, Owner
    from evenflow.runtime.memory import Remembered, Tenure

R = TypeVar("R", bound=Struct)

PARTITION = "0"


class StoreState(Struct, frozen=True):
    """What a MemoryStore holds."""

    room: RoomState | None = None
    record: Checkpoint | None = None
    floor: tuple[int, int] = (0, 0)
    epoch_floor: int = 0
    terms: int = 0
    history: int = 0


class RoomState(Struct, frozen=True):
    born: int
    revision: int
    newest: int
    began: int
    epoch_floor: int
    departed: tuple[str, ...]
    roster_revision: int
    state: GroupState
    members: tuple[Member, ...]
    lease: Lease | None


class Holding(Struct, frozen=True):
    """A hold with its pump."""

    epoch: int
    deadline_s: float
    late: bool
    unplanned: bool
    stopping: bool
    over: bool
    reason: str
    heir: Owner | None
    passing: bool
    sealed: bool
    sealed_s: float
    done: int
    ordinal: int
    committed: int
    edition: int
    calling: bool
    pumping: bool


class InstanceState(Struct, frozen=True):
    """What one process knows. Times are relative to now."""

    me: Member
    view: View | None = None
    sightings: tuple[tuple[Owner, Sighting], ...] | None = None
    last_epoch: int = 0
    heartbeat_sent_s: float = float("-inf")
    history_since_s: float = 0.0
    remembered: Remembered | None = None
    tenure: Tenure | None = None
    lineage: str = ""
    memory_sent_s: float = float("-inf")
    reclaims: bool = False
    hold: Holding | None = None
    asking: bool = False
    woken: bool = False
    beaten: bool = False
    """A heartbeat was sent since time passed last."""
    heartbeats: bool = False
    """A heartbeat is under way; so it is with the next ones."""
    passes: bool = False
    remembers: bool = False
    pump_asks: str = ""


class Request(Struct, frozen=True):
    """A request on its way. `live`: its sender waits for the answer."""

    slot: int
    kind: str
    sent_s: float
    live: bool = True
    effected: bool = False
    member: Member | None = None
    cursor: Cursor | None = None
    change: Change | None = None
    record: Checkpoint | None = None
    """To be sealed, committed or restored."""
    unplanned: bool = False
    patience_from_s: float = 0.0
    """Of a swap: when the last heartbeat was sent that had been answered before it."""
    ledger: Ledger | None = None
    outcome: Outcome | None = None
    answer: Checkpoint | None = None
    refused: bool = False


class Interned(Generic[R]):
    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._records: list[R] = []
        self._encode: Any = msgpack.Encoder().encode

    def number(self, record: R) -> int:
        key = self._encode(record)
        known = self._numbers.get(key)
        if known is None:
            known = self._numbers[key] = len(self._records)
            self._records.append(record)
        return known

    def __getitem__(self, number: int) -> R:
        return self._records[number]

    def __len__(self) -> int:
        return len(self._records)
