"""Explains why a server could not be reached: the address, the cause, and what to check.

Each driver wraps and words the system's errors differently; this module maps them to the same messages. It never
repeats a driver's own text, which may contain signatures.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
from difflib import get_close_matches
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit, urlunsplit

from evenflow.errors import Misconfigured, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from evenflow.errors import EvenflowError, Transient

_REFUSED = ("connection refused", "connect call failed")
_NO_HOST = (
    "name or service not known",
    "failed to resolve",
    "could not translate host name",
    "failed to lookup address",
    "name resolution",
    "nodename nor servname",
    "no address associated",
)
_UNTRUSTED = ("certificate verify failed", "unknownissuer", "invalid peer certificate")
_NO_TLS = (
    "wrong_version_number",
    "invalidcontenttype",
    "ssl negotiation",
    "record_layer_failure",
    "[ssl: http_request",
)
_NO_WAY = ("network is unreachable", "no route to host", "networkunreachable", "hostunreachable")
_NO_SOCKET = ("no such file or directory",)
_SILENT = ("timed out", "timeout expired", "timedout")


class NotDone(Misconfigured):
    """The server could not execute a request: it lacks a feature, or met a damaged record."""


def why_unreached(error: BaseException, at: str, server: str) -> str:
    """`at` is a host with its port, or a socket path; `server` is the kind of server expected there."""
    found = list(_chain(error))
    text = " ".join(str(one) for one in found).lower()

    def says(words: Sequence[str], *kinds: type[BaseException]) -> bool:
        return any(isinstance(one, kinds) for one in found) or any(word in text for word in words)

    if says(_NO_HOST, socket.gaierror):
        return f"host name lookup failed for {at}; check the spelling and this machine's DNS"
    if says(_UNTRUSTED, ssl.SSLCertVerificationError):
        return f"the certificate at {at} is not trusted; check the host and its certificate authority"
    if says(_NO_TLS):
        return f"{at} does not speak TLS; check that {server} listens there, with TLS"
    if says(_REFUSED, ConnectionRefusedError):
        return f"connection refused at {at}; is {server} running there?"
    if says(_NO_SOCKET, FileNotFoundError):
        return f"socket not found for {at}; check the path, and that {server} is running"
    if says(_NO_WAY):
        return f"no route to {at}; check the network and the firewall"
    if says(_SILENT, TimeoutError):
        return f"no answer from {at}; check the network and the firewall"
    return f"the connection to {at} was closed or the protocol does not match; check that {server} listens there"


def refusal(
    what: str, *, has_served: bool, by: str = "store", unreachable: type[Transient] = StoreUnavailable
) -> EvenflowError:
    """The error for rejected credentials, missing permissions or a missing resource.

    A process that was never served has a wrong setting: Misconfigured ends it. If the server has served this process
    before, the error is transient, as for an unreachable server: a key rotation or a role that is locked for a moment
    must not stop a whole fleet."""
    if not has_served:
        return Misconfigured(what)
    return unreachable(
        f"{what} The {by} has served this process before: evenflow retries, and goes on by itself once it is accepted"
        " again. If a setting has to change, change it and restart the process."
    )


def http_parts(url: str) -> SplitResult | None:
    """The parts of an http or https URL; None if it is not one."""
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return None
    return parts if is_one and url.isprintable() and " " not in url else None


def has_no_account(parts: SplitResult) -> bool:
    """Whether the host is an IP address or a single label, so that it cannot contain the name of a storage account."""
    host = parts.hostname or ""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return "." not in host
    return True


def with_account(endpoint: str, account: str) -> str:
    """Adds the account to the path of an emulator's endpoint, because emulators have no host per account."""
    parts = http_parts(endpoint)
    if parts is None or not account or parts.path.strip("/") or not has_no_account(parts):
        return endpoint
    return urlunsplit(parts._replace(path=f"/{account}"))


def host_and_port(url: str) -> str:
    """Host and port of a URL, with the default port if it has none."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def unknown_option(name: str, known: Sequence[str]) -> str:
    """The message for an unknown URL option: a suggestion and the known options."""
    near = get_close_matches(name, known, n=1)
    meant = f" (did you mean {near[0]}?)" if near else ""
    return f"there is no option {name!r}{meant}; the options are {', '.join(known)}"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and its causes."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
