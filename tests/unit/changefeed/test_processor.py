"""The change feed processor on a real container: its options, its handlers, and its signals."""

from __future__ import annotations

import asyncio
import logging
import shutil
import sqlite3
import threading
import time
from contextlib import ExitStack, closing, nullcontext
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from evenflow import Every, HubReplaced, Manual, Misconfigured, PartitionHalted, Processor, Retry, SourceUnavailable
from evenflow.changefeed import ChangeContext, ChangeFeedProcessor
from evenflow.embedded.container import Container
from evenflow.model import Group
from evenflow.operate.dead_letters.memory import MemoryDeadLetters
from evenflow.operate.inspect.survey import survey
from evenflow.operate.inspect.watcher import GroupWatcher
from evenflow.operate.steer.exporting import export, leases_for
from evenflow.operate.steer.seeking import plan_seek
from evenflow.runtime.clock import system_clock
from evenflow.signals import DeadLettered, Signal, Spent, Stopped, Trouble
from evenflow.sources.container.source import ContainerSource
from evenflow.stores.memory import MemoryStore
from evenflow.stores.sqlite.store import SQLiteStore
from evenflow.testing.fakes import FakeFeed
from tests.unit.runtime.stage import until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


class Create(Protocol):
    def __call__(self, partition_key: str = "/id", *, ranges: int) -> Container: ...


DEADLINE_S = 90.0
QUICK = Retry(attempts=2, first_s=0.001, most_s=0.002)


@pytest.fixture
def create(tmp_path: Path) -> Iterator[Create]:
    """Containers that are closed afterwards."""
    with ExitStack() as ends:

        def create(partition_key: str = "/id", *, ranges: int) -> Container:
            return ends.enter_context(Container.create(tmp_path / "orders", partition_key, ranges=ranges))

        yield create


@pytest.fixture
def container(create: Create) -> Container:
    return create("/customer", ranges=2)


def fill(container: Container, count: int, first: int = 0, **more: Any) -> None:
    container.upsert_many({"id": f"o-{n}", "customer": f"c-{n % 7}", **more} for n in range(first, first + count))


class Changes(list[Any]):
    """A handler that keeps the documents."""

    async def __call__(self, changes: list[Any], context: ChangeContext) -> None:
        self.extend(changes)

    @property
    def ids(self) -> list[str]:
        return sorted(change["id"] for change in self)


def made(monitored: object, handler: Any, leases: Any = None, **options: Any) -> ChangeFeedProcessor:
    given = {"start": "beginning", **options}
    processor = ChangeFeedProcessor(monitored, leases or MemoryStore(), "mails", **given)
    processor.on_changes(handler)
    return processor


async def caught_up(processor: Processor) -> None:
    async with asyncio.timeout(DEADLINE_S):
        await processor.serve(until="caught_up")


# --- what handlers are given
@pytest.mark.parametrize("how", ["object", "url", "source"])
async def test_every_document_comes_to_the_handler(container: Container, how: str) -> None:
    fill(container, 20)
    monitored = {"object": container, "url": f"container:{container.path}", "source": ContainerSource(container)}[how]
    seen = Changes()
    await caught_up(made(monitored, seen))
    assert seen.ids == sorted(f"o-{n}" for n in range(20))
    assert all(change["_lsn"] for change in seen)
    assert container.info().documents == 20, "what was given stays open"


async def test_a_plain_handler_will_do_and_is_given_the_context(container: Container) -> None:
    fill(container, 20)
    given: list[tuple[int, str, tuple[str, str] | None, int, bool, float | None]] = []

    def handle(changes: list[dict[str, Any]], context: ChangeContext) -> None:
        facts = context.lease_token, context.feed_range, context.epoch, context.is_stopping, context.request_charge
        given.append((len(changes), *facts))

    await caught_up(made(container, handle, max_items=3))
    ranges = {one.id: (one.min, one.max) for one in container.ranges()}
    assert {token for _, token, *_ in given} == set(ranges)
    assert all(found == (ranges[token], 1, False, None) for _, token, *rest in given for found in [tuple(rest)])
    assert max(count for count, *_ in given) <= 3


