"""Dead letters as the page shows them: a list without bodies, and one with everything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import asdict

from evenflow.errors import Corrupt, Misconfigured
from evenflow.model import show_epoch
from evenflow.operate.dead_letters.encoding import event_facts
from evenflow.operate.dead_letters.redrive import read_filed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.core.filed import Filed
    from evenflow.model import Group
    from evenflow.ports import DeadLetters

PAGE = 100
BODY_MOST = 20_000
"""The most characters of a body that are shown; `evenflow dead-letters show --json` shows all of it."""


class DeadLetterList(Struct, frozen=True):
    """The readable dead letters of a group."""

    filed: Sequence[Filed]
    damage: str = ""
    """Why some could not be read."""


async def read_dead_letters(dead_letters: DeadLetters, group: Group) -> DeadLetterList:
    """Never raises for damaged records: their error is in `damage`."""
    try:
        return DeadLetterList(await read_filed(dead_letters, group))
    except Corrupt as error:
        return DeadLetterList((), str(error))


def dead_letters_facts(mail: DeadLetterList, start: int, *, every: bool) -> dict[str, Any]:
    """Newest first; only open ones unless `every`."""
    meant = [one for one in reversed(mail.filed) if every or one.is_open]
    rows = [_row(one) for one in meant[start : start + PAGE]]
    return {
        "total": len(meant),
        "all": len(mail.filed),
        "start": start,
        "dead_letters": rows,
        "damage": mail.damage or None,
    }


def dead_letter_facts(mail: DeadLetterList, name: str) -> dict[str, Any]:
    """One in full. Misconfigured when it does not exist."""
    found = next((one for one in mail.filed if one.dead_letter.id == name), None)
    if found is None:
        raise Misconfigured(f"There is no dead letter {name!r}. Its log may have been cleared since.")
    event = event_facts(found.dead_letter.event)
    for part in ("body", "body_base64"):
        if isinstance(text := event.get(part), str) and len(text) > BODY_MOST:
            event[part] = text[:BODY_MOST] + "…"
    verdicts = [asdict(verdict) for verdict in found.verdicts]
    return _row(found) | {"event": event, "traceback": found.dead_letter.traceback, "verdicts": verdicts}


def _row(filed: Filed) -> dict[str, Any]:
    dead_letter = filed.dead_letter
    return {
        "id": dead_letter.id,
        "partition": dead_letter.partition,
        "state": filed.state,
        "reason": dead_letter.reason,
        "error": filed.error,
        "key": dead_letter.event.key,
        "attempts": dead_letter.attempts,
        "tries": filed.number,
        "instance": dead_letter.instance,
        "epoch": show_epoch(dead_letter.epoch),
        "at": dead_letter.at or None,
    }
