"""The drop-in client for plain code, on real threads: what ends a `receive`, and what comes after its end."""

from __future__ import annotations

import threading
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import pytest
from azure.eventhub import CloseReason
from azure.eventhub.exceptions import OwnershipLostError

from evenflow import Processor
from evenflow.compat.eventhub import receiving, thread
from evenflow.stores.memory import MemoryStore
from tests.unit.compat.eventhub.scene import GROUP, OURS_PLAIN, PATIENCE_S, QUICK, START

if TYPE_CHECKING:
    from tests.unit.compat.eventhub.scene import HubInMemory

either = pytest.mark.parametrize("parallel", [False, True], ids=["one by one", "parallel"])


def client_of(hub: HubInMemory, **options: Any) -> Any:
    return OURS_PLAIN.from_connection_string(hub.connection_string, GROUP, **QUICK, **options)


def test_a_slow_partition_stalls_no_other_in_parallel(hub: HubInMemory) -> None:
    hub.fill(1, "0")
    hub.fill(3, "1")
    client = client_of(hub, parallel=True)
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

    client.receive(on_event, **START)
    assert seen == ["0", "1", "2"]


@either
@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_ends_a_program_ends_receive_properly(hub: HubInMemory, raised: type, parallel: bool) -> None:
    hub.fill(3, "0", "1")
    client = client_of(hub, parallel=parallel)
    opened: list[str] = []
    seen: list[tuple[str, int]] = []
    last: dict[str, int] = {}
    closed: list[CloseReason] = []
    errors: list[Exception] = []

    def on_event(context: Any, event: Any) -> None:
        seen.append((context.partition_id, event.sequence_number))
        if len(opened) == 2:  # at the latest with the first event of the partition that was opened last
            last[context.partition_id] = event.sequence_number
            raise raised

    with pytest.raises(raised):
        client.receive(
            on_event,
            on_partition_initialize=lambda context: opened.append(context.partition_id),
            on_partition_close=lambda context, reason: closed.append(reason),
            on_error=lambda context, error: errors.append(error),
            **START,
        )
    assert last
    for partition, number in last.items():
        assert max(seen for where, seen in seen if where == partition) == number, "no event follows the one that ended"
    assert closed == [CloseReason.SHUTDOWN] * 2
    assert not errors
    client.close()


def test_a_callback_that_outlasts_the_stop_does_not_break_it(hub: HubInMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop is over by the time that it returns."""
    monkeypatch.setattr(receiving, "Processor", partial(Processor, stop_s=0.05))
    hub.fill(1)
    client = client_of(hub)
    outlasted: list[bool] = []

    def on_event(context: Any, event: Any) -> None:
        closing = threading.Thread(target=client.close)
        closing.start()
        closing.join(PATIENCE_S)
        outlasted.append(not closing.is_alive())

    client.receive(on_event, **START)
    assert outlasted == [True]


class InterruptedAtOnce(SimpleQueue[Any]):
    """As Ctrl-C does it in the moment in which `receive` begins to wait."""

    is_interrupted = False

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if not self.is_interrupted:
            self.is_interrupted = True
            raise KeyboardInterrupt
        return super().get(block, timeout)


def test_ctrl_c_at_the_very_start_is_not_forgotten(hub: HubInMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread, "SimpleQueue", InterruptedAtOnce)
    client = client_of(hub)
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


@either
def test_a_checkpoint_after_the_end_is_refused_by_its_name(hub: HubInMemory, parallel: bool) -> None:
    hub.fill(1)
    client = client_of(hub, checkpoint_store=MemoryStore(), parallel=parallel)
    kept: list[Any] = []

    def on_event(context: Any, event: Any) -> None:
        kept.append((context, event))
        client.close()

    client.receive(on_event, **START)
    context, event = kept[0]
    with pytest.raises(OwnershipLostError, match="has ended"):
        context.update_checkpoint(event)
