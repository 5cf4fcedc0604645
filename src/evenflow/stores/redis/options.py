"""What a Redis store's URL says, checked once: where the server is, and how it is to be spoken to."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from evenflow.drivers.network import unknown_option
from evenflow.errors import Misconfigured

TIMEOUT_S = 2.0
"""Far below a time-to-live, so that a request without an answer can be tried again in time."""
PORT = 6379
PREFIX = "evenflow"
PREFIX_CHARS_MAX = 128

_TLS = {"redis": False, "valkey": False, "rediss": True, "valkeys": True}
_UNIX = {"redis+unix", "valkey+unix"}
_OPTIONS = ("prefix", "timeout_s", "cluster", "eviction", "ca")
_YES_NO = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}


@dataclass(frozen=True, slots=True)
class Address:
    """Passwords are in no repr."""

    scheme: str = "redis"
    host: str = "localhost"
    port: int = PORT
    path: str = ""
    """Of a Unix socket, in place of host and port."""
    db: int = 0
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    ca: str | None = None
    """A file with the certificates to trust, instead of the system's."""
    prefix: str = PREFIX
    timeout_s: float = TIMEOUT_S
    cluster: bool = False
    accepts_eviction: bool = False

    @property
    def place(self) -> str:
        """Host and port, or the path of a socket."""
        return self.path or f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def __str__(self) -> str:
        """For people, without secrets."""
        return f"{self.scheme}://{self.place}" if self.path else f"{self.scheme}://{self.place}/{self.db}"

    def connection(self) -> dict[str, Any]:
        """The driver's own words for it."""
        where: dict[str, Any] = {"path": self.path} if self.path else {"host": self.host, "port": self.port}
        if self.tls:
            where["ssl_ca_certs"] = self.ca
        return {**where, "db": self.db, "username": self.username, "password": self.password}


def address(url: str) -> Address:
    """Misconfigured when it says what makes no sense. No message repeats what may be a password."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _wrong("the host or the port cannot be read") from None
    if parts.fragment or ("@" in parts.query and "@" not in parts.netloc):
        raise _wrong("it has a '#', or a '?' in a password")
    options = _options(parts.query)
    told: dict[str, Any] = {
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
        return _checked(Address(**told, path=_socket(parts.netloc.rpartition("@")[2], parts.path)))
    if parts.scheme not in _TLS:
        raise _wrong(f"there is no scheme {parts.scheme!r}")
    host, tls = parts.hostname or "localhost", _TLS[parts.scheme]
    return _checked(Address(**told, host=host, port=port or PORT, db=_db(parts.path), tls=tls))


def _checked(address: Address) -> Address:
    if address.cluster and (address.db or address.path):
        raise _wrong("a cluster has database 0 alone, and no Unix socket")
    if address.ca and not address.tls:
        raise _wrong("ca= is for rediss:// and valkeys:// alone")
    return address


def _options(query: str) -> dict[str, str]:
    found = dict(parse_qsl(query, keep_blank_values=True))
    for name in found:
        if name not in _OPTIONS:
            raise _wrong(unknown_option(name, _OPTIONS))
    return found


def _prefix(text: str) -> str:
    if not text or len(text) > PREFIX_CHARS_MAX or not text.isprintable() or set(text) & set("{} "):
        raise _wrong(f"prefix= has 1 to {PREFIX_CHARS_MAX} characters, without spaces and braces")
    return text


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise _wrong(f"timeout_s={text!r} is no number of seconds above 0")
    return seconds


def _yes_or_no(text: str, name: str) -> bool:
    return _YES_NO[_one_of(text.lower(), name, tuple(_YES_NO))]


def _one_of(text: str, name: str, known: tuple[str, ...]) -> str:
    if text not in known:
        raise _wrong(f"{name}={text!r}: it is one of {', '.join(known)}")
    return text


def _db(path: str) -> int:
    text = path.strip("/")
    if text and not (text.isascii() and text.isdigit()):
        raise _wrong("after the host comes the number of a database, or nothing")
    return int(text or 0)


def _socket(netloc: str, path: str) -> str:
    if netloc or not path:
        raise _wrong("a Unix socket is written with three slashes, such as redis+unix:///run/redis.sock")
    return unquote(path)


def _wrong(what: str) -> Misconfigured:
    return Misconfigured(
        f"The URL of the Redis store: {what}. Write it as redis://[USER:PASSWORD@]HOST[:PORT][/DB], with %-codes in"
        " place of odd characters."
    )
