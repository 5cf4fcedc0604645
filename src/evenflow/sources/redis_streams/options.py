"""Parses and validates the URL of Redis streams: the server, and the options of the connection."""

from __future__ import annotations

import math
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from msgspec import Struct

from evenflow.errors import Misconfigured

PORT = 6379
TIMEOUT_S = 5.0
SCHEMES = {"redis-streams": False, "rediss-streams": True}
"""Whether the scheme uses TLS."""
OPTIONS = ("db", "ca", "cluster", "timeout_s")
"""The options of the connection; others belong to the source."""
YES_NO = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}


class RedisStreamsServer(Struct, frozen=True):
    """The server and the connection to it. Neither str nor repr shows a password."""

    host: str
    port: int = PORT
    db: int = 0
    username: str | None = None
    password: str | None = None
    tls: bool = False
    ca: str | None = None
    cluster: bool = False
    timeout_s: float = TIMEOUT_S

    def __post_init__(self) -> None:
        if self.cluster and self.db:
            raise Misconfigured(f"db={self.db} is invalid: a cluster has only database 0.")
        if self.ca and not self.tls:
            raise Misconfigured("ca= requires TLS: write rediss-streams://.")
        if self.ca and not Path(self.ca).is_file():
            raise Misconfigured(f"ca={self.ca}: the file does not exist.")
        if not 0 < self.timeout_s < math.inf:
            raise Misconfigured(f"timeout_s={self.timeout_s} is invalid: give a number of seconds above 0.")

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" + (f"/{self.db}" if self.db else "")

    def __repr__(self) -> str:
        return f"<RedisStreamsServer {self}>"


def parse(url: str) -> tuple[RedisStreamsServer, str, dict[str, str]]:
    """The server, the name, and the options of the source. No message repeats a possible password."""
    parts = urlsplit(url)
    if parts.fragment or ("@" in parts.query and "@" not in parts.netloc):
        raise Misconfigured("The URL of Redis streams contains a '#', or a '?' in a password: write %23 and %3F.")
    try:
        port = parts.port or PORT
    except ValueError as error:
        raise Misconfigured("The URL of Redis streams has an invalid port: give a number.") from error
    name = unquote(parts.path.strip("/"))
    if not parts.hostname or not name:
        raise Misconfigured(
            "The URL of Redis streams lacks a server or a name: write for instance redis-streams://localhost:6379/homes."
        )
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    server = {option: given.pop(option) for option in OPTIONS if option in given}
    address = RedisStreamsServer(
        parts.hostname,
        port,
        whole("db", server.get("db", "0")),
        unquote(parts.username) if parts.username else None,
        unquote(parts.password) if parts.password else None,
        SCHEMES[parts.scheme],
        server.get("ca"),
        _yes_or_no("cluster", server.get("cluster", "no")),
        _seconds("timeout_s", server.get("timeout_s", str(TIMEOUT_S))),
    )
    return address, name, given


def whole(name: str, text: str, least: int = 0) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) < least:
        raise Misconfigured(f"{name}={text} is invalid: give a whole number{f' of at least {least}' if least else ''}.")
    return int(text)


def _yes_or_no(name: str, text: str) -> bool:
    if text.lower() not in YES_NO:
        raise Misconfigured(f"{name}={text} is invalid: give yes or no.")
    return YES_NO[text.lower()]


def _seconds(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise Misconfigured(f"{name}={text} is invalid: give a number of seconds above 0.") from None
