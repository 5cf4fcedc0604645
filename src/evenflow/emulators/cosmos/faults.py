"""Fault injection for tests of clients: errors and delays of the real service, deterministic instead of random."""

from __future__ import annotations

import asyncio
import math

from msgspec import Struct

from evenflow.emulators.cosmos.http import RANGE_GONE, RETRY_AFTER, CosmosError


class CosmosFaultOptions(Struct, frozen=True, kw_only=True):
    """Which faults to inject into requests for documents; None disables a fault."""

    delay_s: float | None = None
    """Delays every response."""
    busy: float | None = None
    """The share of requests to refuse with 503."""
    gone: float | None = None
    """The share of requests to refuse with 410, as if the range had just been split."""
    throttle: float | None = None
    """Request units per second over all requests; further requests are refused with 429 and a retry-after header."""


NO_FAULTS = CosmosFaultOptions()


class CosmosFaults:
    def __init__(self, options: CosmosFaultOptions = NO_FAULTS) -> None:
        self.options = options
        self._busy, self._gone = _Share(options.busy), _Share(options.gone)
        self._left = options.throttle or 0.0
        self._at_s: float | None = None

    async def before(self) -> None:
        """Delay or refuse a request if it is its turn."""
        if self.options.delay_s:
            await asyncio.sleep(self.options.delay_s)  # noqa: TID251 - the trouble is real time
        if self._busy.is_turn():
            raise CosmosError(503, "Injected fault: the service is unavailable. Try again.")
        if self._gone.is_turn():
            raise CosmosError(410, "Injected fault: the range is gone. Read the ranges again.", RANGE_GONE)
        self._refuse_too_much()

    def spent(self, charge: float) -> None:
        self._left -= charge

    def _refuse_too_much(self) -> None:
        per_s = self.options.throttle
        if per_s is None:
            return
        now_s = asyncio.get_running_loop().time()
        since_s = 0.0 if self._at_s is None else now_s - self._at_s
        self._at_s = now_s
        self._left = min(per_s, self._left + since_s * per_s)
        if self._left < 0:
            refusal = CosmosError(429, "Injected fault: the request rate is too large. Retry later.", 3200)
            refusal.headers[RETRY_AFTER] = str(math.ceil(-self._left / per_s * 1000))
            raise refusal


class _Share:
    def __init__(self, share: float | None) -> None:
        self._share = share or 0.0
        self._so_far = 0.0

    def is_turn(self) -> bool:
        """Whether this request gets the fault: every fourth request for a share of 0.25."""
        self._so_far += self._share
        transaction = self._so_far >= 1.0
        self._so_far -= transaction
        return transaction
