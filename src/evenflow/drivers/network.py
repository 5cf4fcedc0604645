"""Where servers are, and why one could not be reached: in words that say where it was looked for and what to see to.

Each driver wraps what the system told it in errors of its own, and words it differently. Here these become one text. A
driver's own words are never repeated: they may hold what was signed.
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
    """The server could not do what it was asked: it lacks something, or met a record that is damaged."""


def why_unreached(error: BaseException, at: str, server: str) -> str:
    """`at` is a host with its port, or the path of a socket; `server` is what should be there."""
    found = list(_chain(error))
    text = " ".join(str(one) for one in found).lower()

    def says(words: Sequence[str], *kinds: type[BaseException]) -> bool:
        return any(isinstance(one, kinds) for one in found) or any(word in text for word in words)

    if says(_NO_HOST, socket.gaierror):
        return f"there is no host of that name at {at}; is it spelled right, and does this machine find other names?"
    if says(_UNTRUSTED, ssl.SSLCertVerificationError):
        return f"the certificate at {at} is not trusted here; is it the right host, and its authority known?"
    if says(_NO_TLS):
        return f"no TLS is spoken at {at}; is it {server} that listens there, and with TLS?"
    if says(_REFUSED, ConnectionRefusedError):
        return f"connection refused at {at}; is {server} running there?"
    if says(_NO_SOCKET, FileNotFoundError):
        return f"there is no socket for {at}; is {server} running, and is the path right?"
    if says(_NO_WAY):
        return f"there is no way to {at} from here; see the network, and what a firewall lets through"
    if says(_SILENT, TimeoutError):
        return f"no answer from {at}; see the network, and what a firewall lets through"
    return f"the connection to {at} was cut, or is not understood; is it {server} that listens there?"


def refusal(
    what: str, *, has_served: bool, by: str = "store", away: type[Transient] = StoreUnavailable
) -> EvenflowError:
    """Of credentials, rights or a place. Who was never served has a wrong setting, and ends; whom a server has served
    before waits, as for one that is away: a key that is being changed, or a role that is locked for a moment, must not
    end a fleet for good."""
    if not has_served:
        return Misconfigured(what)
    return away(
        f"{what} The {by} has served this process before: evenflow goes on by itself once it does again. If that takes"
        " another setting, change it and start the process anew."
    )


def http_parts(url: str) -> SplitResult | None:
    """Of an endpoint; None when it is none."""
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return None
    return parts if is_one and url.isprintable() and " " not in url else None


def belongs_to_nobody(parts: SplitResult) -> bool:
    """Its host is an address, or a name of one part: no account of a storage service has it for its own."""
    host = parts.hostname or ""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return "." not in host
    return True


def with_account(endpoint: str, account: str) -> str:
    """Emulators have no host for each account: they find it in the path, where it is left out easily."""
    parts = http_parts(endpoint)
    if parts is None or not account or parts.path.strip("/") or not belongs_to_nobody(parts):
        return endpoint
    return urlunsplit(parts._replace(path=f"/{account}"))


def place(url: str) -> str:
    """Host and port of a URL, the usual port where it names none."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def unknown_option(name: str, known: Sequence[str]) -> str:
    """For a URL: what was meant, perhaps, and what there is."""
    near = get_close_matches(name, known, n=1)
    meant = f" (did you mean {near[0]}?)" if near else ""
    return f"there is no option {name!r}{meant}; there are {', '.join(known)}"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """It, and what it came from."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
