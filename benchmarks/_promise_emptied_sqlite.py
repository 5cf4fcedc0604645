"""The files of a SQLite store are deleted while three instances handle 2,000 events/s."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from benchmarks._emptied import measure_emptied

if TYPE_CHECKING:
    from benchmarks._fleet import Fleet
    from benchmarks.harness import Result


def measure() -> Result:
    return measure_emptied("emptied_sqlite", None, _delete)


def _delete(fleet: Fleet) -> None:
    shutil.rmtree(fleet.folder / "store")
