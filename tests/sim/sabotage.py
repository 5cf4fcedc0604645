"""Ways to break one rule of the protocol in the real runtime, so that the checkers are known to bite."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from msgspec.structs import replace

from evenflow.core import decide, lineage, plan
from evenflow.core.checkpointing import Every, Manual
from evenflow.core.failure import Retry
from evenflow.core.liveness import Sighting
from evenflow.errors import HandlerTimeout
from evenflow.model import restore_epoch
from evenflow.runtime import calls, failures, pump, transaction
from evenflow.runtime.committer import Committer
from evenflow.runtime.coordinator import Coordinator
from evenflow.runtime.failures import Failures
from evenflow.runtime.hold import Hold
from evenflow.runtime.memory import Memory
from evenflow.runtime.prefetch import Prefetch
from evenflow.runtime.pump import Pump
from evenflow.runtime.redrive import Redrive
from evenflow.runtime.settings import Settings
from evenflow.runtime.threads import Threads
from evenflow.runtime.turns import Turns
from evenflow.stores import rules
from evenflow.stores.memory import MemoryStore
from evenflow.testing.simulated import blobs
from evenflow.testing.simulated.clocks import BootClock
from evenflow.testing.simulated.options import Failing
from evenflow.testing.simulated.process import SimulatedClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from evenflow.runtime.parts import Parts

FOREVER = float("inf")


def nobody_has_a_least_share() -> AbstractContextManager[Any]:
    return patch.object(plan, "_least", lambda count, seats, held: {})


def no_compare_and_set() -> AbstractContextManager[Any]:
    """A lease is changed whatever its revision is."""
    refusal = rules.why_refused

    def careless(change: Any, lease: Any, history: Any, mark_of: Any, floor: int) -> str:
        revision = lease.revision if lease else 0
        return refusal(replace(change, revision=revision), lease, history, mark_of, floor)

    return patch.object(rules, "why_refused", careless)


def commit_without_epoch() -> AbstractContextManager[Any]:
    return patch.object(rules, "may_commit", lambda record, checkpoint, **facts: record is not None)


def takeover_without_mark() -> AbstractContextManager[Any]:
    """A silent owner is taken over even though it has beaten since."""
    refusal = rules.why_refused

    def careless(change: Any, lease: Any, history: Any, mark_of: Any, floor: int) -> str:
        return refusal(replace(change, still=None), lease, history, mark_of, floor)

    return patch.object(rules, "why_refused", careless)


def never_stops_itself() -> AbstractContextManager[Any]:
    deadline = property(lambda hold: FOREVER, lambda hold, value: None)
    return patch.object(Hold, "deadline_s", deadline, create=True)


def deadline_from_the_answer() -> AbstractContextManager[Any]:
    take_in = Coordinator._take_in

    def late(self: Any, ledger: Any, sent_s: float) -> None:
        take_in(self, ledger, self._clock.now())

    return patch.object(Coordinator, "_take_in", late)


@contextmanager
def pump_does_not_look() -> Iterator[None]:
    """Only the timer stops it."""

    async def blind(self: Any, hold: Any, partition: Any, events: Any, resume: Any) -> None:
        for event in events:
            if hold.stopping:
                return
            hold.current = event
            await self._handler(event, partition)
            hold.done = (hold.done[0] + 1, event)

    with ExitStack() as stack:
        stack.enter_context(patch.object(Hold, "may_begin", lambda hold, now_s: not hold.stopping))
        stack.enter_context(patch.object(calls.AsyncEach, "__call__", blind))
        yield


@contextmanager
def no_seal() -> Iterator[None]:
    """The new owner only reads the record; commits are conditional on the lease instead."""
    seal, commit = MemoryStore.seal, MemoryStore.commit

    async def read(self: Any, group: Any, partition: Any, epoch: int, default: Any, *, unplanned: bool = False) -> Any:
        record = self._records.get(group, {}).get(partition)
        return record if record is not None else await seal(self, group, partition, epoch, default)

    async def by_lease(self: Any, group: Any, checkpoints: Any) -> Any:
        leases, records = self._stored[group].leases, self._records[group]
        wishes = []
        for wish in checkpoints:
            owned = wish.partition in leases and leases[wish.partition].epoch == wish.epoch
            sealed = records[wish.partition].epoch if wish.partition in records else wish.epoch
            wishes.append(replace(wish, epoch=sealed if owned else -1))
        return await commit(self, group, wishes)

    with patch.object(MemoryStore, "seal", read), patch.object(MemoryStore, "commit", by_lease):
        yield


def no_incarnations() -> AbstractContextManager[Any]:
    """Two processes with one id are taken for one."""
    return patch.object(rules, "admit_incarnation", lambda row, member, newest, history: 1)


def occupied_is_claimed() -> AbstractContextManager[Any]:
    return patch.object(Coordinator, "_occupied", lambda self: set(self.holds))


def doubt_is_undone() -> AbstractContextManager[Any]:
    """A handoff without an answer is taken for one that did not happen."""
    passed = Coordinator._passed

    def undone(self: Any, hold: Any, outcome: Any, patience_ends_s: float) -> None:
        passed(self, hold, outcome, patience_ends_s)
        if outcome.why == "doubt":
            self._last_epochs[hold.partition] = hold.epoch - 1

    return patch.object(Coordinator, "_passed", undone)


@contextmanager
def expiry_by_wall_clock() -> Iterator[None]:
    """Each heartbeat carries the time of day, and others compare it with theirs."""
    heartbeat, take_in = Coordinator._heartbeat, Coordinator._take_in

    async def stamped(self: Any, *, leaving: bool) -> bool:
        self.me = replace(self.me, started_at=self._clock.wall())
        return await heartbeat(self, leaving=leaving)

    def compared(self: Any, ledger: Any, sent_s: float) -> None:
        take_in(self, ledger, sent_s)
        for owner, seen in list(self._sightings.items()):
            member = self.view.members.get(owner.id)
            if member is not None and member.owner == owner:
                age_s = self._clock.wall() - member.started_at
                self._sightings[owner] = Sighting(seen.mark, sent_s - age_s, seen.moved)

    with patch.object(Coordinator, "_heartbeat", stamped), patch.object(Coordinator, "_take_in", compared):
        yield


def no_last_commit() -> AbstractContextManager[Any]:
    """A drained partition is passed on without its last checkpoint."""

    async def careless(self: Any, hold: Any) -> bool:
        return not hold.over

    return patch.object(Committer, "settle", careless)


def slow_to_pass_on() -> AbstractContextManager[Any]:
    """A drained partition stands still for a while."""
    send = Coordinator._send

    async def slowly(self: Any, changes: Any) -> Any:
        if any(change.reason.startswith("handed over") for change in changes):
            await self._clock.sleep(5.0)
        return await send(self, changes)

    return patch.object(Coordinator, "_send", slowly)


def seek_without_a_jump() -> AbstractContextManager[Any]:
    async def stay(self: Any, record: Any, to: Any) -> None:
        pass

    return patch.object(Pump, "_jump", stay)


@contextmanager
def no_limit() -> Iterator[None]:
    """concurrency=1 is forgotten."""
    init = Pump.__init__

    def ungated(self: Any, parts: Parts, *args: Any) -> None:
        init(self, replace(parts, gate=nullcontext()), *args)

    with patch.object(Pump, "__init__", ungated):
        yield


# --- what is done about events that fail
def filed_after_the_checkpoint() -> AbstractContextManager[Any]:
    """The checkpoint passes a poison event, and its dead letter is written a moment later."""
    dead_letter = Failures._give_up

    async def late(self: Any, event: Any, error: Any, attempts: int, reason: str) -> None:
        file, later = self.file, []

        async def remember(records: Any) -> bool:
            later.extend(records)
            return True

        self.file = remember
        try:
            await dead_letter(self, event, error, attempts, reason)
        finally:
            self.file = file
        await self._committer.settle(self._hold)
        await file(later)

    return patch.object(Failures, "_give_up", late)


def parked_keys_are_forgotten() -> AbstractContextManager[Any]:
    """They are known to the owner alone."""

    def remember(self: Any, parked: dict[str, int]) -> None:
        self.parked = parked

    return patch.object(Failures, "repark", remember)


def redriven_dead_letters_overtake() -> AbstractContextManager[Any]:
    attempt = Redrive._try

    async def careless(self: Any, one: Any, *, blocked: bool, fatal: bool) -> Any:
        return await attempt(self, one, blocked=False, fatal=fatal)

    return patch.object(Redrive, "_try", careless)


def nothing_is_counted() -> AbstractContextManager[Any]:
    """Owners end while they handle one event alone, and nobody adds them up."""

    def forget(self: Any, ordinal: int) -> None:
        self._hold.note(trying=None)

    return patch.object(Failures, "_count_death", forget)


def passed_over_when_the_target_is_away() -> AbstractContextManager[Any]:
    async def once(self: Any, records: Any) -> bool:
        try:
            await self._parts.dead_letters.file(self._parts.group, self._hold.partition, records)
        except Exception as error:
            await self._trouble("dead letters", error, 1)
        return True

    return patch.object(Failures, "file", once)


@contextmanager
def not_alone() -> Iterator[None]:
    """Other calls run beside the event that is tried alone, so that it is blamed for what they do."""

    @asynccontextmanager
    async def beside(self: Any) -> AsyncIterator[None]:
        yield

    with patch.object(Turns, "alone", beside):
        yield


def batches_are_tried_whole() -> AbstractContextManager[Any]:
    """A batch that failed is given again as it was."""
    return patch.object(failures, "part_of", lambda suspects, count: count)


def tried_once() -> AbstractContextManager[Any]:
    """Whatever retry= says."""
    return patch.object(Retry, "tries_again", lambda self, error, attempts: False)


def redriven_without_a_call() -> AbstractContextManager[Any]:
    """A redrive that found no time for its call counts as done."""
    original = Redrive._try

    async def attempt(self: Any, one: Any, *, blocked: bool, fatal: bool) -> Any:
        if one.state == "dead" or blocked or fatal:
            return await original(self, one, blocked=blocked, fatal=fatal)
        return await self._answer(one, None)

    return patch.object(Redrive, "_try", attempt)


# --- partitions that split and merge
def children_do_not_wait() -> AbstractContextManager[Any]:
    return patch.object(decide, "unended", lambda parents, open_ones: {})


def one_parent_is_enough() -> AbstractContextManager[Any]:
    """A merged child waits for the first of its parents to end, and not for the others."""

    def careless(parents: Any, open_ones: Any) -> Any:
        found = lineage.unended(parents, open_ones)
        return {child: names for child, names in found.items() if len(names) == len(parents[child])}

    return patch.object(decide, "unended", careless)


def ended_before_it_is_handled() -> AbstractContextManager[Any]:
    """What was read ahead is dropped as soon as the reader has said that there is no more."""
    following = Prefetch.next

    async def hasty(self: Any) -> Any:
        while len(self._batches) > 1 and self._batches[-1].ended is not None:
            self._batches.popleft()
        return await following(self)

    return patch.object(Prefetch, "next", hasty)


def ended_without_a_mark() -> AbstractContextManager[Any]:
    return patch.object(Pump, "_owes_marks", lambda self: False)


def children_begin_anywhere() -> AbstractContextManager[Any]:
    """Where the group's start says, as if they had always been there."""
    return patch.object(Settings, "start_of", lambda self, partition, late: self.start)


