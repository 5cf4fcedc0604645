"""A receiving for those who have no event loop: it runs on a thread, and callbacks come to whoever called `receive`."""

from __future__ import annotations

import asyncio
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias

from evenflow.compat.eventhub.contexts import PlainContext
from evenflow.compat.eventhub.receiving import Receiving
from evenflow.runtime.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from evenflow.compat.eventhub.receiving import Client
    from evenflow.compat.eventhub.terms import Terms

Call: TypeAlias = "tuple[Callable[..., Any], tuple[Any, ...], asyncio.Future[None]]"


class PlainReceiving:
    def __init__(self, client: Client, terms: Terms, *, parallel: bool) -> None:
        self._client, self._terms, self._parallel = client, terms, parallel
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._threads = Threads("evenflow-callback")
        self._receiving: Receiving | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._error: BaseException | None = None
        self._is_stopped = False
        self._inside = threading.local()
        self._ended = threading.Event()

    def run(self) -> None:
        """Until it is stopped. Ctrl-C stops it too: what is under way is drained and passed on first."""
        worker = threading.Thread(target=self._live, name="evenflow-receive", daemon=True)
        worker.start()
        interrupt = self._serve_calls()
        worker.join()
        if interrupt is not None:
            raise interrupt
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        self._is_stopped = True
        self._ask()
        if not getattr(self._inside, "call", False):
            self._ended.wait()

    def _ask(self) -> None:
        receiving, loop = self._receiving, self._loop
        if receiving is not None and loop is not None and not self._ended.is_set():
            loop.call_soon_threadsafe(receiving.ask_to_stop)

    # --- the thread that called `receive`
    def _serve_calls(self) -> BaseException | None:
        interrupt: BaseException | None = None
        while True:
            try:
                call = self._calls.get()
                if call is None:
                    return interrupt
                interrupt = self._serve(call) or interrupt
            except KeyboardInterrupt as error:
                interrupt = error
            if interrupt is not None:
                self._ask()

    def _serve(self, call: Call) -> BaseException | None:
        callback, arguments, answer = call
        error: BaseException | None = None
        self._inside.call = True
        try:
            callback(*arguments)
        except BaseException as raised:
            error = raised
        finally:
            self._inside.call = False
        assert self._loop is not None
        self._loop.call_soon_threadsafe(_answer, answer, error)
        return error if isinstance(error, KeyboardInterrupt | SystemExit) else None

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
        self._receiving = Receiving(self._client, self._terms, calling, PlainContext)
        if self._is_stopped:
            self._receiving.ask_to_stop()
        await self._receiving.start()

    async def _one_by_one(self, callback: Callable[..., Any], *arguments: Any) -> None:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._calls.put((callback, arguments, answer))
        await answer

    async def _in_parallel(self, callback: Callable[..., Any], *arguments: Any) -> None:
        await self._threads.run(self._marked, callback, *arguments)

    def _marked(self, callback: Callable[..., Any], *arguments: Any) -> None:
        self._inside.call = True
        try:
            callback(*arguments)
        finally:
            self._inside.call = False


def _answer(answer: asyncio.Future[None], error: BaseException | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(None)
    elif isinstance(error, Exception) and not isinstance(error, StopIteration):
        answer.set_exception(error)
    else:
        answer.set_exception(RuntimeError(f"a callback raised {error!r}"))
