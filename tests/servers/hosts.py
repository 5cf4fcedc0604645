"""Hosts of a network of their own, on this machine: each has its own addresses, its own ports and its own process ids.

A host is a network namespace that a thread lives in; what that thread starts is on that host. All are connected through
a router, the namespace of the test itself, which can silently drop whatever goes between two of them: connections then
hang, and are neither refused nor reset. Nothing has a name outside of this process, so nothing is left behind when it
ends, however it ends.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from tests.servers.processes import PATIENCE_S, Place, Program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

NETWORK, PROCESSES = 0x40000000, 0x20000000
"""CLONE_NEWNET and CLONE_NEWPID."""
_LIBC = ctypes.CDLL(None, use_errno=True)


def skip_without_hosts() -> None:
    """Where it is permitted to make them, and the tools and the kernel can."""
    if shutil.which("ip") is None:
        pytest.skip("there is no program ip here: install Debian's iproute2")
    with ThreadPoolExecutor(1, "trial") as trial:
        if (why := trial.submit(_why_not).result(PATIENCE_S)) is not None:
            pytest.skip(f"hosts cannot be made here (run as root, in a container with CAP_SYS_ADMIN): {why}")


def _why_not() -> str | None:
    """In a thread that ends: a small network, made for nothing."""
    try:
        _become_router()
        _ip("link", "add", "trial", "type", "veth", "peer", "name", "other")
        _ip("rule", "add", "from", "10.0.0.1", "to", "10.0.0.2", "blackhole")
    except OSError as error:
        return str(error)
    except subprocess.CalledProcessError as error:
        return f"{' '.join(error.cmd)}: {error.stderr.strip()}"
    return None


class Host:
    def __init__(self, number: int) -> None:
        self.number = number
        self.address = f"10.77.{number}.2"
        self._thread = ThreadPoolExecutor(1, f"host-{number}", initializer=partial(_unshare, NETWORK))
        self.place = Place(self.address, self._thread)
        self._connect()

    def __repr__(self) -> str:
        return f"<host {self.number} at {self.address}>"

    def _connect(self) -> None:
        ours, router = f"host-{self.number}", f"10.77.{self.number}.1"
        inside = self.do(partial(os.open, "/proc/thread-self/ns/net", os.O_RDONLY))
        try:
            theirs = ("peer", "name", "eth0", "netns", f"/proc/{os.getpid()}/fd/{inside}")
            _ip("link", "add", ours, "type", "veth", *theirs)
        finally:
            os.close(inside)
        _ip("addr", "add", f"{router}/24", "dev", ours)
        _ip("link", "set", ours, "up")
        for command in (
            ("link", "set", "lo", "up"),
            ("addr", "add", f"{self.address}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("route", "add", "default", "via", router),
        ):
            self.do(partial(_ip, *command))

    def do(self, call: Callable[[], Any]) -> Any:
        """On this host."""
        return self._thread.submit(call).result(PATIENCE_S)

    def start(self, command: Sequence[str], log: Path) -> Program:
        """A program that is process 1 here, as in a container: whatever it started ends with it."""
        self.do(partial(_unshare, PROCESSES))
        try:
            return Program(command, log, place=self.place)
        finally:
            self.do(_come_back)

    def close(self) -> None:
        self._thread.shutdown()


class Network:
    """Hosts, and the router between them, where the test itself is."""

    def __init__(self) -> None:
        self._hosts: list[Host] = []

    def host(self) -> Host:
        self._hosts.append(Host(len(self._hosts) + 1))
        return self._hosts[-1]

    @contextmanager
    def cut(self, host: Host, *others: Host) -> Iterator[None]:
        """Meanwhile whatever is sent between them, either way, gets lost."""
        with ExitStack() as ends:
            for other in others:
                for one, two in ((host, other), (other, host)):
                    rule = ("from", one.address, "to", two.address, "blackhole")
                    _ip("rule", "add", *rule)
                    ends.callback(_ip, "rule", "del", *rule)
            yield

    def close(self) -> None:
        for host in self._hosts:
            host.close()


@contextmanager
def network() -> Iterator[Network]:
    """This thread, and whatever it starts meanwhile, is on the router, and reaches all hosts."""
    skip_without_hosts()
    outside = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    made = Network()
    try:
        _become_router()
        yield made
    finally:
        made.close()
        _enter(outside, NETWORK)
        os.close(outside)


def _become_router() -> None:
    _unshare(NETWORK)
    with open("/proc/sys/net/ipv4/ip_forward", "w") as forward:
        forward.write("1")
    _ip("link", "set", "lo", "up")


def _come_back() -> None:
    """To the process ids of this process itself: only then can others be made."""
    own = os.open("/proc/self/ns/pid", os.O_RDONLY)
    try:
        _enter(own, PROCESSES)
    finally:
        os.close(own)


def _unshare(kind: int) -> None:
    _checked(_LIBC.unshare(kind))


def _enter(namespace: int, kind: int) -> None:
    _checked(_LIBC.setns(namespace, kind))


def _checked(answer: int) -> None:
    if answer:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=PATIENCE_S)