def children_begin_anew() -> AbstractContextManager[Any]:
    """Parents are gone, and so is what they had come to."""
    return patch.object(Coordinator, "ended_parents", lambda self, partition: [])


def blobs_written_whatever_they_are() -> AbstractContextManager[Any]:
    """The service takes every write, whichever ETag its sender has seen."""
    return patch.object(blobs.Service, "_is_at", lambda self, name, etag: name in self._blobs)


# --- stores that lose what they had
def everyone_claims_at_once() -> AbstractContextManager[Any]:
    """Whoever had a partition before has it back, whether another can have it by now or not."""
    return patch.object(Memory, "_held_until_now", lambda self, before, now_s: set(self._tenures))


def missing_leases_are_free() -> AbstractContextManager[Any]:
    """Nobody waits for those who had them before the loss."""
    return patch.object(decide, "_may_miss_leases", lambda now: False)


def what_is_remembered_is_not_written() -> AbstractContextManager[Any]:
    """The record is the truth, wherever it stands."""

    async def leave_it(self: Any, partition: Any = None) -> None:
        for record in self._memory.due(partition):
            self._memory.written(record)

    return patch.object(Coordinator, "restore", leave_it)


def restored_over_what_was_sealed_since() -> AbstractContextManager[Any]:
    def careless(record: Any, checkpoint: Any, history: int) -> bool:
        return history > 0 and checkpoint.epoch <= restore_epoch(history)

    return patch.object(rules, "_restores", careless)


