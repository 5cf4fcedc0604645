"""The live table, drawn to fit: a pure function from a scene to lines, never wider or higher than the terminal.

At 80 x 24 the partitions stand in two columns; where there is room they stand in one, each with its reason.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.text import Text

from evenflow.cli.output import UNKNOWN, pad
from evenflow.model import show_epoch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.cli.demo.scene import ConsumerSight, PartitionSight, Scene
    from evenflow.operate.inspect.move_groups import MoveGroup

COLOURS = ("#56b4e9", "#e69f00", "#2fbf8f", "#cc79a7", "#b8a200", "#e8704a", "#8fa8ff")
"""Told apart by colour-blind people too, and readable on light and dark."""
QUIET = "bright_black"
BAD = "bold red"
HEAD = "bold"

HELP = "a add   s stop   k kill   q quit"
TOP = 2
MOVES_AT_LEAST = 4
LAG_NOTICED_S = 2.0
"""A lag of more than so many seconds' worth of events is coloured."""

PARTITION_HEADS = f"{'PART':>4}  {'OWNER':<13}{'EPOCH':>5}{'EV/S':>7}{'LAG':>7}"
CONSUMER_HEADS = f"{'CONSUMER':<14}{'PARTITIONS':<20}{'EV/S':>7}   LAST HEARTBEAT"
MOVE_HEADS = f"{'LAST MOVES':<12}{'FROM → TO':<27}{'PART':>4}  WHY"


def draw(scene: Scene, width: int, height: int, *, keys: bool = True) -> Text:
    bottom = [Text(), Text(scene.note, HEAD), _footer(scene, width, keys=keys)]
    room = height - len(bottom)
    consumers = [Text(CONSUMER_HEADS, HEAD), *(_consumer(sight) for sight in scene.consumers)]
    moves = [Text(MOVE_HEADS, HEAD), *(_move(move) for move in scene.moves)]
    is_tall = room >= TOP + len(scene.partitions) + 1 + 1 + len(consumers) + 1 + MOVES_AT_LEAST
    partitions = _one_column(scene.partitions) if is_tall else _two_columns(scene.partitions)
    lines = [_title(scene, width), Text(), *partitions, Text(), *consumers, Text(), *moves][: max(0, room)]
    lines += [Text() for _ in range(room - len(lines))]
    for line in [*lines, *bottom]:
        line.truncate(width, overflow="ellipsis")
    return Text("\n", no_wrap=True, overflow="crop").join([*lines, *bottom])


def colour_of(consumer: str | None) -> str:
    number = (consumer or "").rpartition("-")[2]
    return COLOURS[(int(number) - 1) % len(COLOURS)] if number.isdecimal() else BAD


def _title(scene: Scene, width: int) -> Text:
    text = Text.assemble(("evenflow demo", HEAD), "   ")
    for label, value in (
        ("sent/s", f"{scene.sent_per_s:,.0f}"),
        ("handled/s", f"{scene.handled_per_s:,.0f}"),
        ("lag", f"{scene.lag:,}"),
    ):
        text.append(f"{label} ", QUIET).append(f"{value:<8}", HEAD)
    clock = _clock(scene.elapsed_s) if scene.seconds is None else _clock(scene.elapsed_s) + f" of {scene.seconds:g} s"
    return _spread(text, Text(clock, QUIET), width)


def _footer(scene: Scene, width: int, *, keys: bool) -> Text:
    right = Text.assemble(("sent ", QUIET), f"{scene.sent:,}  ", ("handled twice ", QUIET))
    right.append(str(scene.tally.twice), BAD if scene.tally.twice else "")
    if scene.tally.again:
        right.append("  again ", QUIET).append(f"{scene.tally.again:,}")
    return _spread(Text(HELP if keys else "Ctrl-C ends it", QUIET), right, width)


def _spread(left: Text, right: Text, width: int) -> Text:
    """One at the left edge, one at the right; the left one is cut when there is no room for both."""
    left = left.copy()
    left.truncate(max(0, width - right.cell_len - 2), overflow="ellipsis")
    return Text.assemble(left, " " * max(1, width - left.cell_len - right.cell_len), right)


def _one_column(partitions: Sequence[PartitionSight]) -> list[Text]:
    lines = [Text(PARTITION_HEADS + "  WHY", HEAD)]
    return lines + [Text.assemble(_partition(sight), "  ", (_why(sight), QUIET)) for sight in partitions]


def _two_columns(partitions: Sequence[PartitionSight]) -> list[Text]:
    half = (len(partitions) + 1) // 2
    lines = [Text(f"{PARTITION_HEADS}   {PARTITION_HEADS}", HEAD)]
    for at in range(half):
        line = _partition(partitions[at])
        if at + half < len(partitions):
            line = Text.assemble(line, "   ", _partition(partitions[at + half]))
        lines.append(line)
    return lines


def _partition(sight: PartitionSight) -> Text:
    text = Text(f"{sight.id:>4}  ")
    owner = sight.owner or "nobody"
    text.append(*((pad(f"{owner} ✗", 13), BAD) if sight.astray else (pad(owner, 13), colour_of(owner))))
    epoch = UNKNOWN if sight.epoch is None else show_epoch(sight.epoch)
    text.append(f"{epoch:>5}{sight.per_s:>7,.0f}")
    late = sight.lag > max(100.0, sight.per_s * LAG_NOTICED_S)
    return text.append(f"{sight.lag:>7,}", "yellow" if late else "")


def _why(sight: PartitionSight) -> str:
    return sight.reason if sight.status == "ok" else f"{sight.status}; {sight.reason}" if sight.reason else sight.status


def _consumer(sight: ConsumerSight) -> Text:
    colour = colour_of(sight.name)
    text = Text(pad(sight.name, 14), colour)
    text.append(pad("■" * min(sight.partitions, 16), 17), colour).append(f"{sight.partitions:<3}")
    text.append(f"{sight.per_s:>7,.0f}   ")
    return text.append(*_life(sight))


def _life(sight: ConsumerSight) -> tuple[str, str]:
    if sight.fate == "running":
        return (f"{sight.silent_s:.1f} s ago", "") if sight.silent_s is not None else ("starting", QUIET)
    if sight.fate == "stopping":
        return "hands over what it has", "yellow"
    if sight.partitions and sight.silent_s is not None:
        return f"{sight.fate}: silent {sight.silent_s:.1f} of {sight.ttl_s:g} s", BAD
    return sight.fate, QUIET


def _move(move: MoveGroup) -> Text:
    at = datetime.fromtimestamp(move.at, UTC).astimezone().strftime("%H:%M:%S")
    count = len(move.partitions)
    text = Text.assemble((f"{at:<12}", QUIET), _name(move.before), (" → ", QUIET), _name(move.after))
    text.append(" " * max(1, 39 - text.cell_len))
    text.append(f"{move.partitions[0] if count == 1 else f'×{count}':>4}  ")
    return text.append(_shorter(move), QUIET)


def _shorter(move: MoveGroup) -> str:
    """The reason, without the name that stands before it anyway."""
    reason = move.reason
    if move.before is not None:
        reason = reason.replace(f": {move.before} had", ": had").replace(f" of {move.before} ", " ")
    return reason


def _name(consumer: str | None) -> tuple[str, str]:
    return (consumer, colour_of(consumer)) if consumer is not None else ("nobody", QUIET)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02}"
