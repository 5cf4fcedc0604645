"""One consumer process of the demo: an ordinary processor whose handler writes down what it was given."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from evenflow.cli import parent_watch
from evenflow.cli.demo.accounts import Account
from evenflow.runtime.processor import Processor
from evenflow.signals import Fenced, PartitionStopped
from evenflow.stores.sqlite.store import SQLiteStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.model import Event
    from evenflow.runtime.partition import OwnedPartition
    from evenflow.signals import Signal

GROUP = "demo"


def hub_path(folder: Path) -> Path:
    return folder / "homes"


def store_path(folder: Path) -> Path:
    return folder / "leases"


def make_processor(folder: Path, name: str) -> Processor:
    processor = Processor(f"hub:{hub_path(folder)}", SQLiteStore(store_path(folder)), GROUP, instance_id=name)
    account = Account(folder, name)

    @processor.on_batch
    async def handle(events: Sequence[Event], partition: OwnedPartition) -> None:
        sequences = [event.sequence for event in events if event.sequence is not None]
        account.handled(partition.id, partition.epoch, sequences)

    @processor.on_partition_start
    def start(partition: OwnedPartition) -> None:
        account.began(partition)

    @processor.listen
    def note(signal: Signal) -> None:
        if isinstance(signal, PartitionStopped):
            account.ended(signal.partition, signal.epoch, signal.reason)
        elif isinstance(signal, Fenced):
            account.ended(signal.partition, signal.epoch, "fenced")

    return processor


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    parent_watch.stop_with_parent()
    make_processor(Path(sys.argv[1]), sys.argv[2]).run()


if __name__ == "__main__":
    main()