def late_seals_make_records() -> AbstractContextManager[Any]:
    """One that was on its way when the store was emptied takes the end of the log for the start."""
    sealed = rules.seal

    def careless(*args: Any, history: int, **named: Any) -> Any:
        return sealed(*args, history=0, **named)

    return patch.object(rules, "seal", careless)


def latest_is_latest_whatever_was_lost() -> AbstractContextManager[Any]:
    return patch.object(Coordinator, "has_lost_writes", lambda self: False)


def newcomers_go_first() -> AbstractContextManager[Any]:
    """What one began with that came first to an emptied store stands."""
    return patch.object(Memory, "_restoring", lambda self, one, before, after, is_held: one)


def epochs_begin_anew() -> AbstractContextManager[Any]:
    """With each group of the name."""
    return patch.object(rules, "floor_after", lambda floor, epochs, history: 0)


# --- moves
def shares_that_ignore_who_has_what() -> AbstractContextManager[Any]:
    """What cannot be divided goes to the first by name, whoever has it."""
    divide = plan._divide
    return patch.object(plan, "_divide", lambda count, quotas, held: divide(count, quotas, {}))


def more_than_the_surplus() -> AbstractContextManager[Any]:
    """All partitions are dealt out anew whenever shares are uneven."""
    original = plan._count_plan

    def anew(owners: Any, seats: Any, since: Any) -> Any:
        found = original(owners, seats, since)
        if not any(move.before for move in found.moves):
            return found
        return original(dict.fromkeys(owners), seats, since)

    return patch.object(plan, "_count_plan", anew)


