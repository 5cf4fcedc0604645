"""What a demo does by itself when nobody sits in front of it: adds a consumer, kills one, stops one."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

Action: TypeAlias = Literal["add", "kill", "stop"]

LENGTH_S = 60.0
"""Of the play, when the demo has no end of its own."""


class Cue(NamedTuple):
    at_s: float
    action: Action


def cues(seconds: float | None) -> list[Cue]:
    length_s = LENGTH_S if seconds is None else seconds
    return [Cue(length_s / 4, "add"), Cue(length_s / 2, "kill"), Cue(length_s * 3 / 4, "stop")]


def announcement(seconds: float | None) -> str:
    first, second, third = (f"{cue.at_s:g} s" for cue in cues(seconds))
    return f"It adds a consumer after {first}, kills one (SIGKILL) after {second}, and stops one after {third}."
