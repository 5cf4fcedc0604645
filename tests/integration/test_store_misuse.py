"""What a newcomer gets wrong in a store's URL, or finds not running, on real servers: told at once, with the place and
what to do, and without a secret."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from evenflow.compat import checkpointstore
from evenflow.compat.checkpointstore.aio import EvenflowCheckpointStore
from evenflow.errors import EvenflowError, Misconfigured, StoreUnavailable
from evenflow.observe.survey import operable
from evenflow.urls import open_store
from tests.integration.programs import PATIENCE_S, evenflow
from tests.servers import azurite, moto, postgres
from tests.servers.processes import Program, answers, free_port
from tests.servers.redis import RedisServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.process

SECRET = "open-sesame"
KEYS = f"region=eu-north-1&allow_http=yes&access_key_id=me&secret_access_key={SECRET}"
AT_ONCE_S = 10.0
"""Nothing may take longer without a word."""


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
    """What it raises, for who looks at it."""

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
    assert SECRET not in str(told.value)
    assert "tried again" not in str(told.value), "who looks once does not try again"
    return told.value


@pytest.mark.parametrize(
    ("url", "kind", "said"),
    [
        (
            "azblob://devstoreaccount1/{container}?endpoint=http://127.0.0.1:{azblob}/nobody",
            Misconfigured,
            "no such account or container: it answers 404 ResourceNotFound",
        ),
        (
            "azblob://devstoreaccount1/{container}?endpoint=http://127.0.0.1:{s3}/devstoreaccount1",
            Misconfigured,
            "no such account or container: it answers 404",
        ),
        (
            "azblob://devstoreaccount1/not-there?endpoint=http://127.0.0.1:{azblob}",
            Misconfigured,
            "`az storage container create --name not-there --blob-endpoint http://127.0.0.1:{azblob}/devstoreaccount1",
        ),
        (
            "azblob://devstoreaccount1/leases?endpoint=http://127.0.0.1:{shut}",
            StoreUnavailable,
            "connection refused at 127.0.0.1:{shut}; is Azurite running there?",
        ),
        (
            "azblob://devstoreaccount1/leases?endpoint=https://127.0.0.1:{azblob}",
            StoreUnavailable,
            "no TLS is spoken at 127.0.0.1:{azblob}",
        ),
        (
            "azblob://devstoreaccount1/leases?endpoint=http://nowhere.invalid/devstoreaccount1",
            StoreUnavailable,
            "there is no host of that name at nowhere.invalid:80",
        ),
        (
            f"s3://not-there?endpoint=http://127.0.0.1:{{s3}}&{KEYS}",
            Misconfigured,
            "There is no bucket 'not-there' for the store s3://not-there/evenflow?endpoint=http://127.0.0.1:{s3}",
        ),
        (
            f"s3://leases?endpoint=http://127.0.0.1:{{shut}}&{KEYS}",
            StoreUnavailable,
            "connection refused at 127.0.0.1:{shut}",
        ),
        (
            f"s3://leases?endpoint=https://127.0.0.1:{{s3}}&{KEYS}",
            StoreUnavailable,
            "no TLS is spoken at 127.0.0.1:{s3}",
        ),
        (
            f"s3://leases?endpoint=http://nowhere.invalid&{KEYS}",
            StoreUnavailable,
            "there is no host of that name at nowhere.invalid:80",
        ),
        (
            f"s3://leases?endpoint=http://127.0.0.1:{{redis}}&{KEYS}",
            StoreUnavailable,
            "the connection to 127.0.0.1:{redis} was cut, or is not understood",
        ),
        (f"s3://leases?endpoint=127.0.0.1:{{s3}}&{KEYS}", Misconfigured, "endpoint= is a URL with http or https"),
        (f"s3://leases?endpont=http://h&{KEYS}", Misconfigured, "did you mean endpoint?"),
        ("redis://:{secret}@127.0.0.1:{shut}", StoreUnavailable, "connection refused at 127.0.0.1:{shut}; is a Redis"),
        ("redis://nowhere.invalid", StoreUnavailable, "there is no host of that name at nowhere.invalid:6379"),
        ("redis://127.0.0.1:{redis}?cluster=yes", Misconfigured, "leave cluster=yes out"),
        ("redis://127.0.0.1:{azblob}", StoreUnavailable, "is it a Redis server that listens there?"),
        ("redis+unix:///not/there.sock", StoreUnavailable, "there is no socket for /not/there.sock"),
        ("redis://me:1?{secret}@127.0.0.1", Misconfigured, "'?' in a password"),
        (
            "postgresql://me:{secret}@127.0.0.1:{shut}/db",
            StoreUnavailable,
            "connection refused at 127.0.0.1:{shut}; is PostgreSQL running there?",
        ),
        ("postgresql://nowhere.invalid/db", StoreUnavailable, "no host of that name at nowhere.invalid:5432"),
        ("postgresql://me:p@{secret}@127.0.0.1:{pg}/db", Misconfigured, "An @ in a password is written %40"),
        ("postgresql://?bogus=1", Misconfigured, "there is no option 'bogus'; there are schema,"),
        ("postgresql://me@127.0.0.1:{pg}/db?scheme=x", Misconfigured, "did you mean schema?"),
        ("postgresql://me:p?{secret}@127.0.0.1:{pg}/db", Misconfigured, "cannot be understood"),
        ("postgresql://me@127.0.0.1:{pg}/db?sslmode=bogus", Misconfigured, 'invalid sslmode value: "bogus"'),
        ("postgresql://127.0.0.1:{azblob}/db", StoreUnavailable, "is it PostgreSQL that listens there"),
        ("sqlite:leases?timeout=3", Misconfigured, "has no options"),
        ("memory:", Misconfigured, "no other one can look at it"),
    ],
)
def test_what_is_wrong_is_told_at_once_with_its_place(
    ports: dict[str, Any], url: str, kind: type[EvenflowError], said: str
) -> None:
    told = complaint(url.format(**ports, secret=SECRET))
    assert isinstance(told, kind)
    assert said.format(**ports) in str(told)


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:{azblob}", "http://localhost:{azblob}/"])
def test_an_emulators_endpoint_need_not_repeat_the_account(
    ports: dict[str, Any], tmp_path: Path, endpoint: str
) -> None:
    """It was taken for an empty store by those who look, and for ever by those who run."""
    url = "azblob://devstoreaccount1/{container}?endpoint=" + endpoint
    assert "There is no group in this store yet" in status(url.format(**ports), tmp_path, code=0)


def status(url: str, folder: Path, code: int) -> str:
    run = evenflow("status", "--store", url, folder=folder)
    assert run.returncode == code, run.stderr
    assert "Traceback" not in run.stderr
    return run.stderr


def test_what_is_empty_is_said_to_be_so_and_what_to_do(ports: dict[str, Any], tmp_path: Path) -> None:
    url = "azblob://devstoreaccount1/{container}?endpoint=http://127.0.0.1:{azblob}".format(**ports)
    run = evenflow("status", "--store", url, "--json", folder=tmp_path)
    assert (run.stdout, run.returncode) == ('{"groups":[],"foreign":[]}\n', 0)
    assert "evenflow run MODULE:PROCESSOR" in run.stderr


def test_a_server_of_another_kind_is_told_in_one_line(tmp_path: Path) -> None:
    """Without what the driver would say to itself."""
    port = free_port()
    server = Program([sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"], tmp_path / "log")
    server.wait_until_ready(lambda: answers(port))
    try:
        said = status(f"azblob://devstoreaccount1/leases?endpoint=http://127.0.0.1:{port}", tmp_path, code=1)
    finally:
        server.stop()
    assert "it answers 404" in said
    assert len(said.splitlines()) == 1


def test_a_missing_hub_is_made_with_a_command(tmp_path: Path) -> None:
    run = evenflow("hub", "info", "homes", folder=tmp_path)
    assert "`evenflow hub create`" in run.stderr


APP = """
import sys
from evenflow import Processor
from evenflow.testing.fakes import FakeSource

