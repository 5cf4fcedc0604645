"""Every code block of README and docs runs as it stands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING

import pytest

from tests.docs.documents import OTHER_NUMBERS, Block, blocks, documents, name_of, with_other_ports
from tests.servers.processes import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE_S = 60.0

SAMPLE = """
# A title

<!-- a comment -->
Some words.

```python app.py
print("saved")
```

<!-- not run: it would never end -->
```sh
sleep inf
```

<!-- run for 3 s -->

```python
import app
```

```text
no code
```
"""


WAITS_FOR_SIGTERM = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
open("ready", "w").close()
signal.sigwait([signal.SIGTERM])
"""


@pytest.mark.parametrize("document", documents(), ids=name_of)
def test_all_code_blocks_run(document: Path, tmp_path: Path) -> None:
    run_document(with_other_ports(blocks(document.read_text()), free_port), tmp_path, name_of(document))


def test_blocks_are_taken_apart() -> None:
    saved, left_out, timed, plain = blocks(SAMPLE)
    assert saved.note == ""
    assert (saved.name, saved.is_run, saved.text) == ("app.py", False, 'print("saved")\n')
    assert (left_out.language, left_out.is_run) == ("sh", False)
    assert (timed.is_run, timed.seconds, timed.line) == (True, 3.0, 18)
    assert (plain.language, plain.is_run) == ("text", False)


def test_ports_are_other_ones_wherever_they_are_named() -> None:
    found = [
        Block("sh", "", "run in the background", "serve --port 5673 --size 15673\n", 1),
        Block("python", "", "wait until: curl localhost:5673", "ask('localhost:5673', 9092)", 2),
        Block("text", "", "it prints", "served at localhost:5673/x\n", 3),
    ]
    assert [(block.note, block.text) for block in with_other_ports(found, lambda: 40_001)] == [
        ("run in the background", "serve --port 40001 --size 15673\n"),
        ("wait until: curl localhost:40001", "ask('localhost:40001', 9092)"),
        ("it prints", "served at localhost:40001/x\n"),
    ]
    assert with_other_ports(found[1:], lambda: 40_001) == found[1:]


def test_a_block_that_fails_is_found(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match="here ended with 3"):
        run_block(Block("sh", "", "", "exit 3", 1), tmp_path, "here")


def test_what_is_printed_is_compared(tmp_path: Path) -> None:
    program, right, wrong = (
        Block("sh", "", "", "seq 4; echo 12 apples", 1),
        Block("text", "", "it prints", "1\n...\n4\n... apples\n", 2),
        Block("text", "", "it prints", "1\n...\n4\n", 3),
    )
    run_document([program, right], tmp_path, "here")
    with pytest.raises(pytest.fail.Exception, match="here:3"):
        run_document([program, wrong], tmp_path, "here")


@pytest.mark.parametrize(
    ("printed", "same"),
    [
        ("one    12  1.5s  2027-02-03T04:05:06Z\n", True),
        ("one  1,234  10s  2027-02-03T04:05:06Z\n", True),
        ("two    12  1.5s  2027-02-03T04:05:06Z\n", False),
        ("one    -1  1.5s  2027-02-03T04:05:06Z\n", True),
        ("one     -  1.5s  2027-02-03T04:05:06Z\n", False),
    ],
)
def test_numbers_may_differ_where_the_document_says_so(printed: str, same: bool) -> None:
    expected = Block("text", "", OTHER_NUMBERS, "one 3 0.1s 2026-01-01T00:00:00Z\n", 1)
    assert expected.is_in(printed) == same


def test_a_block_waits_for_its_condition(tmp_path: Path) -> None:
    slow = Block("sh", "", "run in the background", "sleep 0.3; echo yes > ready; exec sleep 0", 1)
    after = Block("sh", "", "wait until: test -e ready", "cat ready", 2)
    run_document([slow, after, Block("text", "", "it prints", "yes\n", 3)], tmp_path, "here")


def test_what_runs_in_the_background_ends_with_the_document(tmp_path: Path) -> None:
    well = Block("python", "", "run in the background", WAITS_FOR_SIGTERM, 1)
    badly = Block("sh", "", "run in the background", "touch ready; exec sleep inf", 2)
    ready = Block("sh", "", "", "until test -e ready; do sleep 0.01; done; rm ready", 3)
    run_document([well, ready], tmp_path, "here")
    with pytest.raises(pytest.fail.Exception, match="here:2 ended with -15"):
        run_document([badly, ready], tmp_path, "here")


def run_document(found: list[Block], folder: Path, name: str) -> None:
    output = ""
    with ExitStack() as ends:
        for block in found:
            where = f"{name}:{block.line}"
            if block.name:
                (folder / block.name).parent.mkdir(parents=True, exist_ok=True)
                (folder / block.name).write_text(block.text)
            elif block.is_background:
                ends.enter_context(in_background(block, folder, where))
            elif block.is_run:
                if block.condition is not None:
                    wait_until(block.condition, folder, where)
                output = run_block(block, folder, where)
            elif block.is_expected and not block.is_in(output):
                pytest.fail(f"{where} is not what was printed:\n{output}")


def wait_until(condition: str, folder: Path, where: str) -> None:
    # A look is mostly a program of its own, which takes longer to start than what it waits for.
    loop = f"for attempt in $(seq {PATIENCE_S:.0f}); do if {condition}; then exit 0; fi; sleep 0.7; done; exit 1"
    run_block(Block("sh", "", "", loop, 0), folder, f"{where}, waiting until {condition},")


def run_block(block: Block, folder: Path, where: str) -> str:
    with start_block(block, folder, subprocess.PIPE) as process:
        output = _finish(process, block.seconds)
    if process.returncode:
        pytest.fail(f"{where} ended with {process.returncode}:\n{output}")
    return output


@contextmanager
def in_background(block: Block, folder: Path, where: str) -> Iterator[None]:
    """What has ended before the document does was ended by the document itself."""
    with TemporaryFile("w+") as output, start_block(block, folder, output) as process:
        try:
            yield
            was_there = _signal(process, signal.SIGTERM)
            process.wait(PATIENCE_S)
        finally:
            _signal(process, signal.SIGKILL)
        # uvicorn shuts down in good order, and then lets the signal end it.
        well = (0, -signal.SIGTERM) if block.text.startswith("uvicorn ") else (0,)
        if was_there and process.returncode not in well:
            output.seek(0)
            pytest.fail(f"{where} ended with {process.returncode}:\n{output.read()}")


def start_block(block: Block, folder: Path, output: IO[str] | int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", block.text] if block.language == "python" else ["bash", "-euo", "pipefail", "-c"]
    if block.language == "sh":
        command.append(block.text)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "PATH": path},
        stdout=output,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def _signal(process: subprocess.Popen[str], number: signal.Signals) -> bool:
    """Send it to the block and all that it started; False when it has ended already."""
    if process.poll() is not None:
        return False
    os.killpg(process.pid, number)
    return True


def _finish(process: subprocess.Popen[str], seconds: float | None) -> str:
    try:
        return process.communicate(timeout=PATIENCE_S if seconds is None else seconds)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM if seconds is not None else signal.SIGKILL)
        return process.communicate(timeout=PATIENCE_S)[0]
