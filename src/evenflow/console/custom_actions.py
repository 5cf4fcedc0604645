"""Actions and figures that a program adds when it embeds the console.

    Console(subject, clock, actions=[CustomAction(name="add", label="Add an instance", run=add)], figures=count)

Custom actions are shown only where actions are allowed, require the token, and are recorded, like built-in ones.
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
    """One call of a custom action."""

    group: Group
    subject: str
    """The instance or partition; "" for the whole group."""
    who: Operator


class ActionResult(Struct, frozen=True, kw_only=True):
    """What was done, with a link to the result."""

    text: str
    link: str
    """A path on the same server, for example /homes/42."""

    def __post_init__(self) -> None:
        if not self.link.startswith("/") or self.link.startswith("//"):
            raise Misconfigured(f"The link {self.link!r} is not a path on this server. Use one such as /homes/42.")


class CustomAction(Struct, frozen=True, kw_only=True):
    """An additional action, shown as a button."""

    name: str
    """In the record and in the URL: letters, digits and dashes."""
    label: str
    run: Callable[[ActionCall], Awaitable[str | ActionResult | None]]
    """Does it, and returns a sentence about the result. An EvenflowError is shown to the operator."""
    about: ActionScope = "group"
    """Where the button is: with the group, or with each instance or partition."""
    hint: str = ""
    """A sentence that says what it does."""
    danger: bool = False
    """It is destructive: the button is red."""
    groups: tuple[str, ...] = ()
    """The names of the groups that have it; empty: all."""
    subjects: Callable[[Group], Sequence[str]] | None = None
    """The instances or partitions that it applies to now; None: all. Called for every snapshot, as figures are."""
    confirm: bool = True
    """Ask for confirmation first."""

    def applies_to(self, group: Group) -> bool:
        return not self.groups or group.name in self.groups


class CustomFigure(Struct, frozen=True, kw_only=True):
    """A number that the embedding program provides."""

    label: str
    value: int | float | str | None
    """None is shown as unknown."""
    note: str = ""
    mood: Literal["plain", "good", "bad"] = "plain"


CustomFigures: TypeAlias = "Callable[[Group], Sequence[CustomFigure]]"
"""Called for every snapshot; must be quick, without I/O."""
