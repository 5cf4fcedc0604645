"""A group in a store of S3 objects that is deleted and made again while its owner stands still."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks._stale import measure_stale_owner
from tests.servers import moto

if TYPE_CHECKING:
    from benchmarks.harness import Result


def measure() -> Result:
    server = moto.shared()
    return measure_stale_owner("stale_owner_s3", server.url(server.fresh()))
