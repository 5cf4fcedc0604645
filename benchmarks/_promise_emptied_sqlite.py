"""The files of a SQLite store are deleted while three instances handle 2,000 events/s: all, and progress alone."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from benchmarks._emptied import measure_emptied
from benchmarks.harness import Result

if TYPE_CHECKING:
    from benchmarks._fleet import Fleet


def measure() -> Result:
    found = measure_emptied("emptied_sqlite", None, _delete), measure_emptied("lost progress", None, _delete_progress)
    return Result([one for each in found for one in each.figures], [bar for each in found for bar in each.bars])


def _delete(fleet: Fleet) -> None:
    shutil.rmtree(fleet.folder / "store")


def _delete_progress(fleet: Fleet) -> None:
    (fleet.folder / "store" / "progress.sqlite").unlink()
