"""The connection to the writer process: starts it, sends requests, and ends it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from itertools import count
from multiprocessing import spawn
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from evenflow.errors import EvenflowError, StoreUnavailable
from evenflow.stores.sqlite.messages import CHUNK_BYTES, FrameBuffer, decode_answer, framed

if TYPE_CHECKING:
    from collections.abc import Callable

    from evenflow.stores.sqlite.messages import WriterAnswer, WriterRequest

END_S = 5.0
"""How long the process may take to end after its socket is closed."""

BOOT = """
import json, sys, types
path, package, arguments = json.loads(sys.argv[1])
sys.path[:] = path
sys.modules["evenflow"] = types.ModuleType("evenflow")
sys.modules["evenflow"].__path__ = [package]
from evenflow.stores.sqlite.writer import main
main(*arguments)
"""
"""Skips the imports of the package's `__init__`: the writer needs a tenth of them."""


class WriterChannel:
    """One writer process and the socket to it. Starting and ending it blocks."""

    def __init__(self, folder: Path, busy_timeout_s: float) -> None:
        self._end, theirs = socket.socketpair()
        self._end.setblocking(False)
        self._frames = FrameBuffer()
        self._numbers = count(1)
        self._pending: dict[int, asyncio.Future[WriterAnswer]] = {}
        self._listeners = 0
        self._sending = asyncio.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: Thread | None = None
        self.closed: EvenflowError | None = None
        """Why no more requests are possible; None while it is open."""
        try:
            self._start(theirs, folder, busy_timeout_s)
        except OSError as error:
            self._end.close()
            theirs.close()
            raise StoreUnavailable(f"The writer process of {folder} did not start: {error}.") from error

    def _start(self, theirs: socket.socket, folder: Path, busy_timeout_s: float) -> None:
        if getattr(
            sys, "frozen", False
        ):  # there is no interpreter to start, so a thread of this process holds the lock
            self._thread = Thread(target=_serve, args=(theirs, folder, busy_timeout_s), name="evenflow-writer")
            self._thread.start()
            return
        path = [os.path.abspath(entry) for entry in sys.path if isinstance(entry, str)]
        arguments = theirs.fileno(), os.getpid(), os.path.abspath(folder), busy_timeout_s
        boot = json.dumps((path, str(Path(__file__).parents[2]), arguments))
        self._process = subprocess.Popen(
            [os.fsdecode(spawn.get_executable()), "-I", "-S", "-c", BOOT, boot],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # so that signals to the application's terminal or group do not reach it
        )
        theirs.close()

    # --- on the event loop
    def listen(self) -> Callable[[], None]:
        """Receives answers in the running loop until every listener has called the returned function."""
        loop = asyncio.get_running_loop()
        if self._listeners == 0:
            loop.add_reader(self._end, self._receive)
            self._sending = asyncio.Lock()
        self._listeners += 1

        def end() -> None:
            self._listeners -= 1
            if self._listeners == 0 and self._end.fileno() >= 0:
                loop.remove_reader(self._end)

        return end

    def number(self) -> int:
        return next(self._numbers)

    async def send(self, request: WriterRequest) -> asyncio.Future[WriterAnswer]:
        """Returns a future with the answer. A request that was only partly sent ends the process and its
        transaction."""
        if self.closed is not None:
            raise self.closed
        frame = framed(request)
        loop = asyncio.get_running_loop()
        answer = self._pending[request.number] = loop.create_future()
        try:
            async with self._sending:
                await loop.sock_sendall(self._end, frame)
        except OSError:
            self._lose()
        except BaseException:
            self.kill()
            raise
        return answer

    def kill(self) -> None:
        """Ends the process, even if it is stopped; an open transaction is rolled back."""
        if self._process is not None:
            self._process.kill()
        self._lose()

    def _receive(self) -> None:
        try:
            data = self._end.recv(CHUNK_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._lose()
        self._frames.feed(data)
        for body in self._frames.bodies():
            answer = decode_answer(body)
            asked = self._pending.pop(answer.number, None)
            if asked is not None and not asked.done():
                asked.set_result(answer)

    def _lose(self) -> None:
        self.shut(
            StoreUnavailable(
                "The writer process that held this transaction has ended; the transaction was rolled back."
            )
        )

    def shut(self, why: EvenflowError) -> None:
        """Rolls back what is open, and fails pending requests with this error. Idempotent."""
        if self.closed is not None:
            return
        self.closed = why
        for answer in self._pending.values():
            if not answer.done() and not answer.get_loop().is_closed():
                answer.set_exception(why)
                answer.exception()
        self._pending.clear()
        try:
            self._end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    # --- anywhere
    def end(self) -> None:
        """Call after `shut`. Waits for the process to end."""
        self._end.close()
        if self._thread is not None:
            self._thread.join()
        if self._process is not None:
            try:
                self._process.wait(END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def _serve(end: socket.socket, folder: Path, busy_timeout_s: float) -> None:
    from evenflow.stores.sqlite.writer import serve

    serve(end, 0, folder, busy_timeout_s)
