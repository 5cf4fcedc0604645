"""Changes of an embedded container, for the benchmark of change feeds: all of them read by a bare loop."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from evenflow.embedded.container import Container

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evenflow.embedded.container.feed import Mode

RANGES = 4


class Feed(NamedTuple):
    """A container with so many changes, of about 200 bytes each."""

    container: Container
    changes: int
    mode: Mode

    @property
    def monitored(self) -> str:
        return f"container:{self.container.path}?mode={self.mode}"

    def bare(self, max_items: int) -> float:
        """A loop over `Container.feed`, a range after the other, that looks at every document; changes a second."""
        started_s, seen = perf_counter(), 0
        for one in self.container.ranges():
            after, is_last = 0, False
            while not is_last:
                page = self.container.feed(one.id, after, mode=self.mode, max_items=max_items)
                seen += len([(change.document, change.previous_document) for change in page.changes])
                after, is_last = page.after, page.is_last
        taken_s = perf_counter() - started_s
        assert seen == self.changes
        return self.changes / taken_s


def fill(container: Container, changes: int) -> None:
    for first in range(0, changes, 1_000):
        numbers = range(first, min(first + 1_000, changes))
        container.upsert_many(
            {"id": f"o-{n}", "customer": f"customer-{n % 1000}", "note": "x" * 60, "total": n % 500} for n in numbers
        )


@contextmanager
def fed(changes: int, mode: Mode = "latest") -> Iterator[Feed]:
    with (
        tempfile.TemporaryDirectory() as folder,
        Container.create(Path(folder) / "orders", "/customer", RANGES, retention_s=None) as container,
    ):
        fill(container, changes)
        yield Feed(container, changes, mode)