@contextmanager
def passed_on_before_it_is_seen_to_leave() -> Iterator[None]:
    """Others see room where one retires, and pass partitions back to it."""
    seats = decide._seats

    def whoever_says_so(now: Any) -> Any:
        return seats(replace(now, view=replace(now.view, state=replace(now.view.state, retired={}))))

    with (
        patch.object(Coordinator, "_is_known_to_retire", lambda self: True),
        patch.object(decide, "_seats", whoever_says_so),
    ):
        yield


# --- clocks
def deadlines_by_the_loops_clock() -> AbstractContextManager[Any]:
    """Which stands still while the machine is suspended."""

    def now(self: Any) -> float:
        try:
            return asyncio.get_running_loop().time()
        except RuntimeError:
            return 0.0

    return patch.object(BootClock, "now", now)


def deadlines_by_the_time_of_day() -> AbstractContextManager[Any]:
    """Each instance's own, and never compared with another's."""
    init = SimulatedClock.__init__

    def by_wall(self: Any, now: Any, rng: Any, threads: Any, skew_s: float) -> None:
        init(self, lambda: now() + self.skew_s, rng, threads, skew_s)

    return patch.object(SimulatedClock, "__init__", by_wall)


_ADMITS = rules.begin_transaction


def transactions_whatever_the_epoch() -> AbstractContextManager[Any]:
    def careless(record: Any, checkpoint: Any, *, committed: int, start: int) -> Any:
        epoch = record.epoch if record is not None else checkpoint.epoch
        return replace(_ADMITS(record, replace(checkpoint, epoch=epoch), committed=0, start=start), epoch=epoch)

    return patch.object(rules, "begin_transaction", careless)


