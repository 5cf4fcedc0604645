from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evenflow.embedded.hub import records
from evenflow.embedded.hub.log import PartitionLog, create_log
from evenflow.embedded.hub.log_state import LogState
from evenflow.errors import Corrupt, PositionGone, PositionOutOfRange, SourceUnavailable
from evenflow.model import Event

if TYPE_CHECKING:
    from collections.abc import Iterator

NOON_US = 1_700_000_000_000_000
MUCH = 1 << 40


@pytest.fixture
def log(tmp_path: Path) -> Iterator[PartitionLog]:
    path = tmp_path / "00003.sqlite"
    create_log(path, "made", 3, 1.0)
    log = another(path)
    yield log
    log.close()


def another(path: Path, busy_timeout_s: float = 1.0) -> PartitionLog:
    return PartitionLog(path, "made", 3, busy_timeout_s)


def events(*texts: str) -> list[Event]:
    return [Event(text.encode()) for text in texts]


def append(log: PartitionLog, *texts: str, now_us: int = NOON_US) -> tuple[int, int]:
    return log.append([events(*texts)], now_us)[0]


def read(log: PartitionLog, after: int = -1) -> list[Event]:
    return [event for row in log.read(after, MUCH, MUCH).rows for event in log.events(row) if event.sequence > after]  # type: ignore[operator]


def texts(log: PartitionLog, after: int = -1) -> list[str]:
    return [event.body.decode() for event in read(log, after)]


def test_sequences_start_at_zero_and_go_on(log: PartitionLog) -> None:
    assert log.append([events("a", "b"), events("c")], NOON_US) == [(0, 1), (2, 2)]
    assert append(log, "d") == (3, 3)
    assert append(another(log.path), "e") == (4, 4)
    assert [(event.sequence, event.offset) for event in read(log)] == [(n, str(n)) for n in range(5)]


def test_a_commit_survives_a_loss_of_power(log: PartitionLog) -> None:
    with log._use() as connection:
        assert (connection.pragma("journal_mode"), connection.pragma("synchronous")) == ("wal", 2)


def test_times_never_go_back(log: PartitionLog) -> None:
    for now_us in (NOON_US, NOON_US - 5, NOON_US + 5):
        append(log, "a", now_us=now_us)
    assert [event.enqueued_us for event in read(log)] == [NOON_US, NOON_US, NOON_US + 5]


def test_a_large_send_becomes_several_rows_and_is_read_from_anywhere(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "ROW_EVENTS", 4)
    append(log, *"abcdefghij")
    look = log.read(-1, MUCH, MUCH)
    assert [(row.first, row.last) for row in look.rows] == [(0, 3), (4, 7), (8, 9)]
    for after in range(-1, 10):
        assert texts(log, after) == list("abcdefghij")[after + 1 :]


@pytest.mark.parametrize("size", [10, 100_000, 3_000_000])
def test_bodies_of_any_size_come_back(log: PartitionLog, size: int) -> None:
    bodies = [bytes([n]) * (size + n) for n in range(5)]
    for body in bodies:
        log.append([[Event(body)]], NOON_US)
    for _ in range(2):
        assert [event.body for event in read(log)] == bodies


def test_a_look_ends_at_its_limits_and_says_so(log: PartitionLog) -> None:
    for text in "abcdef":
        append(log, text)
    look = log.read(-1, 2, MUCH)
    assert ([row.first for row in look.rows], look.all) == ([0, 1], False)
    look = log.read(-1, MUCH, 1)
    assert ([row.first for row in look.rows], look.all) == ([0], False)
    look = log.read(3, MUCH, MUCH)
    assert ([row.first for row in look.rows], look.all) == ([4, 5], True)
    look = log.read(5, MUCH, MUCH)
    assert (look.rows, look.all) == ([], True)


def test_a_look_leaves_no_transaction_open(log: PartitionLog) -> None:
    for text in "abcdef":
        append(log, text)
    log.read(-1, 1, MUCH)
    other = apsw.Connection(str(log.path))
    busy, *_ = other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()  # type: ignore[misc]
    assert busy == 0


