"""The drop-in client for plain code: threads, signals, batches that wait, and whatever its callbacks raise."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import pytest
from azure.eventhub import CloseReason
from azure.eventhub.exceptions import OwnershipLostError

from evenflow import Processor
from evenflow.compat.eventhub import receiving, thread
from evenflow.stores.memory import MemoryStore
from evenflow.testing import event_hub
from tests.integration.compat_scene import GROUP, OURS_PLAIN, PATIENCE_S, QUICK, both_plain, fill

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from evenflow.testing import EventHub

PROMPT_S = 15.0
"""Far below the deadline after which a stop is forced."""
either = pytest.mark.parametrize("parallel", [False, True], ids=["one by one", "parallel"])


@pytest.fixture
def served() -> Iterator[EventHub]:
    with event_hub(2, groups=[GROUP]) as found:
        yield found


def wait_for(event: threading.Event, what: str) -> None:
    assert event.wait(PATIENCE_S), f"waited in vain for {what}"


@both_plain
def test_plain_callbacks_run_on_the_thread_that_receives(kind: Any, served: EventHub) -> None:
    asyncio.run(fill(served, 3))
    asyncio.run(fill(served, 3, partition="1"))
    client = kind.from_connection_string(served.connection_string, GROUP, **QUICK)
    seen: list[tuple[str, str, int]] = []
    closed: list[CloseReason] = []

    def on_event(context: Any, event: Any) -> None:
        seen.append((context.partition_id, event.body_as_str(), threading.get_ident()))
        context.update_checkpoint(event)
        if len(seen) == 6:
            threading.Thread(target=client.close).start()

    client.receive(on_event, starting_position="-1", on_partition_close=lambda context, reason: closed.append(reason))
    assert sorted((where, body) for where, body, _ in seen) == [(p, str(n)) for p in "01" for n in range(3)]
    assert {where for _, _, where in seen} == {threading.get_ident()}
    assert closed == [CloseReason.SHUTDOWN] * 2


@both_plain
def test_plain_batches(kind: Any, served: EventHub) -> None:
    asyncio.run(fill(served, 20))
    with kind.from_connection_string(served.connection_string, GROUP, **QUICK) as client:
        seen: list[str] = []

        def on_event_batch(context: Any, events: list[Any]) -> None:
            assert len(events) <= 7
            seen.extend(event.body_as_str() for event in events)
            context.update_checkpoint()
            if len(seen) == 20:
                client.close()

        client.receive_batch(on_event_batch, starting_position="-1", max_batch_size=7)
        assert seen == [str(number) for number in range(20)]


def test_a_slow_partition_stalls_no_other_in_parallel(served: EventHub) -> None:
    asyncio.run(fill(served, 1))
    asyncio.run(fill(served, 3, partition="1"))
    client = OURS_PLAIN.from_connection_string(served.connection_string, GROUP, parallel=True, **QUICK)
    others = threading.Event()
    seen: list[str] = []

    def on_event(context: Any, event: Any) -> None:
        if context.partition_id == "0":
            assert others.wait(PATIENCE_S), "the other partition was stalled"
            client.close()
        else:
            seen.append(event.body_as_str())
            if len(seen) == 3:
                others.set()

    client.receive(on_event, starting_position="-1")
    assert seen == ["0", "1", "2"]


# --- who ends it
PROGRAM = """
import signal, sys
from evenflow.compat.eventhub import EventHubConsumerClient

client = EventHubConsumerClient.from_connection_string(sys.argv[1], sys.argv[2], load_balancing_interval=0.3)

def on_signal(number, frame):
    if sys.argv[3] == "exits":
        sys.exit(7)
    client.close()

def on_partition_close(context, reason):
    print("closed", context.partition_id, reason.name, flush=True)

