"""A test that leaves something behind fails itself: a process, a thread, a socket, a pipe or a file.

What is there when a test begins is compared with what is there when it has been torn down. What a driver closes in the
background is given time to go, so that a busy machine makes no leak; what never goes is reported. What a fixture of a
wider scope or a shared server brings is meant to stay: see `lasting`.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, TypeVar

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

T = TypeVar("T")

PATIENCE_S = float(os.environ.get("EVENFLOW_LEAK_PATIENCE_S", "15"))
"""How long a driver may take to close what its user has closed: only a leak waits that long."""
LIBRARIES = (sys.prefix, sys.base_prefix, "/usr/", "/lib", "/dev/", "/proc/", "/sys/")
"""Files that the interpreter and its packages open for good."""

_lasting: set[str] = set()


def remaining() -> set[str]:
    """All that this process has open, by names that stay the same while it is open."""
    return {*_processes(), *_threads(), *_descriptors()}


@contextmanager
def lasting() -> Iterator[None]:
    """What is made meanwhile is shared by tests: it may stay when one of them has ended."""
    before = remaining()
    try:
        yield
    finally:
        _lasting.update(remaining() - before)


def shared(make: Callable[[], T]) -> Callable[[], T]:
    """What is made by the first test that asks for it, and then used by all others of this process."""

    @cache
    def made() -> T:
        with lasting():
            return make()

    return made


def _processes() -> Iterator[str]:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return  # by far the most frequent case, and much cheaper than a look at all processes
    mine = str(os.getpid())
    copies: Counter[str] = Counter()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            head, _, tail = _read(f"/proc/{pid}/stat").rpartition(") ")
            state, parent, *_ = tail.split()
            if parent != mine:
                continue
            command = _read(f"/proc/{pid}/cmdline").replace("\0", " ").strip()
        except OSError:
            continue  # it has ended
        if state == "Z":
            yield f"process {pid} ({head.partition('(')[2]}, ended but not waited for)"
        else:
            # Not by its number: a shared server that a test has started again is still that server.
            copies[command] += 1
            yield f"process {copies[command]} of ({command})"


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def _threads() -> Iterator[str]:
    for thread in threading.enumerate():
        yield f"thread {thread.name} ({thread.native_id})"


def _descriptors() -> Iterator[str]:
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue  # the listing itself
        # What else has no name (epoll, timers) goes with a socket or a thread, and has one number for all.
        if target.startswith(("socket:", "pipe:")):
            yield f"open {target}"
        elif target.startswith("/") and not target.startswith(LIBRARIES):
            yield f"open file {target}"


def pytest_sessionstart() -> None:
    """The first loop of libuv in a process opens a pipe for signals, which stays: no test is to be blamed for it."""
    with suppress(ImportError):
        import uvloop

        uvloop.new_event_loop().close()


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
    if fixturedef.scope == "function":
        return (yield)
    with lasting():
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    item.stash[_BEFORE] = remaining()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    result = yield
    if left := _left_behind(item.stash[_BEFORE]):
        _lasting.update(left)  # it is told once, by the test that left it
        pytest.fail(f"it left behind: {', '.join(sorted(left))}", pytrace=False)
    return result


_BEFORE = pytest.StashKey[set[str]]()


def _left_behind(before: set[str]) -> set[str]:
    known = before | _lasting
    if not (left := remaining() - known):
        return left
    deadline_s = time.monotonic() + PATIENCE_S
    gc.collect()
    while (left := remaining() - known) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    return left
