"""How a partition's log recognizes a send that it has already stored, so that a retry stores nothing twice.

A batch without a producer id has a random id, which is stored with its events. Its first attempt records, under the
write lock, where the log ends, and later attempts search for the id from there on only. So a first attempt searches
nothing, and the log keeps nothing in memory.

A producer with an id numbers its sends to a partition in increasing order. The log keeps the newest numbers of a
bounded number of producers in a table, so they outlive both their events and the process.

A send that can no longer be looked up is rejected with `BatchForgotten`. It is never stored a second time.
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

    from evenflow.embedded.hub.log_state import LogState
    from evenflow.model import Event

    SequenceRange: TypeAlias = tuple[int, int]
    """The sequence numbers of the first and the last event of a send."""

SEARCHED_ROWS_MAX = 65_536
"""How many of the newest rows are searched for a batch; most writes make one row."""
PRODUCERS_MAX = 1_024
"""The log keeps the numbers of this many producers with an id: those that wrote most recently."""
RECENT_NUMBERS_MAX = 16
"""How many of a producer's newest sends the log keeps."""

CRC_BYTES = 4

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[tuple[int, int, int]])


class PartitionSend:
    """The part of a batch that goes to one partition: its events and its identity. All attempts share this object."""

    __slots__ = ("batch", "events", "in_doubt", "number", "producer", "since")

    def __init__(self, events: Sequence[Event], batch: int, producer: str = "", number: int = 0) -> None:
        self.events = events
        self.batch = batch
        self.producer = producer
        self.number = number
        self.since: int | None = None
        """Where the log ended before the first attempt wrote."""
        self.in_doubt = False
        """Whether a commit failed in a way that leaves its outcome unknown."""


class _NumberedSend(NamedTuple):
    number: int
    first: int
    last: int


