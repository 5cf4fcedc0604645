"""Commands to the Redis server of the streams: the driver, timeouts, and the translation of errors.

A query about several streams is one round trip. In a cluster, all keys of a command must be in one slot, so it is one
round trip for each slot.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from contextlib import contextmanager, suppress
from hashlib import sha1
from typing import TYPE_CHECKING, Any, NamedTuple

from evenflow.errors import EvenflowError, Misconfigured, SourceUnavailable, StorageFull
from evenflow.sources.redis_streams.positions import ZERO, StreamState, id_of
from evenflow.sources.redis_streams.scripts import FETCH, IDS, MADE, NEXT, STATE

try:
    from redis import asyncio as driver
    from redis import exceptions as errors
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
    from redis.crc import key_slot
except ImportError as error:
    raise Misconfigured("redis-streams:// needs the package redis: pip install 'evenflow[redis]'.") from error

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from evenflow.sources.redis_streams.options import RedisStreamsServer

APPEND_ENTRIES, APPEND_BYTES = 1000, 1 << 20
"""The most that is sent in one request, so that each request has its own timeout."""
SLOTS_AT_ONCE = 16


class NotAStream(Misconfigured):
    """The key holds a value that is not a stream."""


class StreamFetch(NamedTuple):
    """What to fetch from one stream."""

    key: str
    after: str
    free_bytes: int


class FetchedEntries(NamedTuple):
    state: StreamState
    entries: list[tuple[bytes, list[bytes]]]
    more: bool
    """There may be more: a limit was reached."""


def connect(address: RedisStreamsServer) -> Any:
    """A client of the driver. It connects with its first command."""
    options: dict[str, Any] = {
        "host": address.host,
        "port": address.port,
        "username": address.username,
        "password": address.password,
        "socket_connect_timeout": address.timeout_s,
        "socket_timeout": None,  # each request has its own timeout
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
    }
    if address.tls:
        options |= {"ssl": True, "ssl_ca_certs": address.ca}
    if address.cluster:
        return driver.RedisCluster(**options)
    return driver.Redis(**options, db=address.db, retry_on_error=[])


class RedisStreamsClient:
    def __init__(self, address: RedisStreamsServer) -> None:
        self.address = address
        self._reading: Any = None
        self._writing: Any = None
        """A separate client: when many commands are pipelined, the driver does not notice that a cluster node has died.
        Closing the client makes it discover the nodes again, and that must not disconnect readers."""
        self._query_limit = asyncio.Semaphore(SLOTS_AT_ONCE if address.cluster else 1)
        """Limits connections: all partitions are opened at once, and each request would use its own connection."""
        self._has_served = False

    def __str__(self) -> str:
        return f"the Redis at {self.address}"

    def slot(self, key: str) -> int:
        """Keys with the same slot can be queried together."""
        return key_slot(key.encode()) if self.address.cluster else 0

    # --- queries
    async def state(self, keys: Sequence[str]) -> dict[str, StreamState]:
        return {key: state_of(answer) for key, answer in (await self._of_each(STATE, dict.fromkeys(keys, ""))).items()}

    async def following(self, after: Mapping[str, str]) -> dict[str, str]:
        """The first id after the given one; streams without one are left out."""
        answer = await self._of_each(NEXT, after)
        return {key: found.decode() for key, (found,) in answer.items() if found}

    async def fetch(
        self, wanted: Sequence[StreamFetch], count: int, most_bytes: int
    ) -> list[FetchedEntries | EvenflowError]:
        """For each of these streams of one slot, its state and its next entries; or the error."""
        args = [text for one in wanted for text in (one.after, str(one.free_bytes))]
        answers = await self._run(FETCH, [one.key for one in wanted], str(count), str(most_bytes), *args)
        return [self._fetched(answer) for answer in answers]

    async def ids(self, key: str, start: str, end: str, count: int, *, back: bool = False) -> list[str]:
        async with self._query_limit:
            found = await self._run(IDS, [key], start, end, str(count), "back" if back else "")
        return [one.decode() for one in found]

    async def made(self, key: str, prefix: str, fresh: str) -> str:
        """A token that distinguishes a stream from a recreated one. It is written once and deleted with the stream."""
        async with self._query_limit:
            answer: bytes = await self._run(MADE, [key], prefix, fresh)
        return answer.decode().removeprefix(prefix)

    async def exist(self, keys: Sequence[str]) -> list[bool]:
        state = await self.state(keys)
        return [state[key].last > ZERO for key in keys]

    async def wait(self, after: Mapping[str, str], seconds: float) -> set[str]:
        """Waits until some of these streams of one slot have more, and returns which; none on a timeout. When this is
        cancelled, its connection is closed."""
        block = ("BLOCK", str(max(1, int(seconds * 1000))), "COUNT", "1")
        answer = await self._command(
            seconds, "XREAD", *block, "STREAMS", *after, *after.values(), key=next(iter(after))
        )
        return {name.decode() for name, _ in answer or ()}

    async def append(self, entries: Sequence[tuple[str, Sequence[bytes]]], limit: Sequence[str]) -> None:
        """Appends the entries in this order; returns when the server has stored all of them."""
        for some in _portions(entries):
            self._writing = self._writing or connect(self.address)
            client = self._writing
            try:
                with self._translated():
                    async with asyncio.timeout(self.address.timeout_s), client.pipeline(transaction=False) as pipeline:
                        for key, fields in some:
                            pipeline.execute_command("XADD", key, *limit, "*", *fields)
                        await pipeline.execute()
                        self._has_served = True
            except EvenflowError:
                with suppress(EvenflowError), self._translated():
                    await client.aclose()
                raise

    async def aclose(self) -> None:
        clients = (self._reading, self._writing)
        self._reading = self._writing = None
        for client in clients:
            if client is not None:
                with self._translated():
                    await client.aclose()

    # --- inside
    async def _of_each(self, script: str, args: Mapping[str, str]) -> dict[str, Any]:
        """One round trip, or one for each slot."""
        slots: dict[int, list[str]] = {}
        for key in args:
            slots.setdefault(self.slot(key), []).append(key)

        async def query(keys: list[str]) -> list[Any]:
            async with self._query_limit:
                found: list[Any] = await self._run(script, keys, *(args[key] for key in keys))
            return found

        answers = await asyncio.gather(*map(query, slots.values()))
        by_key: dict[str, Any] = {}
        for keys, found in zip(slots.values(), answers, strict=True):
            by_key |= zip(keys, found, strict=True)
        for answer in by_key.values():
            if isinstance(answer, bytes):
                raise self._refused(answer.decode(errors="replace"))
        return by_key

    def _fetched(self, answer: Any) -> FetchedEntries | EvenflowError:
        if isinstance(answer, bytes):
            return self._refused(answer.decode(errors="replace"))
        state, entries, more = answer
        return FetchedEntries(state_of(state), entries, bool(more))

    async def _run(self, script: str, keys: Sequence[str], *args: str) -> Any:
        sha = sha1(script.encode(), usedforsecurity=False).hexdigest()
        try:
            return await self._command(0.0, "EVALSHA", sha, str(len(keys)), *keys, *args)
        except _UnknownScript:
            return await self._command(0.0, "EVAL", script, str(len(keys)), *keys, *args)

    async def _command(self, longer_s: float, *command: str, key: str | None = None) -> Any:
        """One command. A timeout is reported as a server that does not answer."""
        self._reading = self._reading or connect(self.address)
        client, options = self._reading, {}
        with self._translated():
            async with asyncio.timeout(self.address.timeout_s + longer_s):
                if key is not None and self.address.cluster:
                    await client.initialize()
                    options["target_nodes"] = client.get_node_from_key(key)
                found = await client.execute_command(*command, **options)
        self._has_served = self._has_served or not _has_refusals(found)
        return found

    # --- errors
    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError as error:
            tls = "; does it speak TLS?" if self.address.tls and not self._has_served else ""
            raise self._unreachable(f"no answer for {self.address.timeout_s:g} s{tls}") from error
        except errors.NoScriptError as error:
            raise _UnknownScript from error
        except (errors.RedisError, errors.RedisClusterException, OSError) as error:
            raise self._meaning(error) from error

    def _unreachable(self, why: str) -> SourceUnavailable:
        return SourceUnavailable(f"{self} does not answer: {why.rstrip('.')}. Retrying automatically.")

    def _wrong(self, what: str) -> EvenflowError:
        """Misconfigured if no command has succeeded yet. Otherwise transient: rights that are changed for a moment must
        not end all instances."""
        return (
            SourceUnavailable(f"{what} Previously authorized; retrying.") if self._has_served else Misconfigured(what)
        )

    def _meaning(self, error: Exception) -> EvenflowError:
        """By the driver's class, because the driver strips the error code from the message."""
        reason = _reason(str(error))
        if isinstance(error, errors.OutOfMemoryError):
            return self._refused(f"OOM {reason}")
        if isinstance(error, errors.AuthenticationError | errors.AuthorizationError | errors.NoPermissionError):
            return self._refused(f"NOPERM {reason}")
        if isinstance(error, errors.MovedError | errors.AskError) and not self.address.cluster:
            return Misconfigured(f"{self} is a node of a cluster: add cluster=yes to the URL.")
        if "Cluster mode is not enabled" in reason:
            return Misconfigured(f"{self} is a single server, not a cluster: remove cluster=yes from the URL.")
        if isinstance(error, errors.ReadOnlyError | errors.TryAgainError | errors.ClusterError | errors.AskError):
            return self._unreachable(reason)
        if isinstance(error.__cause__ or error.__context__, ssl.SSLCertVerificationError):
            return self._wrong(f"{self}: the server's certificate is not trusted: {reason}. Give its CA file with ca=.")
        return self._refused(reason) if isinstance(error, errors.ResponseError) else self._unreachable(reason)

    def _refused(self, reason: str) -> EvenflowError:
        """By the server's error code, which is somewhere inside the message if a script raised it."""
        reason = _reason(reason)
        if _RIGHTS.search(reason):
            return self._wrong(f"{self} rejected the credentials or denied a permission: {reason}. Check both.")
        if _FULL.search(reason):
            return StorageFull(f"{self} cannot store more data: {reason}.")
        if "WRONGTYPE" in reason:
            return NotAStream(f"{self}: a key that should be a stream holds another type: {reason}.")
        if _TEMPORARY.search(reason):
            return self._unreachable(reason)
        if "DB index" in reason:
            return Misconfigured(f"{self} does not have this database: {reason}. Correct db=.")
        return Misconfigured(f"{self} rejected a command (Redis 6.2 or later with Lua is required): {reason}.")


