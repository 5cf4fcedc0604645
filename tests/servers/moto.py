"""A real S3-compatible server on loopback, which keeps what it has in its memory: moto's. It speaks as Google, too."""

from __future__ import annotations

import re
import sys
import urllib.request
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.leaks import shared as shared_by_tests
from tests.servers.processes import LOOPBACK, Folder, Program, Server, answers, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
BUCKET = "leases"
SIGNATURE = "AWS4-HMAC-SHA256 Credential=anybody/20260101/us-east-1/s3/aws4_request, SignedHeaders=, Signature="
TOKEN = "open-sesame"
KEYS = {"access_key_id": "somebody", "secret_access_key": TOKEN}


def skip_without_server() -> None:
    if find_spec("moto") is None or find_spec("flask_cors") is None:
        pytest.skip("moto is not here: pip install 'moto[s3]' flask flask-cors")


class Moto(Server):
    """One server. It may be stopped and started again on the same port, and has forgotten everything then."""

    def __init__(self) -> None:
        skip_without_server()
        self._folder = Folder("moto", None)
        self.port = free_port()
        self._fault = self._folder.path / "fault"
        self._numbers = count(1)
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.servers.moto_program", str(self.port), str(self._fault)]
        self._program = Program(["env", f"PYTHONPATH={ROOT}", *command], self._folder.path / "log")
        self._program.wait_until_ready(lambda: answers(self.port))
        self.make_bucket(BUCKET)

    def make_bucket(self, name: str) -> None:
        self.ask("PUT", name)

    def ask(self, method: str, path: str, data: bytes | None = None) -> bytes:
        """Without a true signature: moto asks for none."""
        url = f"http://{LOOPBACK}:{self.port}/{path}"
        headers = {"Authorization": SIGNATURE, "Content-Type": "application/octet-stream"}
        request = urllib.request.Request(url, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            found: bytes = answer.read()
            return found

    def url(self, prefix: str = "evenflow", *, port: int | None = None, bucket: str = BUCKET, more: str = "") -> str:
        keys = "&".join(f"{name}={value}" for name, value in KEYS.items())
        endpoint = f"http://{LOOPBACK}:{port or self.port}"
        return f"s3://{bucket}/{prefix}?endpoint={endpoint}&region=eu-north-1&allow_http=yes&{keys}{more}"

    def google_url(self, prefix: str = "evenflow", *, bucket: str = BUCKET, more: str = "") -> str:
        """The same objects, in the way of `tests.servers.google`."""
        return (
            f"gs://{bucket}/{prefix}?endpoint=http://{LOOPBACK}:{self.port}&allow_http=yes&bearer_token={TOKEN}{more}"
        )

    def puts(self) -> int:
        """How many it has let through since it began."""
        return int(self.ask("GET", "moto-puts"))

    def fresh(self) -> str:
        """A prefix that nobody has used yet."""
        return f"test{next(self._numbers)}"

    @contextmanager
    def faulty(self, kind: str, what: str, share: float = 1.0) -> Iterator[None]:
        """As `moto_program` says."""
        new = self._fault.with_suffix(".new")
        new.write_text(f"{kind} {what} {share}")
        new.rename(self._fault)
        try:
            yield
        finally:
            self._fault.unlink()

    # --- what is in it
    def objects(self, prefix: str = "") -> dict[str, bytes]:
        """Each object's path and content."""
        listed = self.ask("GET", f"{BUCKET}?list-type=2&prefix={prefix}").decode()
        paths = re.findall("<Key>([^<]*)</Key>", listed)
        return {path: self.ask("GET", f"{BUCKET}/{path}") for path in paths}

    def put_back(self, objects: dict[str, bytes], prefix: str = "") -> None:
        """As from a backup: what is there now is gone."""
        for path in self.objects(prefix).keys() - objects.keys():
            self.ask("DELETE", f"{BUCKET}/{path}")
        for path, content in objects.items():
            self.ask("PUT", f"{BUCKET}/{path}", content)

    def remove(self) -> None:
        self.kill()
        self._folder.remove()


@shared_by_tests
def shared() -> Moto:
    """One for the whole run of a test process."""
    return Moto()
