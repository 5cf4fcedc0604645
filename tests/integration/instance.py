"""One instance in a process of its own: `python -m tests.integration.instance ORDERS`, where ORDERS is JSON.

An ordinary processor on a hub and a store, whose handler writes down when each call begins and ends.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from evenflow import Every, Hub, Manual, Processor
from evenflow.cli import parent_watch
from tests.integration.calls import Diary, boot_s

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from evenflow import Event, OwnedPartition

SLOW = b"slow"
"""An event with this body takes as long as there is a file named `held_by(diaries, pid)`."""
SLOW_S_MAX = 60.0
HOST = 1 << 32
"""More than any process id."""


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    hub: str
    source: str | None = None
    """A URL, when the hub is read over another way than its folder."""
    store: str
    """Its URL."""
    group: str
    diaries: str
    host: int = 0
    """In the name of its diary: processes of several hosts may have the same id, and write into one folder."""
    handler: Literal["event", "batch", "plain event", "plain batch"] = "event"
    work_s: float = 0.0
    """How long each event takes, without an await."""
    checkpoint_s: float | None = 0.5
    mark_every: int = 1
    """Without checkpoint_s: the handler marks every so many events itself."""
    kafka_silent_s: float | None = None
    """So soon a broker that says nothing is told of; as always when left out."""
    settings: dict[str, Any] = {}


class Looks:
    """Remembers for each thread when the clock was last looked at: a call begins with the look before it.

    A call without a look since the one before it on this thread begins when it says so itself.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._last = threading.local()

    def __call__(self) -> float:
        self._last.at_s = now_s = self._now()
        return now_s

    def began_s(self) -> float:
        at_s: float | None = getattr(self._last, "at_s", None)
        self._last.at_s = None
        return boot_s() if at_s is None else at_s


class Application:
    def __init__(self, orders: Orders, looks: Looks) -> None:
        self._orders = orders
        self._looks = looks
        self._diary = Diary(Path(orders.diaries) / f"{diary_number(orders.host, os.getpid())}.calls")

    def handler(self) -> Callable[..., Any]:
        """Whichever way a handler may be written, it does the same."""
        if self._orders.handler == "event":
            return self.handle_event
        if self._orders.handler == "batch":
            return self.handle_batch
        return self.work if self._orders.handler == "plain batch" else self.handle_plain_event

    async def handle_event(self, event: Event, partition: OwnedPartition) -> None:
        self.work([event], partition)
        if self._is_to_be_marked(event):
            await partition.checkpoint()

    async def handle_batch(self, events: Sequence[Event], partition: OwnedPartition) -> None:
        self.work(events, partition)

    def handle_plain_event(self, event: Event, partition: OwnedPartition) -> None:
        self.work([event], partition)

    def work(self, events: Sequence[Event], partition: OwnedPartition) -> None:
        first, last = events[0].sequence, events[-1].sequence
        assert first is not None
        assert last is not None
        self._diary.write("began", partition.id, partition.epoch, (first, last), self._looks.began_s())
        for event in events:
            if event.body == SLOW:
                _wait_while(held_by(self._orders.diaries, os.getpid()))
            time.sleep(self._orders.work_s)
        self._diary.write("ended", partition.id, partition.epoch, (first, last), boot_s())

    def _is_to_be_marked(self, event: Event) -> bool:
        is_manual = self._orders.checkpoint_s is None
        return is_manual and event.sequence is not None and (event.sequence + 1) % self._orders.mark_every == 0


def diary_number(host: int, pid: int) -> int:
    return host * HOST + pid


def held_by(folder: Path | str, pid: int) -> Path:
    return Path(folder) / f"{pid}.held"


def _wait_while(path: Path) -> None:
    deadline_s = boot_s() + SLOW_S_MAX
    while path.exists() and boot_s() < deadline_s:
        time.sleep(0.01)


def _be_impatient(silent_s: float) -> None:
    from evenflow.sources.kafka import queries as kafka_queries  # for those who have that driver, and use it
    from evenflow.sources.kafka import reader as kafka_reader

    kafka_queries.ANSWER_S = kafka_reader.SILENT_S = silent_s


def make_processor(orders: Orders) -> Processor:
    if orders.kafka_silent_s is not None:
        _be_impatient(orders.kafka_silent_s)
    policy = Manual() if orders.checkpoint_s is None else Every(seconds=orders.checkpoint_s)
    source = orders.source or Hub(orders.hub)
    processor = Processor(source, orders.store, orders.group, checkpoint=policy, **orders.settings)
    looks = Looks(processor._clock.now)
    processor._clock.now = looks  # type: ignore[method-assign]
    application = Application(orders, looks)
    register = processor.on_batch if orders.handler.endswith("batch") else processor.on_event
    register(application.handler())
    return processor


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    parent_watch.stop_with_parent()
    make_processor(msgspec.json.decode(sys.argv[1], type=Orders)).run()


if __name__ == "__main__":
    main()
