"""A PostgreSQL standby that lags 0.3 s is promoted under load, while partitions move: ten times, there and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks._failovers import measure_failovers
from tests.servers.postgres import Postgres

if TYPE_CHECKING:
    from benchmarks.harness import Result


class Servers:
    def __init__(self) -> None:
        self.primary = Postgres()
        self.standby = Postgres(primary=self.primary)
        self.url = self.primary.url_of_both(self.standby)

    def catch_up(self) -> None:
        self.standby.catch_up(self.primary)

    def stop_following(self) -> None:
        self.standby.stop_following()

    def promote(self) -> None:
        """A new standby follows at the place of the former primary."""
        former = self.primary
        former.stop()
        self.standby.promote()
        former.remove()
        self.primary = self.standby
        self.standby = Postgres(primary=self.primary, port=former.port)

    def remove(self) -> None:
        for server in (self.primary, self.standby):
            server.remove()


def measure() -> Result:
    servers = Servers()
    try:
        return measure_failovers("standby", servers)
    finally:
        servers.remove()