def test_state_is_kept_while_events_come_and_go(log: PartitionLog) -> None:
    assert log.state() == LogState(0, 0, 0, 0, 0)
    append(log, "a", "b")
    append(log, "c", now_us=NOON_US + 1)
    sizes = [row.size_bytes for row in log.read(-1, MUCH, MUCH).rows]
    assert log.state() == LogState(0, 3, NOON_US + 1, sum(sizes), 0)
    log.remove_before(1)
    assert log.state().oldest == 0, "only whole rows are removed"
    log.remove_before(2)
    assert log.state() == LogState(2, 3, NOON_US + 1, sum(sizes), sizes[0])
    assert log.state().size_bytes == sizes[1]


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3)), max_size=20), st.integers(0, 5), st.integers(-2, 40))
def test_a_time_is_found_by_halving_as_by_looking_at_all(
    tmp_path_factory: pytest.TempPathFactory, sends: list[tuple[int, int]], trimmed: int, time_us: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "00003.sqlite"
    create_log(path, "made", 3, 1.0)
    log = another(path)
    now_us = 0
    for count, step in sends:
        now_us += step
        append(log, *(["x"] * count), now_us=now_us)
    log.remove_before(trimmed)
    kept = read(log, log.state().oldest - 1)
    expected = [event.sequence for event in kept if event.enqueued_us >= time_us]
    assert log.before_time(time_us) == ((expected[0] or 0) - 1 if expected else log.state().next - 1)
    log.close()


def test_rows_that_are_too_old_are_trimmed_even_all(log: PartitionLog) -> None:
    for hour in range(4):
        append(log, str(hour), now_us=NOON_US + hour)
    assert not log.trim(NOON_US + 2, None)
    assert texts(log, 1) == ["2", "3"]
    log.trim(NOON_US + 100, None)
    state = log.state()
    assert (state.oldest, state.next, state.enqueued_us, state.size_bytes) == (4, 4, NOON_US + 3, 0)
    assert append(log, "after", now_us=NOON_US) == (4, 4)
    assert read(log, 3)[0].enqueued_us == NOON_US + 3


def test_rows_that_are_too_much_are_trimmed_but_for_the_newest(log: PartitionLog) -> None:
    for n in range(5):
        append(log, str(n) * 100)
    one_bytes = log.state().size_bytes // 5
    log.trim(None, 2 * one_bytes)
    assert log.state().oldest == 3
    log.trim(None, 1)
    assert [event.body[:1] for event in read(log, 3)] == [b"4"]


def test_trimming_goes_on_in_small_steps(log: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evenflow.embedded.hub.log.TRIM_ROWS", 2)
    for n in range(5):
        append(log, str(n))
    assert [log.trim(NOON_US + 1, None) for _ in range(3)] == [True, True, False]
    assert log.state().oldest == 5


def test_a_reader_that_retention_overtook_gets_an_error(log: PartitionLog) -> None:
    for text in "abcdef":
        append(log, text)
    log.remove_before(3)
    with pytest.raises(PositionGone, match=r"it holds 3 to 5.*earliest"):
        read(log, 1)
    assert texts(log, 2) == ["d", "e", "f"]
    log.remove_before(6)
    with pytest.raises(PositionGone, match="it is empty, and the next is 6"):
        read(log, 1)


def test_a_position_beyond_the_end_is_out_of_range(log: PartitionLog) -> None:
    append(log, "a", "b")
    with pytest.raises(PositionOutOfRange, match="it holds 0 to 1"):
        read(log, 2)


def test_a_locked_log_is_unavailable_and_still_readable(log: PartitionLog) -> None:
    append(log, "a")
    holder = apsw.Connection(str(log.path))
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(SourceUnavailable, match=r"00003\.sqlite is locked by another connection of this process"):
        append(another(log.path, busy_timeout_s=0.05), "b")
    assert texts(log) == ["a"]
    holder.execute("ROLLBACK")
    assert append(log, "b") == (1, 1)


# Damage


def test_a_flipped_bit_is_found(log: PartitionLog) -> None:
    append(log, "find me somewhere")
    log.close()
    content = bytearray(log.path.read_bytes())
    content[content.index(b"somewhere")] ^= 1
    log.path.write_bytes(content)
    damaged = another(log.path)
    with pytest.raises(Corrupt, match=r"00003\.sqlite is damaged \(the checksum of events 0 to 0 is wrong\).*backup"):
        read(damaged)


def test_a_row_that_is_not_what_it_says_is_found(log: PartitionLog) -> None:
    append(log, "a", "b")
    connection = apsw.Connection(str(log.path))
    connection.execute("UPDATE batches SET last = 2")
    with pytest.raises(Corrupt, match="the row for events 0 to 2 holds 2 events"):
        read(log)
    connection.execute("UPDATE batches SET events = x'c1', crc = ?, size = 1", (records.checksum(b"\xc1"),))
    with pytest.raises(Corrupt, match="cannot be decoded"):
        read(log)


@pytest.mark.parametrize("left", [0, 100, 16_384, 20_000])
def test_a_truncated_file_is_found_and_named(log: PartitionLog, left: int) -> None:
    append(log, *["x" * 1000] * 100)
    log.close()
    with log.path.open("r+b") as file:
        file.truncate(left)
    truncated = another(log.path)
    for use in (lambda: append(truncated, "y"), lambda: read(truncated)):
        with pytest.raises(Corrupt, match=r"00003\.sqlite"):
            use()
    assert log.path.stat().st_size == left


def test_a_file_overwritten_while_in_use_is_found(log: PartitionLog) -> None:
    append(log, *["x" * 1000] * 100)
    apsw.Connection(str(log.path)).execute("PRAGMA wal_checkpoint(TRUNCATE)")
    log.path.write_bytes(b"overwritten " * 20_000)
    with pytest.raises(Corrupt, match=r"00003\.sqlite"):
        read(another(log.path))
    with pytest.raises(Corrupt, match=r"00003\.sqlite"):
        read(log)


def test_the_file_of_another_partition_is_found(log: PartitionLog, tmp_path: Path) -> None:
    for made, number in (("other", 3), ("made", 4)):
        path = tmp_path / f"{made}-{number}.sqlite"
        create_log(path, made, number, 1.0)
        with pytest.raises(Corrupt, match="it is not partition 3 of this hub"):
            another(path).state()


def test_another_database_is_found(log: PartitionLog, tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    apsw.Connection(str(path)).execute("CREATE TABLE t (a)")
    with pytest.raises(Corrupt, match="not of a partition"):
        another(path).state()


def test_a_missing_file_is_found_and_a_restored_one_is_used(log: PartitionLog) -> None:
    append(log, "a")
    connection = apsw.Connection(str(log.path))
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    kept = Path(f"{log.path}.kept")
    log.path.rename(kept)
    for use in (lambda: append(log, "b"), lambda: read(log)):
        with pytest.raises(SourceUnavailable, match=r"00003\.sqlite is missing.*Restore it"):
            use()
    assert not log.path.exists()
    shutil.copy(kept, log.path)
    assert texts(log) == ["a"]


def test_a_file_put_in_place_of_another_is_used(log: PartitionLog, tmp_path: Path) -> None:
    append(log, "a")
    (tmp_path / "other").mkdir()
    other = another(tmp_path / "other" / "00003.sqlite")
    create_log(other.path, "made", 3, 1.0)
    append(other, "b", "c")
    other.close()
    other.path.replace(log.path)
    for suffix in ("-wal", "-shm"):
        Path(f"{log.path}{suffix}").unlink()
    assert texts(log) == ["b", "c"]


def test_a_deleted_folder_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "hub" / "partitions" / "00003.sqlite"
    path.parent.mkdir(parents=True)
    create_log(path, "made", 3, 1.0)
    log = another(path)
    log.state()
    shutil.rmtree(tmp_path / "hub")
    with pytest.raises(SourceUnavailable, match="was deleted"):
        log.state()
    log.close()


def test_a_closed_log_says_so(log: PartitionLog) -> None:
    log.close()
    log.close()
    with pytest.raises(SourceUnavailable, match="is closed"):
        log.state()
