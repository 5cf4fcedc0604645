"""Fault injection for tests of clients: errors and delays of the real service, deterministic instead of random."""

from __future__ import annotations

import asyncio

from msgspec import Struct

from evenflow.amqp.conditions import SERVER_BUSY, AmqpError


class EventHubsFaultOptions(Struct, frozen=True, kw_only=True):
    """Which faults to inject; None disables a fault."""

    drop_s: float | None = None
    """Drops every connection after this time."""
    delay_s: float | None = None
    """Delays everything that clients send."""
    busy: float | None = None
    """The share of links and sends to refuse with server-busy."""
    throttle: float | None = None
    """Events per second, for sends and for receives. Further sends are refused, and further receives wait."""


NO_FAULTS = EventHubsFaultOptions()


def busy() -> AmqpError:
    return AmqpError(SERVER_BUSY, "The server was unable to process the request; please retry the operation.")


class EventHubsFaults:
    def __init__(self, options: EventHubsFaultOptions = NO_FAULTS) -> None:
        self.options = options
        self._busy_so_far = 0.0
        self._taken = _Allowance(options.throttle)
        self._given = _Allowance(options.throttle)

    def is_busy(self) -> bool:
        """Whether to refuse this operation: every fourth one for a share of 0.25."""
        self._busy_so_far += self.options.busy or 0.0
        if self._busy_so_far < 1.0:
            return False
        self._busy_so_far -= 1.0
        return True

    def allows_send(self, events: int) -> bool:
        """Whether this many events may be sent now."""
        if not self._taken.has(1):
            return False
        self._taken.use(events)
        return True

    def receivable_events(self, most: int) -> int:
        """How many events may be received now, up to `most`."""
        found = min(most, self._given.has(most))
        self._given.use(found)
        return found

    @property
    def throttles(self) -> bool:
        return self.options.throttle is not None


class _Allowance:
    """A rate limit with a burst of one second."""

    def __init__(self, per_s: float | None) -> None:
        self._per_s = per_s
        self._left = per_s or 0.0
        self._at_s: float | None = None

    def has(self, most: int) -> int:
        if self._per_s is None:
            return most
        now_s = asyncio.get_running_loop().time()
        since_s = 0.0 if self._at_s is None else now_s - self._at_s
        self._at_s = now_s
        self._left = min(self._per_s, self._left + since_s * self._per_s)
        return max(0, int(self._left))

    def use(self, count: int) -> None:
        self._left -= count