async def test_all_versions_come_with_what_was_done(container: Container) -> None:
    fill(container, 1, total=1)
    fill(container, 1, total=2)
    container.delete("o-0", "c-0")
    seen = Changes()
    await caught_up(made(container, seen, mode="all"))
    assert [change["metadata"]["operationType"] for change in seen] == ["create", "replace", "delete"]
    assert (seen[1]["current"]["total"], seen[1]["previous"]["total"]) == (2, 1)


async def test_hooks_get_the_lease_token(container: Container) -> None:
    calls: list[tuple[str, str]] = []
    processor = made(container, Changes())
    processor.on_lease_acquired(lambda lease_token: calls.append(("acquired", lease_token)))

    @processor.on_lease_released
    async def released(lease_token: str) -> None:
        calls.append(("released", lease_token))

    await caught_up(processor)
    assert sorted(calls) == [("acquired", "0"), ("acquired", "1"), ("released", "0"), ("released", "1")]


# --- how much a host takes on
@pytest.mark.parametrize("how", ["async", "plain"])
async def test_so_many_consumers_of_a_host_are_in_their_handler_at_once(create: Create, how: str) -> None:
    container = create("/customer", ranges=4)
    fill(container, 40)
    busy, peaks, both = 0, list[int](), threading.Event()

    def enter() -> None:
        nonlocal busy
        busy += 1
        peaks.append(busy)
        if busy == 2:
            both.set()

    def leave() -> None:
        nonlocal busy
        busy -= 1

    async def handle(changes: list[Any], context: ChangeContext) -> None:
        enter()
        await until(both.is_set, DEADLINE_S)  # both calls run at once, or this would never end
        await asyncio.sleep(0.005)
        leave()

    def handle_plainly(changes: list[Any], context: ChangeContext) -> None:
        with turn:
            enter()
        assert both.wait(DEADLINE_S)
        time.sleep(0.005)  # as a plain handler works: others could begin meanwhile
        with turn:
            leave()

    turn = threading.Lock()
    handler = handle if how == "async" else handle_plainly
    await caught_up(made(container, handler, concurrency=2, max_items=2))
    assert max(peaks) == 2


@pytest.mark.parametrize(
    ("one", "two", "shares"),
    [({}, {}, (2, 2)), ({"min_leases": 3}, {}, (3, 1)), ({"max_leases": 1}, {}, (1, 3)), ({"weight": 3.0}, {}, (3, 1))],
)
async def test_hosts_have_so_many_leases_as_they_are_to(
    create: Create, one: dict[str, Any], two: dict[str, Any], shares: tuple[int, int]
) -> None:
    container, store = create(ranges=4), MemoryStore()
    hosts = [
        made(container, Changes(), store, instance_name=name, heartbeat_s=0.05, ttl_s=5.0, **options)
        for name, options in (("one", one), ("two", two))
    ]
    async with asyncio.timeout(DEADLINE_S), hosts[0], hosts[1]:
        await until(lambda: tuple(len(host.owned) for host in hosts) == shares)
        ledger = await store.peek(Group("container", "orders", "mails"))
    assert ledger is not None
    assert {(member.id, member.heartbeat_s, member.ttl_s) for member in ledger.members} == {
        ("one", 0.05, 5.0),
        ("two", 0.05, 5.0),
    }


async def test_a_range_that_no_host_may_have_waits(create: Create) -> None:
    container, store, seen = create(ranges=4), MemoryStore(), Changes()
    fill(container, 40)
    first = made(container, seen, store, max_leases=3, heartbeat_s=0.05, ttl_s=5.0)
    async with asyncio.timeout(DEADLINE_S), first:
        await until(lambda: len(first.owned) == 3)
        (missing,) = {one.id for one in container.ranges()} - {*first.owned}
        rest = len(container.feed(missing).changes)
        await until(lambda: len(seen) == 40 - rest)
        estimates = {one.lease_token: one for one in await first.estimate()}
    assert rest > 0
    assert (estimates[missing].owner, estimates[missing].remaining) == (None, rest)


