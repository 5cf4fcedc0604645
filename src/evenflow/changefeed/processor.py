"""The change feed processor: a `Processor` whose partitions are ranges of a container and whose events are documents.

This module makes no decisions. It gives the options of the runtime the names that users of Cosmos DB know, and passes
documents instead of events to the handlers.
"""

from __future__ import annotations

import inspect
import re
from datetime import datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

import msgspec

from evenflow.changefeed.context import ChangeContext
from evenflow.changefeed.estimator import LeaseEstimate, estimate
from evenflow.core.checkpointing import Every, Manual
from evenflow.core.numbers import is_positive
from evenflow.errors import Corrupt, Misconfigured
from evenflow.ports import Decoding
from evenflow.runtime.calls import check_handler, is_async
from evenflow.runtime.processor import Function, Processor
from evenflow.urls import feed_url, open_feed, open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from evenflow.core.failure import Breaker, Retry
    from evenflow.model import Event
    from evenflow.ports import Clock, DeadLetters, Source, Start, Store
    from evenflow.runtime.partition import OwnedPartition

MAX_ITEMS = 100
HEARTBEAT_S, TTL_S = 3.0, 10.0
"""Longer than the defaults of a `Processor`, because a lease container charges for every request."""

_decode = msgspec.json.Decoder().decode
STARTS: dict[object, Start] = {"now": "latest", "beginning": "earliest"}
NAMES = {
    "group": "processor_name",
    "instance_id": "instance_name",
    "max_partitions": "max_leases",
    "min_partitions": "min_leases",
    "batch_events": "max_items",
}
"""The name of an option in `Processor`, and its name here."""


class ChangeFeedOptions(TypedDict, total=False):
    """Options that have the same name and meaning in `Processor`."""

    retry: Retry
    on_poison: Literal["stop", "skip"] | None
    on_gone: Literal["stop", "earliest", "latest"]
    on_lost: Literal["earliest", "stop"]
    dead_letter: DeadLetters | str | object | None
    dead_letter_order: Literal["key"] | None
    breaker: Breaker | None
    handler_timeout_s: float | None
    stalled_after_s: float
    weight: float
    balance: Literal["count", "load"]
    load_s: float
    margin_s: float
    longest_ttl_s: float
    refresh_s: float
    stop_s: float
    prefetch_events: int
    prefetch_bytes: int
    clock: Clock | None


class ChangeFeedProcessor(Processor):
    """Calls handlers with this host's share of the changes of a monitored container.

    `monitored` is a container or a URL, `leases` a store or a URL. All hosts with the same container, lease store and
    `processor_name` share the ranges among them.
    """

    def __init__(
        self,
        monitored: Source | str | object,
        leases: Store | str | object,
        processor_name: str,
        *,
        instance_name: str | None = None,
        start: Literal["now", "beginning"] | datetime = "now",
        mode: Literal["latest", "all"] | None = None,
        checkpoint: Every | Manual = Every(seconds=1.0),  # noqa: B008 - it is immutable
        poll_interval_s: float | None = None,
        max_items: int = MAX_ITEMS,
        concurrency: int | None = None,
        min_leases: int | None = None,
        max_leases: int | None = None,
        heartbeat_s: float = HEARTBEAT_S,
        ttl_s: float = TTL_S,
        **options: Unpack[ChangeFeedOptions],
    ) -> None:
        _check_names(options)
        _check_feed_options(mode, poll_interval_s)
        given = {"mode": mode, "poll_s": poll_interval_s}
        self._decoder = _plain
        self._feed_options = {name: value for name, value in given.items() if value is not None}
        if isinstance(monitored, str):
            feed_url(monitored, self._feed_options)  # raises here, not later, if the URL is wrong
        try:
            super().__init__(
                monitored,
                leases,
                processor_name,
                instance_id=instance_name,
                start=_start_of(start),
                checkpoint=checkpoint,
                batch_events=max_items,
                concurrency=concurrency,
                min_partitions=min_leases,
                max_partitions=max_leases,
                heartbeat_s=heartbeat_s,
                ttl_s=ttl_s,
                **options,
            )
        except Misconfigured as error:
            raise Misconfigured(_with_own_names(str(error))) from error

    _decorators = "@processor.on_changes"
    id_option = NAMES["instance_id"]

    # --- handlers
    def on_changes(self, handler: Function) -> Function:
        """Called with (changes, context): one or more documents of one range, in order; see `ChangeContext`."""
        check_handler("on_changes", handler, ("changes", "context"))
        self._set_handler("batch", _adapted(handler, self._arguments))
        return handler

    def on_error(self, hook: Function) -> Function:
        """Called with (error, lease_token) on a failure that will be retried: for every failure of a handler, and once
        when the container or the lease store becomes unreachable. `lease_token` is None if all leases are affected.
        """
        check_handler("on_error", hook, ("error", "lease_token"))
        self._set_hook("error", _adapted(hook, lambda error, partition: (error, partition.id)))
        self._handlers.trouble = _adapted(hook, lambda error: (error, None))
        self._handlers.errors_once = True
        return hook

    def on_lease_acquired(self, hook: Function) -> Function:
        """Called with (lease_token) before the first change of a lease; no change is handled until it returns."""
        check_handler("on_lease_acquired", hook, ("lease_token",))
        self._set_hook("partition_start", _adapted(hook, lambda partition: (partition.id,)))
        return hook

    def on_lease_released(self, hook: Function) -> Function:
        """Called with (lease_token) after the last change of a lease and before its last checkpoint."""
        check_handler("on_lease_released", hook, ("lease_token",))
        self._set_hook("partition_stop", _adapted(hook, lambda partition, reason: (partition.id,)))
        return hook

    # --- lag
    async def estimate(self) -> list[LeaseEstimate]:
        """The lag of each lease, of all hosts; this host need not run."""
        if self._engine is not None:
            return await estimate(self._engine.parts.source, self._engine.parts.store, self.settings)
        source, store = self._open_source(), open_store(self._store_given)
        try:
            return await estimate(source, store, self.settings)
        finally:
            for part, given in ((source, self._source_given), (store, self._store_given)):
                if part is not given:
                    await part.aclose()

    # --- inside
    def _open_source(self) -> Source:
        source = open_feed(self._source_given, self._feed_options)
        decoding: object = source
        self._decoder = decoding.decoder if isinstance(decoding, Decoding) else _plain
        return source

    def _arguments(self, events: Sequence[Event], partition: OwnedPartition) -> tuple[list[Any], ChangeContext]:
        assert self._engine is not None
        decode = self._decoder()
        try:
            changes = [decode(event.body) for event in events]
        except msgspec.DecodeError:
            changes = [_document(event, decode) for event in events]  # raises for the event that cannot be decoded
        return changes, ChangeContext(partition, self._engine.parts.source, events, changes)


