"""`evenflow run` with real workers, killed for real."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest

from evenflow.embedded.hub import Hub
from evenflow.model import Group
from evenflow.operate.inspect.members import member_rows
from evenflow.stores.sqlite.store import SQLiteStore
from tests.integration.programs import PATIENCE_S, end, evenflow, next_line, started, wait_for
from tests.servers.processes import free_port
from tests.unit.cli.command import answer, facts

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

    from evenflow.model import Ledger

pytestmark = pytest.mark.process

APP = """
import os
import signal
import threading

from evenflow.model import Position
from evenflow.runtime.processor import Processor

def processor(**settings):
    ttl_s = float(os.environ.get("TTL_S", 15))
    made = Processor("hub:homes", "sqlite:leases", "alerts", heartbeat_s=0.2, ttl_s=ttl_s, margin_s=0.2, **settings)

    @made.on_event
    async def handle(event, partition):
        print(event.body.decode(), flush=True)

    return made

def fixed():
    return processor(instance_id="one")

def outside():
    return processor(start=Position("99", 99))

class Stubborn(Processor):
    def run(self, until=None):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("ready", flush=True)
        threading.Event().wait()

stubborn = Stubborn("hub:homes", "sqlite:leases", "alerts")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return application(tmp_path)


@pytest.fixture
def workers(folder: Path) -> Iterator[subprocess.Popen[str]]:
    with two_workers(folder) as run:
        yield run


@contextmanager
def two_workers(folder: Path, ttl_s: float = 15.0) -> Iterator[subprocess.Popen[str]]:
    """So long that no busy machine makes them silent, where nobody is to be taken over."""
    with started("run", "app:processor", "--workers", "2", folder=folder, TTL_S=str(ttl_s)) as run:
        wait_for(lambda: sorted(pids(folder).values()) == [2, 2], "two workers with two partitions each")
        yield run


def application(folder: Path) -> Path:
    (folder / "app.py").write_text(APP)
    with Hub.create(folder / "homes", 4) as hub:
        asyncio.run(hub.send(["hello", "world"]))
    return folder


def pids(folder: Path) -> dict[int, int]:
    """The members' process ids, with how many partitions each owns."""
    return {member.pid: member.partitions for member in member_rows(asyncio.run(peek(folder)))}


async def peek(folder: Path) -> Ledger | None:
    store = SQLiteStore(folder / "leases")
    try:
        return await store.peek(Group("local", "homes", "alerts"))
    finally:
        await store.aclose()


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_worker_that_dies_is_started_again_and_all_end_together(folder: Path) -> None:
    with two_workers(folder, ttl_s=1.5) as workers:
        killed, other = pids(folder)
        os.kill(killed, signal.SIGKILL)
        wait_for(
            lambda: [pid for pid, owned in pids(folder).items() if pid not in (killed, other) and owned == 2],
            "a new worker with its share",
        )
        last = pids(folder)
        code, out, err = end(workers)
    assert code == 0, err
    assert set(out.split()) == {"hello", "world"}  # again, where the kill came before the checkpoint
    assert "died (SIGKILL); restarting in 1 s" in err
    assert {line.partition(" | ")[0] for line in err.splitlines()} == {"worker-1", "worker-2", "run"}
    assert all(re.match(r"[\w-]+ \| \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ", line) for line in err.splitlines())
    assert not any(is_running(pid) for pid in last)


def test_who_can_tell_nobody_any_more_goes_on_and_ends_when_asked(folder: Path) -> None:
    """As behind a pipe whose reader has ended: a worker that dies is started again, and SIGTERM is heard."""
    with two_workers(folder, ttl_s=1.5) as workers:
        assert workers.stderr is not None
        workers.stderr.close()
        before = list(pids(folder))
        os.kill(before[0], signal.SIGKILL)
        wait_for(
            lambda: [pid for pid, owned in pids(folder).items() if pid not in before and owned == 2],
            "a new worker with its share",
        )
        last = pids(folder)
        workers.terminate()
        assert workers.wait(PATIENCE_S) == 0
    assert not any(is_running(pid) for pid in [*last, *before])
    assert not any(pids(folder).values()), "those that could have handed over what they had"


def test_ctrl_c_ends_the_workers_too(workers: subprocess.Popen[str], folder: Path) -> None:
    before = pids(folder)
    code, _, err = end(workers, signal.SIGINT)
    assert (code, "Traceback" in err) == (0, False)
    assert not any(is_running(pid) for pid in before)
    assert pids(folder) == {}


