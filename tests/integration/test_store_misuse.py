"""A store's URL that leads to the wrong server, or to none: reported at once, with the place, and without a secret.

What is refused before there is a connection is in tests/unit/stores/test_wrong_urls.py.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from evenflow import Processor
from evenflow.compat import checkpointstore
from evenflow.compat.checkpointstore.aio import EvenflowCheckpointStore
from evenflow.errors import EvenflowError, Misconfigured, StoreUnavailable
from evenflow.operate.inspect.survey import operable
from evenflow.testing.fakes import FakeSource
from evenflow.urls import open_store
from tests.integration.programs import PATIENCE_S
from tests.servers import azurite, moto, postgres
from tests.servers.processes import Program, answers, free_port
from tests.servers.redis import RedisServer
from tests.unit.cli.command import evenflow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.process

SECRET = "open-sesame"
KEYS = f"region=eu-north-1&allow_http=yes&access_key_id=me&secret_access_key={SECRET}"
AT_ONCE_S = PATIENCE_S
"""What is retried for ever, or as long as a driver does, takes minutes."""


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server.start()
    server.stop()


@pytest.fixture
def ports(redis_server: RedisServer) -> dict[str, Any]:
    """Where the servers are; `shut` is a port at which there is none."""
    blobs = azurite.shared_or_skip()
    return {
        "azblob": blobs.port,
        "container": blobs.make_container(),
        "s3": moto.shared().port,
        "redis": redis_server.port,
        "pg": postgres.shared_or_skip().port,
        "shut": free_port(),
    }


def complaint(url: str, look: Callable[[str], Any] | None = None) -> EvenflowError:
    """What a look at it raises."""

    async def ask() -> None:
        store = open_store(url, create=False)
        try:
            await operable(store).groups()
        finally:
            await store.aclose()

    async def soon() -> None:
        async with asyncio.timeout(AT_ONCE_S):
            await (look(url) if look is not None else ask())

    with pytest.raises(EvenflowError) as told:
        asyncio.run(soon())
    assert SECRET not in str(told.value), url
    assert "tried again" not in str(told.value), "a single look does not try again"
    return told.value


class Row(NamedTuple):
    """A URL, and what is raised and said about it."""

    url: str
    kind: type[EvenflowError]
    said: str


AZBLOB = [
    Row(
        "azblob://devstoreaccount1/{container}?endpoint=http://127.0.0.1:{azblob}/nobody",
        Misconfigured,
        "no such account or container: it answers 404 ResourceNotFound",
    ),
    Row(
        "azblob://devstoreaccount1/{container}?endpoint=http://127.0.0.1:{s3}/devstoreaccount1",
        Misconfigured,
        "no such account or container: it answers 404",
    ),
    Row(
        "azblob://devstoreaccount1/not-there?endpoint=http://127.0.0.1:{azblob}",
        Misconfigured,
        "`az storage container create --name not-there --blob-endpoint http://127.0.0.1:{azblob}/devstoreaccount1",
    ),
    Row(
        "azblob://devstoreaccount1/leases?endpoint=http://127.0.0.1:{shut}",
        StoreUnavailable,
        "connection refused at 127.0.0.1:{shut}; is Azurite running there?",
    ),
    Row(
        "azblob://devstoreaccount1/leases?endpoint=https://127.0.0.1:{azblob}",
        StoreUnavailable,
        "127.0.0.1:{azblob} does not speak TLS",
    ),
    Row(
        "azblob://devstoreaccount1/leases?endpoint=http://nowhere.invalid/devstoreaccount1",
        StoreUnavailable,
        "host name lookup failed for nowhere.invalid:80",
    ),
]
S3 = [
    Row(
        f"s3://not-there?endpoint=http://127.0.0.1:{{s3}}&{KEYS}",
        Misconfigured,
        "Bucket 'not-there' of the store s3://not-there/evenflow?endpoint=http://127.0.0.1:{s3}",
    ),
    Row(
        f"s3://leases?endpoint=http://127.0.0.1:{{shut}}&{KEYS}",
        StoreUnavailable,
        "connection refused at 127.0.0.1:{shut}",
    ),
    Row(f"s3://leases?endpoint=https://127.0.0.1:{{s3}}&{KEYS}", StoreUnavailable, "127.0.0.1:{s3} does not speak TLS"),
    Row(
        f"s3://leases?endpoint=http://nowhere.invalid&{KEYS}",
        StoreUnavailable,
        "host name lookup failed for nowhere.invalid:80",
    ),
    Row(
        f"s3://leases?endpoint=http://127.0.0.1:{{redis}}&{KEYS}",
        StoreUnavailable,
        "the connection to 127.0.0.1:{redis} was closed or the protocol does not match",
    ),
]
REDIS = [
    Row("redis://:{secret}@127.0.0.1:{shut}", StoreUnavailable, "connection refused at 127.0.0.1:{shut}; is a Redis"),
    Row("redis://nowhere.invalid", StoreUnavailable, "host name lookup failed for nowhere.invalid:6379"),
    Row("redis://127.0.0.1:{redis}?cluster=yes", Misconfigured, "Remove cluster=yes from its URL"),
    Row("redis://127.0.0.1:{azblob}", StoreUnavailable, "check that a Redis server listens there"),
    Row("redis+unix:///not/there.sock", StoreUnavailable, "socket not found for /not/there.sock"),
]
POSTGRESQL = [
    Row(
        "postgresql://me:{secret}@127.0.0.1:{shut}/db",
        StoreUnavailable,
        "connection refused at 127.0.0.1:{shut}; is PostgreSQL running there?",
    ),
    Row("postgresql://nowhere.invalid/db", StoreUnavailable, "host name lookup failed for nowhere.invalid:5432"),
    Row("postgresql://127.0.0.1:{azblob}/db", StoreUnavailable, "check that PostgreSQL listens there"),
]


@pytest.mark.parametrize("table", [AZBLOB, S3, REDIS, POSTGRESQL], ids=["azblob", "s3", "redis", "postgresql"])
def test_a_wrong_server_is_reported_at_once_with_its_place(ports: dict[str, Any], table: list[Row]) -> None:
    for row in table:
        error = complaint(row.url.format(**ports, secret=SECRET))
        assert isinstance(error, row.kind), row.url
        assert row.said.format(**ports) in str(error), row.url


def test_an_emulators_endpoint_need_not_repeat_the_account(ports: dict[str, Any], tmp_path: Path) -> None:
    """A tool took it for an empty store, and an instance for one that never answers."""
    for endpoint in ("http://127.0.0.1:{azblob}", "http://localhost:{azblob}/"):
        url = "azblob://devstoreaccount1/{container}?endpoint=" + endpoint
        done = evenflow("status", "--store", url.format(**ports), "--json", folder=tmp_path)
        assert (done.stdout, done.returncode) == ('{"groups":[],"foreign":[]}\n', 0), (endpoint, done.stderr)
        assert "There are no groups in this store yet" in done.stderr
        assert "evenflow run MODULE:PROCESSOR" in done.stderr, "what to do"


def test_a_server_of_another_kind_is_reported_in_one_line(tmp_path: Path) -> None:
    """Without what the driver would log itself."""
    port = free_port()
    server = Program([sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"], tmp_path / "log")
    server.wait_until_ready(lambda: answers(port))
    try:
        url = f"azblob://devstoreaccount1/leases?endpoint=http://127.0.0.1:{port}"
        done = evenflow("status", "--store", url, folder=tmp_path)
    finally:
        server.stop()
    assert done.returncode == 1
    assert "it answers 404" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_processor_with_such_a_store_ends_at_once(ports: dict[str, Any]) -> None:
    async def serve(url: str) -> None:
        processor = Processor(FakeSource(), url, "alerts")
        processor.on_event(lambda event, partition: None)
        await processor.serve()

    complaint(AZBLOB[0].url.format(**ports), serve)
    complaint(S3[0].url.format(**ports), serve)


LAST_REQUEST = """
import asyncio, sys
from evenflow.errors import EvenflowError
from evenflow.stores.objects.store import from_url

