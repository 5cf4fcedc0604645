"""A real S3-compatible server on loopback, which keeps what it has in its memory: moto's."""

from __future__ import annotations

import os
import signal
import sys
import urllib.request
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.servers.processes import LOOPBACK, Folder, Program, answers, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTS = Path(__file__).parents[2]
BUCKET = "leases"
KEYS = {"access_key_id": "somebody", "secret_access_key": "open-sesame"}


def skip_without_server() -> None:
    if find_spec("moto") is None or find_spec("flask_cors") is None:
        pytest.skip("moto is not here: pip install 'moto[s3]' flask flask-cors")


class Moto:
    """One server. It may be stopped and started again on the same port, and has forgotten everything then."""

    def __init__(self) -> None:
        skip_without_server()
        self._folder = Folder("moto", None)
        self.port = free_port()
        self._faults = self._folder.path / "faults"
        self._numbers = count(1)
        self._program: Program
        self.start()

    def start(self) -> None:
        environment = {**os.environ, "PYTHONPATH": str(TESTS)}
        command = [sys.executable, "-m", "tests.servers.moto_program", str(self.port), str(self._faults)]
        self._program = Program(
            ["env", "-C", str(TESTS), f"PYTHONPATH={environment['PYTHONPATH']}", *command],
            self._folder.path / "log",
        )
        self._program.wait_until_ready(lambda: answers(self.port))
        self.make_bucket(BUCKET)

    def make_bucket(self, name: str) -> None:
        self.ask("PUT", name)

    def ask(self, method: str, path: str, data: bytes | None = None) -> bytes:
        """Without a signature, which moto does not ask for."""
        request = urllib.request.Request(f"http://{LOOPBACK}:{self.port}/{path}", data, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            found: bytes = answer.read()
            return found

    def url(self, prefix: str = "evenflow", *, port: int | None = None, bucket: str = BUCKET, more: str = "") -> str:
        keys = "&".join(f"{name}={value}" for name, value in KEYS.items())
        endpoint = f"http://{LOOPBACK}:{port or self.port}"
        return f"s3://{bucket}/{prefix}?endpoint={endpoint}&region=eu-north-1&allow_http=yes&{keys}{more}"

    def puts(self) -> int:
        """How many it has let through since it began."""
        return int(self.ask("GET", "moto-puts"))

    def fresh(self) -> str:
        """A prefix that nobody has used yet."""
        return f"test{next(self._numbers)}"

    @contextmanager
    def refusing(self, status: int, code: str, share: float = 1.0) -> Iterator[None]:
        self._faults.write_text(f"{status} {code} {share}")
        try:
            yield
        finally:
            self._faults.unlink()

    @property
    def pid(self) -> int:
        return self._program.pid

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        self._program.stop(signal.SIGKILL)

    def remove(self) -> None:
        self._program.stop(signal.SIGKILL)
        self._folder.remove()


@cache
def shared() -> Moto:
    """One for the whole run of a test process."""
    return Moto()
