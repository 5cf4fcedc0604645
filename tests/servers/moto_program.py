"""moto as a server of S3, for tests: one request at a time, with faults on demand.

    python -m tests.servers.moto_program PORT FAULT

moto checks a put's condition and writes in two steps, on a thread for each request, so that two puts may both find
their condition true. S3 does it in one. Here a lock around each request makes it one step. It counts the puts that it
lets through: GET /moto-puts tells.

FAULT is a file. While it is there, requests meet what it says:

    503 SlowDown 0.5    every second request is refused so; with 1 each of them
    silent PUT 1        puts that take effect are not answered
    cut PUT 1           the connection of puts that take effect is cut before they are answered
    careless PUT 1      conditions of puts are not looked at, as by servers that know none
    slow ANY 0.05       every request takes so many seconds longer, half of them before it takes effect
"""

from __future__ import annotations

import socket
import sys
from functools import partial
from itertools import count
from pathlib import Path
from threading import Lock
from time import sleep
from typing import TYPE_CHECKING, Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple

from tests.servers.google import CONDITION, Generations, refuse

if TYPE_CHECKING:
    from collections.abc import Iterable


class Server:
    def __init__(self, fault: Path) -> None:
        self._application = Generations(DomainDispatcherApplication(create_backend_app))
        self._fault = fault
        self._lock = Lock()
        self._numbers = count(1)
        self._puts = 0

    def __call__(self, request: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        kind, what, share = self._look()
        if kind.isdigit() and self._is_hit(share):
            return refuse(request, start_response, f"{kind} Refused", what)
        if request["PATH_INFO"] == "/moto-puts":
            return _text(start_response, "200 OK", str(self._puts))
        is_meant = what in ("ANY", request["REQUEST_METHOD"])
        if kind == "careless" and is_meant:
            for condition in ("HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH", CONDITION):
                request.pop(condition, None)
        pause_s = share / 2 if kind == "slow" and is_meant else 0.0
        sleep(pause_s)
        with self._lock:
            answer = list(self._application(request, partial(self._counted, request, start_response)))
        sleep(pause_s)
        if is_meant and request.get("took effect"):
            self._lose(kind, request["werkzeug.socket"])
        return answer

    def _lose(self, kind: str, connection: socket.socket) -> None:
        while kind == "silent" and self._fault.exists():
            sleep(0.01)
        if kind in ("silent", "cut"):
            connection.shutdown(socket.SHUT_RDWR)

    def _counted(self, request: dict[str, Any], start_response: Any, status: str, *more: Any) -> Any:
        request["took effect"] = status.startswith("200")
        self._puts += request["took effect"] and request["REQUEST_METHOD"] == "PUT"
        return start_response(status, *more)

    def _look(self) -> tuple[str, str, float]:
        try:
            kind, what, share = self._fault.read_text().split()
        except (FileNotFoundError, ValueError):
            return "", "", 0.0
        return kind, what, float(share)

    def _is_hit(self, share: float) -> bool:
        number = next(self._numbers)
        return int(number * share) > int((number - 1) * share)


def _text(start_response: Any, status: str, text: str) -> list[bytes]:
    start_response(status, [("Content-Type", "text/plain")])
    return [text.encode()]


def main(port: int, fault: Path) -> None:
    application: Any = Server(fault)
    run_simple("127.0.0.1", port, application, threaded=True, request_handler=MotoRequestHandler)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
