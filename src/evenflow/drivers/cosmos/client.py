"""A container of Azure Cosmos DB through azure-cosmos: opens it, translates errors, and counts request units.

evenflow's own client sends every request once, apart from region failover: after a 429 the caller waits as long as the
service asks for, and knows that it waits. A client of the caller keeps the caller's settings and is not closed. Where
the service's message may contain signed text, only its codes are repeated.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from urllib.parse import unquote

import msgspec

from evenflow.drivers.cosmos.options import Address
from evenflow.drivers.network import host_and_port, refusal, why_unreached
from evenflow.errors import (
    DocumentChanged,
    DocumentExists,
    DocumentMissing,
    EvenflowError,
    HubReplaced,
    Misconfigured,
    RangeGone,
    StorageFull,
    Transient,
)

EXTRA = "pip install 'evenflow[cosmos]'"

try:
    import aiohttp as _  # noqa: F401  the client imports it late, and fails with an unclear error
    from azure.core import exceptions as core_errors
    from azure.cosmos.aio import ContainerProxy, CosmosClient
    from azure.cosmos.documents import ConnectionPolicy
    from azure.cosmos.exceptions import CosmosClientTimeoutError, CosmosHttpResponseError
except ImportError as error:
    raise Misconfigured(f"Azure Cosmos DB needs its client: {EXTRA}.") from error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from azure.cosmos import ContainerProxy as PlainContainer

    from evenflow.drivers.cosmos.options import Purpose

T = TypeVar("T")
Watched: TypeAlias = "dict[str, Any]"
"""Extra arguments for every call of the client, which count its request units."""

BACK_OFF_S, BACK_OFF_MOST_S = 0.1, 5.0
OF_CLIENT = "client's own"
CHARGE, RETRY_AFTER = "x-ms-request-charge", "x-ms-retry-after-ms"

_RANGE_GONE = {1002, 1007}
_OWNER_MISSING = 1003
_RID_MISMATCH = 1024
_KEY_MISMATCH = 1001
_FULL = {1014, 1028}
"""A logical partition or the container has reached its storage limit."""
_ELSEWHERE = {3, 1008}
"""Sub-statuses of 403 while the account fails over to another region."""
_LATER = {408, 429, 449}

_quiet = logging.getLogger(f"{__name__}.requests")
_quiet.setLevel(logging.WARNING)
"""Silences the client, which logs every request at level INFO."""


class _Code(msgspec.Struct):
    code: str = ""
    message: str = ""


class BadRequest(Misconfigured):
    """The service rejected a malformed or unsupported request."""


class KeyMismatch(BadRequest):
    """The partition key differs from the cached one: the container was deleted and created again."""


class Link:
    """Sends requests to one container. `where` is an address, or a container object of azure-cosmos."""

    def __init__(self, where: Address | ContainerProxy | PlainContainer, purpose: Purpose) -> None:
        given = where if isinstance(where, ContainerProxy) else None
        self.address = where if isinstance(where, Address) else _address_in(where, purpose.scheme)
        self.purpose = purpose
        self._container: ContainerProxy | None = given
        self._client: CosmosClient | None = None
        self._credential: Any = None
        self._charges: defaultdict[str, float] = defaultdict(float)
        self._closed = asyncio.Event()
        self.has_served = False
        """A request has succeeded, so a later refusal is a change of permissions."""
        self.is_gone = False
        """The container was deleted, so immediate retries are pointless."""

    def __str__(self) -> str:
        return f"{self.purpose.what} {self.address}"

    async def ask(self, kind: str, request: Callable[[ContainerProxy, Watched], Awaitable[T]]) -> T:
        """Sends one request and counts its request units under `kind`. `request(container, watched)` must pass
        `**watched` to the client's method."""
        async with self._translated():
            found = await request(self._opened(), {"raw_response_hook": self._counting(kind)})
        self.has_served, self.is_gone = True, False
        return found

    async def ask_patiently(
        self, kind: str, request: Callable[[ContainerProxy, Watched], Awaitable[T]], within_s: float
    ) -> T:
        """Like `ask`, but retries for this long while the service answers that it is temporarily unable."""
        loop = asyncio.get_running_loop()
        ends_s, attempt = loop.time() + within_s, 0
        while True:
            try:
                return await self.ask(kind, request)
            except self.purpose.away as error:
                attempt += 1
                pause_s = pause_after(error, attempt)
                is_answer = isinstance(error.__cause__, CosmosHttpResponseError)
                if not is_answer or self._closed.is_set() or loop.time() + pause_s >= ends_s:
                    raise
                await self.rest(pause_s)

    async def properties(self) -> Mapping[str, Any]:
        """The current properties of the container: `_rid`, `partitionKey` and others."""
        try:
            return await self.ask("read container", lambda container, watched: container.read(**watched))
        except DocumentMissing as error:
            raise self.no_container() from error

    def charges(self) -> Mapping[str, float]:
        """Request units so far, by kind."""
        return dict(self._charges)

    async def rest(self, seconds: float) -> None:
        """Sleeps, but returns early when this is closed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                await self._closed.wait()

    async def aclose(self) -> None:
        self._closed.set()
        client, self._client, self._container = self._client, None, None
        credential, self._credential = self._credential, None
        if client is not None:
            await client.close()
        if credential is not None:
            await credential.close()

    def no_container(self) -> EvenflowError:
        what = f"There is no container {self.address.container!r} in the database {self.address.database!r} ({self})"
        self.is_gone = True
        if self.has_served:
            return self.purpose.away(f"{what} any more: it was deleted.{self.purpose.if_deleted}")
        return Misconfigured(f"{what}. Create it, or correct the name.")

    # --- private
    def _counting(self, kind: str) -> Callable[[Any], None]:
        """Returns a hook that is called with every response, including those that the client handles itself."""

        def count(response: Any) -> None:
            with suppress(ValueError):
                units = float(response.http_response.headers.get(CHARGE) or 0)
                if units or kind != OF_CLIENT:
                    self._charges[kind] += units

        return count

    def _opened(self) -> ContainerProxy:
        if self._container is None:
            client = self._client = self._made()
            self._container = client.get_database_client(self.address.database).get_container_client(
                self.address.container
            )
        return self._container

    def _made(self) -> CosmosClient:
        address = self.address
        policy = ConnectionPolicy()
        policy.RetryOptions = type(policy.RetryOptions)(max_retry_attempt_count=0)
        options: dict[str, Any] = {
            "connection_policy": policy,
            "connection_timeout": self.purpose.timeout_s,
            "read_timeout": self.purpose.timeout_s,
            **dict.fromkeys(("retry_total", "retry_connect", "retry_read", "retry_status"), 0),
            # A local emulator has only this endpoint.
            "enable_endpoint_discovery": not address.is_local,
            "preferred_locations": list(address.preferred_locations),
            "connection_verify": address.is_verified,
            "logger": _quiet,
            # Counts the client's internal requests, such as reading ranges after a split. Our requests have their own
            # hook.
            "raw_response_hook": self._counting(OF_CLIENT),
        }
        try:
            return CosmosClient(address.endpoint, self._credentials(), **options)
        except (ValueError, TypeError) as error:
            raise Misconfigured(f"{self}: azure-cosmos rejected the endpoint or the credential.") from error

    def _credentials(self) -> Any:
        given = self.address.credential
        if given is not None:
            return given
        if self.address.endpoint.startswith("http:"):
            raise Misconfigured(f"{self}: tokens are not sent over plain http. Use a key: key_env= or key=.")
        try:
            from azure.identity.aio import DefaultAzureCredential
        except ImportError as error:
            raise Misconfigured(f"{self}: authentication without a key needs azure-identity: {EXTRA}.") from error
        self._credential = DefaultAzureCredential()
        return self._credential

    @asynccontextmanager
    async def _translated(self) -> AsyncIterator[None]:
        if self._closed.is_set():
            raise self.purpose.away(f"The {self} is closed.")
        try:
            async with asyncio.timeout(self.purpose.timeout_s):
                yield
        except (TimeoutError, CosmosClientTimeoutError) as error:
            raise self._timed_out() from error
        except CosmosHttpResponseError as error:
            raise self._answered(error) from error
        except (core_errors.AzureError, OSError) as error:
            raise self._unanswered(error) from error
        except RuntimeError as error:
            if self._client is not None or "loop" not in str(error):
                raise
            raise Misconfigured(
                f"The {self}: the given container belongs to another event loop ({error}). An async client of"
                " azure-cosmos works only in the loop that used it first. Use it in one loop, with serve(); or pass a"
                " container of the synchronous client, or a URL."
            ) from error

    def _answered(self, error: CosmosHttpResponseError) -> EvenflowError:
        status, sub = int(error.status_code or 0), int(error.sub_status or 0)
        codes = f"{status}/{sub}" if sub else str(status)
        if status == 404:
            return self.no_container() if sub == _OWNER_MISSING else DocumentMissing(f"The {self}: {codes}.")
        if status == 409:
            return DocumentExists(f"The {self}: {codes}.")
        if status == 412:
            return DocumentChanged(f"The {self}: {codes}.")
        if status == 410 and sub in _RANGE_GONE:
            return RangeGone(f"The {self}: a range was split or merged ({codes}).")
        if status == 400 and sub == _RID_MISMATCH:
            return HubReplaced(
                f"The container of the {self} was deleted and made again ({codes}). Old checkpoints do not fit"
                " it: stop all instances, delete the group (`evenflow group delete`), and start again; or use another"
                " group name."
            )
        if status == 403 and sub in _FULL:
            return StorageFull(f"The {self} is full: a storage limit is reached ({codes}).")
        if status in (401, 403) and sub not in _ELSEWHERE:
            return self._refused(codes)
        if status in _LATER or status in (403, 410) or (status >= 500 and status != 501):
            return self._later(error, codes)
        kind = BadRequest if status == 400 else Misconfigured
        if status == 400 and sub == _KEY_MISMATCH:
            kind = KeyMismatch
        return kind(f"The {self} rejected a request ({codes}): {_said(error)}")

    def _refused(self, codes: str) -> EvenflowError:
        return refusal(
            f"The {self} refuses these credentials, or what they may do ({codes}). Check the key, the role of this"
            " identity, and the account's network rules: docs/how-to/feed-cosmos.md.",
            has_served=self.has_served,
            by=self.purpose.what,
            unreachable=self.purpose.away,
        )

    def _later(self, error: CosmosHttpResponseError, codes: str) -> Transient:
        why = "has no request units left" if error.status_code == 429 else "cannot do it now"
        found = self.purpose.away(f"The {self} {why} ({codes}).")
        with suppress(ValueError):
            found.retry_after_s = float(error.headers.get(RETRY_AFTER) or 0) / 1000
        return found

    def _unanswered(self, error: Exception) -> EvenflowError:
        if isinstance(error, core_errors.ClientAuthenticationError):
            return refusal(
                f"The {self}: could not get a token. Sign in (`az login`), give this machine an identity, or use a key:"
                " docs/how-to/feed-cosmos.md.",
                has_served=self.has_served,
                by=self.purpose.what,
                unreachable=self.purpose.away,
            )
        if isinstance(error, core_errors.DecodeError):
            return self.purpose.away(f"The {self} does not answer with JSON; check that Cosmos DB listens there.")
        why = why_unreached(error, host_and_port(self.address.endpoint), "Cosmos DB")
        return self.purpose.away(f"The {self} cannot be reached: {why}")

    def _timed_out(self) -> Transient:
        return self.purpose.away(
            f"The {self} has not answered for {self.purpose.timeout_s:g} s. Check whether"
            f" {host_and_port(self.address.endpoint)} is overloaded or unreachable."
        )


def pause_after(error: Transient, attempt: int) -> float:
    """The pause before the next attempt: what the service asked for, or an exponential backoff."""
    return error.retry_after_s or min(BACK_OFF_MOST_S, BACK_OFF_S * 2 ** min(attempt - 1, 10))


class _Token:
    """Makes a synchronous credential usable in async code."""

    def __init__(self, credential: Any) -> None:
        self._credential = credential

    async def get_token(self, *scopes: str, **options: Any) -> Any:
        return await asyncio.to_thread(self._credential.get_token, *scopes, **options)

    async def close(self) -> None:
        """The caller owns the credential."""

    async def __aenter__(self) -> _Token:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


def _address_in(container: ContainerProxy | PlainContainer, scheme: str) -> Address:
    """The address and credentials of an azure-cosmos container; a synchronous one cannot be used directly."""
    if not hasattr(container, "container_link"):
        raise Misconfigured(f"{scheme}: give a container of azure-cosmos, or its URL, not {container!r:.100}.")
    connection: Any = container.client_connection
    _, database, _, name = unquote(container.container_link.strip("/")).split("/", 3)
    token = connection.aad_credentials
    credential = connection.master_key or connection.resource_tokens or (_Token(token) if token else None)
    policy = connection.connection_policy
    return Address(
        connection.url_connection,
        database,
        name,
        credential=credential,
        scheme=scheme,
        preferred_locations=tuple(policy.PreferredLocations or ()),
        is_verified=not policy.DisableSSLVerification,
    )


def _said(error: CosmosHttpResponseError) -> str:
    """The service's message without diagnostics."""
    text = str(error.http_error_message or "")
    with suppress(msgspec.MsgspecError):
        text = msgspec.json.decode(text, type=_Code).message or text
    return " ".join(text.partition("ActivityId")[0].split())[:300] or "no reason given."
