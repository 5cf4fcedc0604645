"""Google's interface in front of moto's S3: what obstore's `gs://` speaks, as the documents of Cloud Storage have it.

It is S3's own but for this. A request carries a token. An object has a number, its generation, which is another with
every put (`x-goog-generation`). The condition of a put names that number (`x-goog-if-generation-match`; 0: there must
be no such object). And to delete what is not there is an error. Numbers are kept and conditions looked at here, one
request at a time: whoever calls has a lock.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

FIRST = 1_700_000_000_000_000
"""Google's are microseconds of the time of the put, or look so."""
CONDITION = "HTTP_X_GOOG_IF_GENERATION_MATCH"
ERROR = '<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>{code} by order.</Message></Error>'


def refuse(request: dict[str, Any], start_response: Any, status: str, code: str) -> list[bytes]:
    request["wsgi.input"].read(int(request.get("CONTENT_LENGTH") or 0))  # or the connection is out of step
    start_response(status, [("Content-Type", "application/xml")])
    return [ERROR.format(code=code).encode()]


class Generations:
    """A WSGI application, and numbers for the objects that are in it."""

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self._application = application
        self._next = count(FIRST)
        self._numbers: dict[str, int] = {}

    def __call__(self, request: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path, method, wanted = request["PATH_INFO"], request["REQUEST_METHOD"], request.get(CONDITION)
        is_google = str(request.get("HTTP_AUTHORIZATION", "")).startswith("Bearer ")
        if wanted is not None and int(wanted) != self._numbers.get(path, 0):
            return refuse(request, start_response, "412 Precondition Failed", "PreconditionFailed")
        if method == "DELETE" and path not in self._numbers and is_google:
            return refuse(request, start_response, "404 Not Found", "NoSuchKey")

        def begin(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            self._count(method, path, status)
            number = [("x-goog-generation", str(self._numbers[path]))] if is_google and path in self._numbers else []
            return start_response(status, [*headers, *number], *more)

        return self._application(request, begin)

    def _count(self, method: str, path: str, status: str) -> None:
        if method == "PUT" and status.startswith("2"):
            self._numbers[path] = next(self._next)
        if method == "DELETE" and status.startswith("2"):
            self._numbers.pop(path, None)