def transactions_wherever_the_record_stands() -> AbstractContextManager[Any]:
    """It may have passed where the batch starts."""

    def careless(record: Any, checkpoint: Any, *, committed: int, start: int) -> Any:
        return _ADMITS(record, checkpoint, committed=committed, start=2**62)

    return patch.object(rules, "begin_transaction", careless)


def transactions_over_lost_effects() -> AbstractContextManager[Any]:
    def careless(record: Any, checkpoint: Any, *, committed: int, start: int) -> Any:
        return _ADMITS(record, checkpoint, committed=0, start=start)

    return patch.object(rules, "begin_transaction", careless)


def commits_over_lost_effects() -> AbstractContextManager[Any]:
    """A checkpoint by policy, or the last try of an owner that stops itself."""
    may_commit = rules.may_commit

    def careless(record: Any, checkpoint: Any, **facts: int) -> bool:
        return may_commit(record, replace(checkpoint, effects_to=0), **facts)

    return patch.object(rules, "may_commit", careless)


def lost_effects_are_sealed_from_memory() -> AbstractContextManager[Any]:
    """By an owner that learns what became of a transaction in doubt."""
    return patch.object(transaction, "_without_effects", lambda parts, hold: hold.sealed)


def effects_are_remembered() -> AbstractContextManager[Any]:
    """As if they did not go back with the record."""

    def remember(self: Any, hold: Any) -> None:
        record = hold.remembered(manual=False)
        if record is not None:
            self._memory.remember(replace(record, edition=hold.edition + 1, effects_to=0), due=hold.is_due(record))

    return patch.object(Coordinator, "_remember", remember)


def doubts_stay() -> AbstractContextManager[Any]:
    async def judged(parts: Any, hold: Any, error: Exception) -> Exception:
        return error

    return patch.object(pump, "judged", judged)


def what_is_committed_is_forgotten() -> AbstractContextManager[Any]:
    """When the call fails afterwards."""

    async def judged(parts: Any, hold: Any, error: Exception) -> Exception | None:
        return None if await transaction.learn(parts, hold) else error

    return patch.object(pump, "judged", judged)


def plain_calls_are_given_up() -> AbstractContextManager[Any]:
    """At the limit they count as failed, while they run on."""
    run = Threads.run

    async def impatient(self: Any, function: Any, *args: Any) -> Any:
        return await asyncio.wait_for(run(self, function, *args), LIMIT_S)

    return patch.object(Threads, "run", impatient)


def who_completes_late_has_failed() -> AbstractContextManager[Any]:
    def limited(handler: Any, limit_s: float) -> Any:
        async def handle(events: Any, partition: Any) -> None:
            limit = asyncio.timeout(limit_s)
            try:
                async with limit:
                    await handler(events, partition)
            finally:
                if limit.expired():
                    raise HandlerTimeout("too late")

        return handle

    return patch.object(calls, "limited", limited)


def calls_have_no_limit() -> AbstractContextManager[Any]:
    return patch.object(calls, "limited", lambda handler, limit_s: handler)


def threads_do_not_look() -> AbstractContextManager[Any]:
    """At the clock, once the call is theirs."""

    def blind(self: Any, hold: Any, partition: Any, events: Any) -> None:
        hold.thread = threading.get_ident()
        for event in events:
            hold.current = event
            self._handler(event, partition)
            hold.done = (hold.done[0] + 1, event)

    return patch.object(calls.PlainEach, "_on_thread", blind)


