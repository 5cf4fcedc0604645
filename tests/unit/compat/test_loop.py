"""The thread behind checkpoint stores of plain code."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from evenflow import Misconfigured, StoreUnavailable
from evenflow.compat.checkpointstore import EvenflowCheckpointStore
from evenflow.stores.memory import MemoryStore
from tests.unit.compat.officials import NAMES, checkpoint, entry

if TYPE_CHECKING:
    from pathlib import Path

    from evenflow.model import Group, Ledger

NAME = "evenflow-checkpointstore"


def threads() -> int:
    return sum(thread.name == NAME for thread in threading.enumerate())


def test_there_is_one_thread_for_all_and_it_ends_with_the_last() -> None:
    first, second = EvenflowCheckpointStore("memory:loop"), EvenflowCheckpointStore("memory:loop")
    assert threads() == 0, "nothing is started before it is needed"
    with first, second:
        first.claim_ownership([entry("0", "a")])
        assert second.claim_ownership([entry("0", "b")]) == []
        assert threads() == 1
        second.close()
        second.close()
        assert threads() == 1
        assert [found["owner_id"] for found in first.list_ownership(*NAMES.values())] == ["a"]
    assert threads() == 0


def test_it_may_be_used_again_after_it_was_closed(tmp_path: Path) -> None:
    store = EvenflowCheckpointStore(f"sqlite:{tmp_path / 'store'}")
    for sequence in range(2):
        with store:
            store.update_checkpoint(checkpoint("0", sequence))
            (found,) = store.list_checkpoints(*NAMES.values())
            assert found == checkpoint("0", sequence)
    assert threads() == 0


def test_many_threads_may_ask_at_once() -> None:
    with EvenflowCheckpointStore(MemoryStore()) as store, ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(store.claim_ownership, [entry(str(number), "a")]) for number in range(40)]
        assert [len(list(one.result())) for one in asked] == [1] * 40
        list(pool.map(lambda number: store.update_checkpoint(checkpoint(str(number % 4), number)), range(40)))
        assert len(list(store.list_checkpoints(*NAMES.values()))) == 4


def test_errors_are_raised_in_the_caller() -> None:
    class Away(MemoryStore):
        async def peek(self, group: Group) -> Ledger | None:
            raise StoreUnavailable("away")

    with EvenflowCheckpointStore(Away()) as store, pytest.raises(StoreUnavailable, match="away"):
        store.list_ownership(*NAMES.values())


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_use_after_a_fork_is_an_error_and_does_not_block() -> None:
    with EvenflowCheckpointStore(MemoryStore()) as store:
        store.list_ownership(*NAMES.values())
        child = os.fork()
        if not child:
            try:
                store.list_ownership(*NAMES.values())
            except Misconfigured:
                os._exit(7)
            os._exit(1)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
