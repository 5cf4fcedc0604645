"""Every code block of README and docs runs as it stands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.documents import Block, blocks, documents, name_of

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


@pytest.mark.parametrize("document", documents(), ids=name_of)
def test_all_code_blocks_run(document: Path, tmp_path: Path) -> None:
    for block in blocks(document.read_text()):
        if block.name:
            (tmp_path / block.name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / block.name).write_text(block.text)
        elif block.is_run:
            run_block(block, tmp_path, f"{name_of(document)}:{block.line}")


def test_blocks_are_taken_apart() -> None:
    saved, left_out, timed, plain = blocks(SAMPLE)
    assert saved.note == ""
    assert (saved.name, saved.is_run, saved.text) == ("app.py", False, 'print("saved")\n')
    assert (left_out.language, left_out.is_run) == ("sh", False)
    assert (timed.is_run, timed.seconds, timed.line) == (True, 3.0, 18)
    assert (plain.language, plain.is_run) == ("text", False)


def test_a_block_that_fails_is_found(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match="here ended with 3"):
        run_block(Block("sh", "", "", "exit 3", 1), tmp_path, "here")


def run_block(block: Block, folder: Path, where: str) -> None:
    command = [sys.executable, "-c", block.text] if block.language == "python" else ["bash", "-euo", "pipefail", "-c"]
    if block.language == "sh":
        command.append(block.text)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    with subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        output = _finish(process, block.seconds)
    if process.returncode:
        pytest.fail(f"{where} ended with {process.returncode}:\n{output}")


def _finish(process: subprocess.Popen[str], seconds: float | None) -> str:
    try:
        return process.communicate(timeout=PATIENCE_S if seconds is None else seconds)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM if seconds is not None else signal.SIGKILL)
        return process.communicate(timeout=PATIENCE_S)[0]
