"""Where a lease container is, and how it is used: what the URL says, checked once."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Literal, NamedTuple

from evenflow.drivers.cosmos.options import Purpose, address_of
from evenflow.errors import Misconfigured, StoreUnavailable
from evenflow.stores.cosmos.names import checked_prefix

if TYPE_CHECKING:
    from evenflow.drivers.cosmos.options import Address

SCHEME = "cosmos-leases"
TIMEOUT_S = 10.0
PEER_EXPIRY_S = 60.0
"""How long the leases of .NET's and Java's processors last after their timestamp."""
SHARED = ("auto", "yes", "no")
LAYOUTS = ("dotnet", "java")

Sharing = Literal["auto", "yes", "no"]
Layout = Literal["dotnet", "java"]


class Options(NamedTuple):
    """How a container is used."""

    shared: Sharing = "auto"
    """Whether processors of another make take part: `auto` reckons with them, and keeps their pace once there are
    some; `yes` always keeps it; with `no` nobody else may take part."""
    peer_expiry_s: float = PEER_EXPIRY_S
    prefix: str = ""
    """Of all ids, for the one group that uses this store; "": made from the group."""
    layout: Layout = "dotnet"
    """How leases are made where there are none to go by."""


def purpose(timeout_s: float = TIMEOUT_S) -> Purpose:
    return Purpose(
        "store",
        SCHEME,
        StoreUnavailable,
        timeout_s,
        ("layout", "peer_expiry_s", "prefix", "shared", "timeout_s"),
        " Make it again, partitioned by /id: hosts that run go on by themselves, from what they remember. What nobody"
        " remembers is in a backup, or begins anew: see docs/how-to/leases-in-cosmos.md.",
    )


def address(url: str) -> tuple[Address, Options, float]:
    """And for how long one request may go unanswered."""
    where, told = address_of(url, purpose())
    expiry_s = _seconds(told, "peer_expiry_s", PEER_EXPIRY_S)
    wanted = options(told.get("shared", "auto"), expiry_s, told.get("prefix", ""), told.get("layout", "dotnet"))
    return where, wanted, _seconds(told, "timeout_s", TIMEOUT_S)


def options(shared: str, peer_expiry_s: float, prefix: str, layout: str) -> Options:
    if shared not in SHARED:
        raise Misconfigured(f"{SCHEME}: shared={shared!r}: it is auto, yes or no.")
    if layout not in LAYOUTS:
        raise Misconfigured(f"{SCHEME}: layout={layout!r}: it is dotnet, or java for Java's newer processors.")
    if not isfinite(peer_expiry_s) or peer_expiry_s <= 0:
        raise Misconfigured(f"{SCHEME}: peer_expiry_s={peer_expiry_s!r}: it is a number of seconds above 0.")
    checked = checked_prefix(prefix) if prefix else ""
    return Options(shared, peer_expiry_s, checked, layout)  # type: ignore[arg-type]


def _seconds(told: dict[str, str], name: str, default: float) -> float:
    try:
        found = float(told.get(name, default))
    except ValueError:
        found = 0.0
    if not isfinite(found) or found <= 0:
        raise Misconfigured(f"{SCHEME}: {name}={told[name]!r}: it is a number of seconds above 0.")
    return found
