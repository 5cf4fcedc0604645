"""What a program that embeds the console adds to it: buttons that call it, and figures of its own.

    Console(subject, clock, offers=[CustomAction(name="add", label="Add an instance", run=add)], figures=count)

An offer is shown only where actions are allowed, asks for the token like every action, and is recorded like one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from msgspec import Struct

from evenflow.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from evenflow.model import Group
    from evenflow.operate.steer import Operator

ActionScope: TypeAlias = Literal["group", "instance", "partition"]


class ActionCall(Struct, frozen=True, kw_only=True):
    """One press of a button."""

    group: Group
    subject: str
    """The instance or partition that it is about; "" for the whole group."""
    who: Operator


class ActionResult(Struct, frozen=True, kw_only=True):
    """What was done, with a place to look at it."""

    text: str
    link: str
    """A path on the same server, as /homes/42."""

    def __post_init__(self) -> None:
        if not self.link.startswith("/") or self.link.startswith("//"):
            raise Misconfigured(f"A link is a path on this server, as /homes/42; not {self.link!r}.")


class CustomAction(Struct, frozen=True, kw_only=True):
    """One more action, shown as a button."""

    name: str
    """Of the action in the record and in the URL: letters, digits and dashes."""
    label: str
    run: Callable[[ActionCall], Awaitable[str | ActionResult | None]]
    """Does it, and returns a sentence about what was done. An EvenflowError is shown to whoever asked."""
    about: ActionScope = "group"
    """Where the button stands: by the group, or by each instance or partition."""
    hint: str = ""
    """A sentence on what it does."""
    danger: bool = False
    """It does harm on purpose."""
    groups: tuple[str, ...] = ()
    """The names of the groups that it is for; none are all."""
    subjects: Callable[[Group], Sequence[str]] | None = None
    """The instances or partitions that it can be done to now; None: all. Called with every look, as figures are."""
    sure: bool = True
    """Ask whether the person is sure."""

    def is_for(self, group: Group) -> bool:
        return not self.groups or group.name in self.groups


class CustomFigure(Struct, frozen=True, kw_only=True):
    """A number that only the embedding program knows."""

    label: str
    value: int | float | str | None
    """None is unknown, and shown as such."""
    note: str = ""
    mood: Literal["plain", "good", "bad"] = "plain"


CustomFigures: TypeAlias = "Callable[[Group], Sequence[CustomFigure]]"
"""Called with every look; quick, and without I/O."""
