"""`evenflow dead-letters show`: shows everything about one dead letter."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from evenflow.cli.dead_letters.listing import dead_letter_facts, group_facts
from evenflow.cli.dead_letters.options import SourceUrl, check_exist, choice, opened, read_dead_letters, whose
from evenflow.cli.output import columns, json_time, print_json, printable, say, show, show_time
from evenflow.cli.selection import AsJson, DeadLettersUrl, GroupName, ProfileName, StoreUrl
from evenflow.model import show_epoch
from evenflow.operate.dead_letters.encoding import event_facts
from evenflow.operate.dead_letters.redrive import matching

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.core.filed import Filed
    from evenflow.errors import Corrupt
    from evenflow.model import Event, Group, Verdict

VERDICT_HEADERS = ("WHEN", "VERDICT", "TRY", "BY", "WHY")
HEX_BYTES = 16
HEX_LINES = 64


def show_dead_letter(
    dead_letter: Annotated[str, typer.Argument(metavar="ID", help="Id: PARTITION@OFFSET.", show_default=False)],
    dead_letters: DeadLettersUrl = None,
    store: StoreUrl = None,
    source: SourceUrl = None,
    group: GroupName = None,
    profile: ProfileName = None,
    as_json: AsJson = False,
) -> None:
    """Show everything about one dead letter: error, traceback, event and verdicts."""
    wanted = choice([dead_letter], None, None, "", None)
    selection = whose(dead_letters, store, source, group, profile)

    async def read() -> tuple[Group, list[Filed], Corrupt | None]:
        async with opened(selection) as at:
            return at.group, *await read_dead_letters(at)

    owner, filed, damage = asyncio.run(read())
    if damage is not None:
        say(f"error: {damage}")
    check_exist(wanted.ids, filed)
    (found,) = matching(filed, wanted)
    if as_json:
        print_json(_facts(owner, found))
    else:
        typer.echo("\n".join(_lines(owner, found)))
    if damage is not None:
        raise typer.Exit(1)


def _facts(group: Group, filed: Filed) -> dict[str, Any]:
    event = event_facts(filed.dead_letter.event)
    known = {name: event.get(name) for name in ("properties", "body", "body_base64")}
    verdicts = [
        {"verdict": one.kind, "try": one.number, "by": one.by or None, "why": one.why or None,
         "at": json_time(one.at or None)}
        for one in filed.verdicts
    ]  # fmt: skip
    whole = {
        "first_error": filed.dead_letter.error,
        "traceback": filed.dead_letter.traceback or None,
        "verdicts": verdicts,
    }
    return group_facts(group) | dead_letter_facts(filed) | known | whole


def _lines(group: Group, filed: Filed) -> list[str]:
    dead_letter, event = filed.dead_letter, filed.dead_letter.event
    tries = "1 try" if filed.number == 1 else f"{filed.number} tries"
    state = f"{filed.state}, after {tries}" if filed.number else filed.state
    facts: list[tuple[str, object]] = [
        ("ID", dead_letter.id),
        ("GROUP", group),
        ("STATE", state),
        ("PARTITION", dead_letter.partition),
        ("OFFSET", event.offset),
        ("SEQUENCE", event.sequence),
        ("ENQUEUED", show_time(event.enqueued_at) if event.enqueued_us else None),
        ("KEY", event.key),
        ("REASON", dead_letter.reason),
        ("ERROR", dead_letter.error),
        *([("LAST-ERROR", filed.error)] if filed.error != dead_letter.error else []),
        ("ATTEMPTS", dead_letter.attempts),
        ("INSTANCE", dead_letter.instance),
        ("EPOCH", show_epoch(dead_letter.epoch) if dead_letter.epoch else None),
        ("FILED", show_time(dead_letter.at or None)),
    ]
    lines = [f"{name:<10}  {printable(show(value))}" for name, value in facts]
    if event.properties:
        lines += ["", "PROPERTIES", *_property_lines(event)]
    lines += ["", f"BODY  {len(event.body)} bytes", *_body_lines(event.body)]
    if dead_letter.traceback:
        lines += ["", "TRACEBACK", *_text_lines(dead_letter.traceback)]
    if filed.verdicts:
        lines += ["", *columns(VERDICT_HEADERS, [_cells(one) for one in filed.verdicts], ("TRY",))]
    return lines


def _property_lines(event: Event) -> list[str]:
    properties = event_facts(event)["properties"]
    if "$map" in properties:
        properties = {str(name): value for name, value in properties["$map"]}
    return [
        printable(f"  {name}: {value if isinstance(value, str) else msgspec.json.encode(value).decode()}")
        for name, value in properties.items()
    ]


def _body_lines(body: bytes) -> list[str]:
    try:
        return _text_lines(body.decode())
    except UnicodeDecodeError:
        pass
    rows = [body[start : start + HEX_BYTES] for start in range(0, len(body), HEX_BYTES)]
    lines = [
        f"  {number * HEX_BYTES:08x}  {row.hex(' '):<{HEX_BYTES * 3}} {_seen(row)}"
        for number, row in enumerate(rows[:HEX_LINES])
    ]
    return [*lines, "  ... (the whole body with --json)"] if len(rows) > HEX_LINES else lines


def _seen(row: bytes) -> str:
    return "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)


def _text_lines(text: str) -> list[str]:
    return [f"  {printable(line.expandtabs())}" for line in text.rstrip("\n").split("\n")] if text else []


def _cells(verdict: Verdict) -> Sequence[object]:
    why = printable(verdict.why) or None
    return show_time(verdict.at or None), verdict.kind, verdict.number or None, printable(verdict.by), why
