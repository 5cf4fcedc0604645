"""The client of a Redis server: connections, scripts, time limits, and translation of the driver's errors.

Every request is sent once, so the driver's own retries are off. If there is no answer, it is unknown whether the
request took effect, and the caller decides whether to repeat it: a repeated swap would be refused. A connection with an
unanswered request is closed, and the next request uses another one.
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

    from evenflow.stores.redis.options import RedisOptions

LANE_CONNECTIONS = 4
QUEUE_FACTOR = 5
"""The longest wait for a free connection, as a multiple of the request timeout."""


class Script(NamedTuple):
    text: str
    sha: str


@cache
def script(name: str) -> Script:
    """A script of this package, preceded by the shared prelude."""
    folder = files("evenflow.stores.redis")
    parts = [folder.joinpath(f"{part}.lua").read_text("utf-8") for part in ("prelude", name)]
    text = "\n".join(parts)
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


class RedisClient:
    """One server or cluster. Progress has connections of its own, so that it never delays a heartbeat."""

    def __init__(self, options: RedisOptions) -> None:
        self.options = options
        self._client: Any = None
        self._lanes: dict[str, asyncio.Semaphore] = {}
        self._closed = False
        self.has_served = False
        """It has written something for this client: what it refuses from then on was granted once."""

    async def run(self, lane: str, script: Script, keys: Sequence[str], args: Sequence[str]) -> Any:
        """Runs a script: one round trip, or two if the server does not have the script yet."""
        try:
            return await self.ask(lane, "EVALSHA", script.sha, len(keys), *keys, *args)
        except _ScriptUnknown:
            return await self.ask(lane, "EVAL", script.text, len(keys), *keys, *args)

    async def ask(self, lane: str, *command: str | int) -> Any:
        if self._closed:
            raise StoreUnavailable(f"The store {self.options} is closed.")
        queue = self._lanes.setdefault(lane, asyncio.Semaphore(LANE_CONNECTIONS))
        limit_s = self.options.timeout_s
        with translated(self.options, has_served=self.has_served):
            async with asyncio.timeout(QUEUE_FACTOR * limit_s), queue, asyncio.timeout(limit_s):
                return await self._connected().execute_command(*command)

    async def aclose(self) -> None:
        self._closed = True
        client, self._client = self._client, None
        if client is not None:
            with translated(self.options):
                await client.aclose()

    def _connected(self) -> Any:
        if self._client is None:
            self._client = connect(self.options)
        return self._client


def connect(options: RedisOptions, *, cluster: bool | None = None) -> Any:
    """Creates a driver client, which connects with its first command."""
    arguments = {
        **options.connection(),
        "socket_timeout": options.timeout_s,
        "socket_connect_timeout": options.timeout_s,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
    }
    if options.path:
        arguments["unix_socket_path"] = arguments.pop("path")
    if options.tls:
        arguments["ssl"] = True
    if options.cluster if cluster is None else cluster:
        del arguments["db"]
        return driver.RedisCluster(**arguments)
    return driver.Redis(**arguments, retry_on_error=[])


class _ScriptUnknown(Exception):
    """The server does not have the script: it was restarted, or its script cache was flushed."""


_FULL = re.compile(r"\b(OOM|MISCONF)\b")
_UNAVAILABLE = re.compile(
    r"\b(LOADING|BUSY|CLUSTERDOWN|TRYAGAIN|READONLY|MASTERDOWN|NOREPLICAS|NOGOODSLAVE|UNBLOCKED|MOVED|ASK)\b"
)
_RIGHTS = re.compile(
    r"\b(WRONGPASS|NOAUTH|NOPERM)\b|username-password|invalid password|Authentication required"
    r"|The user executing the script can't|ACL failure in script"  # errors inside a script have no error code
)
_DATABASE = re.compile(r"DB index|invalid DB|Invalid Database", re.IGNORECASE)


@contextmanager
def translated(options: RedisOptions, *, has_served: bool = False) -> Iterator[None]:
    """Translates the driver's errors."""
    try:
        yield
    except TimeoutError as error:
        raise _timed_out(options) from error
    except (errors.RedisError, errors.RedisClusterException, OSError) as error:
        if isinstance(error, errors.NoScriptError):
            raise _ScriptUnknown from error
        raise _translate(error, options, has_served=has_served) from error


def _timed_out(options: RedisOptions) -> StoreUnavailable:
    tls = ", and whether it speaks TLS" if options.tls else ""
    return StoreUnavailable(
        f"The store {options} has not answered for {options.timeout_s:g} s. Check whether the server is overloaded or"
        f" unreachable{tls}."
    )


def _translate(error: Exception, options: RedisOptions, *, has_served: bool) -> EvenflowError:
    """Classifies an error by its driver class, or by the server's error code at the start of its text.

    An error inside a script has no class, and the code is somewhere in its text.
    """
    text = str(error)
    if isinstance(error, errors.OutOfMemoryError) or _FULL.search(text):
        return StorageFull(
            f"The server of the store {options} has no room to write: {_short(text)}. Add memory or disk space;"
            " evenflow then continues by itself. No acknowledged write is lost."
        )
    if _has_cause(error, (errors.AuthenticationError, errors.AuthorizationError, errors.NoPermissionError)) or (
        _RIGHTS.search(text)
    ):
        return refusal(
            f"The store {options} refuses these credentials, or what they may do: {_short(text)}. Check the user and"
            " the password in its URL; docs/reference/stores-redis.md lists the permissions.",
            has_served=has_served,
        )
    if _DATABASE.search(text):
        return refusal(f"The store {options} has no such database: {_short(text)}.", has_served=has_served)
    if _has_cause(error, ssl.SSLCertVerificationError):
        return refusal(
            f"The store {options} has a certificate that is not trusted here: {_short(text)}. Add its certificate"
            " authority with ?ca=FILE.",
            has_served=has_served,
        )
    if isinstance(error, errors.TimeoutError):
        return _timed_out(options)
    if isinstance(error, errors.ReadOnlyError | errors.TryAgainError | errors.ClusterError) or _UNAVAILABLE.search(
        text
    ):
        return StoreUnavailable(f"The store {options} cannot be written now: {_short(text)}.")
    if isinstance(error, errors.ResponseError):
        return NotDone(
            f"The server of the store {options} refuses what evenflow needs (Redis 6.2 or later, with Lua):"
            f" {_short(text)}."
        )
    if "Cluster mode is not enabled" in text:
        return Misconfigured(f"The store {options} is a single server, not a cluster. Remove cluster=yes from its URL.")
    why = why_unreached(error, options.endpoint, "a Redis server")
    return StoreUnavailable(f"The store {options} cannot be reached: {why}")


def _has_cause(error: BaseException | None, kinds: type[BaseException] | tuple[type[BaseException], ...]) -> bool:
    while error is not None:
        if isinstance(error, kinds):
            return True
        error = error.__cause__ or error.__context__
    return False


def _short(text: str) -> str:
    return " ".join(text.split())[:200].rstrip(".")
