"""The way to the Redis server of a stream: the driver, time limits, and errors in our own words.

What is asked of several streams is asked in one round trip. In a cluster, where the streams of one question must be in
one slot, there is a round trip for each slot.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from contextlib import contextmanager, suppress
from hashlib import sha1
from typing import TYPE_CHECKING, Any, NamedTuple

from evenflow.errors import EvenflowError, Misconfigured, SourceUnavailable, StorageFull
from evenflow.sources.redis_streams.positions import ZERO, Facts, id_of
from evenflow.sources.redis_streams.scripts import FETCH, IDS, LOOK, MADE, NEXT

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

    from evenflow.sources.redis_streams.options import Address

APPEND_ENTRIES, APPEND_BYTES = 1000, 1 << 20
"""What is sent at once, so that each request has its own time."""
SLOTS_AT_ONCE = 16


class NotAStream(Misconfigured):
    """Another kind of thing has the name of a stream."""


class Wanted(NamedTuple):
    """Of one stream."""

    key: str
    after: str
    room_bytes: int


class Fetched(NamedTuple):
    facts: Facts
    entries: list[tuple[bytes, list[bytes]]]
    more: bool
    """Perhaps: it was not asked for all that there is."""


def connect(address: Address) -> Any:
    """A client of the driver. Nothing is opened before its first command."""
    options: dict[str, Any] = {
        "host": address.host,
        "port": address.port,
        "username": address.username,
        "password": address.password,
        "socket_connect_timeout": address.timeout_s,
        "socket_timeout": None,  # each request has a limit of its own
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
    }
    if address.tls:
        options |= {"ssl": True, "ssl_ca_certs": address.ca}
    if address.cluster:
        return driver.RedisCluster(**options)
    return driver.Redis(**options, db=address.db, retry_on_error=[])


class Link:
    def __init__(self, address: Address) -> None:
        self.address = address
        self._reading: Any = None
        self._writing: Any = None
        """A client of its own: where many are written at once, the driver does not see by itself that a cluster's node
        has died. Closed, it asks for the nodes again; and no reader may lose its connection by that."""
        self._questions = asyncio.Semaphore(SLOTS_AT_ONCE if address.cluster else 1)
        """All partitions are opened at once, and each driver's request would have a connection of its own."""
        self._has_served = False

    def __str__(self) -> str:
        return f"the Redis at {self.address}"

    def slot(self, key: str) -> int:
        """What can be asked for together has the same."""
        return key_slot(key.encode()) if self.address.cluster else 0

    # --- questions
    async def facts(self, keys: Sequence[str]) -> dict[str, Facts]:
        return {key: facts_of(told) for key, told in (await self._of_each(LOOK, dict.fromkeys(keys, ""))).items()}

    async def following(self, after: Mapping[str, str]) -> dict[str, str]:
        """The first id after this one; streams that have none are left out."""
        told = await self._of_each(NEXT, after)
        return {key: found.decode() for key, (found,) in told.items() if found}

    async def fetch(self, wanted: Sequence[Wanted], count: int, most_bytes: int) -> list[Fetched | EvenflowError]:
        """Of each of these streams of one slot: how it stands, and the next entries; or why it cannot be read."""
        args = [text for one in wanted for text in (one.after, str(one.room_bytes))]
        answers = await self._run(FETCH, [one.key for one in wanted], str(count), str(most_bytes), *args)
        return [self._fetched(answer) for answer in answers]

    async def ids(self, key: str, start: str, end: str, count: int, *, back: bool = False) -> list[str]:
        async with self._questions:
            found = await self._run(IDS, [key], start, end, str(count), "back" if back else "")
        return [one.decode() for one in found]

    async def made(self, key: str, prefix: str, fresh: str) -> str:
        """What tells one making of the stream from the next: it is written once, and lives and dies with it."""
        async with self._questions:
            told: bytes = await self._run(MADE, [key], prefix, fresh)
        return told.decode().removeprefix(prefix)

    async def exist(self, keys: Sequence[str]) -> list[bool]:
        facts = await self.facts(keys)
        return [facts[key].last > ZERO for key in keys]

    async def wait(self, after: Mapping[str, str], seconds: float) -> set[str]:
        """Until some of these streams of one slot have more: which; none when the time has passed. Cancelled, its
        connection ends."""
        block = ("BLOCK", str(max(1, int(seconds * 1000))), "COUNT", "1")
        told = await self._ask(seconds, "XREAD", *block, "STREAMS", *after, *after.values(), key=next(iter(after)))
        return {name.decode() for name, _ in told or ()}

    async def append(self, entries: Sequence[tuple[str, Sequence[bytes]]], limit: Sequence[str]) -> None:
        """In this order; returns when the server has them all."""
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
        """In one round trip, or one for each slot."""
        slots: dict[int, list[str]] = {}
        for key in args:
            slots.setdefault(self.slot(key), []).append(key)

        async def ask(keys: list[str]) -> list[Any]:
            async with self._questions:
                found: list[Any] = await self._run(script, keys, *(args[key] for key in keys))
            return found

        answers = await asyncio.gather(*map(ask, slots.values()))
        told: dict[str, Any] = {}
        for keys, found in zip(slots.values(), answers, strict=True):
            told |= zip(keys, found, strict=True)
        for answer in told.values():
            if isinstance(answer, bytes):
                raise self._refused(answer.decode(errors="replace"))
        return told

    def _fetched(self, answer: Any) -> Fetched | EvenflowError:
        if isinstance(answer, bytes):
            return self._refused(answer.decode(errors="replace"))
        facts, entries, more = answer
        return Fetched(facts_of(facts), entries, bool(more))

    async def _run(self, script: str, keys: Sequence[str], *args: str) -> Any:
        sha = sha1(script.encode(), usedforsecurity=False).hexdigest()
        try:
            return await self._ask(0.0, "EVALSHA", sha, str(len(keys)), *keys, *args)
        except _Unknown:
            return await self._ask(0.0, "EVAL", script, str(len(keys)), *keys, *args)

    async def _ask(self, longer_s: float, *command: str, key: str | None = None) -> Any:
        """A server that takes longer than it may is told as one that does not answer."""
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
            raise self._away(f"no answer for {self.address.timeout_s:g} s{tls}") from error
        except errors.NoScriptError as error:
            raise _Unknown from error
        except (errors.RedisError, errors.RedisClusterException, OSError) as error:
            raise self._ours(error) from error

    def _away(self, why: str) -> SourceUnavailable:
        return SourceUnavailable(f"{self} does not answer: {why.rstrip('.')}. It is tried again.")

    def _wrong(self, what: str) -> EvenflowError:
        """Who was never served has a wrong setting, and ends. Whom it has served before waits: rights that are changed
        for a moment must not end a fleet."""
        return (
            SourceUnavailable(f"{what} It has served this process before.") if self._has_served else Misconfigured(what)
        )

    def _ours(self, error: Exception) -> EvenflowError:
        """By the driver's class, since it takes the word away that the server begins with."""
        said = _said(str(error))
        if isinstance(error, errors.OutOfMemoryError):
            return self._refused(f"OOM {said}")
        if isinstance(error, errors.AuthenticationError | errors.AuthorizationError | errors.NoPermissionError):
            return self._refused(f"NOPERM {said}")
        if isinstance(error, errors.MovedError | errors.AskError) and not self.address.cluster:
            return Misconfigured(f"{self} is a node of a cluster: add cluster=yes to the URL.")
        if "Cluster mode is not enabled" in said:
            return Misconfigured(f"{self} is one server, and no cluster: leave cluster=yes out of the URL.")
        if isinstance(error, errors.ReadOnlyError | errors.TryAgainError | errors.ClusterError | errors.AskError):
            return self._away(said)
        if isinstance(error.__cause__ or error.__context__, ssl.SSLCertVerificationError):
            return self._wrong(f"{self} shows a certificate that is not trusted here: {said}. Name its file: ca=.")
        return self._refused(said) if isinstance(error, errors.ResponseError) else self._away(said)

    def _refused(self, said: str) -> EvenflowError:
        """By the word that the server begins with, or that is somewhere in it: from inside a script."""
        said = _said(said)
        if _RIGHTS.search(said):
            return self._wrong(f"{self} refuses these credentials, or what they may do: {said}.")
        if _FULL.search(said):
            return StorageFull(f"{self} has no room to write: {said}.")
        if "WRONGTYPE" in said:
            return NotAStream(f"{self} has something else than a stream under a name of ours: {said}.")
        if _AWAY.search(said):
            return self._away(said)
        if "DB index" in said:
            return Misconfigured(f"{self} has no such database: {said}. Correct db=.")
        return Misconfigured(f"{self} refuses what is needed (Redis 6.2 or later, with Lua): {said}.")