CALM: dict[str, float] = {}
LIMIT_S = 0.3
BY_LEASE: dict[str, Any] = {"store": "by_lease", "instances": 3, "latency_s": 0.02, "mean_gap_s": 6.0}
SPLITS: dict[str, Any] = {
    "incidents": ("split", "split", "merge", "join"),
    "rates": CALM,
    "mean_gap_s": 6.0,
    "partitions": 3,
    "call_s": 0.2,
    "failing": None,
    "checkpoint": Every(seconds=1.0),
    "balance": "count",
    "zipf": None,
}
KEPT, GONE = SPLITS | {"ending": "kept"}, SPLITS | {"ending": "gone"}
MOVES: dict[str, Any] = {"incidents": ("join", "retire"), "rates": CALM, "mean_gap_s": 6.0, "call_s": 0.01}

COMINGS: dict[str, Any] = MOVES | {
    "mean_gap_s": 15.0,
    "faulty_s": 90.0,
    "partitions": 13,
    "failing": None,
    "long_call_chance": 0.0,
    "checkpoint": Every(seconds=1.0),
    "balance": "count",
    "zipf": None,
    "store": "one_step",
}

LOSING: dict[str, Any] = {
    "incidents": ("lose_writes", "stall", "crash", "join"),
    "rates": CALM,
    "mean_gap_s": 6.0,
    "partitions": 3,
    "call_s": 0.01,
    "failing": None,
    "checkpoint": Every(seconds=1.0),
    "balance": "count",
    "zipf": None,
}
EMPTIED = LOSING | {"incidents": ("empty", "crash", "join"), "start": "latest"}

FAILING = Failing(poison=0.1, redrive_all=True)
ORDERED = Failing(poison=0.1, keys=2, order="key", redrive_all=True)
BAD: dict[str, Any] = {"failing": FAILING, "incidents": ("crash",), "rates": CALM, "call_s": 0.01, "mean_gap_s": 6.0}
DEADLY = BAD | {"failing": Failing(deadly=0.03), "incidents": (), "latency_s": 0.01, "event_gap_s": 0.3}

EFFECTS: dict[str, Any] = {
    "effects": True,
    "incidents": ("stall", "outage"),
    "rates": {"lost_reply": 0.05, "held_up": 0.05},
    "mean_gap_s": 6.0,
    "event_gap_s": 0.3,
    "call_s": 0.01,
    "latency_s": 0.01,
    "failing": None,
    "each_s": 0.0,
    "checkpoint": Every(seconds=1.0),
    "balance": "count",
    "zipf": None,
}
EFFECTS_LOST = EFFECTS | {"incidents": ("lose_writes", "lose_quietly", "crash"), "rates": {"lost_reply": 0.05}}
EFFECTS_EMPTIED = EFFECTS | {"incidents": ("empty", "join", "stall"), "start": "earliest"}
PLAIN: dict[str, Any] = {
    "plain": True,
    "incidents": ("stall",),
    "rates": {"blocked": 0.01},
    "call_s": 0.2,
    "event_gap_s": 0.1,
    "batch": False,
    "failing": None,
    "balance": "count",
    "zipf": None,
}
LIMITED = PLAIN | {"plain": False, "limit_s": LIMIT_S, "incidents": (), "rates": {}}