processor = Processor(FakeSource(), sys.argv[1], "alerts")

@processor.on_event
async def handle(event, partition):
    pass

processor.run()
"""


@pytest.mark.parametrize(
    "url",
    [
        "azblob://devstoreaccount1/{container}?endpoint=http://127.0.0.1:{azblob}/nobody",
        f"s3://not-there?endpoint=http://127.0.0.1:{{s3}}&{KEYS}",
    ],
)
def test_a_processor_with_such_a_store_ends_at_once(ports: dict[str, Any], url: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", APP, url.format(**ports)],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert run.returncode == 1
    assert "evenflow.errors.Misconfigured: " in run.stderr
    assert SECRET not in run.stderr


LAST_REQUEST = """
import asyncio, sys
from evenflow.errors import EvenflowError
from evenflow.stores.objects import from_url

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
    codes = {
        subprocess.run([sys.executable, "-c", LAST_REQUEST, url], timeout=PATIENCE_S, check=False).returncode
        for _ in range(8)
    }
    assert codes == {7}


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
    (f"s3://not-there?endpoint=http://127.0.0.1:{{s3}}&{KEYS}", "There is no bucket"),
    ("postgresql://keyed:{secret}@127.0.0.1:{pg}/postgres", "refuses the connection"),
    ("redis://me:{secret}@127.0.0.1:{redis}", "refuses these credentials"),
    ("azblob://homes", "names no container"),
    ("postgresql://?bogus=1", "no option 'bogus'"),
]


@pytest.mark.parametrize(("url", "said"), NEVER)
@pytest.mark.parametrize("look", [entered, used])
def test_a_checkpoint_store_that_can_never_work_says_so_at_once(
    ports: dict[str, Any], url: str, said: str, look: Callable[[str], Any], caplog: pytest.LogCaptureFixture
) -> None:
    """azure-eventhub itself goes on whatever its store raises: so it is in the log, too."""
    told = complaint(url.format(**ports, secret=SECRET), look)
    assert isinstance(told, Misconfigured)
    assert said in str(told)
    if "names no container" not in said and "bogus" not in url:
        assert said in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.parametrize(("url", "said"), NEVER[:1])
def test_so_does_the_one_for_plain_code(ports: dict[str, Any], url: str, said: str) -> None:
    with pytest.raises(Misconfigured, match=said), checkpointstore.EvenflowCheckpointStore(url.format(**ports)):
        pass


def test_a_store_that_is_only_away_does_not_keep_a_client_from_starting(
    ports: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    asyncio.run(entered(f"redis://127.0.0.1:{ports['shut']}"))
    assert f"does not answer yet: The store redis://127.0.0.1:{ports['shut']}/0 cannot be reached" in caplog.text
