"""How a partition's log recognises a send that it has stored already, so that sending it again stores nothing twice.

A batch of no numbering of its own has a random id, which is stored with its events. Before its first attempt writes
anything, under the write lock, it notes where the log ends: later attempts look for the id from there on, and only
there. A first attempt thus looks for nothing, and nothing is kept in memory.

A producer with an id numbers its sends to a partition itself, upwards. The log keeps the newest numbers of so many
producers in a table, so these survive both their events and the process.

What can no longer be looked up is refused with `BatchForgotten`, never stored a second time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from evenflow.embedded.hub.records import checksum
from evenflow.errors import BatchForgotten
from evenflow.local.database import damaged

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import apsw

    from evenflow.embedded.hub.state import LogState
    from evenflow.model import Event

    Place: TypeAlias = tuple[int, int]
    """The sequences of the first and the last event of a send."""

LOOKED_AT_ROWS = 65_536
"""A batch is looked for in so many of the newest rows; most writes make one row."""
PRODUCERS_MAX = 1_024
"""The log keeps the numbers of so many producers with an id: those that wrote last."""
NUMBERS_KEPT = 16
"""Of each of them it keeps where so many of the newest sends are."""

CRC_BYTES = 4

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[tuple[int, int, int]])


class Mark:
    """What one send to one partition is recognised by, and its events. All attempts share it."""

    __slots__ = ("batch", "events", "in_doubt", "number", "producer", "since")

    def __init__(self, events: Sequence[Event], batch: int, producer: str = "", number: int = 0) -> None:
        self.events = events
        self.batch = batch
        self.producer = producer
        self.number = number
        self.since: int | None = None
        """Where the log ended when the first attempt was about to write."""
        self.in_doubt = False
        """The commit of an attempt failed in a way that leaves open whether it is durable."""


class _Kept(NamedTuple):
    number: int
    first: int
    last: int


class Recognition:
    """What one transaction knows of the sends that it is given. Used under the log's write lock."""

    def __init__(self, path: Path, connection: apsw.Connection, state: LogState, marks: Sequence[Mark | None]) -> None:
        self._path = path
        self._connection = connection
        self._state = state
        self._marks = marks
        self._found: dict[int, Place] = {}
        self._looked_from: int | None = None
        self._added: dict[int, Place] = {}
        self._numbers: dict[str, list[_Kept]] = {}
        self._numbered: set[str] = set()

    def places(self, groups: Sequence[Sequence[Event]]) -> tuple[list[Place], list[Sequence[Event]]]:
        """Where each group is, or will be; and those that are still to be written.

        Raises `BatchForgotten` when that can no longer be told of one of them.
        """
        sequence = self._state.next
        places: list[Place] = []
        new: list[Sequence[Event]] = []
        for group, mark in zip(groups, self._marks, strict=True):
            place = None if mark is None else self._place(mark)
            if place is None:
                place = (sequence, sequence + len(group) - 1)
                sequence += len(group)
                new.append(group)
                if mark is None:
                    pass
                elif mark.producer:
                    self._numbers[mark.producer].append(_Kept(mark.number, *place))
                    self._numbered.add(mark.producer)
                else:
                    self._added[mark.batch] = place
            places.append(place)
        return places, new

    def added(self) -> bytes | None:
        """The ids that this transaction stores, for the column `sends` of its last row."""
        return _sealed([(batch, *place) for batch, place in self._added.items()]) if self._added else None

    def write_numbers(self) -> None:
        for producer in self._numbered:
            kept = self._numbers[producer][-NUMBERS_KEPT:]
            self._connection.execute(
                "INSERT OR REPLACE INTO producers VALUES (?, ?, ?)", (producer, kept[-1].last, _sealed(kept))
            )
        if self._numbered:
            self._forget_producers()

    def _forget_producers(self) -> None:
        count: Any = self._connection.execute("SELECT count(*) FROM producers").get
        if count > PRODUCERS_MAX:
            self._connection.execute(
                "DELETE FROM producers WHERE id IN (SELECT id FROM producers ORDER BY newest LIMIT ?)",
                (count - PRODUCERS_MAX,),
            )
            self._connection.execute("UPDATE state SET forgotten = forgotten + ?", (count - PRODUCERS_MAX,))

    def _place(self, mark: Mark) -> Place | None:
        if mark.producer:
            return self._place_of_number(mark)
        end = self._state.next
        if mark.since is None or mark.since > end:
            # The first attempt; or a log that was restored from a backup, and ends before what it had then.
            mark.since = end
        return self._added.get(mark.batch) if mark.since == end else self._place_of_batch(mark, mark.since)

    def _place_of_batch(self, mark: Mark, since: int) -> Place | None:
        looked_from = self._look() if self._looked_from is None else self._looked_from
        found = self._added.get(mark.batch) or self._found.get(mark.batch)
        kept_from = max(looked_from, self._state.oldest)
        if found is None and since < kept_from:
            raise BatchForgotten(
                f"{self._path} no longer keeps whether this batch is stored: it was first sent when the log ended "
                f"before {since}, and what is kept begins at {kept_from}. See whether its events are where they go; "
                "if not, send them as a new batch."
            )
        return found

    def _look(self) -> int:
        """Look for all batches of this transaction, from the newest row back to where the earliest one began, or as
        far as one looks; the sequence from which on all of them would have been found.
        """
        wanted = {mark.batch: mark.since for mark in self._marks if mark is not None and mark.since is not None}
        looked_from = min(wanted.values())
        rows: list[Any] = self._connection.execute(
            "SELECT first, sends FROM batches WHERE first >= ? ORDER BY first DESC LIMIT ?",
            (looked_from, LOOKED_AT_ROWS + 1),
        ).fetchall()
        if len(rows) > LOOKED_AT_ROWS:
            looked_from = rows.pop()[0] + 1
        for _, sends in rows:
            for batch, first, last in [] if sends is None else _opened(self._path, sends):
                if batch in wanted:
                    self._found[batch] = (first, last)
        self._looked_from = looked_from
        return looked_from

    def _place_of_number(self, mark: Mark) -> Place | None:
        kept = self._kept(mark)
        if not kept or mark.number > kept[-1].number:
            return None
        for number, first, last in kept:
            if number == mark.number:
                return first, last
        raise BatchForgotten(
            f"{self._path} no longer keeps whether number {mark.number} of producer {mark.producer!r} is stored: it "
            f"keeps {kept[0].number} to {kept[-1].number}. Numbers go upwards; see whether its events are where "
            f"they go, and go on after {kept[-1].number}."
        )

    def _kept(self, mark: Mark) -> list[_Kept]:
        kept = self._numbers.get(mark.producer)
        if kept is None:
            kept = self._numbers[mark.producer] = numbers_kept(self._path, self._connection, mark.producer)
        if not kept and mark.number and self._has_forgotten():
            raise BatchForgotten(
                f"{self._path} knows no producer {mark.producer!r}, which may be one of those that wrote too long "
                f"ago: it keeps {PRODUCERS_MAX}. See which of its sends are stored; then begin with number 0."
            )
        return kept

    def _has_forgotten(self) -> bool:
        return bool(self._connection.execute("SELECT forgotten FROM state").get)


def numbers_kept(path: Path, connection: apsw.Connection, producer: str) -> list[_Kept]:
    """What the log keeps of a producer's sends, in the order of their numbers."""
    row = connection.execute("SELECT kept FROM producers WHERE id = ?", (producer,)).fetchone()
    return [] if row is None else [_Kept(*entry) for entry in _opened(path, row[0])]


def _sealed(entries: Sequence[tuple[int, int, int]]) -> bytes:
    encoded = _encoder.encode(entries)
    return encoded + checksum(encoded).to_bytes(CRC_BYTES, "little")


def _opened(path: Path, sealed: Any) -> list[tuple[int, int, int]]:
    encoded = sealed[:-CRC_BYTES]
    try:
        if checksum(encoded) == int.from_bytes(sealed[-CRC_BYTES:], "little"):
            return _decoder.decode(encoded)
    except (msgspec.DecodeError, TypeError):
        pass
    raise damaged(path, "the checksum of what was sent is wrong")