WAYS: dict[str, tuple[Callable[[], AbstractContextManager[Any]], dict[str, Any]]] = {
    "a lease changed without compare-and-set": (no_compare_and_set, {"incidents": ("stall", "join", "retire")}),
    "a commit without the epoch": (commit_without_epoch, {"incidents": ("stall", "crash"), "latency_s": 0.3}),
    "a takeover without the heartbeat mark": (
        takeover_without_mark,
        {
            "incidents": ("stall", "stall"),
            "rates": CALM,
            "instances": 4,
            "partitions": 8,
            "latency_s": 0.3,
            "mean_gap_s": 3.0,
            "faulty_s": 90.0,
            "event_gap_s": 0.3,
            "call_s": 0.01,
            "long_call_chance": 0.0,
            "checkpoint": Every(seconds=1.0),
            "concurrency": None,
        },
    ),
    "an owner that does not stop itself": (never_stops_itself, {"incidents": ("stall",), "instances": 3}),
    "a deadline counted from the answer": (
        deadline_from_the_answer,
        {"incidents": ("slow", "stall"), "latency_s": 0.3, "instances": 3},
    ),
    "a pump that does not look at the clock": (
        pump_does_not_look,
        {"incidents": (), "rates": {"freeze": 0.01}, "call_s": 0.0, "event_gap_s": 0.1},
    ),
    "no seal": (no_seal, {"incidents": ("stall",), "call_s": 0.2}),
    "one id without incarnations": (no_incarnations, {"incidents": ("twin",)}),
    "an occupied partition claimed again": (
        occupied_is_claimed,
        {"incidents": ("outage", "stall"), "long_call_chance": 0.05},
    ),
    "a swap in doubt taken for undone": (
        doubt_is_undone,
        {"incidents": ("join", "retire"), "rates": {"lost_reply": 0.15, "held_up": 0.15}, "mean_gap_s": 6.0},
    ),
    "no commit before a handoff": (no_last_commit, MOVES | {"checkpoint": Every(seconds=5.0)}),
    "no commit before a pause": (no_last_commit, MOVES | {"incidents": ("pause",), "checkpoint": Every(seconds=5.0)}),
    "a handoff that takes its time": (slow_to_pass_on, MOVES | {"long_call_chance": 0.0}),
    "a handoff by lease that takes its time": (
        slow_to_pass_on,
        MOVES | BY_LEASE | {"long_call_chance": 0.0, "checkpoint": Every(seconds=1.0)},
    ),
    "a seek that moves nothing": (seek_without_a_jump, {"incidents": ("seek",), "rates": CALM, "mean_gap_s": 6.0}),
    "a limit to concurrency that is forgotten": (
        no_limit,
        {"incidents": (), "rates": CALM, "concurrency": 1, "partitions": 5, "instances": 1, "call_s": 0.2},
    ),
    "a dead letter that is filed after the checkpoint": (filed_after_the_checkpoint, BAD),
    "parked keys that die with their owner": (parked_keys_are_forgotten, BAD | {"failing": ORDERED}),
    "a redriven dead letter that overtakes": (
        redriven_dead_letters_overtake,
        BAD | {"failing": ORDERED, "incidents": ("redrive", "join", "crash")},
    ),
    "deaths that nobody counts": (nothing_is_counted, DEADLY),
    "an event that is passed over because the dead letters are away": (
        passed_over_when_the_target_is_away,
        BAD | {"incidents": ("dead_letters_away",)},
    ),
    "an event that is not tried alone": (not_alone, DEADLY | {"partitions": 5, "instances": 2}),
    "a failed batch that is tried whole": (batches_are_tried_whole, BAD | {"batch": True}),
    "an event that is given up too soon": (tried_once, BAD),
    "a redrive without a call": (
        redriven_without_a_call,
        BAD | {"incidents": ("redrive",)},
    ),
    "children that do not wait": (children_do_not_wait, KEPT),
    "children that do not wait for what is gone": (children_do_not_wait, GONE),
    "a merged child that waits for one parent alone": (one_parent_is_enough, KEPT),
    "an end before all is handled": (ended_before_it_is_handled, KEPT | {"call_s": 1.0}),
    "an end that the application has not marked": (ended_without_a_mark, KEPT | {"checkpoint": Manual()}),
    "no commit before an end": (no_last_commit, GONE | {"checkpoint": Every(seconds=5.0)}),
    "children that begin at latest": (children_begin_anywhere, KEPT | {"start": "latest"}),
    "children that begin anew": (children_begin_anew, GONE),
    "shares that are even whatever some want at least": (
        nobody_has_a_least_share,
        {"least": (3, None), "instances": 3, "partitions": 5},
    ),
    "blobs written whatever they are": (
        blobs_written_whatever_they_are,
        BY_LEASE | {"incidents": ("stall", "join", "retire")},
    ),
    "a record by lease that is committed without the epoch": (
        commit_without_epoch,
        BY_LEASE | {"incidents": ("stall",), "rates": {"held_up": 0.05}},
    ),
    "a partition that is claimed at once by whoever had it": (everyone_claims_at_once, LOSING),
    "a missing lease that nobody waits for": (
        missing_leases_are_free,
        EMPTIED | {"incidents": ("empty", "stall"), "instances": 3, "start": "earliest"},
    ),
    "a restored checkpoint that goes over a later one": (restored_over_what_was_sealed_since, LOSING),
    "what was handled while the store was away, and is not written": (
        what_is_remembered_is_not_written,
        LOSING | {"incidents": ("outage", "cut")},
    ),
    "what was handled before the store lost it, and is not written": (
        what_is_remembered_is_not_written,
        LOSING | {"incidents": ("lose_quietly", "stall")},
    ),
    "a late seal that makes a record": (late_seals_make_records, EMPTIED | {"rates": {"held_up": 0.15}}),
    "the end of the log taken for the start after a loss": (latest_is_latest_whatever_was_lost, EMPTIED),
    "a newcomer's start that stands in an emptied store": (newcomers_go_first, EMPTIED),
    "epochs that begin anew with the group": (epochs_begin_anew, LOSING | {"incidents": ("delete_group", "stall")}),
    "moves that are not the fewest": (more_than_the_surplus, COMINGS),
    "moves for shares that differ by one": (shares_that_ignore_who_has_what, COMINGS),
    "moves back to one that leaves": (
        passed_on_before_it_is_seen_to_leave,
        COMINGS | {"partitions": 40, "instances": 4, "latency_s": 0.3, "each_s": 0.01},
    ),
    "deadlines on a clock that stands still while the machine is suspended": (
        deadlines_by_the_loops_clock,
        {"incidents": ("suspend",), "rates": CALM, "instances": 3},
    ),
    "deadlines by the time of day": (
        deadlines_by_the_time_of_day,
        {"incidents": ("set_wall", "stall", "outage"), "rates": CALM, "instances": 3, "mean_gap_s": 6.0},
    ),
    "a timer alone that ends a partition": (
        pump_does_not_look,
        {"incidents": ("lag", "outage"), "rates": CALM, "instances": 3, "mean_gap_s": 6.0},
    ),
    "a transaction under an epoch that is over": (transactions_whatever_the_epoch, EFFECTS),
    "a transaction that does not begin where the record stands": (transactions_wherever_the_record_stands, EFFECTS),
    "a transaction that passes over lost effects": (transactions_over_lost_effects, EFFECTS_LOST),
    "a checkpoint that passes over lost effects": (commits_over_lost_effects, EFFECTS_LOST),
    "lost effects that are sealed from memory": (lost_effects_are_sealed_from_memory, EFFECTS_EMPTIED),
    "lost effects that are remembered": (effects_are_remembered, EFFECTS_EMPTIED),
    "a transaction that stays in doubt": (doubts_stay, EFFECTS),
    "a transaction that is forgotten when its call fails": (what_is_committed_is_forgotten, EFFECTS),
    "effects of threads whatever the epoch is": (transactions_whatever_the_epoch, EFFECTS | {"plain": True}),
    "a call on a thread that is given up": (plain_calls_are_given_up, LIMITED | {"plain": True}),
    "a call that completes late, and counts as failed": (who_completes_late_has_failed, LIMITED),
    "a call that is not cancelled at its limit": (calls_have_no_limit, LIMITED),
    "a thread that does not look at the clock": (threads_do_not_look, PLAIN),
    "a partition with a call on a thread claimed again": (
        occupied_is_claimed,
        PLAIN | {"incidents": ("outage", "stall"), "long_call_chance": 0.05},
    ),
    "expiry by wall clock": (expiry_by_wall_clock, {"incidents": (), "rates": CALM, "instances": 3}),
}
