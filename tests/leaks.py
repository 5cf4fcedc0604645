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
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, TypeVar

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

T = TypeVar("T")

PATIENCE_S = float(os.environ.get("EVENFLOW_LEAK_PATIENCE_S", "60"))
"""How long a driver may take to close what its user has closed: only a leak waits that long."""
COLLECTS_S = 0.5
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
    copies: Counter[str] = Counter()
    for pid in _children():
        try:
            head, _, tail = _read(f"/proc/{pid}/stat").rpartition(") ")
            command = "" if tail.startswith("Z") else _command(pid)
        except OSError:
            continue  # it has ended
        if not command:
            yield f"process {pid} ({head.partition('(')[2]}, ended but not waited for)"
        else:
            # Not by its number: a shared server that a test has started again is still that server.
            copies[command] += 1
            yield f"process {copies[command]} of ({command})"


def _command(pid: str) -> str:
    """Its command line, which is empty for a moment while a process that was just started is being loaded."""
    while not (command := _read(f"/proc/{pid}/cmdline").replace("\0", " ").strip()):
        if _read(f"/proc/{pid}/stat").rpartition(") ")[2].startswith("Z"):
            break
        time.sleep(0.001)
    return command


def _children() -> Iterator[str]:
    """Those of each thread of this process: a child belongs to the thread that started it."""
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError):
            yield from _read(f"/proc/self/task/{thread}/children").split()


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
    """What the first user in a process starts for good: libuv's pipe for signals, the tracker of multiprocessing. No
    test is to be blamed for them."""
    resource_tracker.ensure_running()
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
    began_s = collected_s = time.monotonic()
    gc.collect()
    while (left := remaining() - known) and time.monotonic() < began_s + PATIENCE_S:
        time.sleep(0.02)
        if time.monotonic() > collected_s + COLLECTS_S:
            gc.collect()  # a thread that has just ended may have held the last of it
            collected_s = time.monotonic()
    return left
