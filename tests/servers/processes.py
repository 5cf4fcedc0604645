"""What every real server of the tests needs: a free port, a start, a sign that it is ready, and an end for sure.

A server is stopped by its process id: when its test or the whole run ends, and by the kernel when the run is killed.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.leaks import lasting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

PATIENCE_S = 90.0
LOOPBACK = "127.0.0.1"
PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


class Place(NamedTuple):
    """Where a server runs: at which address, and which thread starts it.

    The kernel means the thread that started a process when it speaks of its parent: so it must be one that stays.
    """

    address: str
    starter: Executor


HERE = Place(LOOPBACK, ThreadPoolExecutor(1, "starter"))
with lasting():  # a test may be the first to import this module
    HERE.starter.submit(int).result()

_CHANCE = SystemRandom()  # tests seed the other one, each process alike
_GIVEN: set[int] = set()


def free_port() -> int:
    """One that nobody has, and that nobody is given by chance until the server is there: below those from which the
    system takes ports for whoever connects. (A Redis of a cluster takes the one 10,000 above it as well.)"""
    while True:
        port = _CHANCE.randrange(10_000, 20_000)
        if port not in _GIVEN and _is_free(port) and _is_free(port + 10_000):
            _GIVEN.add(port)
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def answers(port: int) -> bool:
    """Whether somebody listens there."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=1.0):
            return True
    except OSError:
        return False


def wait_until(look: Callable[[], bool], what: str, within_s: float = PATIENCE_S) -> None:
    deadline_s = time.monotonic() + within_s
    while not look():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"waited {within_s:.0f} s in vain for {what}")
        time.sleep(0.02)


def unprivileged(*names: str) -> str | None:
    """Who runs a server that refuses to run as root: the first of these users that exists; None when not root."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in (*names, "nobody") if name in known)


def as_user(user: str | None) -> dict[str, Any]:
    """Arguments for subprocess."""
    if user is None:
        return {}
    return {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path]:
    """A new folder that is a file system of its own, of this size, such as 4m. Who has it open is not waited for."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small disk takes root")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(path: Path) -> None:
    """Until there is no room left."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


class Folder:
    """A temporary folder that this user may enter, whoever's the tests' own folder is; gone at the end of the run."""

    def __init__(self, name: str, user: str | None) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=f"evenflow-{name}-"))
        if user is not None:
            os.chown(self.path, pwd.getpwnam(user).pw_uid, -1)
        atexit.register(self.remove)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        atexit.unregister(self.remove)


class Program:
    """One server process. What it says goes to a file."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        user: str | None = None,
        farewell: signal.Signals = signal.SIGTERM,
        *,
        place: Place = HERE,
    ) -> None:
        """`farewell` is the signal that ends it well."""
        self._log = log
        self._farewell = farewell
        with log.open("ab") as out:
            start = partial(
                subprocess.Popen[bytes],
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd="/",
                preexec_fn=partial(_LIBC.prctl, PR_SET_PDEATHSIG, farewell),
                **as_user(user),
            )
            self.process = place.starter.submit(start).result(PATIENCE_S)
        self.pid = self.process.pid
        atexit.register(self.stop)

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def wait_until_ready(self, is_ready: Callable[[], bool]) -> None:
        def look() -> bool:
            if not self.is_running:
                raise RuntimeError(f"it ended with {self.process.returncode}:\n{self.log[-2000:]}")
            return is_ready()

        wait_until(look, f"{self.process.args!r} to be ready")

    def stop(self, number: signal.Signals | None = None, within_s: float = 10.0) -> None:
        """Ask, wait, and then kill. A process that has ended already is fine."""
        atexit.unregister(self.stop)
        if self.is_running:
            self.process.send_signal(number or self._farewell)
            try:
                self.process.wait(within_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait(within_s)


class Server:
    """A server that is one program: ended, stood still and let go on by its pid."""

    _program: Program | None = None

    @property
    def pid(self) -> int:
        assert self._program is not None
        return self._program.pid

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """As if its machine had died, but for what the system had taken already."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        stand_still(self.pid)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def _end(self, number: signal.Signals) -> None:
        ended, self._program = self._program, None
        if ended is not None:
            ended.stop(number, PATIENCE_S)


def stand_still(pid: int) -> None:
    """Stop it, and return when each of its threads has stopped: one may answer for a moment longer."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: all(_is_stopped(task) for task in Path(f"/proc/{pid}/task").iterdir()), f"{pid} to stand still")


def _is_stopped(task: Path) -> bool:
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0] in "TZX"
    except FileNotFoundError:
        return True  # it has ended meanwhile


@contextmanager
def standing_still(server: Server) -> Iterator[None]:
    server.pause()
    try:
        yield
    finally:
        server.resume()
