"""A receive session for code without an event loop: it runs on a thread, and calls back on the caller's thread."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias

from evenflow.compat.eventhub.contexts import PlainContext
from evenflow.compat.eventhub.receiving import ReceiveSession
from evenflow.runtime.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from evenflow.compat.eventhub.options import ReceiveOptions
    from evenflow.compat.eventhub.receiving import ClientSettings

Call: TypeAlias = "tuple[Callable[..., Any], tuple[Any, ...], asyncio.Future[BaseException | None]]"


class BlockingReceiveSession:
    def __init__(self, client: ClientSettings, options: ReceiveOptions, *, parallel: bool) -> None:
        self._client, self._options, self._parallel = client, options, parallel
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._threads = Threads("evenflow-callback")
        self._session: ReceiveSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._error: BaseException | None = None
        self._is_stopped = False
        self._thread: int | None = None
        self._inside = threading.local()
        self._ended = threading.Event()

    def run(self) -> None:
        """Receive until `stop` or Ctrl-C. Events in progress are finished and partitions handed over first."""
        self._thread = threading.get_ident()
        worker = threading.Thread(target=self._run_loop, name="evenflow-receive", daemon=True)
        worker.start()
        interrupt = self._serve_calls()
        worker.join()
        error = interrupt or self._error
        if error is not None:
            raise error

    def stop(self) -> None:
        """Stop, and wait for the end. In a callback, or in a signal handler on the thread of the callbacks, it does not
        wait: draining needs that very thread."""
        self._is_stopped = True
        self._request_stop()
        if threading.get_ident() != self._thread and not getattr(self._inside, "call", False):
            self._ended.wait()

    def _request_stop(self) -> None:
        session = self._session
        if session is not None:
            self._on_loop(session.request_stop)

    def _on_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop is closed, so nothing waits for this call any more
            self._loop.call_soon_threadsafe(function, *arguments)

    # --- the thread that called `receive`
    def _serve_calls(self) -> BaseException | None:
        """Run callbacks until the session ends. Returns what a signal handler raised, for the caller of `receive`."""
        interrupt: BaseException | None = None
        while True:
            call: Call | None = None
            try:
                call = self._calls.get()
                if call is None:
                    return interrupt
                self._serve(call)
            except BaseException as error:
                interrupt = interrupt or error
                if self._ended.is_set():
                    return interrupt  # the final None may have been taken from the queue already
                self._is_stopped = True
                self._request_stop()
                if call is not None:
                    self._on_loop(_answer, call[2], None)

    def _serve(self, call: Call) -> None:
        callback, arguments, answer = call
        self._on_loop(_answer, answer, _raised_by(callback, arguments))

    # --- the thread of the event loop
    def _run_loop(self) -> None:
        try:
            asyncio.run(self._receive())
        except BaseException as error:
            self._error = error
        finally:
            self._threads.close()
            self._ended.set()
            self._calls.put(None)

    async def _receive(self) -> None:
        self._loop = asyncio.get_running_loop()
        calling = self._in_parallel if self._parallel else self._one_by_one
        self._session = ReceiveSession(self._client, self._options, calling, PlainContext, gathers=True)
        if self._is_stopped:
            self._session.request_stop()
        await self._session.start()

    async def _one_by_one(self, callback: Callable[..., Any], *arguments: Any) -> BaseException | None:
        answer: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        self._calls.put((callback, arguments, answer))
        return await answer

    async def _in_parallel(self, callback: Callable[..., Any], *arguments: Any) -> BaseException | None:
        raised: BaseException | None = await self._threads.run(self._marked, callback, arguments)
        return raised

    def _marked(self, callback: Callable[..., Any], arguments: tuple[Any, ...]) -> BaseException | None:
        self._inside.call = True
        try:
            return _raised_by(callback, arguments)
        finally:
            self._inside.call = False


def _raised_by(callback: Callable[..., Any], arguments: tuple[Any, ...]) -> BaseException | None:
    try:
        callback(*arguments)
    except BaseException as error:
        return error
    return None


def _answer(answer: asyncio.Future[BaseException | None], raised: BaseException | None) -> None:
    if not answer.done():
        answer.set_result(raised)
