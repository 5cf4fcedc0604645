"""moto as a server of S3, for tests: one request at a time, with faults on demand.

    python -m tests.servers.moto_program PORT FAULTS

moto checks a put's condition and writes in two steps, on a thread for each request, so that two puts may both find
their condition true. S3 does it in one. Here a lock around each request makes it one step.

It counts the puts that it lets through: GET /moto-puts tells.

FAULTS is a file. While it is there, requests are refused as it says: `503 SlowDown 0.5` is every second one, and
`403 AccessDenied 1` each of them.
"""

from __future__ import annotations

import sys
from functools import partial
from itertools import count
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple

if TYPE_CHECKING:
    from collections.abc import Iterable

ERROR = '<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>{code} by order.</Message></Error>'


class OneAtATime:
    def __init__(self, faults: Path) -> None:
        self._application = DomainDispatcherApplication(create_backend_app)
        self._faults = faults
        self._lock = Lock()
        self._numbers = count(1)
        self._puts = 0

    def __call__(self, environment: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        # What a refused put carried is read, too: otherwise the connection is out of step.
        if (fault := self._fault()) is not None:
            environment["wsgi.input"].read(int(environment.get("CONTENT_LENGTH") or 0))
            status, code = fault
            start_response(f"{status} Refused", [("Content-Type", "application/xml")])
            return [ERROR.format(code=code).encode()]
        if environment["PATH_INFO"] == "/moto-puts":
            start_response("200 OK", [("Content-Type", "text/plain")])
            return [str(self._puts).encode()]
        with self._lock:
            return list(self._application(environment, partial(self._counted, environment, start_response)))

    def _counted(self, environment: dict[str, Any], start_response: Any, status: str, *more: Any) -> Any:
        self._puts += environment["REQUEST_METHOD"] == "PUT" and status.startswith("200")
        return start_response(status, *more)

    def _fault(self) -> tuple[str, str] | None:
        try:
            status, code, share = self._faults.read_text().split()
        except (FileNotFoundError, ValueError):
            return None
        number = next(self._numbers)
        return (status, code) if int(number * float(share)) > int((number - 1) * float(share)) else None


def main(port: int, faults: Path) -> None:
    application: Any = OneAtATime(faults)
    run_simple("127.0.0.1", port, application, threaded=True, request_handler=MotoRequestHandler)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
