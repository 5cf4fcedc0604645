"""The way to a Redis server: connections, scripts, time limits, and errors in our own words.

A request is sent once. Whether one without an answer took effect is not known, and sending it again is for the caller
to decide: a swap that is repeated would be told that it was refused. So the driver's own retries are off. A connection
that was given up, for whatever reason, is closed, and the next request has another.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import ssl
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from evenflow.drivers.network import NotDone, refusal, why_unreached
from evenflow.errors import EvenflowError, Misconfigured, StorageFull, StoreUnavailable

try:
    from redis import asyncio as driver
    from redis import exceptions as errors
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
except ImportError as error:
    raise Misconfigured("The Redis store needs its driver: pip install 'evenflow[redis]'") from error

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from evenflow.stores.redis.options import Address

LANE_CONNECTIONS = 4
QUEUE_FACTOR = 5
"""A request may wait in line for so many times the time that it may take."""


class Script(NamedTuple):
    text: str
    sha: str


@cache
def script(name: str) -> Script:
    """A script of this package, with what all of them share before it."""
    folder = files("evenflow.stores.redis")
    parts = [folder.joinpath(f"{part}.lua").read_text("utf-8") for part in ("prelude", name)]
    text = "\n".join(parts)
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


class Link:
    """One server, or one cluster. Progress has connections of its own, so that it never delays a heartbeat."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._client: Any = None
        self._lanes: dict[str, asyncio.Semaphore] = {}
        self._closed = False
        self.has_served = False
        """It has written something for this client: what it refuses from then on was granted once."""

    async def run(self, lane: str, script: Script, keys: Sequence[str], args: Sequence[str]) -> Any:
        """One script: one round trip, but for the first after the server has forgotten it."""
        try:
            return await self.ask(lane, "EVALSHA", script.sha, len(keys), *keys, *args)
        except _Unknown:
            return await self.ask(lane, "EVAL", script.text, len(keys), *keys, *args)

    async def ask(self, lane: str, *command: str | int) -> Any:
        if self._closed:
            raise StoreUnavailable(f"The store {self.address} was closed.")
        queue = self._lanes.setdefault(lane, asyncio.Semaphore(LANE_CONNECTIONS))
        limit_s = self.address.timeout_s
        with translated(self.address, has_served=self.has_served):
            async with asyncio.timeout(QUEUE_FACTOR * limit_s), queue, asyncio.timeout(limit_s):
                return await self._connected().execute_command(*command)

    async def aclose(self) -> None:
        self._closed = True
        client, self._client = self._client, None
        if client is not None:
            with translated(self.address):
                await client.aclose()

    def _connected(self) -> Any:
        if self._client is None:
            self._client = connect(self.address)
        return self._client


def connect(address: Address, *, cluster: bool | None = None) -> Any:
    """A client of the driver. Nothing is opened before its first command."""
    options = {
        **address.connection(),
        "socket_timeout": address.timeout_s,
        "socket_connect_timeout": address.timeout_s,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
    }
    if address.path:
        options["unix_socket_path"] = options.pop("path")
    if address.tls:
        options["ssl"] = True
    if address.cluster if cluster is None else cluster:
        del options["db"]
        return driver.RedisCluster(**options)
    return driver.Redis(**options, retry_on_error=[])


class _Unknown(Exception):
    """The server does not know the script: it was restarted, or told to forget."""


_FULL = re.compile(r"\b(OOM|MISCONF)\b")
_AWAY = re.compile(
    r"\b(LOADING|BUSY|CLUSTERDOWN|TRYAGAIN|READONLY|MASTERDOWN|NOREPLICAS|NOGOODSLAVE|UNBLOCKED|MOVED|ASK)\b"
)
_RIGHTS = re.compile(
    r"\b(WRONGPASS|NOAUTH|NOPERM)\b|username-password|invalid password|Authentication required"
    r"|The user executing the script can't|ACL failure in script"  # inside a script there is no such word
)
_DATABASE = re.compile(r"DB index|invalid DB|Invalid Database", re.IGNORECASE)


@contextmanager
def translated(address: Address, *, has_served: bool = False) -> Iterator[None]:
    """A driver's error becomes one of ours."""
    try:
        yield
    except TimeoutError as error:
        raise _silent(address) from error
    except (errors.RedisError, errors.RedisClusterException, OSError) as error:
        if isinstance(error, errors.NoScriptError):
            raise _Unknown from error
        raise _ours(error, address, has_served=has_served) from error


def _silent(address: Address) -> StoreUnavailable:
    tls = ", and whether it speaks TLS" if address.tls else ""
    return StoreUnavailable(
        f"The store {address} has not answered for {address.timeout_s:g} s. See whether the server is overloaded or cut"
        f" off{tls}."
    )


def _ours(error: Exception, address: Address, *, has_served: bool) -> EvenflowError:
    """By the class that the driver gives an error, or by the word that the server begins it with.

    An error inside a script has that word somewhere in its text, and no class.
    """
    text = str(error)
    if isinstance(error, errors.OutOfMemoryError) or _FULL.search(text):
        return StorageFull(
            f"The server of the store {address} has no room to write: {_short(text)}. Give it memory or disk; evenflow"
            " goes on by itself then. Nothing that was acknowledged is lost."
        )
    if _has_cause(error, (errors.AuthenticationError, errors.AuthorizationError, errors.NoPermissionError)) or (
        _RIGHTS.search(text)
    ):
        return refusal(
            f"The store {address} refuses these credentials, or what they may do: {_short(text)}. See the user and the"
            " password in its URL; what the user must be allowed to do is in docs/reference/stores-redis.md.",
            has_served=has_served,
        )
    if _DATABASE.search(text):
        return refusal(f"The store {address} has no such database: {_short(text)}.", has_served=has_served)
    if _has_cause(error, ssl.SSLCertVerificationError):
        return refusal(
            f"The store {address} shows a certificate that is not trusted here: {_short(text)}. Name the file of the"
            " authority to trust with ?ca=.",
            has_served=has_served,
        )
    if isinstance(error, errors.TimeoutError):
        return _silent(address)
    if isinstance(error, errors.ReadOnlyError | errors.TryAgainError | errors.ClusterError) or _AWAY.search(text):
        return StoreUnavailable(f"The store {address} cannot be written now: {_short(text)}.")
    if isinstance(error, errors.ResponseError):
        return NotDone(
            f"The server of the store {address} refuses what evenflow needs (Redis 6.2 or later, with Lua):"
            f" {_short(text)}."
        )
    if "Cluster mode is not enabled" in text:
        return Misconfigured(f"The store {address} is one server, and no cluster: leave cluster=yes out of its URL.")
    why = why_unreached(error, address.place, "a Redis server")
    return StoreUnavailable(f"The store {address} cannot be reached: {why}")


def _has_cause(error: BaseException | None, kinds: type[BaseException] | tuple[type[BaseException], ...]) -> bool:
    while error is not None:
        if isinstance(error, kinds):
            return True
        error = error.__cause__ or error.__context__
    return False


def _short(text: str) -> str:
    return " ".join(text.split())[:200].rstrip(".")