async def look():
    await from_url(sys.argv[1]).groups()

try:
    asyncio.run(look())
except EvenflowError:
    sys.exit(7)
"""


def test_a_program_that_ends_right_after_a_request_to_a_bucket_ends_with_its_own_code(ports: dict[str, Any]) -> None:
    """One in four was ended by SIGABRT, from a thread of the driver's."""
    url = f"s3://leases?endpoint=https://127.0.0.1:{ports['s3']}&{KEYS}"
    programs = [subprocess.Popen([sys.executable, "-c", LAST_REQUEST, url]) for _ in range(8)]
    try:
        assert [program.wait(2 * PATIENCE_S) for program in programs] == [7] * 8
    finally:
        for program in programs:
            program.kill()
            program.wait()


# --- as a checkpoint store
async def entered(url: str) -> None:
    async with EvenflowCheckpointStore(url):
        pass


async def used(url: str) -> None:
    store = EvenflowCheckpointStore(url)
    try:
        await store.list_ownership("a", "b", "c")
    finally:
        await store.close()


NEVER = [
    ("azblob://devstoreaccount1/not-there?endpoint=http://127.0.0.1:{azblob}", "is not there"),
    ("azblob://devstoreaccount1/{container}?endpoint=http://127.0.0.1:{azblob}/nobody", "no such account or container"),
    (f"s3://not-there?endpoint=http://127.0.0.1:{{s3}}&{KEYS}", "Bucket 'not-there' of the store"),
    ("postgresql://keyed:{secret}@127.0.0.1:{pg}/postgres", "refuses the connection"),
    ("redis://me:{secret}@127.0.0.1:{redis}", "refuses these credentials"),
]


@pytest.mark.parametrize("look", [entered, used])
def test_a_checkpoint_store_that_can_never_work_says_so_at_once(
    ports: dict[str, Any], look: Callable[[str], Any], caplog: pytest.LogCaptureFixture
) -> None:
    """azure-eventhub itself goes on whatever its store raises: so it is in the log, too."""
    for url, said in NEVER:
        caplog.clear()
        error = complaint(url.format(**ports, secret=SECRET), look)
        assert isinstance(error, Misconfigured), url
        assert said in str(error), url
        assert said in caplog.text, url
        assert SECRET not in caplog.text, url


def test_so_does_the_one_for_plain_code(ports: dict[str, Any]) -> None:
    url, said = NEVER[0]
    with pytest.raises(Misconfigured, match=said), checkpointstore.EvenflowCheckpointStore(url.format(**ports)):
        pass


def test_a_store_that_is_only_unreachable_does_not_keep_a_client_from_starting(
    ports: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    asyncio.run(entered(f"redis://127.0.0.1:{ports['shut']}"))
    assert f"does not answer yet: The store redis://127.0.0.1:{ports['shut']}/0 cannot be reached" in caplog.text
