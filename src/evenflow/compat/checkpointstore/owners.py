"""The owners of azure-eventhub that claim partitions through a checkpoint store, as members of the group.

An owner has one member row, which its first claim creates. Every later claim is its heartbeat, and renews all its
partitions. It leaves when it has released its last partition. Its nonce distinguishes it from an instance of evenflow's
Processor.
"""

from __future__ import annotations

import os
import socket
from importlib.metadata import version
from typing import TYPE_CHECKING, Protocol

from evenflow.errors import Misconfigured
from evenflow.model import Member, Owner
from evenflow.ports import Operable, Store

if TYPE_CHECKING:
    from evenflow.ports import Clock

OFFICIAL = "azure-eventhub"
"""The nonce of every such row begins with this."""

CYCLES = 6
"""An ownership lasts this many load-balancing intervals by default, as in azure-eventhub."""


class OpenStore(Store, Operable, Protocol):
    """The interface that the checkpoint store needs; all stores of evenflow have it."""


class ClientTiming:
    """How often owners claim, and when a silent one is dead: the settings of their client."""

    def __init__(self, load_balancing_interval: float, partition_ownership_expiration_interval: float | None) -> None:
        given = partition_ownership_expiration_interval
        self.interval_s = _seconds("load_balancing_interval", load_balancing_interval)
        name = "partition_ownership_expiration_interval"
        self.expiry_s = _seconds(name, self.interval_s * CYCLES if given is None else given)
        if self.expiry_s < self.interval_s:
            raise Misconfigured(
                f"{name}={self.expiry_s:g} is less than load_balancing_interval={self.interval_s:g}: an owner would"
                " expire before it can claim again. Pass the same values as to EventHubConsumerClient."
            )


class ClaimingOwners:
    """The member rows of the owners that claim in this process, in one group."""

    def __init__(self, timing: ClientTiming, clock: Clock) -> None:
        self._timing = timing
        self._started_at = clock.wall()
        self._version = f"{OFFICIAL} {version(OFFICIAL)}"
        self._incarnations: dict[str, int] = {}
        self._nonces: dict[str, str] = {}
        self._new_nonce = clock.nonce

    def row(self, owner: str, *, retiring: bool = False, leaving: bool = False) -> Member:
        """The content of its next heartbeat."""
        return Member(
            id=owner,
            nonce=self._nonces.setdefault(owner, f"{OFFICIAL} {self._new_nonce()}"),
            incarnation=self._incarnations.get(owner, 0),
            ttl_s=self._timing.expiry_s,
            heartbeat_s=self._timing.interval_s,
            retiring=retiring,
            leaving=leaving,
            version=self._version,
            host=socket.gethostname(),
            pid=os.getpid(),
            started_at=self._started_at,
        )

    @property
    def known(self) -> set[Owner]:
        """The owners that have claimed here and have not left."""
        return {Owner(owner, incarnation) for owner, incarnation in self._incarnations.items()}

    def answered(self, owner: str, me: Member | None) -> None:
        """Record the response to its heartbeat; `me` is None once it has left."""
        if me is None:
            self.forget(owner)
        else:
            self._incarnations[owner] = me.incarnation

    def forget(self, owner: str) -> None:
        """Forget the owner: its next heartbeat joins the group again."""
        self._incarnations.pop(owner, None)
        self._nonces.pop(owner, None)


def is_official(member: Member) -> bool:
    """Whether it claims through this store, or through Azure's own in the same container. Then it never hands over."""
    return member.nonce.startswith(f"{OFFICIAL} ") or member.foreign


def _seconds(name: str, value: float) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
        raise Misconfigured(f"{name}={value!r}: give seconds above 0, the same as to EventHubConsumerClient.")
    return float(value)