# --- start positions
async def test_by_default_it_starts_now(container: Container) -> None:
    fill(container, 5)
    seen, store = Changes(), MemoryStore()
    processor = ChangeFeedProcessor(container, store, "mails")
    processor.on_changes(seen)
    await caught_up(processor)
    assert seen == []
    fill(container, 3, first=10)
    await caught_up(processor)
    assert seen.ids == ["o-10", "o-11", "o-12"]


async def test_it_starts_at_a_time(container: Container) -> None:
    fill(container, 5)
    await asyncio.sleep(0.01)
    since = datetime.now(UTC)
    fill(container, 3, first=10)
    seen = Changes()
    await caught_up(made(container, seen, start=since))
    assert seen.ids == ["o-10", "o-11", "o-12"]


# --- checkpoints
async def test_with_manual_checkpoints_unmarked_changes_come_again(container: Container) -> None:
    fill(container, 12)
    store, first, again = MemoryStore(), Changes(), Changes()

    async def mark_half(changes: list[Any], context: ChangeContext) -> None:
        await first(changes, context)
        await context.checkpoint(changes[len(changes) // 2 - 1])

    def mark_all(changes: list[Any], context: ChangeContext) -> None:
        again.extend(changes)
        context.checkpoint()

    await caught_up(made(container, mark_half, store, checkpoint=Manual()))
    await caught_up(made(container, mark_all, store, checkpoint=Manual()))
    assert len(first) == 12
    assert 6 <= len(again) < 12
    assert {*again.ids} < {*first.ids}
    rest = Changes()
    await caught_up(made(container, rest, store))
    assert rest == []


@pytest.mark.parametrize("how", ["sort", "pop"])
async def test_a_checkpoint_is_right_after_the_handler_changed_its_list(container: Container, how: str) -> None:
    """The list belongs to the handler, which may sort or empty it."""
    fill(container, 12)
    store, again = MemoryStore(), Changes()

    async def handle(changes: list[Any], context: ChangeContext) -> None:
        first = changes[0]
        if how == "sort":
            changes.sort(key=lambda change: change["_lsn"], reverse=True)
        else:
            changes.clear()
        await context.checkpoint(first)

    await caught_up(made(container, handle, store, checkpoint=Manual()))
    await caught_up(made(container, again, store, checkpoint=Manual()))
    assert len(again) == 12 - len(container.ranges())


async def test_a_checkpoint_takes_a_change_of_its_own_call(container: Container) -> None:
    fill(container, 3)

    async def handle(changes: list[Any], context: ChangeContext) -> None:
        with pytest.raises(Misconfigured, match=r"context.checkpoint\(change\) got an object that is none of"):
            context.checkpoint(dict(changes[0]))

    await caught_up(made(container, handle, checkpoint=Manual()))


async def test_the_warning_about_a_checkpoint_that_is_not_awaited_has_its_name(container: Container) -> None:
    fill(container, 1)
    named: list[str] = []

    async def handle(changes: list[Any], context: ChangeContext) -> None:
        for marking in (context.checkpoint(), context.partition.checkpoint()):
            named.append(marking.__qualname__)  # type: ignore[attr-defined]
            await marking

    await caught_up(made(container, handle, checkpoint=Manual()))
    assert named == ["context.checkpoint", "partition.checkpoint"]


async def test_a_transaction_marks_what_it_covers_along_with_its_effects(container: Container, tmp_path: Path) -> None:
    """Each document is counted once, though every other call fails when half of it is done."""
    fill(container, 20)
    store, calls = SQLiteStore(tmp_path / "leases"), 0

    async def count(changes: list[Any], context: ChangeContext) -> None:
        nonlocal calls
        calls += 1
        half = changes[: len(changes) // 2] if calls % 2 else []
        async with context.transaction(half[-1] if half else None) as tx:
            await tx.execute("CREATE TABLE IF NOT EXISTS counted (id TEXT)")
            await tx.execute_many("INSERT INTO counted VALUES (?)", [(change["id"],) for change in half or changes])
        if half:
            raise ValueError("out of luck")

    await caught_up(made(container, count, store, checkpoint=Manual(), retry=QUICK, breaker=None, max_items=6))
    await store.aclose()
    with closing(sqlite3.connect(tmp_path / "leases" / "progress.sqlite")) as connection:
        counted = connection.execute("SELECT id FROM counted").fetchall()
    assert sorted(counted) == sorted((f"o-{n}",) for n in range(20))


@pytest.mark.parametrize("checkpoint", [Every(events=1), Manual()], ids=["automatic", "manual"])
@pytest.mark.parametrize("mode", ["latest", "all"])
async def test_nothing_is_lost_over_splits_and_merges(container: Container, checkpoint: Any, mode: str) -> None:
    """While it runs, and between two runs. What is marked does not come again."""
    store, seen = MemoryStore(), Changes()

    async def handle(changes: list[Any], context: ChangeContext) -> None:
        await asyncio.sleep(0.001)
        seen.extend(change.get("current", change) for change in changes)
        if isinstance(checkpoint, Manual) and len(seen) % 2:
            await context.checkpoint()

    options = {"mode": mode, "checkpoint": checkpoint, "max_items": 5, "refresh_s": 0.05}
    written = 0

    def write(count: int) -> None:
        nonlocal written
        fill(container, count, first=written)
        written += count

    async with asyncio.timeout(DEADLINE_S):
        async with made(container, handle, store, **options):
            for _ in range(3):
                write(40)
                container.split(container.ranges()[0].id)
                write(20)
                first, second, *_ = container.ranges()
                container.merge(first.id, second.id)
        write(20)
        container.merge(*(one.id for one in container.ranges()[:2]))
        write(20)
    await caught_up(made(container, handle, store, **options))
    assert {*seen.ids} == {f"o-{n}" for n in range(written)}
    if not isinstance(checkpoint, Manual):
        assert len(seen) == written, "planned moves repeat nothing"


# --- failures
async def test_a_document_that_cannot_be_handled_is_a_dead_letter_and_the_others_go_on(container: Container) -> None:
    fill(container, 20)
    dead_letters, seen, errors = MemoryDeadLetters(), Changes(), list[tuple[str, str]]()

    async def handle(changes: list[Any], context: ChangeContext) -> None:
        if any(change["id"] == "o-7" for change in changes):
            raise ValueError("no stock")
        await seen(changes, context)

    processor = made(container, handle, dead_letter=dead_letters, retry=QUICK, breaker=None)
    processor.on_error(lambda error, lease_token: errors.append((str(error), lease_token)))
    signals: list[DeadLettered] = []
    processor.listen(lambda one: signals.append(one) if isinstance(one, DeadLettered) else None)
    await caught_up(processor)
    assert seen.ids == sorted(f"o-{n}" for n in range(20) if n != 7)
    assert {text for text, _ in errors} == {"no stock"}
    (dead_letter,) = signals
    assert {token for _, token in errors} == {dead_letter.partition}
    group = Group("container", "orders", "mails")
    (record,) = [record async for record in dead_letters.read(group)]
    assert b'"o-7"' in record.event.body  # type: ignore[union-attr]
    assert record.event.key == "c-0"  # type: ignore[union-attr]


async def test_without_dead_letters_it_stops_the_range_and_says_so(container: Container) -> None:
    fill(container, 20)

    async def handle(changes: list[Any], context: ChangeContext) -> None:
        if any(change["id"] == "o-7" for change in changes):
            raise ValueError("no stock")

    with pytest.raises(PartitionHalted, match=r"no stock.*\. What to do about it is in .* `evenflow status`"):
        await caught_up(made(container, handle, retry=QUICK, breaker=None))


@pytest.mark.parametrize("mode", ["latest", "all"])
async def test_a_range_that_stops_names_its_document_everywhere(container: Container, mode: str) -> None:
    fill(container, 20)
    signals: list[Signal] = []
    errors: list[Exception] = []
    whose = "(document 'o-7', key 'c-0')"

    async def handle(changes: list[Any], context: ChangeContext) -> None:
        if any("'o-7'" in str(change) for change in changes):
            raise ValueError("no stock")

    store = MemoryStore()
    processor = made(container, handle, store, retry=QUICK, breaker=None, mode=mode)
    processor.listen(signals.append)
    processor.on_error(lambda error, lease_token: errors.append(error))
    with pytest.raises(PartitionHalted) as halted:
        await caught_up(processor)
    assert whose in str(halted.value)
    (stopped,) = [one for one in signals if isinstance(one, Stopped)]
    assert f"is STOPPED at event {stopped.position} {whose}, which failed 2 times" in str(stopped)
    assert any(f"event {stopped.position} {whose}: handler: ValueError" in str(one) for one in signals)
    assert errors[-1].__notes__ == [f"evenflow: event {stopped.position} of partition {stopped.partition} {whose}"]
    group = Group("container", "orders", "mails")
    look = GroupWatcher().observe(await survey(store, group, None), 0.0, 0.0)
    (finding,) = [one for one in look.findings if one.kind == "stopped"]
    assert f"is blocked at event {stopped.position} {whose}, which failed 2 times" in finding.what


# --- damaged documents and missing containers
@pytest.mark.parametrize("dead_letters", [None, MemoryDeadLetters()], ids=["stop", "dead letter"])
async def test_a_document_that_cannot_be_decoded_is_not_blamed_on_the_handler(
    dead_letters: MemoryDeadLetters | None,
) -> None:
    feed, seen, signals = FakeFeed(1), Changes(), list[str]()
    for body in (b'{"id": "o-1"}', b'{"id": "o-2", "note": "\\ud800"}', b'{"id": "o-3"}'):
        feed.append("0", body, key="c-7")
    processor = made(feed, seen, retry=QUICK, breaker=None, dead_letter=dead_letters)
    processor.listen(lambda one: signals.append(str(one)) if isinstance(one, Stopped | DeadLettered) else None)
    with nullcontext() if dead_letters else pytest.raises(PartitionHalted, match="cannot be decoded"):
        await caught_up(processor)
    assert seen.ids == (["o-1", "o-3"] if dead_letters else ["o-1"])
    (text,) = signals
    assert "the document of the change at 1 (key 'c-7') cannot be decoded, and the handler was not called" in text
    assert "on_poison='skip'" in text
    assert "Fix the handler" not in text


async def test_a_container_that_is_made_again_while_it_runs_ends_it(container: Container) -> None:
    fill(container, 3)
    seen, store = Changes(), MemoryStore()
    processor = made(f"container:{container.path}", seen, store, refresh_s=0.05)
    serving = asyncio.create_task(processor.serve())
    await until(lambda: seen, DEADLINE_S)
    shutil.rmtree(container.path)
    with Container.create(container.path, "/customer") as again:
        fill(again, 3)
        with pytest.raises(HubReplaced, match=r"was deleted and made again.*`evenflow group delete`"):
            await asyncio.wait_for(serving, DEADLINE_S)
    with pytest.raises(HubReplaced, match=r"two of one name share this store.*`evenflow group delete`"):
        await caught_up(made(f"container:{container.path}", seen, store))
    fresh = Changes()
    other = ChangeFeedProcessor(f"container:{container.path}", store, "mails-2", start="beginning")
    other.on_changes(fresh)
    await caught_up(other)
    assert len(fresh) == 3, "another name starts from the beginning"


async def test_an_unreachable_container_is_retried(container: Container, tmp_path: Path) -> None:
    fill(container, 3)
    seen, troubles, errors = Changes(), list[Trouble](), list[tuple[Exception, str | None]]()
    processor = made(f"container:{container.path}", seen, refresh_s=0.05)
    processor.listen(lambda one: troubles.append(one) if isinstance(one, Trouble) else None)
    processor.on_error(lambda error, lease_token: errors.append((error, lease_token)))
    async with asyncio.timeout(DEADLINE_S), processor:
        await until(lambda: len(seen) == 3)
        container.path.rename(tmp_path / "moved")
        await until(lambda: any("Restore it" in str(one.error) for one in troubles))
        await until(lambda: len(errors) == 3)
        await until(lambda: len(troubles) > 15)
        assert {token for error, token in errors if isinstance(error, SourceUnavailable)} == {"0", "1", None}
        assert len(errors) == 3, "once when it begins, not on every retry"
        (tmp_path / "moved").rename(container.path)
        with Container(container.path) as again:
            fill(again, 2, first=10)
            await until(lambda: len(seen) == 5)
    assert seen.ids == ["o-0", "o-1", "o-10", "o-11", "o-2"]


async def test_one_name_on_two_containers(tmp_path: Path) -> None:
    """Containers of different names have separate leases. Of two with one name, the second is rejected."""
    store = MemoryStore()
    seen = {}
    for path in ("a/orders", "b/returns"):
        with Container.create(tmp_path / path) as one:
            one.upsert({"id": path.partition("/")[0]})
        seen[path] = Changes()
        await caught_up(made(f"container:{tmp_path / path}", seen[path], store))
    assert [found.ids for found in seen.values()] == [["a"], ["b"]]
    Container.create(tmp_path / "c/orders").close()
    with pytest.raises(HubReplaced, match=r"two of one name share this store.*`evenflow group delete`"):
        await caught_up(made(f"container:{tmp_path}/c/orders", Changes(), store))


@pytest.mark.parametrize(("first", "then"), [("latest", "all"), ("all", "latest")])
async def test_one_name_in_two_modes_is_refused(container: Container, first: str, then: str) -> None:
    """While hosts of the other mode run, and after them. Running hosts are not affected."""
    fill(container, 3)
    store, seen = MemoryStore(), Changes()
    refusal = rf"group container/orders/mails reads with mode={first}, and this instance with mode={then}"
    async with asyncio.timeout(DEADLINE_S), made(container, seen, store, mode=first):
        with pytest.raises(Misconfigured, match=refusal):
            await made(container, Changes(), store, mode=then).serve()
        await until(lambda: len(seen) == 3)
    with pytest.raises(Misconfigured, match=r"evenflow group delete"):
        await caught_up(made(container, Changes(), store, mode=then))
    with pytest.raises(Misconfigured, match=refusal):
        await made(container, Changes(), store, mode=then).estimate()
    await caught_up(made(container, seen, store, mode=first))


async def test_a_seek_needs_the_mode_of_the_group(container: Container) -> None:
    fill(container, 3)
    store, group = MemoryStore(), Group("container", "orders", "mails")
    await caught_up(made(container, Changes(), store, mode="all"))
    with pytest.raises(Misconfigured, match=r"with mode=all, but the source named here has mode=latest"):
        await plan_seek(store, ContainerSource(container), group, "earliest", None)
    exported = await export(store, group, system_clock())
    assert isinstance(exported.exported_at, datetime)
    assert timedelta(0) <= datetime.now(UTC) - exported.exported_at < timedelta(minutes=1)
    with pytest.raises(Misconfigured, match=r"Name the source with \?mode="):
        await leases_for(ContainerSource(container), exported)
    assert len(await leases_for(ContainerSource(container, mode="all"), exported)) == 2


# --- request units
class ChargedFeed(FakeFeed):
    def charges(self) -> Mapping[str, float]:
        return {"read feed": 12.5 + 1e-9, "read ranges": 2.0}


class ChargedStore(MemoryStore):
    def charges(self) -> Mapping[str, float]:
        return {"write lease": 3.0, "read feed": 0.5}


async def test_request_units_are_summed_and_logged_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    feed = ChargedFeed(1)
    feed.append("0", b'{"id": "o-1"}')
    charges: list[float | None] = []
    signals: list[Spent] = []

    async def handle(changes: list[Any], context: ChangeContext) -> None:
        charges.append(context.request_charge)

    processor = made(feed, handle, ChargedStore())
    processor.listen(lambda one: signals.append(one) if isinstance(one, Spent) else None)
    assert processor.charges == {}
    with caplog.at_level(logging.INFO, "evenflow"):
        await caught_up(processor)
    assert charges == [14.5]
    assert processor.charges == {"read feed": 13.0, "read ranges": 2.0, "write lease": 3.0}
    assert [one.units for one in signals] == [processor.charges]
    assert "used 18.0 request units: read feed 13.0, read ranges 2.0, write lease 3.0" in caplog.text


# --- options
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": "earliest"}, "start='earliest': give 'now', 'beginning', or a datetime"),
        ({"start": datetime(2026, 1, 1)}, "has no time zone"),  # noqa: DTZ001 - that is the mistake
        ({"processor_name": " "}, "processor_name=' ': give a text"),
        ({"instance_name": ""}, "instance_name='': give a text"),
        ({"max_items": 0}, "max_items=0: give a whole number"),
        ({"mode": "deletes"}, "mode='deletes': give 'latest' or 'all'"),
        ({"poll_interval_s": 0}, "poll_interval_s=0: give a number of seconds above 0"),
        ({"poll_interval_s": "5"}, "poll_interval_s='5': give a number of seconds above 0"),
        ({"poll_interval_s": True}, "poll_interval_s=True: give a number of seconds above 0"),
        ({"max_leases": 0}, "max_leases=0: give a whole number"),
        ({"start": datetime.now(UTC) + timedelta(days=1)}, "is in the future"),
        ({"min_leases": 3, "max_leases": 2}, "min_leases=3 is above max_leases=2"),
        (
            {"monitored": "hub:homes"},
            "is not a change feed. Change feeds are container:, cosmos:, postgresql-table:",
        ),
        ({"monitored": "contaner:orders"}, "did you mean container:?"),
        ({"monitored": "container:orders?mode=all", "mode": "latest"}, "has mode=all, but mode=latest was passed"),
        (
            {"monitored": "postgresql-table://h/d?table=t&poll_s=1", "poll_interval_s": 5},
            "has poll_s=1, but poll_interval_s=5 was passed",
        ),
    ],
)
def test_a_wrong_option_is_reported_with_its_name_here(options: dict[str, Any], message: str) -> None:
    given = {"monitored": "container:orders", "leases": "memory:", "processor_name": "mails", **options}
    with pytest.raises(Misconfigured) as refused:
        ChangeFeedProcessor(**given)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("poll_interval", "did you mean 'poll_interval_s'?"),
        ("with_instance_name", "did you mean 'instance_name'?"),
        ("dead_leter", "did you mean 'dead_letter'?"),
        ("batch_events", "did you mean 'max_items'?"),
        ("group", "did you mean 'processor_name'?"),
        ("zebra", "see docs/reference/changefeed.md for its options."),
    ],
)
def test_an_unknown_option_is_reported_with_a_similar_one(name: str, message: str) -> None:
    given: dict[str, Any] = {name: 1}
    with pytest.raises(TypeError) as refused:
        ChangeFeedProcessor("container:orders", "memory:", "mails", **given)
    assert str(refused.value) == f"ChangeFeedProcessor() has no option {name!r}: {message}"


