"""The contract that every target of dead letters keeps, as tests: subclass it, and let pytest find it.

    class TestMyDeadLetters(DeadLettersContract):
        @asynccontextmanager
        async def letters(self):
            yield MyDeadLetters(url_of_an_empty_one), MyDeadLetters(the_same_url)

The contract itself is the docstring of `evenflow.ports.DeadLetters`. No plug-in is needed for the async tests; with
`pytest.register_assert_rewrite("evenflow.testing")` in a conftest.py, failures show the values that they compared.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

from evenflow.core.filed import fold
from evenflow.model import DeadLetter, Event, Group, Verdict
from evenflow.ports import DeadLetters

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from evenflow.model import DeadLetterRecord, PartitionId

LIMIT_S = 120.0
"""How long one test may take."""

WEST = timezone(timedelta(hours=-5))
ALERTS = Group("homes.example", "sensors", "alerts")
ODD_NAMES = (
    "",
    ".",
    "..",
    "/",
    "a/b",
    "a%2Fb",
    "CON",
    "A",
    "a",
    "x" * 300,
    "x" * 299 + "y",
    "Zürich 🚪",
    "nul\0l",
    "%",
)
EVENTS = [
    Event(b""),
    Event(b"door opened", "home-7", {}, 0, 1),
    Event("Tür auf\n\t\x00\u2028🚪".encode(), "Straße 7\n", {"$bytes": "no bytes"}, 2**62, 1_700_000_000_123_456),
    Event(bytes(range(256)), None, {"one": {"$map": 1}}, 3, 2**60, "0000:17"),
    Event(
        b'{"json": true}',
        "",
        {
            "text": "a\u0000b", "none": None, "yes": True, "number": -(2**63), "large": 2**64 - 1, "third": 1 / 3,
            "infinite": float("-inf"), "bytes": b"\x00\xff", "uuid": UUID(int=7), "decimal": Decimal("1.10"),
            "when": datetime(2026, 2, 3, 4, 5, 6, 789, UTC), "there": datetime(2026, 2, 3, tzinfo=WEST),
            "list": [1, [b"2", {"three": b"3"}]], "pair": (1, "2"), "map": {"a": {"b": [b"c"]}, "$d": 1},
            "by": {b"k": 1, 2: 3},
        },
        4,
    ),
]  # fmt: skip


def dead_letter(event: Event, partition: PartitionId = "0", **more: Any) -> DeadLetter:
    facts = {"reason": "poison", "error": "ValueError: no", "traceback": "Traceback\n  ...\nValueError: no\n"}
    return DeadLetter(
        **{"partition": partition, "event": event, "attempts": 3, "at": 1_700_000_000.123_4, **facts, **more}
    )


def numbered(start: int, stop: int, partition: PartitionId = "0", **more: Any) -> list[DeadLetterRecord]:
    return [dead_letter(Event(b"%d" % number, sequence=number), partition, **more) for number in range(start, stop)]


class Stage(ABC):
    @abstractmethod
    def dead_letters(self) -> AbstractAsyncContextManager[tuple[DeadLetters, DeadLetters]]:
        """Two clients of one empty target, as two processes would have them."""


def played(test: Callable[[Any, DeadLetters, DeadLetters], Awaitable[None]]) -> Callable[[Stage], None]:
    """Make an async test into a plain one that runs in a fresh event loop, with a fresh target."""

    async def main(stage: Stage) -> None:
        async with asyncio.timeout(LIMIT_S), stage.dead_letters() as (one, other):
            await test(stage, one, other)

    def run(self: Stage) -> None:
        asyncio.run(main(self))

    run.__name__, run.__qualname__, run.__doc__ = test.__name__, test.__qualname__, test.__doc__
    return run


async def read(
    dead_letters: DeadLetters, group: Group = ALERTS, partition: PartitionId | None = None
) -> list[DeadLetterRecord]:
    return [record async for record in dead_letters.read(group, partition)]


class DeadLettersContract(Stage):
    """Everything that a target of dead letters must do. A subclass has `dead letters`."""

    @played
    async def test_it_is_one(self, one: DeadLetters, other: DeadLetters) -> None:
        assert isinstance(one, DeadLetters)

    @played
    async def test_an_empty_one_has_nothing(self, one: DeadLetters, other: DeadLetters) -> None:
        await one.file(ALERTS, "0", [])
        assert await read(one) == await read(other, partition="0") == []

    @played
    async def test_what_was_filed_can_be_read_by_others_at_once(self, one: DeadLetters, other: DeadLetters) -> None:
        for number in range(3):
            await one.file(ALERTS, "0", numbered(number, number + 1))
            assert await read(other) == await read(one, partition="0") == numbered(0, number + 1)

    @played
    async def test_a_whole_event_comes_back(self, one: DeadLetters, other: DeadLetters) -> None:
        dead_letters = [dead_letter(event, instance="one#1", epoch=2**32 + 7) for event in EVENTS]
        await one.file(ALERTS, "0", dead_letters)
        found = await read(other)
        assert found == dead_letters
        kinds = [_kinds(record.event.properties) for record in found if isinstance(record, DeadLetter)]
        assert kinds == [_kinds(event.properties) for event in EVENTS], "equal is not enough: True is 1"

    @played
    async def test_errors_have_any_text(self, one: DeadLetters, other: DeadLetters) -> None:
        """A name of a file that is no UTF-8 is half characters in Python, and errors tell names of files."""
        odd = dead_letter(
            Event(b"x", sequence=1), error="no such file: \udcff\ud800 Ü\r\n", traceback="\x1b[31m\u2028\udcff"
        )
        await one.file(ALERTS, "0", [odd])
        assert await read(other) == [odd]

    @played
    async def test_verdicts_are_kept_beside_dead_letters_in_order(self, one: DeadLetters, other: DeadLetters) -> None:
        records = [*numbered(0, 2), Verdict(dead_letter="0@0", kind="again", by="me", why="mended", at=1.5, number=1)]
        records += [Verdict(dead_letter="0@0", kind="failed", number=1), Verdict(dead_letter="0@1", kind="dropped")]
        for record in records:
            await one.file(ALERTS, "0", [record])
        assert await read(other, partition="0") == records

    @played
    async def test_the_same_record_may_be_filed_twice(self, one: DeadLetters, other: DeadLetters) -> None:
        await one.file(ALERTS, "0", numbered(0, 3))
        await other.file(ALERTS, "0", numbered(1, 4))
        assert [filed.dead_letter for filed in fold(await read(one))] == numbered(0, 4)

    @played
    async def test_partitions_and_groups_are_kept_apart(self, one: DeadLetters, other: DeadLetters) -> None:
        groups = [ALERTS, Group("homes.example", "sensors", "other"), Group("homes.example", "sens", "orsalerts")]
        partitions = ("0", "1", "10")
        for group in groups:
            for partition in partitions:
                await one.file(group, partition, numbered(0, 2, partition, error=str(group)))
        for group in groups:
            each = {partition: numbered(0, 2, partition, error=str(group)) for partition in partitions}
            assert {partition: await read(other, group, partition) for partition in partitions} == each
            whole = await read(other, group)
            assert len(whole) == 6
            assert {
                partition: [
                    record for record in whole if isinstance(record, DeadLetter) and record.partition == partition
                ]
                for partition in partitions
            } == each
        assert await read(one, Group("", "", "")) == await read(one, ALERTS, "2") == []

    @played
    async def test_any_name_will_do(self, one: DeadLetters, other: DeadLetters) -> None:
        for name in ODD_NAMES:
            await one.file(Group(name, name, name), name, numbered(0, 1, name))
            await one.file(ALERTS, name, numbered(1, 2, name))
        for name in ODD_NAMES:
            assert await read(other, Group(name, name, name)) == numbered(0, 1, name)
            assert await read(other, ALERTS, name) == numbered(1, 2, name)

    @played
    async def test_many_file_at_once_and_each_ones_order_is_kept(self, one: DeadLetters, other: DeadLetters) -> None:
        async def file(dead_letters: DeadLetters, start: int) -> None:
            for number in range(start, start + 50, 5):
                await dead_letters.file(ALERTS, "0", numbered(number, number + 5))

        starts = range(0, 400, 50)
        await asyncio.gather(*[file(one if start % 100 else other, start) for start in starts])
        found = [record.event.sequence for record in await read(one) if isinstance(record, DeadLetter)]
        for start in starts:
            assert [number for number in found if number is not None and start <= number < start + 50] == list(
                range(start, start + 50)
            )
        for at in range(0, len(found), 5):
            assert found[at : at + 5] == list(range(found[at] or 0, (found[at] or 0) + 5)), "one call is one piece"

    @played
    async def test_a_large_dead_letter_and_many_small_ones(self, one: DeadLetters, other: DeadLetters) -> None:
        large: list[DeadLetterRecord] = [dead_letter(Event(b"\xff" * 3_000_000, sequence=-1))]
        await one.file(ALERTS, "0", large)
        await one.file(ALERTS, "0", numbered(0, 3_000))
        assert await read(other) == [*large, *numbered(0, 3_000)]

    @played
    async def test_a_reader_that_stops_early_leaves_nothing_behind(self, one: DeadLetters, other: DeadLetters) -> None:
        await one.file(ALERTS, "0", numbered(0, 10))
        records = other.read(ALERTS)
        assert await anext(records) == numbered(0, 1)[0]
        await records.aclose()  # type: ignore[attr-defined]
        assert len(await read(other)) == 10


def _kinds(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _kinds(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [type(value), *map(_kinds, value)]
    return type(value)
