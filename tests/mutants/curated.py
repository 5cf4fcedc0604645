"""Rules of the protocol, each broken by hand in the way in which somebody might break it.

A rule names a function and a text that stands in it exactly once, so that code may move without touching this list.
A test checks that each text is still there; when a rule's code changes, its line here changes with it.
"""

from __future__ import annotations

import ast
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from tests.mutants.mutant import Mutant, source_of

if TYPE_CHECKING:
    from collections.abc import Iterator


class Rule(NamedTuple):
    name: str
    """What the mutant does wrong."""
    module: str
    function: str
    old: str
    new: str


RULES = [
    # --- deadlines
    Rule(
        "a claim's deadline counts from a later heartbeat",
        *("runtime.coordinator", "Coordinator._swap"),
        *("self._begin(outcome.lease, patience_ends_s)", "self._begin(outcome.lease, self._patience_ends_s)"),
    ),
    Rule(
        "a seek's deadline counts from a later heartbeat",
        *("runtime.coordinator", "Coordinator._pass_on"),
        *("self._passed(hold, outcome, patience_ends_s)", "self._passed(hold, outcome, self._patience_ends_s)"),
    ),
    Rule(
        "a deadline counts from the answer",
        *("runtime.coordinator", "Coordinator._take_in"),
        *("self._heartbeat_sent_s = sent_s", "self._heartbeat_sent_s = now_s"),
    ),
    Rule(
        "a deadline moves whoever the ledger shows",
        *("runtime.coordinator", "Coordinator._compare"),
        *("lease.owner == self.me.owner and lease.epoch == hold.epoch", "lease.epoch == hold.epoch"),
    ),
    Rule(
        "a deadline moves whatever the epoch",
        *("runtime.coordinator", "Coordinator._compare"),
        *("lease.owner == self.me.owner and lease.epoch == hold.epoch", "lease.owner == self.me.owner"),
    ),
    Rule(
        "the answer to a swap counts as a heartbeat",
        *("runtime.coordinator", "Coordinator._compare"),
        *(" or lease.revision > shown", ""),
    ),
    Rule(
        "a hold begins after its deadline",
        *("runtime.coordinator", "Coordinator._begin"),
        *("if self._clock.now() >= deadline_s:", "if False:"),
    ),
    Rule(
        "a call begins at the deadline",
        *("runtime.hold", "Hold.may_begin"),
        *("now_s < self.deadline_s", "now_s <= self.deadline_s"),
    ),
    Rule(
        "a batch call looks at no deadline",
        *("runtime.calls", "AsyncBatch.__call__"),
        *("if hold.may_begin(began_s):", "if not hold.stopping:"),
    ),
    Rule(
        "a batch call on a thread looks at no deadline",
        *("runtime.calls", "PlainBatch._on_thread"),
        *("if hold.may_begin(began_s):", "if not hold.stopping:"),
    ),
    Rule(
        "a run of events looks at no deadline in between",
        *("runtime.calls", "AsyncEach.__call__"),
        *("            if now() >= until_s:\n                return\n", ""),
    ),
    Rule(
        "a run of events on a thread looks at no deadline in between",
        *("runtime.calls", "PlainEach._on_thread"),
        *("            if now() >= until_s:\n                return\n", ""),
    ),
    Rule(
        "a slice of calls ends at no deadline",
        *("runtime.calls", "slice_ends_s"),
        *("min(hold.deadline_s, now_s + SLICE_S)", "now_s + SLICE_S"),
    ),
    Rule(
        "a redriven dead letter's call looks at an old deadline",
        *("runtime.pump", "Pump._call_aside"),
        *("stand_in.deadline_s, stand_in.stopping = self._hold.deadline_s, self._hold.stopping", "pass"),
    ),
    # --- silence
    Rule(
        "silence counts from the heartbeat's sending",
        *("runtime.coordinator", "Coordinator._take_in"),
        *("ledger, self.view, now_s)", "ledger, self.view, sent_s)"),
    ),
    Rule(
        "watching goes on over an interruption",
        *("runtime.coordinator", "Coordinator._take_in"),
        *("watch(None if interrupted or is_lost else", "watch(None if is_lost else"),
    ),
    Rule(
        "marks of before a loss are compared with those since",
        *("runtime.coordinator", "Coordinator._take_in"),
        *("watch(None if interrupted or is_lost else", "watch(None if interrupted else"),
    ),
    Rule(
        "a dead owner's time-to-live is the one of its row",
        *("core.decide", "_owner_now"),
        *("is_dead(now, lease.owner, lease.ttl_s)", "is_dead(now, lease.owner, now.me.ttl_s)"),
    ),
    Rule(
        "a takeover waits for this instance's own time-to-live",
        *("core.decide", "_wait_s"),
        *("return lease.ttl_s - silence_s(", "return now.me.ttl_s - silence_s("),
    ),
    Rule(
        "a takeover without the owner's mark",
        *("core.decide", "_claim"),
        *(", (lease.owner, now.sightings[lease.owner].mark)", ""),
    ),
    Rule(
        "the store does not look at the mark",
        *("stores.rules", "why_refused"),
        *("mark_of(change.still[0]) != change.still[1]", "False"),
    ),
    # --- who may have what
    Rule(
        "a lease is passed to one that was never seen to heartbeat",
        *("core.decide", "_row"),
        *("member is None or seen is None or not seen.moved", "member is None or seen is None"),
    ),
    Rule(
        "a lease is passed to one that has fallen silent",
        *("core.decide", "_row"),
        *("< 2 * member.heartbeat_s", "< 20 * member.heartbeat_s"),
    ),
    Rule(
        "the store lets a lease be passed to one that has left",
        *("stores.rules", "why_refused"),
        *("if change.owner is not None and mark_of(change.owner) is None:", "if False:"),
    ),
    Rule(
        "the store does not compare revisions",
        *("stores.rules", "why_refused"),
        *("change.revision != (lease.revision if lease else 0)", "False"),
    ),
    Rule(
        "the store takes swaps of an older history",
        *("stores.rules", "why_refused"),
        *("if change.history != history:", "if False:"),
    ),
    Rule(
        "one id is one process",
        *("stores.rules", "admit_incarnation"),
        *("if row is not None and row.incarnation >= member.incarnation:", "if False:"),
    ),
    Rule(
        "a member leaves while a lease names it",
        *("stores.stored_group", "StoredGroup.heartbeat"),
        *("not member.leaving or self.is_named(me.owner)", "not member.leaving"),
    ),
    Rule(
        "what was held before is adopted under its old epoch",
        *("core.decide", "_is_passed_to_me"),
        *("lease.epoch > now.last_epochs.get(lease.partition, 0) and ", ""),
    ),
    Rule(
        "an epoch begins twice",
        *("runtime.coordinator", "Coordinator._begin"),
        *("lease.epoch <= self._last_epochs.get(partition, 0)", "lease.epoch < self._last_epochs.get(partition, 0)"),
    ),
    Rule(
        "an occupied partition is begun again",
        *("runtime.coordinator", "Coordinator._begin"),
        *("partition in self._occupied() or ", ""),
    ),
    Rule(
        "an occupied partition is claimed again",
        *("runtime.coordinator", "Coordinator._situation"),
        *("busy=self._asking | self._occupied()", "busy=self._asking"),
    ),
    Rule(
        "a partition is asked for twice",
        *("runtime.coordinator", "Coordinator._situation"),
        *("busy=self._asking | self._occupied()", "busy=self._occupied()"),
    ),
    Rule(
        "a handoff under way counts as not sent",
        *("runtime.coordinator", "Coordinator._handoff"),
        *("hold.passing = True", "hold.passing = False"),
    ),
    Rule(
        "an older state of a lease replaces a newer one",
        *("core.view", "merge"),
        *("known if known is not None and known.revision > lease.revision else lease", "lease"),
    ),
    Rule(
        "a claim answered after a lost history is begun",
        *("runtime.coordinator", "Coordinator._swap"),
        *("if won and change.history == self._history:", "if won:"),
    ),
    # --- lost history
    Rule(
        "holds survive a lost history",
        *("runtime.coordinator", "Coordinator._lose_history"),
        *('            self._end(hold, "lost")', "            pass"),
    ),
    Rule(
        "the wait for a new history goes on from the older one",
        *("runtime.coordinator", "Coordinator._take_in"),
        *(
            "if interrupted or before is None or is_lost:",
            "if interrupted or before is None:",
        ),
    ),
    Rule(
        "the wait for a new history goes on over an interruption",
        *("runtime.coordinator", "Coordinator._take_in"),
        *(
            "if interrupted or before is None or is_lost:",
            "if before is None or is_lost:",
        ),
    ),
    Rule(
        "a lease of an older history is claimed at once",
        *("core.decide", "_is_old"),
        *("lease.revision > 0 and lease.history != now.view.history", "False"),
    ),
    Rule(
        "a cursor from the future proves nothing",
        *("stores.rules", "history_after"),
        *("(since.history, since.revision) > (now.history, now.revision)", "False"),
    ),
    Rule(
        "a cursor of another lineage proves nothing",
        *("stores.rules", "history_after"),
        *("since.lineage == now.lineage and not is_ahead", "not is_ahead"),
    ),
    Rule(
        "a history that rose since goes back",
        *("stores.rules", "history_after"),
        *("max(now.history, since.history + 1)", "since.history + 1"),
    ),
    Rule(
        "memory lives on beside effects in the store",
        *("runtime.coordinator", "Coordinator._remember"),
        *("if hold.effects:", "if False:"),
    ),
    Rule(
        "a late seal makes a record in an emptied store",
        *("stores.rules", "seal"),
        *("max(floor, restore_epoch(history)) if record is None else floor", "floor"),
    ),
    Rule(
        "what is remembered is restored over a record of this history",
        *("stores.rules", "_restores"),
        *("_age(record) < _age(checkpoint)", "record.ordinal < checkpoint.ordinal"),
    ),
    Rule(
        "what is remembered is restored over a newer record",
        *("stores.rules", "_restores"),
        *("_age(record) < _age(checkpoint) and ", ""),
    ),
    Rule(
        "what is remembered is restored beside effects in the store",
        *("stores.rules", "_restores"),
        *(" and not record.effects", ""),
    ),
    Rule(
        "a lost record is restored under an epoch of this history",
        *("stores.rules", "_restores"),
        *("history == 0 or checkpoint.epoch > restore_epoch(history)", "history == 0"),
    ),
    Rule(
        "a group counts as begun in the history in which its store was emptied",
        *("stores.rules", "first_history"),
        *("known if since is None else min(known, since.history)", "known"),
    ),
    Rule(
        "what may have been passed on is claimed again at once",
        *("runtime.memory", "Memory._held_until_now"),
        *("            and not tenure.passing\n", ""),
    ),
    Rule(
        "what was held beyond its deadline is claimed again at once",
        *("runtime.memory", "Memory._held_until_now"),
        *("            and now_s < tenure.deadline_s\n", ""),
    ),
    Rule(
        "what another instance has taken over is claimed again at once",
        *("runtime.memory", "Memory._held_until_now"),
        *("            and _is_mine(before.leases.get(name), self._me(), tenure.epoch, before.history)\n", ""),
    ),
    Rule(
        "what was never sealed is claimed again at once",
        *("runtime.memory", "Memory._held_until_now"),
        *("if tenure.sealed_s <= self._sent_s\n            and not", "if not"),
    ),
    Rule(
        "whoever came first to an emptied store claims again at once",
        *("runtime.memory", "Memory.look"),
        *("held if is_behind else ()", "held"),
    ),
    Rule(
        "nothing is claimed again at once",
        *("core.decide", "_may_reclaim"),
        *("return lease.partition in now.reclaims", "return False"),
    ),
    Rule(
        "what is settled in the new history is claimed again at once",
        *("core.decide", "_may_reclaim"),
        *(" and is_unsettled", ""),
    ),
    Rule(
        "nothing is restored before a seal",
        *("runtime.coordinator", "Coordinator._restore_soon"),
        *("if self._memory.is_losing and ", "if False and "),
    ),
    Rule(
        "what was handled while the store was unreachable is not written before a seal",
        *("runtime.pump", "Pump._sealed"),
        *("await self._coordination.restore(hold.partition)", "pass"),
    ),
    Rule(
        "an instance leaves before what it remembers is restored",
        *("runtime.coordinator", "Coordinator._has_nothing"),
        *(" or self._memory.is_losing", ""),
    ),
    Rule(
        "what is remembered is restored below what came first to an emptied store",
        *("runtime.memory", "Memory._restoring"),
        *("record = replace(record, epoch=restore_epoch(after.history) - one.doubt)", "pass"),
    ),
    Rule(
        "what is remembered counts as written after a loss",
        *("runtime.memory", "Memory.look"),
        *("due=True, lost=True", "lost=True"),
    ),
    Rule(
        "what ended after a loss is sealed under an epoch that makes no record",
        *("runtime.coordinator", "Coordinator.last_epoch"),
        *("max(ended.epoch, restore_epoch(self._history))", "ended.epoch"),
    ),
    Rule(
        "the latest event is where a group began that lost its records",
        *("core.decide", "_unplaced"),
        *("    if _may_miss_leases(now):\n        return ()\n", ""),
    ),
    Rule(
        "a group that began after a loss waits for owners before it",
        *("core.decide", "_may_miss_leases"),
        *("now.view.history > now.view.began", "now.view.history > 0"),
    ),
    Rule(
        "missing leases are claimed at once after a loss",
        *("core.decide", "_may_miss_leases"),
        *("now.view.history > now.view.began", "False"),
    ),
    Rule(
        "the latest event is where a partition begins whose checkpoint was lost",
        *("runtime.pump", "Pump._start"),
        *('"earliest" if is_lost else start', "start"),
    ),
    Rule(
        "nothing says that a checkpoint was lost",
        *("runtime.pump", "Pump._stand_still_if_lost"),
        *("if stops or hold.notes.lost == hold.epoch:", "if stops:"),
    ),
    Rule(
        "a stop for a lost checkpoint ends with its owner",
        *("runtime.pump", "Pump._start"),
        *("Notes(lost=hold.epoch if is_lost else None)", "Notes()"),
    ),
    # --- groups that are deleted, and members that left
    Rule(
        "a hold of a deleted group goes on",
        *("runtime.coordinator", "Coordinator._compare"),
        *("if hold.epoch <= self.view.epoch_floor:", "if False:"),
    ),
    Rule(
        "memory of a deleted group lives on",
        *("runtime.memory", "Memory.look"),
        *("if after.epoch_floor:", "if False:"),
    ),
    Rule(
        "a swap of a deleted group's former owner counts",
        *("stores.rules", "why_refused"),
        *("if change.epoch <= floor:", "if False:"),
    ),
    Rule(
        "a swap under the epoch floor itself counts",
        *("stores.rules", "why_refused"),
        *("if change.epoch <= floor:", "if change.epoch < floor:"),
    ),
    Rule(
        "nothing is sealed under the epoch floor itself",
        *("stores.rules", "seal"),
        *("if epoch < floor:", "if epoch <= floor:"),
    ),
    Rule(
        "a commit of a deleted group's former owner counts",
        *("stores.rules", "may_commit"),
        *("if checkpoint.epoch < floor:", "if False:"),
    ),
    Rule(
        "the epoch floor forgets what leases and records had",
        *("stores.rules", "floor_after"),
        *(", *epochs", ""),
    ),
    Rule(
        "the epoch floor forgets the floor before it",
        *("stores.rules", "floor_after"),
        *("max(floor, restore_epoch(history)", "max(restore_epoch(history)"),
    ),
    Rule(
        "the epoch floor forgets the history",
        *("stores.rules", "floor_after"),
        *("restore_epoch(history)", "0"),
    ),
    Rule(
        "new epochs begin below the epoch floor",
        *("core.view", "View.epoch_after"),
        *("max(lease.epoch, self.epoch_floor)", "lease.epoch"),
    ),
    Rule(
        "a late heartbeat brings back a member that has left",
        *("stores.stored_group", "StoredGroup.heartbeat"),
        *("if not stays:", "if False:"),
    ),
    # --- the record
    Rule(
        "a seal under a passed epoch",
        *("stores.rules", "seal"),
        *("if record.epoch > epoch:", "if False:"),
    ),
    Rule(
        "a seal anew counts as another owner's",
        *("stores.rules", "seal"),
        *("    if record.epoch == epoch:\n        return None\n", ""),
    ),
    Rule(
        "a commit lowers the ordinal",
        *("stores.rules", "is_late_commit"),
        *("(checkpoint.ordinal, checkpoint.edition) < (record.ordinal, record.edition)", "False"),
    ),
    Rule(
        "a late commit of the same ordinal replaces newer notes",
        *("stores.rules", "is_late_commit"),
        *(
            "(checkpoint.ordinal, checkpoint.edition) < (record.ordinal, record.edition)",
            "checkpoint.ordinal < record.ordinal",
        ),
    ),
    Rule(
        "records are sent under one edition",
        *("runtime.hold", "Hold.edited"),
        *("self.edition += 1", "pass"),
    ),
    Rule(
        "a seal keeps the edition",
        *("stores.rules", "seal"),
        *("edition=0, begun=record.ordinal", "begun=record.ordinal"),
    ),
    Rule(
        "a commit forgets that there are effects",
        *("stores.rules", "commit"),
        *("record.effects or checkpoint.effects", "checkpoint.effects"),
    ),
    Rule(
        "a transaction begins below what is committed",
        *("stores.rules", "begin_transaction"),
        *("if record.ordinal < committed:", "if False:"),
    ),
    Rule(
        "a transaction begins beyond its start",
        *("stores.rules", "begin_transaction"),
        *("if record.ordinal > start:", "if False:"),
    ),
    Rule(
        "a transaction looks at no epoch",
        *("stores.rules", "begin_transaction"),
        *("record is None or record.epoch != checkpoint.epoch", "record is None"),
    ),
    Rule(
        "a last commit is tried after a lease was lost",
        *("runtime.pump", "Pump._finish"),
        *('elif hold.reason == "fenced" and hold.sealed is not None:', "elif hold.sealed is not None:"),
    ),
    Rule(
        "no last commit is tried after the deadline",
        *("runtime.pump", "Pump._finish"),
        *('elif hold.reason == "fenced" and hold.sealed is not None:', "elif False:"),
    ),
    Rule(
        "a partition is passed on without its last commit",
        *("runtime.pump", "Pump._finish"),
        *("if await self._committer.settle(hold):", "if not hold.over:"),
    ),
    Rule(
        "a seek keeps the ordinal",
        *("runtime.pump", "Pump._jump"),
        *("ordinal=record.ordinal + 1", "ordinal=record.ordinal"),
    ),
    Rule(
        "a seek goes on where its commit was refused",
        *("runtime.pump", "Pump._jump"),
        *("if not outcome.ok:", "if False:"),
    ),
    Rule(
        "a hold whose commit was refused goes on",
        *("runtime.committer", "Committer._commit"),
        *("                self.lost(hold)", "                pass"),
    ),
    Rule(
        "a checkpoint that the application marked may go back",
        *("runtime.committer", "Committer.mark"),
        *("if hold.marked is None or hold.marked[0] < progress[0]:", "if True:"),
    ),
    Rule(
        "what a source delivers again takes progress back",
        *("runtime.pump", "Pump._resume_after"),
        *("if here is None or position.sequence is None or position.sequence >= here:", "if True:"),
    ),
    Rule(
        "what a source delivers again is handled again",
        *("runtime.pump", "Pump._fresh"),
        *("if last is None or first is None or first > last:", "if True:"),
    ),
    # --- partitions that end
    Rule(
        "children of a partition that has not ended are claimed",
        *("core.decide", "_unborn"),
        *("unended(now.parents, set(everything)) if now.parents else {}", "{}"),
    ),
    Rule(
        "a partition ends before its marks",
        *("runtime.pump", "Pump._reach_end"),
        *("while self._owes_marks() and not hold.stopping:", "while False:"),
    ),
]


