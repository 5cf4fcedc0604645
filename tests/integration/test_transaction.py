"""Effects happen exactly once, with processes that are killed and stopped for real."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from benchmarks.transaction import Counters, tally
from tests.integration.programs import wait_for

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process


def test_counts_are_exact_whatever_is_killed() -> None:
    found = tally("transaction", 40_000, 4)
    assert (found.lost, found.twice) == (0, 0)


def test_a_process_that_is_stopped_inside_a_transaction_holds_up_no_other(tmp_path: Path) -> None:
    """The other one handles everything meanwhile, and what the first had begun does not count when it goes on."""
    with Counters(tmp_path, "transaction", sit_s=0.05) as counters:
        sent = counters.fill(8_000)
        counters.start()
        counters.start()
        wait_for(lambda: counters.handled() > 0 and len(counters.owners()) == 2, "both to own partitions")
        stopped, pid = counters.stop_inside()
        before = counters.handled()
        wait_for(lambda: counters.handled() == 8_000, "the other one to handle everything")
        assert before < 8_000
        os.kill(pid, signal.SIGCONT)
        wait_for(lambda: stopped in counters.owners(), "the first one to be back")
        assert counters.counts() == sent
