"""Trouble on purpose, for tests of clients: what the service does on its bad days, by the count and never by chance."""

from __future__ import annotations

import asyncio
import math

from msgspec import Struct

from evenflow.emulators.cosmos.http import RANGE_GONE, RETRY_AFTER, CosmosError


class CosmosFaultOptions(Struct, frozen=True, kw_only=True):
    """None is no trouble of that kind. All of it is for requests about documents."""

    delay_s: float | None = None
    """Every answer comes so much later."""
    busy: float | None = None
    """This share of requests is refused with 503."""
    gone: float | None = None
    """This share is refused with 410, as if the range had just been split."""
    throttle: float | None = None
    """So many request units a second are served in all; what is beyond is refused with 429, and when to come again."""


NO_FAULTS = CosmosFaultOptions()


class CosmosFaults:
    def __init__(self, options: CosmosFaultOptions = NO_FAULTS) -> None:
        self.options = options
        self._busy, self._gone = _Share(options.busy), _Share(options.gone)
        self._left = options.throttle or 0.0
        self._at_s: float | None = None

    async def before(self) -> None:
        """Wait or refuse, as it is this request's transaction."""
        if self.options.delay_s:
            await asyncio.sleep(self.options.delay_s)  # noqa: TID251 - the trouble is real time
        if self._busy.is_turn():
            raise CosmosError(503, "The service is unavailable, on purpose. Try again.")
        if self._gone.is_turn():
            raise CosmosError(410, "The partition key range is gone, on purpose. Read the ranges again.", RANGE_GONE)
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
            refusal = CosmosError(429, "The request rate is large, on purpose. Come again when the header says.", 3200)
            refusal.headers[RETRY_AFTER] = str(math.ceil(-self._left / per_s * 1000))
            raise refusal


class _Share:
    def __init__(self, share: float | None) -> None:
        self._share = share or 0.0
        self._so_far = 0.0

    def is_turn(self) -> bool:
        """With a share of a quarter, every fourth."""
        self._so_far += self._share
        transaction = self._so_far >= 1.0
        self._so_far -= transaction
        return transaction
