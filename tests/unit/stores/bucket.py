"""A bucket in this process: a dictionary with conditions, and with answers that a test asks for.

It is for what a store does with an answer that no real server gives when a test wants it. An object's tag is made from
its content, as S3's is; its number is another with every put, as Google's is.
"""

from __future__ import annotations

import hashlib
import re
import socket
from contextlib import contextmanager, suppress
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "leases"
TOKEN = "open-sesame"
KEY = "key-id"
SCHEMES = ("s3", "gs")


class Object(NamedTuple):
    number: int
    data: bytes

    @property
    def tag(self) -> str:
        return f'"{hashlib.md5(self.data, usedforsecurity=False).hexdigest()}"'


class Refusal(NamedTuple):
    status: int
    code: str
    every: int = 1
    """The how-manieth request meets it."""


class Bucket(ThreadingHTTPServer):
    daemon_threads = False  # its end waits for them

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.kept: dict[str, Object] = {}
        self._connections: set[socket.socket] = set()
        self.numbers = count(1_700_000_000_000_000)
        self.lock = Lock()
        self.puts = self.requests = 0
        self.conflicts = 0
        """So many of the next puts are answered 409, and change nothing."""
        self.refusal: Refusal | None = None
        self.obeys_conditions = True

    def url(self, scheme: str = "s3", prefix: str = "p") -> str:
        options = {
            "s3": f"region=eu-north-1&access_key_id={KEY}&secret_access_key={TOKEN}",
            "gs": f"bearer_token={TOKEN}",
        }
        endpoint = f"endpoint=http://127.0.0.1:{self.server_port}&allow_http=yes"
        return f"{scheme}://{NAME}/{prefix}?{endpoint}&{options[scheme]}"

    @contextmanager
    def refusing(self, status: int, code: str, every: int = 1) -> Iterator[None]:
        """Requests are answered so meanwhile, and change nothing."""
        self.refusal = Refusal(status, code, every)
        try:
            yield
        finally:
            self.refusal = None

    # --- connections, which a driver keeps open for its next request
    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self._connections.add(connection)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def cut(self) -> None:
        for connection in list(self._connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    # --- what is in it
    def objects(self) -> dict[str, bytes]:
        """Each object's path and content."""
        return {path: found.data for path, found in self.kept.items()}

    def write(self, path: str, data: bytes) -> None:
        self.kept[path] = Object(next(self.numbers), data)

    def put_back(self, objects: dict[str, bytes]) -> None:
        """As from a backup: what is there now is gone."""
        self.kept.clear()
        for path, data in objects.items():
            self.write(path, data)

    # --- one request
    def refuses(self) -> Refusal | None:
        self.requests += 1
        found = self.refusal
        return found if found is not None and self.requests % found.every == 0 else None

    def allows(self, path: str, headers: Any) -> bool:
        found = self.kept.get(path)
        if not self.obeys_conditions:
            return True
        if headers["If-None-Match"] and found is not None:
            return False
        if headers["If-Match"] and (found is None or headers["If-Match"] != found.tag):
            return False
        number = headers["x-goog-if-generation-match"]
        return number is None or int(number) == (found.number if found is not None else 0)


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Bucket

    def do_PUT(self) -> None:
        data = self._body()
        with self.server.lock:
            self.server.puts += 1
            if refusal := self.server.refuses():
                self._refuse(refusal.status, refusal.code)
            elif self.server.conflicts > 0:
                self.server.conflicts -= 1
                self._refuse(409, "ConditionalRequestConflict")
            elif not self.server.allows(self._object, self.headers):
                self._refuse(412, "PreconditionFailed")
            else:
                self.server.write(self._object, data)
                self._answer(200, b"", self.server.kept[self._object])

    def do_GET(self) -> None:
        with self.server.lock:
            found = self.server.kept.get(self._object)
            if refusal := self.server.refuses():
                self._refuse(refusal.status, refusal.code)
            elif found is None:
                self._refuse(404, "NoSuchKey")
            elif self.headers["If-None-Match"] == found.tag:
                self._answer(304, b"", found)
            else:
                self._answer(200, found.data, found)

    def do_POST(self) -> None:
        """S3's way to delete objects, and the only POST there is."""
        keys = re.findall(rb"<Key>([^<]+)</Key>", self._body())
        with self.server.lock:
            if refusal := self.server.refuses():
                self._refuse(refusal.status, refusal.code)
                return
            for key in keys:
                self.server.kept.pop(key.decode(), None)
        deleted = b"".join(b"<Deleted><Key>%s</Key></Deleted>" % key for key in keys)
        self._answer(200, b"<DeleteResult>%s</DeleteResult>" % deleted)

    def do_DELETE(self) -> None:
        with self.server.lock:
            if refusal := self.server.refuses():
                self._refuse(refusal.status, refusal.code)
            elif self.server.kept.pop(self._object, None) is None:
                self._refuse(404, "NoSuchKey")
            else:
                self._answer(204, b"")

    @property
    def _object(self) -> str:
        return self.path.partition("?")[0].removeprefix(f"/{NAME}/")

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers["Content-Length"] or 0))

    def _refuse(self, status: int, code: str) -> None:
        self._answer(status, f"<Error><Code>{code}</Code><Message>{code} by order.</Message></Error>".encode())

    def _answer(self, status: int, body: bytes, found: Object | None = None) -> None:
        self.send_response(status)
        if found is not None:
            self.send_header("ETag", found.tag)
            self.send_header("x-goog-generation", str(found.number))
            self.send_header("Last-Modified", formatdate(usegmt=True))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing of it is worth a line."""


@contextmanager
def running() -> Iterator[Bucket]:
    with Bucket() as found:
        thread = Thread(target=found.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield found
        finally:
            found.shutdown()
            thread.join()
            found.cut()
