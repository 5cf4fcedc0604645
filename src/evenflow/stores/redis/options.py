"""Options of a Redis store: parses and validates the store URL."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from evenflow.drivers.network import unknown_option
from evenflow.errors import Misconfigured

TIMEOUT_S = 2.0
"""Far below a time-to-live, so that a request without an answer can be retried in time."""
PORT = 6379
PREFIX = "evenflow"
PREFIX_CHARS_MAX = 128

_TLS = {"redis": False, "valkey": False, "rediss": True, "valkeys": True}
_UNIX = {"redis+unix", "valkey+unix"}
_OPTIONS = ("prefix", "timeout_s", "cluster", "eviction", "ca")
_YES_NO = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}


@dataclass(frozen=True, slots=True)
class RedisOptions:
    """The repr leaves out passwords."""

    scheme: str = "redis"
    host: str = "localhost"
    port: int = PORT
    path: str = ""
    """The path of a Unix socket, instead of host and port."""
    db: int = 0
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    ca: str | None = None
    """A file with trusted certificates, instead of the system's."""
    prefix: str = PREFIX
    timeout_s: float = TIMEOUT_S
    cluster: bool = False
    accepts_eviction: bool = False

    @property
    def endpoint(self) -> str:
        """Host and port, or the path of a Unix socket."""
        return self.path or f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def __str__(self) -> str:
        """For display, without secrets."""
        return f"{self.scheme}://{self.endpoint}" if self.path else f"{self.scheme}://{self.endpoint}/{self.db}"

    def connection(self) -> dict[str, Any]:
        """The driver's arguments for a connection."""
        where: dict[str, Any] = {"path": self.path} if self.path else {"host": self.host, "port": self.port}
        if self.tls:
            where["ssl_ca_certs"] = self.ca
        return {**where, "db": self.db, "username": self.username, "password": self.password}


def options_from_url(url: str) -> RedisOptions:
    """Raises Misconfigured for an invalid URL. No message repeats text that may be a password."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _invalid("the host or port is invalid") from None
    if parts.fragment or ("@" in parts.query and "@" not in parts.netloc):
        raise _invalid("it contains a '#', or a '?' in a password")
    options = _options(parts.query)
    given: dict[str, Any] = {
        "scheme": parts.scheme,
        "username": unquote(parts.username) if parts.username else None,
        "password": unquote(parts.password) if parts.password else None,
        "prefix": _prefix(options.get("prefix", PREFIX)),
        "timeout_s": _seconds(options.get("timeout_s", str(TIMEOUT_S))),
        "cluster": _yes_or_no(options.get("cluster", "no"), "cluster"),
        "accepts_eviction": _one_of(options.get("eviction", "refuse"), "eviction", ("refuse", "accept")) == "accept",
        "ca": options.get("ca"),
    }
    if parts.scheme in _UNIX:
        return _checked(RedisOptions(**given, path=_socket(parts.netloc.rpartition("@")[2], parts.path)))
    if parts.scheme not in _TLS:
        raise _invalid(f"unknown scheme {parts.scheme!r}")
    host, tls = parts.hostname or "localhost", _TLS[parts.scheme]
    return _checked(RedisOptions(**given, host=host, port=port or PORT, db=_db(parts.path), tls=tls))


def _checked(options: RedisOptions) -> RedisOptions:
    if options.cluster and (options.db or options.path):
        raise _invalid("a cluster supports only database 0, and no Unix socket")
    if options.ca and not options.tls:
        raise _invalid("ca= is valid for rediss:// and valkeys:// only")
    return options


def _options(query: str) -> dict[str, str]:
    found = dict(parse_qsl(query, keep_blank_values=True))
    for name in found:
        if name not in _OPTIONS:
            raise _invalid(unknown_option(name, _OPTIONS))
    return found


def _prefix(text: str) -> str:
    if not text or len(text) > PREFIX_CHARS_MAX or not text.isprintable() or set(text) & set("{} "):
        raise _invalid(f"prefix= must have 1 to {PREFIX_CHARS_MAX} characters, without spaces and braces")
    return text


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise _invalid(f"timeout_s={text!r} is not a number of seconds above 0")
    return seconds


def _yes_or_no(text: str, name: str) -> bool:
    return _YES_NO[_one_of(text.lower(), name, tuple(_YES_NO))]


def _one_of(text: str, name: str, known: tuple[str, ...]) -> str:
    if text not in known:
        raise _invalid(f"{name}={text!r}: must be one of {', '.join(known)}")
    return text


def _db(path: str) -> int:
    text = path.strip("/")
    if text and not (text.isascii() and text.isdigit()):
        raise _invalid("the path after the host must be the number of a database, or empty")
    return int(text or 0)


def _socket(netloc: str, path: str) -> str:
    if netloc or not path:
        raise _invalid("the URL of a Unix socket needs three slashes, such as redis+unix:///run/redis.sock")
    return unquote(path)


def _invalid(what: str) -> Misconfigured:
    return Misconfigured(
        f"Invalid URL of the Redis store: {what}. Use redis://[USER:PASSWORD@]HOST[:PORT][/DB], and percent-encode"
        " special characters."
    )
