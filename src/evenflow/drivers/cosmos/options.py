"""Options of an Azure Cosmos DB container: parses and validates the URL.

This module opens no connection. Keys appear in no repr and in no message.
"""

from __future__ import annotations

import ipaddress
import os
from base64 import b64decode
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from evenflow.drivers.network import http_parts, unknown_option
from evenflow.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import Mapping

    from evenflow.errors import Transient

EMULATOR_KEY = "C2y6yDjf5/R+ob0N8A7Cgv30VRDJIWEHLM+4QDU5DE2nQ9nDuVTqobD4b8mGGyPMbIZnqyMsEcaGQy67XIw/Jw=="
"""The public key of Microsoft's emulator, which is no secret. evenflow's local endpoint accepts it too."""
KEY_VARIABLE = "COSMOS_KEY"
CONNECTION_VARIABLE = "COSMOS_CONNECTION_STRING"
"""Environment variables that are used if the URL names none."""

OPTIONS = ("connection_string_env", "key", "key_env", "preferred_locations", "tls")
_TLS = ("on", "off", "unverified")
_NO_NAME = set("/\\#?\t\r\n")


class Purpose(NamedTuple):
    """What a container is used for (a source or a store), with its error type and URL options."""

    what: str
    """Used in messages: "source" or "store"."""
    scheme: str
    away: type[Transient]
    timeout_s: float
    """The limit for one request."""
    options: tuple[str, ...] = ()
    """URL options beyond those of the connection."""
    if_deleted: str = ""
    """Advice for a container that was deleted while in use."""


@dataclass(frozen=True, slots=True)
class Address:
    """One container. Its text contains no secrets."""

    endpoint: str
    database: str
    container: str
    credential: Any = field(default=None, repr=False)
    """A key, resource tokens, or a credential of azure-identity; None: DefaultAzureCredential."""
    scheme: str = "cosmos"
    preferred_locations: tuple[str, ...] = ()
    is_verified: bool = True
    """Whether the server's certificate is verified. azure-cosmos never verifies it for localhost."""

    def __post_init__(self) -> None:
        if http_parts(self.endpoint) is None:
            raise _wrong(self.scheme, "the endpoint must be an http or https URL with a host and an optional port")
        for what, name in (("database", self.database), ("container", self.container)):
            if not name:
                raise _wrong(self.scheme, f"the {what} is missing")
            if set(name) & _NO_NAME:
                raise _wrong(
                    self.scheme, f"{name!r} is not a valid name of a {what}: slash, backslash, # and ? are not allowed"
                )
        if isinstance(self.credential, str) and not _is_key(self.credential):
            raise _wrong(self.scheme, "the key is not base64. Copy the whole key from the account's keys")

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}/{self.database}/{self.container}"

    @property
    def host(self) -> str:
        """The host, with its port unless it is 443."""
        return urlsplit(self.endpoint).netloc.rpartition("@")[2].removesuffix(":443")

    @property
    def is_local(self) -> bool:
        return _is_local(urlsplit(self.endpoint).hostname or "")


def address_of(url: str, purpose: Purpose, credential: Any = None) -> tuple[Address, dict[str, str]]:
    """Parses a URL into an address and the options of the purpose.

    `SCHEME://HOST[:PORT]/DATABASE/CONTAINER?...`, or `SCHEME:///DATABASE/CONTAINER?connection_string_env=NAME`.
    """
    scheme = purpose.scheme
    try:
        parts = urlsplit(url)
        host, port, has_user = parts.hostname or "", parts.port, "@" in parts.netloc
    except ValueError:
        raise _wrong(scheme, "the URL is invalid") from None
    if has_user:
        raise _wrong(scheme, "keys before the host are not supported. Use key_env= or connection_string_env=")
    options = _options(parts.query, purpose)
    steps = [unquote(step) for step in parts.path.strip("/").split("/")]
    if len(steps) != 2:
        raise _wrong(scheme, "the path must be one database and one container")
    where: dict[str, Any] = {
        "database": steps[0],
        "container": steps[1],
        "scheme": scheme,
        "preferred_locations": tuple(filter(None, options.get("preferred_locations", "").split(","))),
        "is_verified": options.get("tls") != "unverified",
    }
    own = {name: value for name, value in options.items() if name in purpose.options}
    if not host:
        endpoint, key = _connection(scheme, options)
        return Address(endpoint, credential=credential or key, **where), own
    if "connection_string_env" in options:
        raise _wrong(scheme, "the connection string already names the account, so the URL must have no host")
    is_plain = options.get("tls", "off" if _is_local(host) else "on") == "off"
    shown = f"[{host}]" if ":" in host else host
    endpoint = f"http{'' if is_plain else 's'}://{shown}:{port or (80 if is_plain else 443)}/"
    return Address(endpoint, credential=credential or _key(scheme, options, host), **where), own


def _options(query: str, purpose: Purpose) -> dict[str, str]:
    found = dict(parse_qsl(query, keep_blank_values=True))
    if "prefix" in found:  # ids of Cosmos DB may contain a plus, and are pasted unescaped
        found["prefix"] = dict(parse_qsl(query.replace("+", "%2B"), keep_blank_values=True))["prefix"]
    known = sorted({*OPTIONS, *purpose.options})
    for name in found:
        if name not in known:
            raise _wrong(purpose.scheme, unknown_option(name, known))
    if found.get("tls", "on") not in _TLS:
        raise _wrong(purpose.scheme, f"tls={found['tls']!r}: must be on, off (plain http) or unverified")
    return found


def _key(scheme: str, options: Mapping[str, str], host: str) -> str | None:
    if "key" in options:
        return options["key"].replace(" ", "+")  # an unescaped plus decodes as a blank; keys contain no blanks
    if "key_env" in options:
        return _from_environment(scheme, options["key_env"], "key_env")
    return os.environ.get(KEY_VARIABLE, "").strip() or (EMULATOR_KEY if _is_local(host) else None)


def _connection(scheme: str, options: Mapping[str, str]) -> tuple[str, str]:
    """The endpoint and the key of the connection string."""
    variable = options.get("connection_string_env", CONNECTION_VARIABLE)
    text = _from_environment(scheme, variable, "connection_string_env")
    pairs = (part.partition("=") for part in text.strip(";").split(";"))
    fields = {name.strip().lower(): value.strip() for name, _, value in pairs}
    endpoint, key = fields.get("accountendpoint"), fields.get("accountkey")
    if not endpoint or not key:
        raise _wrong(
            scheme, f"{variable} contains no AccountEndpoint and AccountKey. Copy the connection string from the portal"
        )
    return endpoint, key


def _from_environment(scheme: str, variable: str, option: str) -> str:
    found = os.environ.get(variable, "").strip()
    if not found:
        raise _wrong(scheme, f"{option}={variable}: the environment variable is missing or empty")
    return found


def _is_key(text: str) -> bool:
    try:
        return bool(b64decode(text, validate=True))
    except ValueError:
        return False


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _wrong(scheme: str, what: str) -> Misconfigured:
    return Misconfigured(
        f"{scheme}: {what}. Use {scheme}://HOST[:PORT]/DATABASE/CONTAINER[?OPTIONS], or"
        f" {scheme}:///DATABASE/CONTAINER?connection_string_env=NAME."
    )