signal.signal(signal.SIGTERM, on_signal)
client.receive(
    lambda context, event: print("seen", flush=True), starting_position="-1", on_partition_close=on_partition_close
)
print("returned", flush=True)
"""


@pytest.mark.parametrize(("does", "code", "last"), [("closes", 0, ["returned"]), ("exits", 7, [])])
def test_a_signal_handler_may_close_the_client_or_exit(
    served: EventHub, tmp_path: Path, does: str, code: int, last: list[str]
) -> None:
    asyncio.run(fill(served, 1))
    (tmp_path / "program.py").write_text(PROGRAM)
    arguments = [sys.executable, str(tmp_path / "program.py"), served.connection_string, GROUP, does]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "seen\n"
            sent_s = time.monotonic()
            process.send_signal(signal.SIGTERM)
            said, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert time.monotonic() - sent_s < PROMPT_S
    assert process.returncode == code
    lines = said.splitlines()
    assert sorted(lines[:2]) == ["closed 0 SHUTDOWN", "closed 1 SHUTDOWN"]
    assert lines[2:] == last


@both_plain
def test_a_thread_receives_and_another_closes_and_it_can_receive_again(kind: Any, served: EventHub) -> None:
    asyncio.run(fill(served, 1))
    with kind.from_connection_string(served.connection_string, GROUP, **QUICK) as client:
        for _ in range(2):
            came = threading.Event()
            receiving = threading.Thread(
                target=client.receive,
                args=(lambda context, event, came=came: came.set(),),
                kwargs={"starting_position": "-1"},
            )
            receiving.start()
            wait_for(came, "an event")
            client.close()
            receiving.join(PATIENCE_S)
            assert not receiving.is_alive()


@both_plain
def test_one_client_receives_from_two_partitions_on_two_threads(kind: Any, served: EventHub) -> None:
    for partition in "01":
        asyncio.run(fill(served, 2, partition))
    client = kind.from_connection_string(served.connection_string, GROUP, **QUICK)
    seen: list[tuple[str, str, str]] = []
    enough = threading.Event()

    def on_event(context: Any, event: Any) -> None:
        seen.append((threading.current_thread().name, context.partition_id, event.body_as_str()))
        if len(seen) == 4:
            enough.set()

    threads = [
        threading.Thread(
            target=client.receive,
            name=f"of {partition}",
            args=(on_event,),
            kwargs={"partition_id": partition, "starting_position": "-1"},
        )
        for partition in "01"
    ]
    for one in threads:
        one.start()
    wait_for(enough, "all events")
    client.close()
    for one in threads:
        one.join(PATIENCE_S)
    assert sorted(seen) == [(f"of {partition}", partition, body) for partition in "01" for body in "01"]


def test_a_callback_that_outlasts_the_stop_does_not_break_it(served: EventHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop is over by the time that it returns."""
    monkeypatch.setattr(receiving, "Processor", partial(Processor, stop_s=0.3))
    asyncio.run(fill(served, 1))
    client = OURS_PLAIN.from_connection_string(served.connection_string, GROUP, **QUICK)
    outlasted: list[bool] = []

    def on_event(context: Any, event: Any) -> None:
        closing = threading.Thread(target=client.close)
        closing.start()
        closing.join(PATIENCE_S)
        outlasted.append(not closing.is_alive())

    client.receive(on_event, starting_position="-1")
    assert outlasted == [True]


class InterruptedAtOnce(SimpleQueue[Any]):
    """As Ctrl-C does it in the moment in which `receive` begins to wait."""

    is_interrupted = False

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if not self.is_interrupted:
            self.is_interrupted = True
            raise KeyboardInterrupt
        return super().get(block, timeout)


def test_ctrl_c_at_the_very_start_is_not_forgotten(served: EventHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread, "SimpleQueue", InterruptedAtOnce)
    client = OURS_PLAIN.from_connection_string(served.connection_string, GROUP, **QUICK)
    ended: list[type] = []

    def receive() -> None:
        try:
            client.receive(lambda context, event: None)
        except KeyboardInterrupt as error:
            ended.append(type(error))

    waiting = threading.Thread(target=receive, daemon=True)
    waiting.start()
    waiting.join(PATIENCE_S)
    assert ended == [KeyboardInterrupt]


# --- what callbacks raise
@either
@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_ends_a_program_ends_receive_properly(served: EventHub, raised: type, parallel: bool) -> None:
    asyncio.run(fill(served, 3))
    client = OURS_PLAIN.from_connection_string(served.connection_string, GROUP, parallel=parallel, **QUICK)
    seen: list[int] = []
    closed: list[CloseReason] = []
    errors: list[Exception] = []

    def on_event(context: Any, event: Any) -> None:
        seen.append(event.sequence_number)
        if event.sequence_number == 1:
            raise raised

    with pytest.raises(raised):
        client.receive(
            on_event,
            starting_position="-1",
            on_partition_close=lambda context, reason: closed.append(reason),
            on_error=lambda context, error: errors.append(error),
        )
    assert seen == [0, 1]
    assert closed == [CloseReason.SHUTDOWN] * 2
    assert not errors
    client.close()


