"""Who claims partitions through a checkpoint store: azure-eventhub's owners, as members of the group.

An owner has one row, made by its first claim; every further claim is its heartbeat, which renews all that it has. It
leaves when it has let go of its last partition. By its nonce anybody can tell it from an instance of evenflow's
Processor."""

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
"""How the nonce of every such row begins."""

CYCLES = 6
"""So many load-balancing intervals an ownership lasts, unless somebody says otherwise: as azure-eventhub has it."""


class OpenStore(Store, Operable, Protocol):
    """What is needed of a store: all that the stores of evenflow have."""


class Pace:
    """How often owners claim, and after which silence they are dead: the settings of their client."""

    def __init__(self, load_balancing_interval: float, partition_ownership_expiration_interval: float | None) -> None:
        given = partition_ownership_expiration_interval
        self.interval_s = _seconds("load_balancing_interval", load_balancing_interval)
        name = "partition_ownership_expiration_interval"
        self.expiry_s = _seconds(name, self.interval_s * CYCLES if given is None else given)
        if self.expiry_s < self.interval_s:
            raise Misconfigured(
                f"{name}={self.expiry_s:g} is less than load_balancing_interval={self.interval_s:g}: an owner would be"
                " dead before it can claim again. Give the same values as to EventHubConsumerClient."
            )


class Owners:
    """The rows of the owners that claim here, in one group."""

    def __init__(self, pace: Pace, clock: Clock) -> None:
        self._pace = pace
        self._started_at = clock.wall()
        self._version = f"{OFFICIAL} {version(OFFICIAL)}"
        self._incarnations: dict[str, int] = {}
        self._nonces: dict[str, str] = {}
        self._new_nonce = clock.nonce

    def row(self, owner: str, *, retiring: bool = False, leaving: bool = False) -> Member:
        """What its next heartbeat says."""
        return Member(
            id=owner,
            nonce=self._nonces.setdefault(owner, f"{OFFICIAL} {self._new_nonce()}"),
            incarnation=self._incarnations.get(owner, 0),
            ttl_s=self._pace.expiry_s,
            heartbeat_s=self._pace.interval_s,
            retiring=retiring,
            leaving=leaving,
            version=self._version,
            host=socket.gethostname(),
            pid=os.getpid(),
            started_at=self._started_at,
        )

    @property
    def known(self) -> set[Owner]:
        """Who has claimed here, and has not left."""
        return {Owner(owner, incarnation) for owner, incarnation in self._incarnations.items()}

    def answered(self, owner: str, me: Member | None) -> None:
        """Its heartbeat was answered; None once it has left."""
        if me is None:
            self.forget(owner)
        else:
            self._incarnations[owner] = me.incarnation

    def forget(self, owner: str) -> None:
        """Its next heartbeat is a first one."""
        self._incarnations.pop(owner, None)
        self._nonces.pop(owner, None)


def is_official(member: Member) -> bool:
    """It claims through this store, or through Azure's own in the same container: it gives nothing away by itself."""
    return member.nonce.startswith(f"{OFFICIAL} ") or member.foreign


def _seconds(name: str, value: float) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
        raise Misconfigured(f"{name}={value!r}: give seconds, more than 0, as to EventHubConsumerClient.")
    return float(value)
