"""Trouble on purpose, for tests of clients: what the service does on its bad days, by the count and never by chance."""

from __future__ import annotations

import asyncio

from msgspec import Struct

from evenflow.amqp.conditions import SERVER_BUSY, AmqpError


class EventHubsFaultOptions(Struct, frozen=True, kw_only=True):
    """None is no trouble of that kind."""

    drop_s: float | None = None
    """Every connection is cut after so long."""
    delay_s: float | None = None
    """What a client sends is heard so much later."""
    busy: float | None = None
    """This share of links and sends is refused, as by a server that is busy."""
    throttle: float | None = None
    """So many events a second are taken and given in all: what is sent beyond is refused, what is read has to wait."""


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
        """Whether this one is refused; with a share of a quarter, every fourth is."""
        self._busy_so_far += self.options.busy or 0.0
        if self._busy_so_far < 1.0:
            return False
        self._busy_so_far -= 1.0
        return True

    def takes(self, events: int) -> bool:
        """Whether so many may be sent now."""
        if not self._taken.has(1):
            return False
        self._taken.use(events)
        return True

    def gives(self, most: int) -> int:
        """How many may be read now, up to `most`."""
        found = min(most, self._given.has(most))
        self._given.use(found)
        return found

    @property
    def throttles(self) -> bool:
        return self.options.throttle is not None


class _Allowance:
    """So many a second, and a second's worth at once."""

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
