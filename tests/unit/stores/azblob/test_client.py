"""How an Azure Blob store is reached: what its URL says, credentials, versions, and a service that has no time."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential
from azure.core.exceptions import ClientAuthenticationError
from azure.storage.blob import ContainerSasPermissions, generate_container_sas

from evenflow.errors import EvenflowError, Misconfigured, StoreUnavailable
from evenflow.model import Member
from evenflow.ports import Operable, Shared, Steerable, Transactional, Watchable
from evenflow.runtime.parts import Parts
from evenflow.stores.azblob import client as azblob_link
from evenflow.stores.azblob import group_record as azblob_charter
from evenflow.stores.azblob.options import EMULATOR, EMULATOR_KEY, address
from evenflow.stores.azblob.store import AzureBlobStore, from_url
from evenflow.urls import hide_secrets, open_store
from tests.unit.stores.azblob.scene import GROUP

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers.azurite import Azurite

SECRET = "c2VjcmV0LWtleQ=="
OLD = "2017-11-09"
"""What Azure Stack Hub speaks."""
ME = Member(id="me", nonce="n", ttl_s=8.0)


# --- URLs
@pytest.mark.parametrize(
    ("url", "told"),
    [
        (
            "azblob://homes/leases",
            {"account_url": "https://homes.blob.core.windows.net", "container": "leases", "credential": None},
        ),
        ("azblob://homes/leases?key_env=SECRET", {"credential": {"account_name": "homes", "account_key": SECRET}}),
        ("azblob://homes/leases?sas_env=SECRET", {"credential": SECRET}),
        ("azblob://homes/leases?endpoint=https://h.local", {"account_url": "https://h.local"}),
        ("azblob://devstoreaccount1/leases", {"account_url": "http://127.0.0.1:10000/devstoreaccount1"}),
        ("azblob://homes/leases?endpoint=http://127.0.0.1:10000", {"account_url": "http://127.0.0.1:10000/homes"}),
        ("azblob://homes/leases?endpoint=http://azurite:1/&key_env=SECRET", {"account_url": "http://azurite:1/homes"}),
        ("azblob://homes/leases?endpoint=http://[::1]:1/other", {"account_url": "http://[::1]:1/other"}),
        (
            "azblob:///leases?endpoint=http://localhost:1/devstoreaccount1",
            {"credential": {"account_name": EMULATOR, "account_key": EMULATOR_KEY}},
        ),
        ("azblob:///leases?connection_string_env=STRING", {"account_url": "https://homes.blob.core.chinacloudapi.cn"}),
        ("azblob://homes/leases?shared=no&peer_expiry_s=60", {"shared": False, "peer_expiry_s": 60.0}),
        ("azblob://homes/leases?api_version=2017-11-09&timeout_s=2", {"api_version": OLD, "timeout_s": 2.0}),
    ],
)
def test_what_a_url_says(url: str, told: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", SECRET)
    suffix = "EndpointSuffix=core.chinacloudapi.cn"
    monkeypatch.setenv("STRING", f"DefaultEndpointsProtocol=https;AccountName=homes;AccountKey={SECRET};{suffix}")
    found = address(url)
    assert {name: getattr(found, name) for name in told} == told
    assert SECRET not in repr(found) + str(found) + repr(open_store(url))


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("azblob://homes", "it names no container. Write it as azblob://ACCOUNT/CONTAINER"),
        ("azblob:///?connection_string_env=STRING", "it names no container.*or as azblob:///CONTAINER\\?connection"),
        ("azblob://homes/Leases", "no name of a container"),
        ("azblob:///leases", "names no storage account"),
        ("azblob://My_Account/leases", "no name of a storage account: 3 to 24"),
        ("azblob:///leases?endpoint=http://127.0.0.1:10000", "127.0.0.1:10000/ACCOUNT"),
        ("azblob:///leases?endpoint=http://azurite:10000/", "azurite:10000/ACCOUNT"),
        ("azblob:///leases?conection_string_env=STRING", "did you mean connection_string_env?"),
        (f"azblob://homes:{SECRET}@h/leases", "no key"),
        (f"azblob://homes/leases?sas={SECRET}", "there is no option 'sas'"),
        ("azblob://homes/leases?key_env=NOT_THERE", "no such environment variable"),
        ("azblob://homes/leases?key_env=SECRET&sas_env=SECRET", "not both"),
        ("azblob://homes/leases?connection_string_env=SECRET", "the connection string names the account"),
        ("azblob:///leases?connection_string_env=SECRET", "no account with a key"),
        ("azblob://homes/leases?endpoint=h.local", "endpoint="),
        ("azblob://homes/leases?endpoint=http://[::1", "endpoint="),
        ("azblob://homes/leases?endpoint=http://h:99999", "endpoint="),
        ("azblob://homes/leases?endpoint=http://", "endpoint="),
        ("azblob:///leases?endpoint=http://h.local&key_env=SECRET", "names no storage account"),
        ("azblob://homes/leases?key_env=ODD", "not base64"),
        ("azblob://homes/leases?api_version=new", "api_version"),
        ("azblob://homes/leases?timeout_s=soon", "timeout_s"),
        ("azblob://homes/leases?peer_expiry_s=0", "peer_expiry_s"),
        ("azblob://homes/leases?shared=perhaps", "shared"),
    ],
)
def test_what_makes_no_sense_is_refused_without_a_secret(url: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", SECRET)
    monkeypatch.setenv("ODD", f"{SECRET}!")
    monkeypatch.setenv("STRING", f"AccountName=homes;AccountKey={SECRET}")
    with pytest.raises(Misconfigured, match=why) as told:
        open_store(url)
    assert SECRET not in str(told.value)
    assert SECRET not in hide_secrets(url)


@pytest.mark.parametrize(
    ("endpoint", "shown"),
    [
        ("https://homes.blob.core.windows.net", "azblob://homes/leases"),
        ("http://127.0.0.1:10000/devstoreaccount1", "azblob://devstoreaccount1/leases"),
        (f"https://h.local:444/me/?sig={SECRET}", "azblob:///leases?endpoint=https://h.local:444/me"),
        ("http://127.0.0.1:1/homes", "azblob://homes/leases?endpoint=http://127.0.0.1:1/homes"),
    ],
)
def test_how_it_is_shown_is_how_it_is_written(endpoint: str, shown: str) -> None:
    store = AzureBlobStore(endpoint, "leases", credential=None)
    assert repr(store) == f"AzureBlobStore({shown!r})"
    assert address(shown).account_url == endpoint.partition("/?")[0]


def test_what_it_can_and_what_not() -> None:
    store = from_url("azblob://homes/leases")
    assert isinstance(store, Shared)
    assert store.shared
    assert not from_url("azblob://homes/leases?shared=no").shared
    assert isinstance(store, Operable)
    assert isinstance(store, Steerable)
    assert not isinstance(store, Watchable | Transactional)


@pytest.mark.parametrize("missing", ["aiohttp", "azure.storage.blob.aio"])
def test_without_the_driver_or_what_it_needs_the_extra_is_named(missing: str) -> None:
    program = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from evenflow.errors import Misconfigured\n"
        "from evenflow.urls import open_store\n"
        "try:\n    open_store('azblob://homes/leases')\n"
        "except Misconfigured as error:\n    print(error)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "pip install 'evenflow[azblob]'" in run.stdout


# --- credentials
def _heartbeat(store: AzureBlobStore) -> None:
    async def once() -> None:
        try:
            assert (await store.heartbeat(GROUP, ME, None)).me is not None
        finally:
            await store.aclose()

    asyncio.run(once())


def _sas(container: str, *, hours: float = 1.0, may_write: bool = True) -> str:
    writes = dict.fromkeys(("write", "delete", "add", "create"), may_write)
    text: str = generate_container_sas(
        EMULATOR,
        container,
        account_key=EMULATOR_KEY,
        permission=ContainerSasPermissions(read=True, list=True, **writes),
        expiry=datetime.now(UTC) + timedelta(hours=hours),
    )
    return text


def test_a_connection_string_a_sas_a_key_and_credentials_are_taken(
    azurite: Azurite, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = azurite.make_container()
    monkeypatch.setenv("STRING", azurite.connection_string)
    monkeypatch.setenv("SAS", _sas(container))
    _heartbeat(from_url(f"azblob:///{container}?connection_string_env=STRING"))
    _heartbeat(from_url(azurite.url(container, more="&sas_env=SAS")))
    _heartbeat(AzureBlobStore.from_connection_string(azurite.connection_string, container))
    named = AzureNamedKeyCredential(EMULATOR, EMULATOR_KEY)
    _heartbeat(AzureBlobStore(azurite.endpoint(), container, credential=named))
    _heartbeat(AzureBlobStore(f"{azurite.endpoint()}?{_sas(container)}", container))


@pytest.mark.parametrize("sas", ["sv=2021-08-06&sr=c&sig=bm90LXRoZS1rZXk%3D&se=2100-01-01", "expired"])
def test_credentials_that_are_refused_are_an_error_without_them(azurite: Azurite, sas: str) -> None:
    container = azurite.make_container()
    given = _sas(container, hours=-1.0) if sas == "expired" else sas
    with pytest.raises(Misconfigured, match="refuses these credentials") as told:
        _heartbeat(AzureBlobStore(azurite.endpoint(), container, credential=given))
    assert "sig" not in str(told.value)


def test_credentials_that_are_refused_after_they_were_good_are_an_outage(azurite: Azurite) -> None:
    container = azurite.make_container()
    signature = AzureSasCredential(_sas(container))

    async def play() -> None:
        store = AzureBlobStore(azurite.endpoint(), container, credential=signature)
        try:
            await store.heartbeat(GROUP, ME, None)
            signature.update(_sas(container, hours=-1.0))
            with pytest.raises(StoreUnavailable, match=r"refuses these credentials.*goes on by itself"):
                await store.heartbeat(GROUP, ME, None)
            signature.update(_sas(container))
            assert (await store.heartbeat(GROUP, ME, None)).me is not None
        finally:
            await store.aclose()

    asyncio.run(play())


def test_who_may_look_and_not_write_is_told_so_at_the_start(azurite: Azurite) -> None:
    container = azurite.make_container()
    with pytest.raises(Misconfigured, match="refuses these credentials"):
        _heartbeat(AzureBlobStore(azurite.endpoint(), container, credential=_sas(container, may_write=False)))


class Issuer:
    """A credential as azure-identity has them."""

    def __init__(self) -> None:
        self.asked = 0

    async def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        self.asked += 1
        return AccessToken("a-token", int((datetime.now(UTC) + timedelta(hours=1)).timestamp()))

    async def close(self) -> None:
        pass


def test_a_token_is_asked_for_and_never_sent_in_the_clear(azurite: Azurite) -> None:
    issuer = Issuer()
    with pytest.raises(EvenflowError) as told:
        _heartbeat(AzureBlobStore(azurite.endpoint(), azurite.make_container(), credential=issuer))
    assert "a-token" not in str(told.value)


class NoIssuer(Issuer):
    async def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        raise ClientAuthenticationError("nobody is signed in")


def test_a_token_that_cannot_be_had_is_told_as_such() -> None:
    with pytest.raises(Misconfigured, match="no token could be had for it"):
        _heartbeat(AzureBlobStore("https://homes.blob.core.windows.net", "leases", credential=NoIssuer()))


def test_a_token_that_cannot_be_had_any_more_is_an_outage(azurite: Azurite, monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        store = from_url(azurite.url())

        def nobody(*_: object) -> object:
            raise ClientAuthenticationError("nobody is signed in")

        try:
            await store.heartbeat(GROUP, ME, None)
            monkeypatch.setattr(azblob_link.Link, "_blob", nobody)
            monkeypatch.setattr(azblob_link.Link, "_container", nobody)
            with pytest.raises(StoreUnavailable, match=r"no token could be had for it.*goes on by itself"):
                await store.heartbeat(GROUP, ME, None)
        finally:
            monkeypatch.undo()
            await store.aclose()

    asyncio.run(play())


# --- a service that can be looked at
class Service(BaseHTTPRequestHandler):
    """Answers what it is told to, and keeps what it was asked."""

    versions: ClassVar[list[str]] = []
    answers: ClassVar[list[int]] = []
    code_of_404: ClassVar[str | None] = "BlobNotFound"
    is_forgetful: ClassVar[bool] = False
    """It takes whatever it is given, and has nothing."""

    def _answer(self) -> None:
        type(self).versions.append(self.headers["x-ms-version"])
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        status = type(self).answers.pop(0) if type(self).answers else 404
        content = b""
        if self.is_forgetful and self.command == "PUT":
            status = 201
        if self.is_forgetful and "comp=list" in self.path:
            status, content = 200, b"<EnumerationResults><Blobs/><NextMarker/></EnumerationResults>"
        code = {404: self.code_of_404, 503: "ServerBusy"}.get(status, "Odd")
        self.send_response(status)
        if code and status >= 400:
            self.send_header("x-ms-error-code", code)
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_HEAD = do_PUT = do_DELETE = _answer

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def service() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    Service.versions, Service.answers = [], []
    Service.code_of_404, Service.is_forgetful = "BlobNotFound", False
    yield f"http://127.0.0.1:{server.server_address[1]}/{EMULATOR}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("version", [OLD, "2019-02-02", "2021-08-06"])
def test_the_version_on_the_wire_is_the_one_that_was_asked_for(service: str, version: str) -> None:
    """Also one that the driver itself does not take."""

    async def look() -> None:
        store = from_url(f"azblob://{EMULATOR}/leases?endpoint={service}&api_version={version}")
        try:
            assert await store.moves(GROUP) == []
        finally:
            await store.aclose()

    asyncio.run(look())
    assert set(Service.versions) == {version}


def test_an_old_version_is_signed_as_such(azurite: Azurite) -> None:
    """It is set before the request is signed, or the service would refuse it."""
    _heartbeat(from_url(azurite.url(more=f"&api_version={OLD}")))


def test_a_service_that_has_no_time_is_asked_again(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(azblob_link, "PAUSE_S", 0.01)
    url = f"azblob://{EMULATOR}/leases?endpoint={service}"

    async def look() -> None:
        store = from_url(url)
        try:
            Service.answers = [503, 500, 429]
            assert await store.moves(GROUP) == []
            assert len(Service.versions) == 4
            Service.answers = [503] * 4
            with pytest.raises(StoreUnavailable, match="503 ServerBusy"):
                await store.moves(GROUP)
        finally:
            await store.aclose()

    asyncio.run(look())


def test_who_cuts_a_wait_for_the_service_short_is_told_its_last_answer(service: str) -> None:
    """A runtime gives a store less time than all of its tries take: what it says then holds the answer."""

    async def look() -> None:
        store = from_url(f"azblob://{EMULATOR}/leases?endpoint={service}")
        parts: Any = SimpleNamespace(request_s=1.0)
        try:
            Service.answers = [503] * 40
            with pytest.raises(StoreUnavailable, match=r"not answered for 1.0 s.*cannot do it now \(503 ServerBusy\)"):
                async with Parts.answered(parts):
                    await store.moves(GROUP)
        finally:
            await store.aclose()

    asyncio.run(look())


def test_a_group_that_is_gone_whenever_it_was_made_is_told_and_not_made_for_ever(
    service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(azblob_charter, "TRIES", 3)
    Service.is_forgetful = True
    with pytest.raises(
        StoreUnavailable, match="not there whenever it was made; the service's last answer: 404 BlobNot"
    ):
        _heartbeat(from_url(f"azblob://{EMULATOR}/leases?endpoint={service}"))


@pytest.mark.parametrize("code", ["ResourceNotFound", None], ids=["with a code", "without a code"])
def test_a_listing_that_is_not_there_is_no_empty_store(service: str, code: str | None) -> None:
    """A server that knows neither account nor container answers so."""

    async def look() -> None:
        store = from_url(f"azblob://{EMULATOR}/leases?endpoint={service}")
        Service.code_of_404 = code
        try:
            with pytest.raises(Misconfigured, match="no such account or container: it answers 404"):
                await store.groups()
        finally:
            await store.aclose()

    asyncio.run(look())


def test_what_the_service_refuses_for_good_is_not_asked_again(service: str) -> None:
    async def look() -> None:
        store = from_url(f"azblob://{EMULATOR}/leases?endpoint={service}")
        try:
            Service.answers = [400]
            with pytest.raises(Misconfigured, match="400"):
                await store.moves(GROUP)
        finally:
            await store.aclose()

    asyncio.run(look())
    assert len(Service.versions) == 1
