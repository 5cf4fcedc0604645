"""A PostgreSQL group that is deleted and made again while its owner stands still."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks._stale import measure_stale_owner
from tests.servers.postgres import Postgres

if TYPE_CHECKING:
    from benchmarks.harness import Result


def measure() -> Result:
    server = Postgres()
    try:
        return measure_stale_owner("stale_owner_postgresql", server.url())
    finally:
        server.remove()
