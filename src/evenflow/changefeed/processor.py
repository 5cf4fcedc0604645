"""The change feed processor: a `Processor` whose partitions are ranges of a container and whose events are documents.

Nothing is decided here. It gives the runtime's options the names that users of Cosmos DB know, and its handlers
documents instead of events.
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
"""A little longer than a processor's own: a lease container charges for every request."""

_decode = msgspec.json.Decoder().decode
STARTS: dict[object, Start] = {"now": "latest", "beginning": "earliest"}
NAMES = {
    "group": "processor_name",
    "instance_id": "instance_name",
    "max_partitions": "max_leases",
    "min_partitions": "min_leases",
    "batch_events": "max_items",
}
"""What a processor calls an option, and what it is called here."""


class Options(TypedDict, total=False):
    """Those of a `Processor` that are the same here."""

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
    """Runs handlers over this host's share of a monitored container's changes.

    `monitored` is a container or a URL, `leases` a store or a URL. All hosts that name the same container, leases and
    `processor_name` share the ranges between them.
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
        **options: Unpack[Options],
    ) -> None:
        _check_names(options)
        _check_feed_options(mode, poll_interval_s)
        asked = {"mode": mode, "poll_s": poll_interval_s}
        self._decoder = _plain
        self._feed_options = {name: value for name, value in asked.items() if value is not None}
        if isinstance(monitored, str):
            feed_url(monitored, self._feed_options)  # what is wrong with it is told here
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
            raise Misconfigured(_in_our_words(str(error))) from error

    _decorators = "@processor.on_changes"
    id_option = NAMES["instance_id"]

    # --- handlers
    def on_changes(self, handler: Function) -> Function:
        """Called with (changes, context): documents of one range, in order, at least one; see `ChangeContext`."""
        check_handler("on_changes", handler, ("changes", "context"))
        self._set_handler("batch", _adapted(handler, self._told))
        return handler

    def on_error(self, hook: Function) -> Function:
        """Called with (error, lease_token) when something failed, which is tried again afterwards: with every failure
        of a handler; and when the container or the lease store begins to fail, for a lease or, with None, as a whole.
        """
        check_handler("on_error", hook, ("error", "lease_token"))
        self._set_hook("error", _adapted(hook, lambda error, partition: (error, partition.id)))
        self._handlers.trouble = _adapted(hook, lambda error: (error, None))
        self._handlers.errors_once = True
        return hook

    def on_lease_acquired(self, hook: Function) -> Function:
        """Called with (lease_token) before its first change; until it has returned, nothing is handled."""
        check_handler("on_lease_acquired", hook, ("lease_token",))
        self._set_hook("partition_start", _adapted(hook, lambda partition: (partition.id,)))
        return hook

    def on_lease_released(self, hook: Function) -> Function:
        """Called with (lease_token) after its last change and before its last checkpoint."""
        check_handler("on_lease_released", hook, ("lease_token",))
        self._set_hook("partition_stop", _adapted(hook, lambda partition, reason: (partition.id,)))
        return hook

    # --- how far it is
    async def estimate(self) -> list[LeaseEstimate]:
        """How far behind each lease is, of all hosts together; whether or not this one runs."""
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
        knowing: object = source
        self._decoder = knowing.decoder if isinstance(knowing, Decoding) else _plain
        return source

    def _told(self, events: Sequence[Event], partition: OwnedPartition) -> tuple[list[Any], ChangeContext]:
        assert self._engine is not None
        decode = self._decoder()
        try:
            changes = [decode(event.body) for event in events]
        except msgspec.DecodeError:
            changes = [_document(event, decode) for event in events]  # says which it is
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
            f" {str(error).removesuffix('.')}. Mend the document; or let such ones be passed over, with"
            " on_poison='skip', or be filed, with dead_letter=."
        ) from error


def _start_of(start: object) -> Start:
    if isinstance(start, datetime):
        return start
    if not isinstance(start, str) or start not in STARTS:
        raise Misconfigured(f"start={start!r}: give 'now', 'beginning', or a datetime with a time zone.")
    return STARTS[start]


def _check_names(options: Mapping[str, object]) -> None:
    """What is none of its options would else be refused by `Processor`, in whose name, and not all are the same."""
    for name in options:
        if name not in Options.__annotations__:
            own = inspect.signature(ChangeFeedProcessor).parameters.keys() | Options.__annotations__.keys()
            near = [NAMES[name]] if name in NAMES else get_close_matches(name, own - {"options"}, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "its options are in docs/reference/changefeed.md."
            raise TypeError(f"ChangeFeedProcessor() has no option {name!r}: {hint}")


def _check_feed_options(mode: object, poll_interval_s: object) -> None:
    if mode not in (None, "latest", "all"):
        raise Misconfigured(f"mode={mode!r}: give 'latest' or 'all'.")
    if poll_interval_s is not None and not is_positive(poll_interval_s):
        raise Misconfigured(f"poll_interval_s={poll_interval_s!r}: give a number of seconds above 0.")


def _in_our_words(message: str) -> str:
    return re.sub(rf"\b({'|'.join(NAMES)})=", lambda found: f"{NAMES[found[1]]}=", message)


def _adapted(function: Callable[..., Any], arguments: Callable[..., tuple[Any, ...]]) -> Callable[..., Any]:
    """The same function, async or plain as it is, called with other arguments."""

    async def call_async(*given: Any) -> None:
        await function(*arguments(*given))

    def call(*given: Any) -> Any:
        return function(*arguments(*given))

    adapted = call_async if is_async(function) else call
    adapted.__qualname__ = getattr(function, "__qualname__", adapted.__qualname__)
    return adapted
