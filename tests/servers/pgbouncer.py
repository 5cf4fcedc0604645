"""A real PgBouncer in transaction mode before a PostgreSQL: each transaction may get another server connection."""

from __future__ import annotations

import shutil
import signal
from typing import TYPE_CHECKING

import pytest

from tests.servers.processes import LOOPBACK, Folder, Program, answers, free_port, unprivileged

if TYPE_CHECKING:
    from types import TracebackType

    from tests.servers.postgres import Postgres

SETTINGS = """
[databases]
* = host={host} port={server}
[pgbouncer]
listen_addr = {host}
listen_port = {port}
unix_socket_dir =
auth_type = any
auth_file = {users}
pool_mode = transaction
default_pool_size = 3
max_client_conn = 200
server_round_robin = 1
"""


class PgBouncer:
    def __init__(self, server: Postgres) -> None:
        program = shutil.which("pgbouncer", path="/usr/sbin:/usr/bin:/usr/local/bin:/usr/local/sbin")
        if program is None:
            pytest.skip("PgBouncer is not here: install Debian's pgbouncer")
        user = unprivileged("postgres")
        self._folder = Folder("pgbouncer", user)
        self.port = free_port()
        users = self._folder.path / "users"
        users.write_text('"postgres" ""\n')
        settings = self._folder.path / "settings"
        text = SETTINGS.format(host=LOOPBACK, server=server.port, port=self.port, users=users)
        # Any client is taken for this user, whatever it says.
        settings.write_text(text.replace("* = ", "* = user=postgres "))
        self._program = Program([program, str(settings)], self._folder.path / "log", user, signal.SIGINT)
        self._program.wait_until_ready(lambda: answers(self.port))

    def __enter__(self) -> PgBouncer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._program.stop(signal.SIGTERM)
        self._folder.remove()
