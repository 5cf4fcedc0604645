"""Real instances on a feed of all versions, in processes of their own, and what they handled."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

from tests.integration.programs import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path


class Line(NamedTuple):
    at_s: float
    partition: str
    key: int
    version: int


class Worker:
    def __init__(self, folder: Path, name: str, source: str) -> None:
        self._diary, self._log = folder / f"{name}.diary", folder / f"{name}.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.integration.feed_worker",
                    source,
                    f"sqlite:{folder}/leases",
                    self._diary,
                ],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )

    @property
    def lines(self) -> list[Line]:
        """All that it handled. Of one that was killed the last may be cut."""
        text = self._diary.read_text() if self._diary.exists() else ""
        found = (line.split() for line in text[: text.rfind("\n") + 1].splitlines())
        return [Line(float(at), partition, int(key), int(version)) for at, partition, key, version in found]

    def close(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)
        if self.process.stdin is not None:
            self.process.stdin.close()
        print(self._log.read_text())


def out_of_order(lines: list[Line]) -> list[Line]:
    """The versions of a row follow each other; what was handled since a checkpoint may come again, from there on."""
    last: dict[int, int] = {}
    wrong = []
    for line in lines:
        if line.version > last.get(line.key, -1) + 1:
            wrong.append(line)
        last[line.key] = line.version
    return wrong
