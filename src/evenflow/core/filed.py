"""What a log of letters and verdicts says about each letter. Pure: records in, states out.

Nothing in the log is ever changed, so a letter's state follows from all records that name it, in their order:

    dead ──again──▶ again ──redriven──▶ redriven
      ▲               │
      └────failed─────┘         dropped: from dead or again

A record that is there twice counts once. A letter that is filed *anew* (another try, another epoch) after it was
redriven or dropped is dead again: somebody went back in the partition, and it failed once more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from msgspec import Struct, structs

from evenflow.model import Letter, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

State: TypeAlias = Literal["dead", "again", "redriven", "dropped"]
STATES: tuple[State, ...] = ("dead", "again", "redriven", "dropped")

OPEN = frozenset(("dead", "again"))
"""States in which the event is not handled, and later events of its key must not overtake it."""


class Filed(Struct, frozen=True, kw_only=True):
    """A letter as it stands."""

    letter: Letter
    state: State = "dead"
    number: int = 0
    """How many tries were asked for; `again` and its answer carry it."""
    verdict: Verdict | None = None
    """The one that made the state; None while nobody has judged it."""
    verdicts: tuple[Verdict, ...] = ()
    """All that name it, in their order."""
    settled: int = 0
    """Answers to tries up to this one are over: the letter was filed anew after them."""

    @property
    def is_open(self) -> bool:
        return self.state in OPEN

    @property
    def error(self) -> str:
        """Why it is dead: the last try's error."""
        failed = self.verdict is not None and self.verdict.kind == "failed"
        return (self.verdict.why if failed and self.verdict else "") or self.letter.error

    def asked(self, *, by: str, why: str, at: float) -> Verdict:
        """The verdict that asks for another try."""
        return Verdict(letter=self.letter.id, kind="again", by=by, why=why, at=at, number=self.number + 1)

    def answered(self, error: str | None, *, by: str, at: float) -> Verdict:
        """The answer to the try that is asked for: it went well, or failed with this error."""
        kind = "redriven" if error is None else "failed"
        return Verdict(letter=self.letter.id, kind=kind, by=by, why=error or "", at=at, number=self.number)

    def dropped(self, *, by: str, why: str, at: float) -> Verdict:
        return Verdict(letter=self.letter.id, kind="dropped", by=by, why=why, at=at, number=self.number)


def fold(records: Iterable[object]) -> list[Filed]:
    """Every letter of a group once, in the order of their first filing.

    Records of unknown kinds (a later version wrote them) and verdicts on letters that are not there are ignored.
    """
    stories: dict[str, list[Letter | Verdict]] = {}
    order: dict[str, Letter] = {}
    for record in records:
        if isinstance(record, Letter):
            order.setdefault(record.id, record)
            stories.setdefault(record.id, []).append(record)
        elif isinstance(record, Verdict):
            stories.setdefault(record.letter, []).append(record)
    return [_told(letter, stories[name]) for name, letter in order.items()]


def _told(letter: Letter, story: Sequence[Letter | Verdict]) -> Filed:
    filed = Filed(letter=letter)
    seen: list[Letter | Verdict] = [letter]
    for record in story:
        if record not in seen:
            seen.append(record)
            filed = _refiled(filed, record) if isinstance(record, Letter) else _judged(filed, record)
    return filed


def _refiled(filed: Filed, letter: Letter) -> Filed:
    """Filed again before it was settled, as after a crash, it is the same letter; afterwards it is dead anew."""
    if filed.is_open:
        return filed
    return structs.replace(filed, letter=letter, state="dead", verdict=None, settled=filed.number)


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
