"""Hosts of Java's own change feed processor, each in a process: tests/java/ChangeFeedHost.java, compiled once a run.

It is made of the artifacts that tests/java/pom.xml names, which `make test` fetches.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from functools import cache
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.servers.processes import PATIENCE_S, Folder, Program, Server

if TYPE_CHECKING:
    from evenflow.testing.cosmos import Cosmos

PLACE = Path(__file__).parents[1] / "java"
LIBS = PLACE / "libs"
QUICK = ("-Xms48m", "-Xmx192m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-Xshare:auto")
"""For a quick start and little memory; not for speed."""
PLAIN_HTTP = "-DCOSMOS.HTTP_CONNECTION_WITHOUT_TLS_ALLOWED=true"
QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"
"""It takes every 404 for an error to print, and asks for documents that are not there."""
_numbers = count()


def skip_without_java() -> None:
    if shutil.which("javac") is None:
        pytest.skip("hosts of Java cannot run here: there is no JDK; install Debian's default-jdk-headless")
    if not list(LIBS.glob("azure-cosmos-*.jar")):
        pytest.skip("Java's client of Cosmos DB is not here: install Maven and run `make test`, which fetches it")


@cache
def _compiled() -> Path:
    folder = Folder("java", None).path
    program = str(PLACE / "ChangeFeedHost.java")
    subprocess.run(["javac", "-cp", f"{LIBS}/*", "-d", str(folder), program], check=True, timeout=4 * PATIENCE_S)
    return folder


class JavaHost(Server):
    """One host. What it was given is in its log, a line each."""

    def __init__(self, server: Cosmos, name: str, prefix: str, way: str, expiry_s: float) -> None:
        """`way` is "changes", "latest" or "all"; the container is shop/orders, and its leases are in shop/leases."""
        self.name = name
        classes = _compiled()
        self._log = classes / f"{name}-{next(_numbers)}.log"
        told = [server.url, server.key, "shop", name, prefix, way, str(expiry_s)]
        java = ["java", *QUICK, PLAIN_HTTP, QUIET, "-cp", f"{LIBS}/*:{classes}"]
        self._program = Program([*java, "ChangeFeedHost", *told], self._log)

    def __enter__(self) -> JavaHost:
        return self

    def __exit__(self, *why: object) -> None:
        self.kill()

    @property
    def lines(self) -> list[dict[str, Any]]:
        """But for one that is just being written, and what is no JSON."""
        whole = self._log.read_text().rpartition("\n")[0].splitlines()
        return [json.loads(line) for line in whole if line.startswith("{")]

    @property
    def handled(self) -> list[str]:
        return [line["id"] for line in self.lines if "id" in line]

    @property
    def is_ready(self) -> bool:
        if self._program is not None and not self._program.is_running:
            raise RuntimeError(f"the host {self.name} ended:\n{self._log.read_text()[-3000:]}")
        return any("ready" in line for line in self.lines)
