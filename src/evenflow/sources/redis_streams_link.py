"""The way to the Redis server of a stream: the driver, scripts, time limits, and errors in our own words.

What is asked of several streams is asked in one round trip, and answered for one moment: that is what scripts are for.
In a cluster, where the streams of one question must be in one slot, there is a round trip for each slot.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from contextlib import contextmanager
from hashlib import sha1
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from msgspec import Struct

from evenflow.errors import EvenflowError, Misconfigured, SourceUnavailable, StorageFull
from evenflow.sources.redis_streams_ids import ZERO, Facts, id_of

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

PORT = 6379
TIMEOUT_S = 5.0
SCHEMES = {"redis-streams": False, "rediss-streams": True}
"""With TLS?"""

FACTS = """
local function facts(key)
    if redis.call('TYPE', key).ok == 'none' then return {0, -1, '', '0-0'} end
    local told = redis.call('XINFO', 'STREAM', key)
    local by = {}
    for at = 1, #told, 2 do by[told[at]] = told[at + 1] end
    local first = by['first-entry']
    return {by['length'], by['entries-added'] or -1, first and first[1] or '', by['last-generated-id']}
end
"""
LOOK = f"""
{FACTS}
local found = {{}}
for at, key in ipairs(KEYS) do found[at] = facts(key) end
return found
"""
FETCH = f"""
{FACTS}
local found = {{}}
for at, key in ipairs(KEYS) do
    found[at] = {{facts(key), redis.call('XRANGE', key, '(' .. ARGV[at + 1], '+', 'COUNT', ARGV[1])}}
