"""What a log of dead letters and verdicts says about each dead letter. Pure: records in, states out.

Nothing in the log is ever changed, so a dead letter's state follows from all records that name it, in their order:

    dead ──again──▶ again ──redriven──▶ redriven
      ▲               │
      └────failed─────┘         dropped: from dead or again

A record that is there twice counts once. A dead letter that is filed *anew* (another try, another epoch) after it was
redriven or dropped is dead again: somebody went back in the partition, and it failed once more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from msgspec import Struct, structs

from evenflow.model import DeadLetter, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

State: TypeAlias = Literal["dead", "again", "redriven", "dropped"]
STATES: tuple[State, ...] = ("dead", "again", "redriven", "dropped")

OPEN = frozenset(("dead", "again"))
"""States in which the event is not handled, and later events of its key must not overtake it."""


class Filed(Struct, frozen=True, kw_only=True):
    """A dead letter as it stands."""

    dead_letter: DeadLetter
    state: State = "dead"
    number: int = 0
    """How many tries were asked for; `again` and its answer carry it."""
    verdict: Verdict | None = None
    """The one that made the state; None while nobody has judged it."""
    verdicts: tuple[Verdict, ...] = ()
    """All that name it, in their order."""
    settled: int = 0
    """Answers to tries up to this one are over: the dead letter was filed anew after them."""

    @property
    def is_open(self) -> bool:
        return self.state in OPEN

    @property
    def error(self) -> str:
        """Why it is dead: the last try's error."""
        failed = self.verdict is not None and self.verdict.kind == "failed"
        return (self.verdict.why if failed and self.verdict else "") or self.dead_letter.error

    def asked(self, *, by: str, why: str, at: float) -> Verdict:
        """The verdict that asks for another try."""
        return Verdict(dead_letter=self.dead_letter.id, kind="again", by=by, why=why, at=at, number=self.number + 1)

    def answered(self, error: str | None, *, by: str, at: float) -> Verdict:
        """The answer to the try that is asked for: it went well, or failed with this error."""
        kind = "redriven" if error is None else "failed"
        return Verdict(dead_letter=self.dead_letter.id, kind=kind, by=by, why=error or "", at=at, number=self.number)

    def dropped(self, *, by: str, why: str, at: float) -> Verdict:
        return Verdict(dead_letter=self.dead_letter.id, kind="dropped", by=by, why=why, at=at, number=self.number)


def fold(records: Iterable[object]) -> list[Filed]:
    """Every dead letter of a group once, in the order of their first filing.

    Records of unknown kinds (a later version wrote them) and verdicts on dead letters that are not there are ignored.
    """
    stories: dict[str, list[DeadLetter | Verdict]] = {}
    order: dict[str, DeadLetter] = {}
    for record in records:
        if isinstance(record, DeadLetter):
            order.setdefault(record.id, record)
            stories.setdefault(record.id, []).append(record)
        elif isinstance(record, Verdict):
            stories.setdefault(record.dead_letter, []).append(record)
    return [_told(dead_letter, stories[name]) for name, dead_letter in order.items()]


def _told(dead_letter: DeadLetter, story: Sequence[DeadLetter | Verdict]) -> Filed:
    filed = Filed(dead_letter=dead_letter)
    seen: list[DeadLetter | Verdict] = [dead_letter]
    for record in story:
        if record not in seen:
            seen.append(record)
            filed = _refiled(filed, record) if isinstance(record, DeadLetter) else _judged(filed, record)
    return filed


def _refiled(filed: Filed, dead_letter: DeadLetter) -> Filed:
    """Filed again before it was settled, as after a crash, it is the same dead letter; afterwards it is dead anew."""
    if filed.is_open:
        return filed
    return structs.replace(filed, dead_letter=dead_letter, state="dead", verdict=None, settled=filed.number)


def _judged(filed: Filed, verdict: Verdict) -> Filed:
    state = _state_after(filed, verdict)
    told = structs.replace(filed, verdicts=(*filed.verdicts, verdict))
    if state is None:
        return told
    return structs.replace(told, state=state, verdict=verdict, number=max(filed.number, verdict.number))


def _state_after(filed: Filed, verdict: Verdict) -> State | None:
    """None: it changes nothing, since others were faster, or it is no word that we know."""
    number = verdict.number
    if verdict.kind == "redriven" and number > filed.settled and filed.state != "redriven":
        # It was handled, whatever somebody else has found meanwhile.
        return "redriven"
    if not filed.is_open:
        return None
    if verdict.kind == "again" and number > filed.number:
        return "again"
    if verdict.kind == "failed" and number >= filed.number and number > filed.settled:
        return "dead"
    return "dropped" if verdict.kind == "dropped" else None
