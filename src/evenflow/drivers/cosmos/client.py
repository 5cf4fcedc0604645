"""The client of Azure Cosmos DB, azure-cosmos, for one container: opened here, what its errors mean, and what it costs.

A client of our own sends a request once, but for what it does about regions: whoever is told to come later waits as
long as the service says, and knows that it waits. One that was given to us keeps the settings of its owner, and is not
closed. Of what the service says, only its codes are repeated where it may speak of what was signed.
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
    import aiohttp as _  # noqa: F401  the client asks for it late, and then with an error of its own
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
"""What every call of the client is handed beside its own arguments, so that what it costs is counted."""

BACK_OFF_S, BACK_OFF_MOST_S = 0.1, 5.0
OF_CLIENT = "client's own"
CHARGE, RETRY_AFTER = "x-ms-request-charge", "x-ms-retry-after-ms"

_RANGE_GONE = {1002, 1007}
_OWNER_MISSING = 1003
_RID_MISMATCH = 1024
_KEY_MISMATCH = 1001
_FULL = {1014, 1028}
"""A logical partition, or the whole container, has reached its limit."""
_ELSEWHERE = {3, 1008}
"""403 while the account fails over to another region."""
_LATER = {408, 429, 449}

_quiet = logging.getLogger(f"{__name__}.requests")
_quiet.setLevel(logging.WARNING)
"""The client would tell of every request to whoever listens to what is worth knowing."""


class _Code(msgspec.Struct):
    code: str = ""
    message: str = ""


class BadRequest(Misconfigured):
    """The service does not take a request as it is."""


class KeyMismatch(BadRequest):
    """The container is not partitioned as the client believes: another one is in its place."""


class Link:
    """One container, and everything that is asked of it. `where` is an address, or a container of the client's own."""

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
        """It has answered as it should: what is refused from then on was granted once."""
        self.is_gone = False
        """The container was deleted: it makes no sense to ask again at once."""

    def __str__(self) -> str:
        return f"{self.purpose.what} {self.address}"

    async def ask(self, kind: str, request: Callable[[ContainerProxy, Watched], Awaitable[T]]) -> T:
        """One request, of this kind; all that belongs to it counts for it. `request(container, watched)` hands
        `**watched` on to the method of the client that it calls."""
        async with self._translated():
            found = await request(self._opened(), {"raw_response_hook": self._counting(kind)})
        self.has_served, self.is_gone = True, False
        return found

    async def ask_patiently(
        self, kind: str, request: Callable[[ContainerProxy, Watched], Awaitable[T]], within_s: float
    ) -> T:
        """The same, again and again for so long while the service answers that it cannot do it now."""
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
        """The container as it is now: `_rid`, `partitionKey` and others."""
        try:
            return await self.ask("read container", lambda container, watched: container.read(**watched))
        except DocumentMissing as error:
            raise self.no_container() from error

    def charges(self) -> Mapping[str, float]:
        """Request units so far, of each kind."""
        return dict(self._charges)

    async def rest(self, seconds: float) -> None:
        """So long, unless this is closed."""
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
        return Misconfigured(f"{what}. Make it, or correct the name.")

    # --- inside
    def _counting(self, kind: str) -> Callable[[Any], None]:
        """What is called with every answer, also with those that the client itself does something about."""

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
            # There is one place on this machine, and it is where it was looked for.
            "enable_endpoint_discovery": not address.is_local,
            "preferred_locations": list(address.preferred_locations),
            "connection_verify": address.is_verified,
            "logger": _quiet,
            # What it looks up by itself, such as ranges after a split: requests of ours have a hook of their own.
            "raw_response_hook": self._counting(OF_CLIENT),
        }
        try:
            return CosmosClient(address.endpoint, self._credentials(), **options)
        except (ValueError, TypeError) as error:
            raise Misconfigured(f"{self}: the client cannot use this endpoint or credential.") from error

    def _credentials(self) -> Any:
        given = self.address.credential
        if given is not None:
            return given
        if self.address.endpoint.startswith("http:"):
            raise Misconfigured(f"{self}: over plain http no token is sent. Give a key: key_env= or key=.")
        try:
            from azure.identity.aio import DefaultAzureCredential
        except ImportError as error:
            raise Misconfigured(f"{self}: without a key it needs azure-identity: {EXTRA}.") from error
        self._credential = DefaultAzureCredential()
        return self._credential

    @asynccontextmanager
    async def _translated(self) -> AsyncIterator[None]:
        if self._closed.is_set():
            raise self.purpose.away(f"The {self} was closed.")
        try:
            async with asyncio.timeout(self.purpose.timeout_s):
                yield
        except (TimeoutError, CosmosClientTimeoutError) as error:
            raise self._silent() from error
        except CosmosHttpResponseError as error:
            raise self._answered(error) from error
        except (core_errors.AzureError, OSError) as error:
            raise self._unanswered(error) from error
        except RuntimeError as error:
            if self._client is not None or "loop" not in str(error):
                raise
            raise Misconfigured(
                f"The {self}: the container that was given belongs to another event loop ({error}). An async client"
                " of azure-cosmos works in the loop that used it first: use it in one, with serve(); or give a"
                " container of the plain client, or a URL."
            ) from error

    def _answered(self, error: CosmosHttpResponseError) -> EvenflowError:
        status, sub = int(error.status_code or 0), int(error.sub_status or 0)
        told = f"{status}/{sub}" if sub else str(status)
        if status == 404:
            return self.no_container() if sub == _OWNER_MISSING else DocumentMissing(f"The {self}: {told}.")
        if status == 409:
            return DocumentExists(f"The {self}: {told}.")
        if status == 412:
            return DocumentChanged(f"The {self}: {told}.")
        if status == 410 and sub in _RANGE_GONE:
            return RangeGone(f"The {self}: a range was split or merged ({told}).")
        if status == 400 and sub == _RID_MISMATCH:
            return HubReplaced(
                f"The container of the {self} was deleted and made again ({told}). Old checkpoints do not fit"
                " it: stop all instances, delete the group (`evenflow group delete`), and start again; or use another"
                " group name."
            )
        if status == 403 and sub in _FULL:
            return StorageFull(f"The {self} takes no more: a limit of its storage is reached ({told}).")
        if status in (401, 403) and sub not in _ELSEWHERE:
            return self._refused(told)
        if status in _LATER or status in (403, 410) or (status >= 500 and status != 501):
            return self._later(error, told)
        kind = BadRequest if status == 400 else Misconfigured
        if status == 400 and sub == _KEY_MISMATCH:
            kind = KeyMismatch
        return kind(f"The {self} refuses what evenflow asks of it ({told}): {_said(error)}")

    def _refused(self, told: str) -> EvenflowError:
        return refusal(
            f"The {self} refuses these credentials, or what they may do ({told}). See the key, the role of this"
            " identity, and which networks the account lets in: docs/how-to/feed-cosmos.md.",
            has_served=self.has_served,
            by=self.purpose.what,
            unreachable=self.purpose.away,
        )

    def _later(self, error: CosmosHttpResponseError, told: str) -> Transient:
        why = "has no request units left" if error.status_code == 429 else "cannot do it now"
        found = self.purpose.away(f"The {self} {why} ({told}).")
        with suppress(ValueError):
            found.retry_after_s = float(error.headers.get(RETRY_AFTER) or 0) / 1000
        return found

    def _unanswered(self, error: Exception) -> EvenflowError:
        if isinstance(error, core_errors.ClientAuthenticationError):
            return refusal(
                f"The {self}: no token could be had for it. Sign in (`az login`), give this machine an identity, or a"
                " key: docs/how-to/feed-cosmos.md.",
                has_served=self.has_served,
                by=self.purpose.what,
                unreachable=self.purpose.away,
            )
        if isinstance(error, core_errors.DecodeError):
            return self.purpose.away(f"The {self} answers something that is no JSON; is it Cosmos DB that listens?")
        why = why_unreached(error, host_and_port(self.address.endpoint), "Cosmos DB")
        return self.purpose.away(f"The {self} cannot be reached: {why}")

    def _silent(self) -> Transient:
        return self.purpose.away(
            f"The {self} has not answered for {self.purpose.timeout_s:g} s. See whether"
            f" {host_and_port(self.address.endpoint)} is overloaded or cut off."
        )


def pause_after(error: Transient, attempt: int) -> float:
    """Before the next try: what the service asked for, and otherwise longer each time."""
    return error.retry_after_s or min(BACK_OFF_MOST_S, BACK_OFF_S * 2 ** min(attempt - 1, 10))


class _Token:
    """A credential for plain programs, used by one that may not block."""

    def __init__(self, credential: Any) -> None:
        self._credential = credential

    async def get_token(self, *scopes: str, **options: Any) -> Any:
        return await asyncio.to_thread(self._credential.get_token, *scopes, **options)

    async def close(self) -> None:
        """It belongs to somebody else."""

    async def __aenter__(self) -> _Token:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


def _address_in(container: ContainerProxy | PlainContainer, scheme: str) -> Address:
    """Where a container of the client's own is, and how it gets in: a plain one cannot be used here itself."""
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
    """The service's own sentence, without what it adds for its makers."""
    text = str(error.http_error_message or "")
    with suppress(msgspec.MsgspecError):
        text = msgspec.json.decode(text, type=_Code).message or text
    return " ".join(text.partition("ActivityId")[0].split())[:300] or "it does not say why."