end
return found
"""
IDS = """
local ids = {}
local command = ARGV[4] == 'back' and 'XREVRANGE' or 'XRANGE'
for at, entry in ipairs(redis.call(command, KEYS[1], ARGV[1], ARGV[2], 'COUNT', ARGV[3])) do ids[at] = entry[1] end
return ids
"""
MADE = """
for _, group in ipairs(redis.call('EXISTS', KEYS[1]) == 1 and redis.call('XINFO', 'GROUPS', KEYS[1]) or {}) do
    if string.sub(group[2], 1, #ARGV[1]) == ARGV[1] then return group[2] end
end
redis.call('XGROUP', 'CREATE', KEYS[1], ARGV[1] .. ARGV[2], '$', 'MKSTREAM')
return ARGV[1] .. ARGV[2]
"""


class Address(Struct, frozen=True):
    """Where the server is. Passwords are in no text."""

    host: str
    port: int = PORT
    db: int = 0
    username: str | None = None
    password: str | None = None
    tls: bool = False
    ca: str | None = None
    cluster: bool = False
    timeout_s: float = TIMEOUT_S

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" + (f"/{self.db}" if self.db else "")

    def __repr__(self) -> str:
        return f"<Address {self}>"

    def client(self) -> Any:
        options: dict[str, Any] = {
            "host": self.host,
            "port": self.port,
            "username": self.username,
            "password": self.password,
            "socket_connect_timeout": self.timeout_s,
            "socket_timeout": None,  # each request has a limit of its own
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,
        }
        if self.tls:
            options |= {"ssl": True, "ssl_ca_certs": self.ca}
        if self.cluster:
            return driver.RedisCluster(**options)
        return driver.Redis(**options, db=self.db, retry_on_error=[])


def parse(url: str) -> tuple[Address, str, dict[str, str]]:
    """The server, the name, and the options that are not the server's. No message repeats what may be a password."""
    parts = urlsplit(url)
    try:
        port = parts.port or PORT
    except ValueError as error:
        raise Misconfigured("The URL of a Redis stream: the port cannot be read.") from error
    name = unquote(parts.path.strip("/"))
    if not parts.hostname or not name:
        raise Misconfigured("The URL of Redis streams names a server and a hub: redis-streams://localhost:6379/homes.")
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    return (
        Address(
            parts.hostname,
            port,
            whole("db", given.pop("db", "0")),
            unquote(parts.username) if parts.username else None,
            unquote(parts.password) if parts.password else None,
            SCHEMES[parts.scheme],
            given.pop("ca", None),
            given.pop("cluster", "no") in ("yes", "true", "1"),
        ),
        name,
        given,
    )


def whole(name: str, text: str) -> int:
    if not text.isdecimal():
        raise Misconfigured(f"{name}={text}: give a whole number.")
    return int(text)


class Link:
    def __init__(self, address: Address) -> None:
        self.address = address
        self._client: Any = None
        self._questions = asyncio.Semaphore(1)
        """All partitions are opened at once, and each driver's request would have a connection of its own."""

    def __str__(self) -> str:
        return f"the Redis at {self.address}"

    def slot(self, key: str) -> int:
        """What can be asked for together has the same."""
        return key_slot(key.encode()) if self.address.cluster else 0

    # --- questions
    async def facts(self, keys: Sequence[str]) -> dict[str, Facts]:
        told: dict[str, Facts] = {}
        slots: dict[int, list[str]] = {}
        for key in keys:
            slots.setdefault(self.slot(key), []).append(key)
        for together in slots.values():
            async with self._questions:
                answers = await self._run(LOOK, together)
            told |= {key: facts_of(answer) for key, answer in zip(together, answers, strict=True)}
        return told

    async def fetch(self, after: Mapping[str, str], count: int) -> list[tuple[Facts, list[Any]]]:
        """Of each of these streams of one slot: how it stands, and the next entries."""
        answers = await self._run(FETCH, list(after), str(count), *after.values())
        return [(facts_of(facts), entries) for facts, entries in answers]

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

    async def wait(self, after: Mapping[str, str], seconds: float) -> None:
        """Until one of these streams of one slot has more, or the time has passed. Cancelled, its connection ends."""
        block = ("BLOCK", str(max(1, int(seconds * 1000))), "COUNT", "1")
        await self._ask(seconds, "XREAD", *block, "STREAMS", *after, *after.values(), key=next(iter(after)))

    async def append(self, entries: Sequence[tuple[str, Sequence[bytes]]], limit: Sequence[str]) -> None:
        """In this order; returns when the server has them all."""
        client = self._connected()
        with self._translated():
            async with asyncio.timeout(self.address.timeout_s), client.pipeline(transaction=False) as pipeline:
                for key, fields in entries:
                    pipeline.execute_command("XADD", key, *limit, "*", *fields)
                await pipeline.execute()

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with self._translated():
                await client.aclose()

    # --- inside
    async def _run(self, script: str, keys: Sequence[str], *args: str) -> Any:
        sha = sha1(script.encode(), usedforsecurity=False).hexdigest()
        try:
            return await self._ask(0.0, "EVALSHA", sha, str(len(keys)), *keys, *args)
        except _Unknown:
            return await self._ask(0.0, "EVAL", script, str(len(keys)), *keys, *args)

    async def _ask(self, longer_s: float, *command: str, key: str | None = None) -> Any:
        """A server that takes longer than it may is told as one that does not answer."""
        client = self._connected()
        options: dict[str, Any] = {}
        with self._translated():
            async with asyncio.timeout(self.address.timeout_s + longer_s):
                if key is not None and self.address.cluster:
                    await client.initialize()
                    options["target_nodes"] = client.get_node_from_key(key)
                return await client.execute_command(*command, **options)

    def _connected(self) -> Any:
        if self._client is None:
            self._client = self.address.client()
        return self._client

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError as error:
            raise self._away(f"no answer for {self.address.timeout_s:g} s") from error
        except errors.NoScriptError as error:
            raise _Unknown from error
        except (errors.RedisError, errors.RedisClusterException, OSError) as error:
            raise self._ours(error) from error

    def _away(self, why: str) -> SourceUnavailable:
        return SourceUnavailable(f"{self} does not answer: {why}. It is tried again.")

    def _ours(self, error: Exception) -> EvenflowError:
        """By the driver's class, or by the word that the server begins with: from inside a script there is no class."""
        said = " ".join(str(error).split())[:200].rstrip(".")
        if _RIGHTS.search(said) or isinstance(error, errors.AuthenticationError | errors.NoPermissionError):
            return Misconfigured(f"{self} refuses these credentials, or what they may do: {said}.")
        if isinstance(error.__cause__ or error.__context__, ssl.SSLCertVerificationError):
            return Misconfigured(f"{self} shows a certificate that is not trusted here: {said}. Name its file: ca=.")
        if _FULL.search(said):
            return StorageFull(f"{self} has no room to write: {said}.")
        if "WRONGTYPE" in said:
            return Misconfigured(f"{self} has something else than a stream under a name of ours: {said}.")
        if _AWAY.search(said) or not isinstance(error, errors.ResponseError):
            return self._away(said)
        return Misconfigured(f"{self} refuses what is needed (Redis 6.2 or later, with Lua): {said}.")


class _Unknown(Exception):
    """The server does not know the script."""


_RIGHTS = re.compile(
    r"\b(WRONGPASS|NOAUTH|NOPERM)\b|invalid username-password|Authentication required"
    r"|The user executing the script can't|ACL failure in script"  # inside a script there is no such word
)
_FULL = re.compile(r"\b(OOM|MISCONF)\b")
_AWAY = re.compile(r"\b(LOADING|BUSY|CLUSTERDOWN|TRYAGAIN|READONLY|MASTERDOWN|NOREPLICAS|UNBLOCKED|MOVED|ASK)\b")


def facts_of(told: Sequence[Any]) -> Facts:
    length, added, first, last = told
    return Facts(length, added if added >= 0 else None, id_of(first.decode()) if first else None, id_of(last.decode()))