def _plain() -> Callable[[bytes], Any]:
    return _decode


def _document(event: Event, decode: Callable[[bytes], Any]) -> Any:
    try:
        return decode(event.body)
    except msgspec.DecodeError as error:
        key = f" (key {event.key!r:.100})" if event.key is not None else ""
        raise Corrupt(
            f"the document of the change at {event.position}{key} cannot be decoded, and the handler was not called:"
            f" {str(error).removesuffix('.')}. Fix the document; or skip such documents with on_poison='skip', or file"
            " them as dead letters with dead_letter=."
        ) from error


def _start_of(start: object) -> Start:
    if isinstance(start, datetime):
        return start
    if not isinstance(start, str) or start not in STARTS:
        raise Misconfigured(f"start={start!r}: give 'now', 'beginning', or a datetime with a time zone.")
    return STARTS[start]


def _check_names(options: Mapping[str, object]) -> None:
    """Reject unknown options here: an error of `Processor` would carry its name, and suggest its names of options."""
    for name in options:
        if name not in ChangeFeedOptions.__annotations__:
            own = inspect.signature(ChangeFeedProcessor).parameters.keys() | ChangeFeedOptions.__annotations__.keys()
            near = [NAMES[name]] if name in NAMES else get_close_matches(name, own - {"options"}, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "see docs/reference/changefeed.md for its options."
            raise TypeError(f"ChangeFeedProcessor() has no option {name!r}: {hint}")


def _check_feed_options(mode: object, poll_interval_s: object) -> None:
    if mode not in (None, "latest", "all"):
        raise Misconfigured(f"mode={mode!r}: give 'latest' or 'all'.")
    if poll_interval_s is not None and not is_positive(poll_interval_s):
        raise Misconfigured(f"poll_interval_s={poll_interval_s!r}: give a number of seconds above 0.")


def _with_own_names(message: str) -> str:
    """The message with the names that the options have here."""
    return re.sub(rf"\b({'|'.join(NAMES)})=", lambda found: f"{NAMES[found[1]]}=", message)


def _adapted(function: Callable[..., Any], arguments: Callable[..., tuple[Any, ...]]) -> Callable[..., Any]:
    """The function with other arguments: async if it is async, else plain."""

    async def call_async(*given: Any) -> None:
        await function(*arguments(*given))

    def call(*given: Any) -> Any:
        return function(*arguments(*given))

    adapted = call_async if is_async(function) else call
    adapted.__qualname__ = getattr(function, "__qualname__", adapted.__qualname__)
    return adapted
