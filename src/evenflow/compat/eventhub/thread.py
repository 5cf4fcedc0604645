"""A receiving for those who have no event loop: it runs on a thread, and callbacks come to whoever called `receive`."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias

from evenflow.compat.eventhub.contexts import PlainContext
from evenflow.compat.eventhub.receiving import Receiving
from evenflow.runtime.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from evenflow.compat.eventhub.receiving import Client
    from evenflow.compat.eventhub.terms import Terms

Call: TypeAlias = "tuple[Callable[..., Any], tuple[Any, ...], asyncio.Future[BaseException | None]]"


class PlainReceiving:
    def __init__(self, client: Client, terms: Terms, *, parallel: bool) -> None:
        self._client, self._terms, self._parallel = client, terms, parallel
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._threads = Threads("evenflow-callback")
        self._receiving: Receiving | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._error: BaseException | None = None
        self._is_stopped = False
        self._thread: int | None = None
        self._inside = threading.local()
        self._ended = threading.Event()

    def run(self) -> None:
        """Until it is stopped. Ctrl-C stops it too: what is under way is drained and passed on first."""
        self._thread = threading.get_ident()
        worker = threading.Thread(target=self._live, name="evenflow-receive", daemon=True)
        worker.start()
        interrupt = self._serve_calls()
        worker.join()
        error = interrupt or self._error
        if error is not None:
            raise error

    def stop(self) -> None:
        """In a callback, or in a signal handler on the thread that serves them, it only asks: what there is to drain
        waits for this very thread."""
        self._is_stopped = True
        self._ask()
        if threading.get_ident() != self._thread and not getattr(self._inside, "call", False):
            self._ended.wait()

    def _ask(self) -> None:
        receiving = self._receiving
        if receiving is not None:
            self._on_loop(receiving.ask_to_stop)

    def _on_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        assert self._loop is not None
        with suppress(RuntimeError):  # it is closed: nobody waits for this any more
            self._loop.call_soon_threadsafe(function, *arguments)

    # --- the thread that called `receive`
    def _serve_calls(self) -> BaseException | None:
        """Until there are no more. What a signal handler raised meanwhile, for whoever called `receive`."""
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
                    return interrupt  # the word that there are no more may have been taken already
                self._is_stopped = True
                self._ask()
                if call is not None:
                    self._on_loop(_answer, call[2], None)

    def _serve(self, call: Call) -> None:
        callback, arguments, answer = call
        self._on_loop(_answer, answer, _raised_by(callback, arguments))

    # --- the thread of the event loop
    def _live(self) -> None:
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
        self._receiving = Receiving(self._client, self._terms, calling, PlainContext, gathers=True)
        if self._is_stopped:
            self._receiving.ask_to_stop()
        await self._receiving.start()

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
