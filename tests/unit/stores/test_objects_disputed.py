"""What becomes of 409 ConditionalRequestConflict, which S3 answers when two conditional puts of one object meet.

A server that handles one request after the other, as the one of the other tests does, never says it. This one, which is
no more than a dictionary with conditions, says it when it is told to.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import aclosing
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest

from evenflow.model import Group, Member
from evenflow.stores.objects import from_url
from evenflow.stores.objects_address import address
from evenflow.stores.objects_link import Conflict, Link, Version
from evenflow.testing.store_scene import at, first, granted, present

if TYPE_CHECKING:
    from collections.abc import Iterator

GROUP = Group("homes.example", "sensors", "alerts")
ME = Member(id="me", nonce="of me", ttl_s=8.0, beat_s=2.0, host="machine-1", pid=4711, version="1.0")
DISPUTED = b"<Error><Code>ConditionalRequestConflict</Code><Message>Another one is under way.</Message></Error>"
ALWAYS = 1_000


class Disputed(ThreadingHTTPServer):
    """A bucket on loopback. The next `conflicts` puts are answered 409, and change nothing."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.objects: dict[str, tuple[str, bytes]] = {}
        self.versions = count(1)
        self.conflicts = self.puts = 0

    @property
    def url(self) -> str:
        keys = "access_key_id=somebody&secret_access_key=open-sesame"
        return f"s3://leases/p?endpoint=http://127.0.0.1:{self.server_port}&region=eu-north-1&allow_http=yes&{keys}"


class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Disputed

    def do_PUT(self) -> None:
        body = self._body()
        self.server.puts += 1
        if self.server.conflicts > 0:
            self.server.conflicts -= 1
            self._answer(409, DISPUTED)
            return
        tag, _ = self.server.objects.get(self.path, (None, b""))
        wanted = self.headers["If-Match"]
        if (self.headers["If-None-Match"] and tag) or (wanted and wanted != tag):
            self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            return
        made = f'"{next(self.server.versions)}"'
        self.server.objects[self.path] = made, body
        self._answer(200, b"", made)

    def do_GET(self) -> None:
        tag, data = self.server.objects.get(self.path, (None, b""))
        if tag is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        elif self.headers["If-None-Match"] == tag:
            self._answer(304, b"", tag)
        else:
            self._answer(200, data, tag)

    def do_POST(self) -> None:
        """The only one there is: objects are deleted."""
        keys = re.findall(rb"<Key>([^<]+)</Key>", self._body())
        for key in keys:
            self.server.objects.pop(f"/leases/{key.decode()}", None)
        self._answer(
            200,
            b"<DeleteResult>"
            + b"".join(b"<Deleted><Key>%s</Key></Deleted>" % key for key in keys)
            + b"</DeleteResult>",
        )

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers["Content-Length"] or 0))

    def _answer(self, status: int, body: bytes, tag: str = "") -> None:
        self.send_response(status)
        if tag:
            self.send_header("ETag", tag)
            self.send_header("Last-Modified", formatdate(usegmt=True))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing of it is worth a line."""


@pytest.fixture
def server() -> Iterator[Disputed]:
    with Disputed() as found:
        thread = Thread(target=found.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield found
        finally:
            found.shutdown()
            thread.join()


def test_a_put_of_a_new_object_is_a_conflict_that_made_nothing(server: Disputed) -> None:
    async def main() -> None:
        link = Link(address(server.url))
        server.conflicts = 1
        with pytest.raises(Conflict) as found:
            await link.put("x", b"1", None)
        assert found.value.is_certain, "it was sent once, so that nobody has to find out whether it is there"
        assert (await link.get("x"), server.puts) == (None, 1)
        await link.put("x", b"1", None)

    asyncio.run(main())


def test_a_put_on_a_version_is_tried_again_and_in_the_end_a_conflict(server: Disputed) -> None:
    async def main() -> None:
        link = Link(address(server.url))
        known = await link.put("x", b"1", None)
        server.conflicts = 2
        known = await link.put("x", b"2", known)
        assert isinstance(known, Version)
        server.conflicts = ALWAYS
        with pytest.raises(Conflict) as found:
            await link.put("x", b"3", known)
        assert not found.value.is_certain, "it was sent more than once"
        found_now = await link.get("x")
        assert found_now is not None
        assert found_now.data == b"2"

    asyncio.run(main())


def test_whatever_is_disputed_once_is_done_all_the_same_and_once(server: Disputed) -> None:
    async def main() -> None:
        async with aclosing(from_url(server.url)) as store:
            me = present(await store.beat(GROUP, ME, None))
            server.conflicts = 1
            assert present(await store.beat(GROUP, me, None)).mark == me.mark + 1
            server.conflicts = 1
            lease = granted((await store.swap(GROUP, [first("0", me.owner)]))[0])
            assert lease.epoch == 1
            server.conflicts = 1
            await store.seal(GROUP, "0", lease.epoch, at(0))
            server.conflicts = 1
            assert (await store.commit(GROUP, [at(1, epoch=lease.epoch)]))[0].ok
            assert server.conflicts == 0

    asyncio.run(main())