async def test_the_mode_of_an_open_source_cannot_be_set(container: Container) -> None:
    with pytest.raises(Misconfigured, match="is open already: pass mode and poll_s when you create it"):
        await caught_up(made(ContainerSource(container), Changes(), mode="all", poll_interval_s=1.0))


@pytest.mark.parametrize(
    ("hook", "handler", "message"),
    [
        ("on_changes", lambda changes: None, "must take two arguments, (changes, context)"),
        ("on_error", lambda error: None, "must take two arguments, (error, lease_token)"),
        ("on_lease_acquired", lambda: None, "must take one argument, (lease_token)"),
        ("on_lease_released", lambda token, why: None, "must take one argument, (lease_token)"),
        ("on_changes", 7, "needs a function"),
    ],
)
def test_a_handler_with_wrong_arguments_is_rejected_at_once(hook: str, handler: Any, message: str) -> None:
    processor = ChangeFeedProcessor("container:orders", "memory:", "mails")
    with pytest.raises(Misconfigured) as refused:
        getattr(processor, hook)(handler)
    assert message in str(refused.value)


async def test_without_a_handler_it_says_which_one_is_missing(container: Container) -> None:
    with pytest.raises(Misconfigured, match=r"there is no handler: put @processor\.on_changes above a def"):
        await caught_up(ChangeFeedProcessor(container, MemoryStore(), "mails"))
