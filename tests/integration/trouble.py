"""An application to which some events are bad, and which writes down what it handled: for processes that are killed.

    python -m tests.integration.trouble FOLDER NAME       one instance
    evenflow run tests.integration.trouble:processor      with TROUBLE=FOLDER in the environment

What an event does to it is its body: `good`, `poison`, `once` (it fails the first time that anybody tries it), until
there is a file named `mended`; `kill` and `exit`, which end the process. All processes append to one log.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenflow import Every, Processor, Retry
from evenflow.cli import parent_watch

if TYPE_CHECKING:
    from collections.abc import Callable

    from evenflow import Event, OwnedPartition

TIMES = {"heartbeat_s": 0.2, "ttl_s": 1.2, "margin_s": 0.2, "refresh_s": 1.0, "stop_s": 10.0}
WORK_S = 0.004
LOG, MENDED, TRIED = "handled.log", "mended", "tried"


class Application:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = os.open(folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    async def handle(self, event: Event, partition: OwnedPartition) -> None:
        self._meet(event.body.decode(), f"{partition.id}-{event.sequence}")
        await asyncio.sleep(WORK_S)
        # One write, so that the lines of all processes stand in the order of time, and none is torn.
        os.write(self._log, f"{partition.id} {event.sequence} {event.key}\n".encode())

    def _meet(self, kind: str, name: str) -> None:
        if kind == "kill":
            self._tell(name)
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "exit":
            self._tell(name)
            os._exit(7)
        if (self._folder / MENDED).exists():
            return
        if kind == "poison":
            raise ValueError("this is poison")
        if kind == "once" and self._is_first(name):
            raise ConnectionError("it may work the next time")

    def _is_first(self, name: str) -> bool:
        try:
            os.close(os.open(self._folder / TRIED / name, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def _tell(self, name: str) -> None:
        (self._folder / f"{name}.died-{os.getpid()}").touch()


def make(folder: Path, **settings: Any) -> Processor:
    processor = Processor(
        f"hub:{folder / 'homes'}",
        f"sqlite:{folder / 'leases'}",
        "alerts",
        checkpoint=Every(seconds=0.2),
        retry=Retry(attempts=3, first_s=0.01, most_s=0.05),
        dead_letter=f"jsonl:{folder / 'dead'}",
        dead_letter_order="key",
        **(TIMES | settings),
    )
    processor.on_event(Application(folder).handle)
    return processor


def processor() -> Processor:
    return make(Path(os.environ["TROUBLE"]))


def main(arguments: list[str], make: Callable[..., Processor] = make) -> None:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    parent_watch.stop_with_parent()
    make(Path(arguments[0]), instance_id=arguments[1]).run()


if __name__ == "__main__":
    main(sys.argv[1:])
