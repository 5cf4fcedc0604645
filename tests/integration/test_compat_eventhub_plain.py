"""The drop-in client for plain code beside the official one: threads, signals, callbacks that fail, batches."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from azure.eventhub import CloseReason

from tests.integration.compat_scene import both_plain, fill, served
from tests.integration.programs import PATIENCE_S as PROCESS_PATIENCE_S
from tests.unit.compat.eventhub.scene import GROUP, PATIENCE_S, QUICK, START

if TYPE_CHECKING:
    from pathlib import Path

    from evenflow.testing import EventHub

__all__ = ["served"]


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

    client.receive(on_event, **START, on_partition_close=lambda context, reason: closed.append(reason))
    assert sorted((where, body) for where, body, _ in seen) == [(p, str(n)) for p in "01" for n in range(3)]
    assert {where for _, _, where in seen} == {threading.get_ident()}
    assert closed == [CloseReason.SHUTDOWN] * 2


# --- who ends it
PROGRAM = """
import signal, sys
from evenflow.compat.eventhub import EventHubConsumerClient

client = EventHubConsumerClient.from_connection_string(sys.argv[1], sys.argv[2], load_balancing_interval=0.3)
steps = []

def on_signal(number, frame):
    if sys.argv[3] == "exits":
        sys.exit(7)
    client.close()

def step(*given):
    steps.append(given)
    if len(steps) == 3:
        print("two partitions and an event", flush=True)

def on_partition_close(context, reason):
    print("closed", context.partition_id, reason.name, flush=True)

signal.signal(signal.SIGTERM, on_signal)
client.receive(step, starting_position="-1", on_partition_initialize=step, on_partition_close=on_partition_close)
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
            assert process.stdout.readline() == "two partitions and an event\n"
            process.send_signal(signal.SIGTERM)
            said, _ = process.communicate(timeout=PROCESS_PATIENCE_S)
        finally:
            process.kill()
    assert process.returncode == code
    lines = said.splitlines()
    assert sorted(lines[:2]) == ["closed 0 SHUTDOWN", "closed 1 SHUTDOWN"]
    assert lines[2:] == last


@both_plain
def test_a_client_receives_on_two_threads_and_again_after_another_has_closed_it(kind: Any, served: EventHub) -> None:
    for partition in "01":
        asyncio.run(fill(served, 2, partition))
    with kind.from_connection_string(served.connection_string, GROUP, **QUICK) as client:
        for _ in range(2):
            assert _received_on_two_threads(client) == [
                (f"of {partition}", partition, body) for partition in "01" for body in "01"
            ]


def _received_on_two_threads(client: Any) -> list[tuple[str, str, str]]:
    """On which thread, from which partition, what."""
    seen: list[tuple[str, str, str]] = []
    enough = threading.Event()

    def on_event(context: Any, event: Any) -> None:
        seen.append((threading.current_thread().name, context.partition_id, event.body_as_str()))
        if len(seen) == 4:
            enough.set()

    threads = [
        threading.Thread(
            target=client.receive, name=f"of {one}", args=(on_event,), kwargs={**START, "partition_id": one}
        )
        for one in "01"
    ]
    for one in threads:
        one.start()
    wait_for(enough, "all events")
    client.close()
    for one in threads:
        one.join(PATIENCE_S)
        assert not one.is_alive()
    return sorted(seen)


# --- what callbacks raise
@both_plain
def test_a_stop_iteration_is_an_error_like_any_other_and_hooks_that_fail_change_nothing(
    kind: Any, served: EventHub
) -> None:
    asyncio.run(fill(served, 2))
    client = kind.from_connection_string(served.connection_string, GROUP, **QUICK)
    errors: list[str] = []
    seen: list[int] = []

    def fails(*given: Any) -> None:
        raise ValueError("as asked")

    def on_event(context: Any, event: Any) -> None:
        seen.append(event.sequence_number)
        if len(seen) == 2:
            next(iter(()))
        if len(seen) == 4:
            client.close()

    def on_error(context: Any, error: Exception) -> None:
        errors.append(f"{context.partition_id}: {type(error).__name__}")
        raise error

    client.receive(
        on_event,
        partition_id="0",
        on_partition_initialize=fails,
        on_partition_close=fails,
        on_error=on_error,
        **START,
    )
    assert seen == [0, 1, 0, 1]
    assert errors == ["0: ValueError", "0: StopIteration", "0: ValueError", "0: ValueError", "0: ValueError"]


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

    sending = threading.Thread(target=send)
    sending.start()
    client.receive_batch(
        on_event_batch,
        partition_id="0",
        max_batch_size=6,
        max_wait_time=PATIENCE_S,
        on_partition_initialize=lambda context: opened.set(),
        **START,
    )
    sending.join()
    assert batches == [[str(number) for number in range(6)], [str(number) for number in range(6, 12)]]


@both_plain
def test_a_batch_waits_no_longer_than_it_may_and_is_empty_when_nothing_came(kind: Any, served: EventHub) -> None:
    """What comes while it waits is in it: see test_interfaces_on_top."""
    asyncio.run(fill(served, 20))
    client = kind.from_connection_string(served.connection_string, GROUP, **QUICK)
    batches: list[list[str]] = []

    def on_event_batch(context: Any, events: list[Any]) -> None:
        batches.append([event.body_as_str() for event in events])
        if events:
            context.update_checkpoint()
        elif len(batches) > 3:
            client.close()

    client.receive_batch(on_event_batch, partition_id="0", max_batch_size=7, max_wait_time=2.0, **START)
    full = [batch for batch in batches if batch]
    assert [body for batch in full for body in batch] == [str(number) for number in range(20)]
    assert max(map(len, full)) == 7
    assert batches[-1] == []