class OutOfStep(ValueError):
    """The code of a rule has changed."""


def mutants() -> list[Mutant]:
    """Without those that are out of step, which a test names."""
    found = []
    for rule in RULES:
        with suppress(OutOfStep):
            found.append(mutant_of(rule))
    return found


def mutant_of(rule: Rule) -> Mutant:
    source = source_of(rule.module)
    begin, end = _extent(rule, source)
    function = source[begin:end]
    if (count := function.count(rule.old)) != 1:
        raise OutOfStep(f"{rule.name}: {rule.module}.{rule.function} has this text {count} times, not once: {rule.old}")
    what = f"{rule.function}: {rule.old.strip()} -> {rule.new.strip() or 'nothing'}"
    mutated = source[:begin] + function.replace(rule.old, rule.new) + source[end:]
    return Mutant(rule.name, rule.module, what, mutated)


def _extent(rule: Rule, source: str) -> tuple[int, int]:
    """Where the function begins and ends in the text."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for name, node in _functions(ast.parse(source)):
        if name == rule.function:
            return starts[node.lineno - 1], starts[node.end_lineno or 0]
    raise OutOfStep(f"{rule.name}: {rule.module} has no function {rule.function}")


def _functions(tree: ast.AST, within: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{within}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{within}{node.name}", node
