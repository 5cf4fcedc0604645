"""A group in an Azure Blob store that is deleted and made again while its owner stands still."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks._stale import measure_stale_owner
from tests.servers.azurite import Azurite

if TYPE_CHECKING:
    from benchmarks.harness import Result


def measure() -> Result:
    with tempfile.TemporaryDirectory(prefix="evenflow-azurite-") as folder:
        server = Azurite(Path(folder) / "log").start()
        try:
            return measure_stale_owner("stale_owner_blob", server.url())
        finally:
            server.stop()