def test_workers_do_not_outlive_a_supervisor_that_was_killed(workers: subprocess.Popen[str], folder: Path) -> None:
    before = pids(folder)
    workers.kill()
    wait_for(lambda: not any(is_running(pid) for pid in before), "the workers' end")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("app:fixed", "error: 2 workers cannot share instance_id='one'"),
        ("app:outside", "error: Position 99 is beyond the end of homes/partitions/0000"),
    ],
)
def test_what_no_restart_can_mend_ends_the_run(folder: Path, target: str, message: str) -> None:
    done = evenflow("run", target, "--workers", "2", folder=folder)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(message)
    assert done.stderr.count(message) == 1, "once, and not by every worker too"
    assert "again in" not in done.stderr


@pytest.mark.parametrize(("deadline", "signals"), [("0.5", 1), ("60", 2)])
def test_who_does_not_stop_is_killed_at_the_deadline_or_when_asked_twice(
    folder: Path, deadline: str, signals: int
) -> None:
    with started("run", "app:stubborn", "--deadline", deadline, folder=folder) as run:
        assert next_line(run) == "ready\n"
        for _ in range(signals - 1):
            run.send_signal(signal.SIGINT)
            assert run.stderr is not None
            wait_for(lambda: "stopping workers" in run.stderr.readline(), "it to have heard")  # type: ignore[union-attr]
        code, _, err = end(run, signal.SIGINT)
    assert code == 1
    assert err.splitlines()[-1].startswith("error: 1 worker did not stop in time and had to be killed")


def health(port: int, path: str) -> tuple[int, str]:
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode().strip()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode().strip()
    except URLError:
        return 0, "nobody there"


def test_a_platform_can_ask_whether_it_is_well(folder: Path) -> None:
    """Ready when all have joined; alive also while the store is away, and not when a worker is stuck."""
    port = free_port()
    with started("run", "app:processor", "--workers", "2", "--health", str(port), folder=folder) as run:
        wait_for(lambda: health(port, "/ready") == (200, "ok"), "it to be ready")
        assert len(pids(folder)) == 2
        assert health(port, "/live") == (200, "ok")
        assert health(port, "/other") == (404, "use /live or /ready")
        for member in pids(folder):
            os.kill(member, signal.SIGKILL)
        assert wait_for(lambda: health(port, "/ready")[0] == 503, "it to notice")
        wait_for(lambda: health(port, "/ready") == (200, "ok"), "both to be back")
        code, _, err = end(run)
    assert (code, "Traceback" in err) == (0, False)


def test_a_worker_that_was_retired_is_not_waited_for(folder: Path) -> None:
    """The port is a free one that the run picks and logs."""
    with started("run", "app:processor", "--workers", "2", "--health", "0", folder=folder) as run:
        assert run.stderr is not None
        line = run.stderr.readline()
        port = int(line.rstrip().rpartition(":")[2])
        assert f"health endpoints /live and /ready at 127.0.0.1:{port}" in line
        wait_for(lambda: health(port, "/ready") == (200, "ok"), "it to be ready")
        retired = min(
            row["id"]
            for row in facts("status", "--store", "sqlite:leases", "--group", "alerts", folder=folder)["members"]
        )
        answer("retire", retired, "--store", "sqlite:leases", "--group", "alerts", "--yes", folder=folder)
        wait_for(lambda: "exited normally" in run.stderr.readline(), "it to have ended")  # type: ignore[union-attr]
        assert (health(port, "/ready"), health(port, "/live")) == ((200, "ok"), (200, "ok"))
        assert len(pids(folder)) == 1
        code, _, _ = end(run)
    assert code == 0


def test_who_waits_for_a_store_is_alive_and_not_ready(folder: Path) -> None:
    port, nobody = free_port(), free_port()
    (folder / "away.py").write_text(f"""
from evenflow.runtime.processor import Processor
processor = Processor("hub:homes", "redis://127.0.0.1:{nobody}/0", "alerts")
processor.on_event(lambda event, partition: None)
""")
    with started("run", "away:processor", "--health", f"127.0.0.1:{port}", folder=folder) as run:
        assert run.stderr is not None
        wait_for(lambda: "StoreUnavailable" in run.stderr.readline(), "trouble to be told")  # type: ignore[union-attr]
        assert health(port, "/live") == (200, "ok")
        assert health(port, "/ready") == (503, "not joined: worker-1")
        code, _, _ = end(run)
    assert code == 0