class _UnknownScript(Exception):
    """The server does not know the script."""


_RIGHTS = re.compile(
    r"\b(WRONGPASS|NOAUTH|NOPERM)\b|invalid username-password|Authentication required"
    r"|The user executing the script can't|ACL failure in script"  # errors inside a script have no error code
)
_FULL = re.compile(r"\b(OOM|MISCONF)\b")
_TEMPORARY = re.compile(r"\b(LOADING|BUSY|CLUSTERDOWN|TRYAGAIN|READONLY|MASTERDOWN|NOREPLICAS|UNBLOCKED|MOVED|ASK)\b")
_COMMAND = re.compile(r"^Command # \d+ \(.*\) of pipeline caused error: ", re.DOTALL)
"""The driver's prefix that repeats the command. Messages must not contain its data."""


def _reason(text: str) -> str:
    return " ".join(_COMMAND.sub("", text).split())[:200].rstrip(".")


def _has_refusals(answer: object) -> bool:
    """Our scripts continue when one stream fails, and return its error text in place of its result."""
    return isinstance(answer, list) and any(isinstance(one, bytes) for one in answer)


def state_of(answer: Sequence[Any]) -> StreamState:
    length, added, first, last = answer
    return StreamState(
        length, added if added >= 0 else None, id_of(first.decode()) if first else None, id_of(last.decode())
    )


def _portions(entries: Sequence[tuple[str, Sequence[bytes]]]) -> Iterator[list[tuple[str, Sequence[bytes]]]]:
    some: list[tuple[str, Sequence[bytes]]] = []
    size_bytes = 0
    for entry in entries:
        own_bytes = sum(map(len, entry[1]))
        if some and (len(some) == APPEND_ENTRIES or size_bytes + own_bytes > APPEND_BYTES):
            yield some
            some, size_bytes = [], 0
        some.append(entry)
        size_bytes += own_bytes
    if some:
        yield some
