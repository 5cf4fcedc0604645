"""The way to a container of blobs: a handful of requests, time limits, and errors in our own words.

A request is sent once, unless the service itself answers that it could not do it now. What a lost answer left undone
is for the caller to find out: a conditional write that is sent again would be told that it was refused. So the
driver's own retries are off, and whoever is refused looks again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from evenflow.drivers.network import host_and_port, refusal, why_unreached
from evenflow.errors import EvenflowError, Misconfigured, StorageFull, StoreUnavailable
from evenflow.stores.azblob.options import DOMAIN, EMULATOR, EMULATOR_ENDPOINT

try:
    import aiohttp as _  # noqa: F401  the driver asks for it late, and then with an error of its own
    from azure.core import MatchConditions
    from azure.core import exceptions as errors
    from azure.core.credentials import AzureSasCredential
    from azure.storage.blob.aio import ContainerClient
except ImportError as error:
    raise Misconfigured("The Azure Blob store needs its driver: pip install 'evenflow[azblob]'") from error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from evenflow.stores.azblob.options import Address

T = TypeVar("T")

REQUESTS_AT_ONCE = 32
TRIES = 4
PAUSE_S = 0.2
"""Before a request that was turned away is sent again; longer each time."""
OLDEST_OFFERED = "2019-02-02"
"""The driver's own option takes no older version of the storage service's interface."""
CLIENTS_KEPT = 4_096

_quiet = logging.getLogger(f"{__name__}.requests")
_quiet.setLevel(logging.WARNING)
"""The driver would tell of every request, several a heartbeat, to whoever listens to what is worth knowing."""

_MISSED = ("BlobNotFound", "ConditionNotMet", "BlobAlreadyExists", "TargetConditionNotMet")
_BUSY = (429, 500, 502, 503, 504)
_FULL = ("InsufficientAccountResourceError", "AccountIsDisabled", "QuotaExceeded")


class Blob(NamedTuple):
    name: str
    etag: str
    metadata: Mapping[str, str]
    modified_at: float
    """By the service's clock."""