class _Unknown(Exception):
    """The server does not know the script."""


_RIGHTS = re.compile(
    r"\b(WRONGPASS|NOAUTH|NOPERM)\b|invalid username-password|Authentication required"
    r"|The user executing the script can't|ACL failure in script"  # inside a script there is no such word
)
_FULL = re.compile(r"\b(OOM|MISCONF)\b")
_AWAY = re.compile(r"\b(LOADING|BUSY|CLUSTERDOWN|TRYAGAIN|READONLY|MASTERDOWN|NOREPLICAS|UNBLOCKED|MOVED|ASK)\b")
_COMMAND = re.compile(r"^Command # \d+ \(.*\) of pipeline caused error: ", re.DOTALL)
"""It repeats what was sent, and that is nobody's business."""


def _said(text: str) -> str:
    return " ".join(_COMMAND.sub("", text).split())[:200].rstrip(".")


def _has_refusals(answer: object) -> bool:
    """Our scripts go on when a stream refuses them, and tell its words in its place."""
    return isinstance(answer, list) and any(isinstance(one, bytes) for one in answer)


def facts_of(told: Sequence[Any]) -> Facts:
    length, added, first, last = told
    return Facts(length, added if added >= 0 else None, id_of(first.decode()) if first else None, id_of(last.decode()))


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
