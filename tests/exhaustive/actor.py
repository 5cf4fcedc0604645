"""One step of an instance: what its coordinator does, and what its pump and its committer, which are modelled here, do
then. Whatever may be sent is sent at once: on its way it may be as late as it likes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from evenflow.model import Change, Checkpoint
from tests.exhaustive.instance import Body, position
from tests.exhaustive.records import PARTITION, InstanceState, Request
from tests.exhaustive.search import Violation

if TYPE_CHECKING:
    from evenflow.runtime.hold import Hold


class Actor:
    def __init__(self, slot: int, state: InstanceState, settings: Any, end: int) -> None:
        self._slot, self._settings, self._log_end = slot, settings, end
        self._beaten, self._heartbeats, self._passes = state.beaten, state.heartbeats, state.passes
        self._remembers, self._pump_asks = state.remembers, state.pump_asks
        self._body = Body(state, settings)
        self._calling_in = state.hold.epoch if state.hold is not None and state.hold.calling else 0
        self.sent: list[Request] = []

    def after(self) -> InstanceState:
        return replace(
            self._body.frozen(),
            beaten=self._beaten,
            heartbeats=self._heartbeats,
            passes=self._passes,
            remembers=self._remembers,
            pump_asks=self._pump_asks,
        )

    def act(self, what: str, request: Request | None) -> None:
        verb, _, kind = what.partition(":")
        if request is None:
            getattr(self, f"_{verb}")()
        else:
            getattr(self, f"_{kind}_answered")(request, is_answered=verb == "answer")
        hold = self._body.current
        if self._calling_in and hold is not None and hold.epoch != self._calling_in:
            raise Violation(f"epoch {hold.epoch} begins while a call of epoch {self._calling_in} runs in this instance")
        self._go_on()

    # --- steps of its own
    def _heartbeat(self) -> None:
        self._beaten = self._heartbeats = True
        view, member = self._body.view, self._body.heartbeat()
        self._send("heartbeat", member=member, cursor=None if view is None else view.cursor)

    def _begin(self) -> None:
        self._body.calling = True

    def _end(self) -> None:
        hold = self._hold
        self._body.calling = False
        hold.done = hold.done[0] + 1, position(int(hold.position.offset) + 1)

    def _fence(self) -> None:
        self._body.fence(self._hold)

    def _retire(self) -> None:
        self._body.retire()

    # --- answers, or none
    def _heartbeat_answered(self, request: Request, *, is_answered: bool) -> None:
        self._heartbeats = False
        if is_answered:
            assert request.ledger is not None
            change = self._body.answer_heartbeat(request.ledger, request.sent_s)
            if change is not None:
                self._swap("claim", change)

    def _claim_answered(self, request: Request, *, is_answered: bool) -> None:
        self._body.answer_claim(request, request.outcome if is_answered else None)

    def _pass_answered(self, request: Request, *, is_answered: bool) -> None:
        self._passes = False
        self._body.answer_pass(request, request.outcome if is_answered else None)

    def _seal_answered(self, request: Request, *, is_answered: bool) -> None:
        self._pump_asks = ""
        if not is_answered:
            return
        if request.answer is None:
            self._body.lost(self._hold)
        else:
            self._hold.begin(request.answer, 0.0)

    def _commit_answered(self, request: Request, *, is_answered: bool) -> None:
        self._pump_asks, hold, record = "", self._hold, request.record
        assert record is not None
        if is_answered and not request.refused:
            hold.committed = max(hold.committed, record.ordinal)
            hold.committed_to = record.position
        elif not hold.over:
            if is_answered:
                self._body.lost(hold)
        else:
            self._pump_asks = "no more"

    def _restore_answered(self, request: Request, *, is_answered: bool) -> None:
        self._pump_asks = ""
        self._remember_answered(request, is_answered=is_answered)

    def _remember_answered(self, request: Request, *, is_answered: bool) -> None:
        if request.kind == "remember":
            self._remembers = False
        if is_answered:
            assert request.record is not None
            self._body.written(request.record)

    # --- what follows by itself
    def _go_on(self) -> None:
        body = self._body
        if body.current is not None and body.is_pumping and self._pump_asks in ("", "no more"):
            self._pump(body.current)
        is_writing = self._remembers or self._pump_asks == "restore"
        if body.is_losing and not is_writing and (record := body.due()) is not None:
            self._remembers = True
            self._send("remember", record=record)

    def _pump(self, hold: Hold) -> None:
        body, record = self._body, self._to_commit(hold)
        if hold.sealed is None and not hold.stopping:
            self._seal(hold)
        elif record is not None and self._pump_asks != "no more":
            self._ask("commit", record)
        elif hold.over and not body.calling:
            self._pump_asks = ""
            body.end_pump(hold)
        elif hold.stopping and not body.calling and not self._passes:
            change = body.hand_on(hold)
            if change is not None:
                self._passes = True
                self._swap("pass", change)

    def _to_commit(self, hold: Hold) -> Checkpoint | None:
        """What the store does not have yet. After the end of a hold there is one last try, if it was fenced."""
        is_out = hold.over and (hold.reason != "fenced" or self._body.calling or not self._may_save(hold))
        record = None if is_out else hold.checkpoint(manual=False)
        return hold.edited(record) if record is not None and hold.is_due(record) else None

    def _may_save(self, hold: Hold) -> bool:
        return hold.sealed is not None and self._body.may_save(hold)

    def _seal(self, hold: Hold) -> None:
        body = self._body
        default = body.recalled(PARTITION, hold.epoch)
        if default is None:
            is_lost = body.has_lost_writes()
            is_latest = self._settings.start_of(PARTITION, late=hold.late) == "latest" and not is_lost
            start = self._log_end if is_latest else 0
            default = Checkpoint(partition=PARTITION, epoch=hold.epoch, position=position(start), ordinal=0)
        elif (due := body.due()) is not None:
            self._ask("restore", due)
            return
        self._ask("seal", default, unplanned=hold.unplanned)

    @property
    def _hold(self) -> Hold:
        assert self._body.current is not None
        return self._body.current

    # --- sending
    def _ask(self, kind: str, record: Checkpoint, **more: Any) -> None:
        self._pump_asks = kind
        self._send(kind, record=record, **more)

    def _swap(self, kind: str, change: Change) -> None:
        self._send(kind, change=change, patience_from_s=self._body._heartbeat_sent_s)

    def _send(self, kind: str, **what: Any) -> None:
        self.sent.append(Request(slot=self._slot, kind=kind, sent_s=0.0, **what))