class Link:
    """One container. Progress has a queue of its own, so that it never delays a heartbeat."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._client: ContainerClient | None = None
        self._credential: Any = None
        self._blobs: dict[str, Any] = {}
        self._queues: dict[str, asyncio.Semaphore] = {}
        self._closed = False
        self._has_answered = False
        self._has_written = False
        """What is refused from then on was granted once."""
        self.last_answer = "it has answered nothing yet"
        """The last refusal of the service, or that a blob is not there: a status and a code, for people."""

    def wall(self) -> float:
        """What is written beside records, and given as numbers."""
        return time.time()  # noqa: TID251

    # --- requests
    async def head(self, name: str) -> Blob | None:
        """Its metadata, without its content."""
        found = await self._ask(lambda: self._blob(name).get_blob_properties())
        return _blob(found, name) if found is not None else None

    async def fetch(self, name: str) -> tuple[Blob, bytes] | None:
        async def download() -> tuple[Any, bytes]:
            stream = await self._blob(name).download_blob(max_concurrency=1)
            return stream.properties, await stream.readall()

        found = await self._ask(download)
        return (_blob(found[0], name), found[1]) if found is not None else None

    async def list(self, prefix: str) -> Sequence[Blob]:
        """All blobs whose names begin so, with their metadata: one request for 5,000."""

        async def listed() -> list[Blob]:
            pages = self._container().list_blobs(name_starts_with=prefix, include=["metadata"])
            return [_blob(item, item.name) async for item in pages]

        return await self._found(listed)

    async def folders(self, prefix: str) -> Sequence[str]:
        """The next parts of names that begin so."""

        async def walked() -> list[str]:
            found = self._container().walk_blobs(name_starts_with=prefix, delimiter="/")
            return [item.name async for item in found if item.name.endswith("/")]

        return await self._found(walked)

    async def create(self, name: str, metadata: Mapping[str, str], content: bytes = b"") -> str | None:
        """Its ETag; None when there is one already."""
        return await self._written(
            lambda: self._blob(name).upload_blob(content, metadata=dict(metadata), overwrite=False)
        )

    async def replace(self, name: str, metadata: Mapping[str, str], content: bytes, etag: str) -> str | None:
        """Its new ETag; None when it is not the one that was seen."""
        return await self._written(
            lambda: self._blob(name).upload_blob(content, metadata=dict(metadata), overwrite=True, **_if_match(etag))
        )

    async def note(self, name: str, metadata: Mapping[str, str], etag: str, lane: str = "heartbeats") -> str | None:
        """Replace its metadata alone; its new ETag, None when it is not the one that was seen."""
        return await self._written(lambda: self._blob(name).set_blob_metadata(dict(metadata), **_if_match(etag)), lane)

    async def delete(self, name: str, etag: str | None = None) -> None:
        condition = _if_match(etag) if etag else {}
        await self._ask(lambda: self._blob(name).delete_blob(**condition))

    async def append(self, name: str, lines: bytes) -> int:
        """Add to a blob that only grows, made when it is missing; how many pieces it has now."""
        for _ in range(TRIES):
            told = await self._ask(lambda: self._blob(name).append_block(lines))
            if told is not None:
                return int(told["blob_committed_block_count"])
            await self._ask(lambda: self._blob(name).create_append_blob(match_condition=MatchConditions.IfMissing))
        raise StoreUnavailable(
            f"The store {self._address}: {name!r} is removed whenever it is made; its last answer: {self.last_answer}."
        )

    async def cut(self, name: str, lines_kept: int) -> None:
        """Begin it anew with its last lines, unless somebody has added to it meanwhile."""
        found = await self.fetch(name)
        if found is None:
            return
        blob, content = found
        made = await self._ask(lambda: self._blob(name).create_append_blob(**_if_match(blob.etag)))
        if made is not None:
            await self.append(name, b"".join(content.splitlines(keepends=True)[-lines_kept:]))

    async def aclose(self) -> None:
        self._closed = True
        client, self._client = self._client, None
        if client is not None:
            await client.close()
        if self._credential is not None:
            await self._credential.close()

    # --- inside
    async def _written(self, request: Callable[[], Awaitable[Any]], lane: str = "heartbeats") -> str | None:
        told = await self._ask(request, lane)
        self._has_written |= told is not None
        return _bare(told["etag"]) if told is not None else None

    async def _found(self, request: Callable[[], Awaitable[Sequence[T]]]) -> Sequence[T]:
        """What a listing finds. There is one, maybe an empty one, wherever there is a container."""
        found: Sequence[T] | None = await self._ask(request)
        if found is None:
            raise self._no_place()
        return found

    async def _ask(self, request: Callable[[], Awaitable[Any]], lane: str = "heartbeats") -> Any:
        """None when the blob is not there, or is another one than was named."""
        queue = self._queues.setdefault(lane, asyncio.Semaphore(REQUESTS_AT_ONCE))
        for attempt in range(TRIES):
            try:
                async with queue, self._translated():
                    told = await request()
                self._has_answered = True
                return told
            except _Missed as missed:
                self._has_answered |= missed.is_certain
                return None
            except _TurnedAway as busy:
                if attempt + 1 == TRIES:
                    raise StoreUnavailable(str(busy)) from busy.__cause__
                # In here, so that whoever cuts this short is told what was answered.
                await asyncio.sleep(PAUSE_S * 2**attempt)  # noqa: TID251
        raise AssertionError("the last try returns or raises")

    @asynccontextmanager
    async def _translated(self) -> AsyncIterator[None]:
        if self._closed:
            raise StoreUnavailable(f"The store {self._address} was closed.")
        try:
            async with asyncio.timeout(self._address.timeout_s):
                yield
        except TimeoutError as error:
            raise self._silent() from error
        except errors.HttpResponseError as error:
            # A token that could not be had is such an error too, though nobody was asked for a blob.
            raise (self._answered(error) if error.status_code else self._unanswered(error)) from error
        except (errors.AzureError, OSError) as error:
            raise self._unanswered(error) from error

    def _answered(self, error: errors.HttpResponseError) -> Exception:
        """By the code that the service gives. Its words are not repeated: they may tell of what was signed."""
        told = getattr(error, "error_code", None)
        code, status = str(getattr(told, "value", told or "without a code")), error.status_code
        self.last_answer = f"{status} {code}"
        if code in _MISSED or status == 412:
            return _Missed(is_certain=True)
        if code.startswith("Container"):
            return self._no_container(code)
        if status == 404:
            # To a question for a blob alone there may be no code: the answer has no content then.
            return _Missed(is_certain=False) if told is None else self._no_place()
        if code in _FULL:
            return StorageFull(f"The storage account of {self._address} takes no more writes ({code}).")
        if status in (401, 403):
            return refusal(
                f"The store {self._address} refuses these credentials, or what they may do ({status} {code}). They"
                " must be allowed to read, write, list and delete blobs of this container: see"
                " docs/reference/stores-azblob.md.",
                has_served=self._has_written,
            )
        if status in _BUSY:
            return _TurnedAway(f"The store {self._address} cannot do it now ({status} {code}).")
        return Misconfigured(f"The store {self._address} refuses what evenflow asks of it ({status} {code}).")

    def _no_container(self, code: str) -> EvenflowError:
        what = f"The container of the store {self._address} is not there ({code})."
        if self._has_answered:
            return StoreUnavailable(f"{what} It was; evenflow goes on when it is back.")
        return Misconfigured(f"{what} evenflow makes none. Make it, for instance with `{self._making()}`.")

    def _making(self) -> str:
        """The command of Azure's own tool."""
        command = f"az storage container create --name {self._address.container}"
        parts = urlsplit(self._address.account_url)
        endpoint = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        account = (parts.hostname or "").partition(".")[0]
        if endpoint.rstrip("/") == f"https://{account}.{DOMAIN}":
            return f"{command} --account-name {account} --auth-mode login"
        if endpoint.rstrip("/") == EMULATOR_ENDPOINT:
            return f"{command} --connection-string UseDevelopmentStorage=true"
        return f"{command} --blob-endpoint {endpoint} --account-key KEY"

    def _no_place(self) -> EvenflowError:
        """The service does not even know the account: somebody else answers, or the endpoint is another one."""
        what = (
            f"At the endpoint of the store {self._address} there is no such account or container: it answers"
            f" {self.last_answer}. See the endpoint; for Azurite it ends with the account, such as"
            f" http://127.0.0.1:10000/{EMULATOR}."
        )
        return StoreUnavailable(what) if self._has_answered else Misconfigured(what)

    def _unanswered(self, error: Exception) -> EvenflowError:
        if isinstance(error, errors.ClientAuthenticationError):
            return refusal(
                f"The store {self._address}: no token could be had for it. Sign in (`az login`), or see"
                " docs/reference/stores-azblob.md for the other ways to give a credential.",
                has_served=self._has_written,
            )
        why = why_unreached(error, host_and_port(self._address.account_url), self._server())
        return StoreUnavailable(f"The store {self._address} cannot be reached: {why}")

    def _server(self) -> str:
        return "Azurite" if f"/{EMULATOR}" in self._address.account_url else "the storage service"

    def _silent(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"The store {self._address} has not answered for {self._address.timeout_s:g} s. See whether"
            f" {host_and_port(self._address.account_url)} is overloaded or cut off."
        )

    def _blob(self, name: str) -> Any:
        found = self._blobs.get(name)
        if found is None:
            if len(self._blobs) >= CLIENTS_KEPT:
                self._blobs.clear()
            found = self._blobs[name] = self._container().get_blob_client(name)
        return found

    def _container(self) -> ContainerClient:
        if self._client is None:
            self._client = self._connected()
        return self._client

    def _connected(self) -> ContainerClient:
        address = self._address
        options: dict[str, Any] = {
            "retry_total": 0,
            "logger": _quiet,
            "connection_timeout": address.timeout_s,
            "read_timeout": address.timeout_s,
        }
        if address.api_version is not None and address.api_version >= OLDEST_OFFERED:
            options["api_version"] = address.api_version
        elif address.api_version is not None:
            options["raw_request_hook"] = self._speak_as_of_old
        try:
            return ContainerClient(address.account_url, address.container, credential=self._credentials(), **options)
        except ValueError as error:
            raise Misconfigured(f"The store {address}: {self._unusable()}.") from error

    def _unusable(self) -> str:
        if not self._address.account_url.lower().startswith("https:"):
            return (
                "its endpoint is plain http, over which no token is sent. Name the account and give key_env=, sas_env="
                " or connection_string_env=, or an endpoint with https"
            )
        return "the driver cannot use this endpoint or version"

    def _speak_as_of_old(self, request: Any) -> None:
        """Before it is signed: a pipeline policy of one's own comes after that."""
        request.http_request.headers["x-ms-version"] = self._address.api_version

    def _credentials(self) -> Any:
        given = self._address.credential
        if given is None:
            if "?" in self._address.account_url:
                return None  # a SAS stands in the URL itself
            try:
                from azure.identity.aio import DefaultAzureCredential
            except ImportError as error:
                raise Misconfigured(
                    "Without a key or a SAS the Azure Blob store needs azure-identity: pip install 'evenflow[azblob]'"
                ) from error
            self._credential = DefaultAzureCredential()
            return self._credential
        if isinstance(given, str) and "sig=" in given:
            return AzureSasCredential(given.lstrip("?"))
        return given


class _Missed(Exception):
    """The blob is not there, or not as it was seen."""

    def __init__(self, *, is_certain: bool) -> None:
        super().__init__()
        self.is_certain = is_certain
        """It is the service that says so, and not somebody else who knows nothing of blobs."""


class _TurnedAway(StoreUnavailable):
    """The service cannot do it now, and says so."""


def _if_match(etag: str) -> dict[str, Any]:
    return {"etag": f'"{etag}"', "match_condition": MatchConditions.IfNotModified}


def _blob(found: Any, name: str) -> Blob:
    modified = found.last_modified
    return Blob(name, _bare(found.etag), found.metadata or {}, modified.timestamp() if modified else 0.0)


def _bare(etag: str) -> str:
    """A listing writes ETags without quotation marks."""
    return etag.strip('"')