class Deduplicator:
    """Finds the stored sends among those of one transaction. Used under the log's write lock."""

    def __init__(
        self, path: Path, connection: apsw.Connection, state: LogState, sends: Sequence[PartitionSend | None]
    ) -> None:
        self._path = path
        self._connection = connection
        self._state = state
        self._sends = sends
        self._found: dict[int, SequenceRange] = {}
        self._searched_from: int | None = None
        self._added: dict[int, SequenceRange] = {}
        self._numbers: dict[str, list[_NumberedSend]] = {}
        self._numbered: set[str] = set()

    def assign(self, groups: Sequence[Sequence[Event]]) -> tuple[list[SequenceRange], list[Sequence[Event]]]:
        """The sequence range of each group, stored or assigned now; and the groups that must be written.

        Raises `BatchForgotten` if the log no longer knows whether one of them is stored.
        """
        sequence = self._state.next
        ranges: list[SequenceRange] = []
        new: list[Sequence[Event]] = []
        for group, send in zip(groups, self._sends, strict=True):
            found = None if send is None else self._find(send)
            if found is None:
                found = (sequence, sequence + len(group) - 1)
                sequence += len(group)
                new.append(group)
                if send is None:
                    pass
                elif send.producer:
                    self._numbers[send.producer].append(_NumberedSend(send.number, *found))
                    self._numbered.add(send.producer)
                else:
                    self._added[send.batch] = found
            ranges.append(found)
        return ranges, new

    def encoded_batch_ids(self) -> bytes | None:
        """The ids of the batches that this transaction stores, for the column `sends` of its last row."""
        return _with_checksum([(batch, *found) for batch, found in self._added.items()]) if self._added else None

    def write_numbers(self) -> None:
        for producer in self._numbered:
            kept = self._numbers[producer][-RECENT_NUMBERS_MAX:]
            self._connection.execute(
                "INSERT OR REPLACE INTO producers VALUES (?, ?, ?)", (producer, kept[-1].last, _with_checksum(kept))
            )
        if self._numbered:
            self._drop_oldest_producers()

    def _drop_oldest_producers(self) -> None:
        count: Any = self._connection.execute("SELECT count(*) FROM producers").get
        if count > PRODUCERS_MAX:
            self._connection.execute(
                "DELETE FROM producers WHERE id IN (SELECT id FROM producers ORDER BY newest LIMIT ?)",
                (count - PRODUCERS_MAX,),
            )
            self._connection.execute("UPDATE state SET forgotten = forgotten + ?", (count - PRODUCERS_MAX,))

    def _find(self, send: PartitionSend) -> SequenceRange | None:
        if send.producer:
            return self._find_number(send)
        end = self._state.next
        if send.since is None or send.since > end:
            # The first attempt, or a log that was restored from a backup and is shorter now.
            send.since = end
        return self._added.get(send.batch) if send.since == end else self._find_batch(send, send.since)

    def _find_batch(self, send: PartitionSend, since: int) -> SequenceRange | None:
        searched_from = self._search() if self._searched_from is None else self._searched_from
        found = self._added.get(send.batch) or self._found.get(send.batch)
        kept_from = max(searched_from, self._state.oldest)
        if found is None and since < kept_from:
            raise BatchForgotten(
                f"{self._path} no longer knows whether this batch is stored: it was first sent when the log ended "
                f"before {since}, and can now be searched only from {kept_from}. Check whether its events reached "
                "their destination; if not, send them as a new batch."
            )
        return found

    def _search(self) -> int:
        """Search for all batches of this transaction, from the newest row back to where the earliest one began, but no
        further than `SEARCHED_ROWS_MAX`. Returns the sequence from which the search is complete.
        """
        wanted = {send.batch: send.since for send in self._sends if send is not None and send.since is not None}
        searched_from = min(wanted.values())
        rows: list[Any] = self._connection.execute(
            "SELECT first, sends FROM batches WHERE first >= ? ORDER BY first DESC LIMIT ?",
            (searched_from, SEARCHED_ROWS_MAX + 1),
        ).fetchall()
        if len(rows) > SEARCHED_ROWS_MAX:
            searched_from = rows.pop()[0] + 1
        for _, sends in rows:
            for batch, first, last in [] if sends is None else _checked_entries(self._path, sends):
                if batch in wanted:
                    self._found[batch] = (first, last)
        self._searched_from = searched_from
        return searched_from

    def _find_number(self, send: PartitionSend) -> SequenceRange | None:
        kept = self._kept(send)
        if not kept or send.number > kept[-1].number:
            return None
        for number, first, last in kept:
            if number == send.number:
                return first, last
        raise BatchForgotten(
            f"{self._path} no longer knows whether number {send.number} of producer {send.producer!r} is stored: it "
            f"keeps {kept[0].number} to {kept[-1].number}. Check whether its events reached their "
            f"destination, and continue after {kept[-1].number}: numbers must increase."
        )

    def _kept(self, send: PartitionSend) -> list[_NumberedSend]:
        kept = self._numbers.get(send.producer)
        if kept is None:
            kept = self._numbers[send.producer] = recent_numbers(self._path, self._connection, send.producer)
        if not kept and send.number and self._has_dropped_producers():
            raise BatchForgotten(
                f"{self._path} does not know producer {send.producer!r}: it keeps the {PRODUCERS_MAX} producers that "
                "wrote most recently. Check which of its sends are stored, then start again with number 0."
            )
        return kept

    def _has_dropped_producers(self) -> bool:
        return bool(self._connection.execute("SELECT forgotten FROM state").get)


def recent_numbers(path: Path, connection: apsw.Connection, producer: str) -> list[_NumberedSend]:
    """The sends of a producer that the log keeps, in the order of their numbers."""
    row = connection.execute("SELECT kept FROM producers WHERE id = ?", (producer,)).fetchone()
    return [] if row is None else [_NumberedSend(*entry) for entry in _checked_entries(path, row[0])]


def _with_checksum(entries: Sequence[tuple[int, int, int]]) -> bytes:
    encoded = _encoder.encode(entries)
    return encoded + checksum(encoded).to_bytes(CRC_BYTES, "little")


def _checked_entries(path: Path, sealed: Any) -> list[tuple[int, int, int]]:
    encoded = sealed[:-CRC_BYTES]
    try:
        if checksum(encoded) == int.from_bytes(sealed[-CRC_BYTES:], "little"):
            return _decoder.decode(encoded)
    except (msgspec.DecodeError, TypeError):
        pass
    raise damaged(path, "the checksum of the recorded sends is wrong")