@both_plain
def test_a_stop_iteration_is_an_error_like_any_other(kind: Any, served: EventHub) -> None:
    asyncio.run(fill(served, 2))
    client = kind.from_connection_string(served.connection_string, GROUP, **QUICK)
    errors: list[Exception] = []
    seen: list[int] = []

    def on_event(context: Any, event: Any) -> None:
        seen.append(event.sequence_number)
        if len(seen) == 2:
            next(iter(()))
        if len(seen) == 4:
            client.close()

    client.receive(
        on_event,
        partition_id="0",
        starting_position="-1",
        on_error=lambda context, error: errors.append(error),
    )
    assert [type(error) for error in errors] == [StopIteration]
    assert seen == [0, 1, 0, 1]


@both_plain
def test_hooks_that_fail_change_nothing(kind: Any, served: EventHub) -> None:
    asyncio.run(fill(served, 2))
    client = kind.from_connection_string(served.connection_string, GROUP, **QUICK)
    errors: list[str] = []

    def fails(*given: Any) -> None:
        raise ValueError("as asked")

    def on_event(context: Any, event: Any) -> None:
        if event.sequence_number == 1:
            client.close()

    def on_error(context: Any, error: Exception) -> None:
        errors.append(f"{context.partition_id}: {error}")
        raise error

    client.receive(
        on_event,
        partition_id="0",
        starting_position="-1",
        on_partition_initialize=fails,
        on_partition_close=fails,
        on_error=on_error,
    )
    assert errors == ["0: as asked", "0: as asked"]


# --- checkpoints
@either
def test_a_checkpoint_after_the_end_is_refused_by_its_name(served: EventHub, parallel: bool) -> None:
    asyncio.run(fill(served, 1))
    store: Any = MemoryStore()
    client = OURS_PLAIN.from_connection_string(
        served.connection_string, GROUP, checkpoint_store=store, parallel=parallel, **QUICK
    )
    kept: list[Any] = []

    def on_event(context: Any, event: Any) -> None:
        kept.append((context, event))
        client.close()

    client.receive(on_event, starting_position="-1")
    context, event = kept[0]
    with pytest.raises(OwnershipLostError, match="has ended"):
        context.update_checkpoint(event)


# --- batches that wait
@both_plain
def test_a_batch_waits_until_it_is_full(kind: Any, served: EventHub) -> None:
    client = kind.from_connection_string(served.connection_string, GROUP, **QUICK)
    opened = threading.Event()
    batches: list[list[str]] = []

    def on_event_batch(context: Any, events: list[Any]) -> None:
        batches.append([event.body_as_str() for event in events])
        if sum(map(len, batches)) == 12:
            client.close()

    def send() -> None:
        wait_for(opened, "the partition")
        for number in range(12):
            asyncio.run(fill(served, 1, start=number))
            time.sleep(0.05)

    sending = threading.Thread(target=send)
    sending.start()
    client.receive_batch(
        on_event_batch,
        partition_id="0",
        max_batch_size=6,
        max_wait_time=PATIENCE_S,
        starting_position="-1",
        on_partition_initialize=lambda context: opened.set(),
    )
    sending.join()
    assert batches == [[str(number) for number in range(6)], [str(number) for number in range(6, 12)]]


@both_plain
def test_a_batch_waits_no_longer_than_it_may(kind: Any, served: EventHub) -> None:
    """All that came in the meantime is in it; when nothing came, it is empty."""
    client = kind.from_connection_string(served.connection_string, GROUP, **QUICK)
    opened = threading.Event()
    batches: list[list[str]] = []

    def on_event_batch(context: Any, events: list[Any]) -> None:
        batches.append([event.body_as_str() for event in events])
        if len(batches[-1]) == 0 and sum(map(len, batches)) == 8:
            client.close()

    def send() -> None:
        wait_for(opened, "the partition")
        for number in range(0, 8, 2):
            asyncio.run(fill(served, 2, start=number))
            time.sleep(0.1)

    sending = threading.Thread(target=send)
    sending.start()
    client.receive_batch(
        on_event_batch,
        partition_id="0",
        max_wait_time=2.0,
        starting_position="-1",
        on_partition_initialize=lambda context: opened.set(),
    )
    sending.join()
    full = [batch for batch in batches if batch]
    assert [body for batch in full for body in batch] == [str(number) for number in range(8)]
    assert len(full) <= 2  # the sender takes a fraction of the time that a batch may wait
