"""What the demo shows: moves told as one, rates that do not jump, a table that always fits."""

from __future__ import annotations

from typing import Any

import pytest

from evenflow.cli.demo.accounts import Tally
from evenflow.cli.demo.lines import move_lines, progress_line, summary_lines
from evenflow.cli.demo.scene import ConsumerSight, PartitionSight, Rates, Scene
from evenflow.cli.demo.screen import COLOURS, colour_of, draw
from evenflow.cli.demo.script import announcement, cues
from evenflow.cli.demo.session import Summary
from evenflow.model import Move
from evenflow.operate.inspect.move_groups import group_moves


def move(partition: str, at: float = 100.0, reason: str = "handed over: ada had 6, its share is 4", **way: Any) -> Move:
    return Move(partition=partition, epoch=2, reason=reason, at=at, **{"before": "ada", "after": "bo", **way})


def handover(partition: str) -> Move:
    return move(
        partition, reason="handed over: consumer-1 had 16, its share is 4", before="consumer-1", after="consumer-12"
    )


def consumer(number: int, **facts: Any) -> ConsumerSight:
    usual = {"fate": "running", "partitions": 4, "per_s": 1_750.0, "silent_s": 0.4, "ttl_s": 8.0}
    return ConsumerSight(name=f"consumer-{number}", **{**usual, **facts})


def partition(number: int, **facts: Any) -> PartitionSight:
    usual = {"owner": f"consumer-{number % 4 + 1}", "epoch": 3, "per_s": 437.0, "lag": 12, "astray": False}
    return PartitionSight(id=str(number), reason="claimed: nobody owned it", status="ok", **{**usual, **facts})


def scene(count: int = 4, **facts: Any) -> Scene:
    usual: dict[str, Any] = {
        "elapsed_s": 61.0,
        "seconds": None,
        "sent": 1_234_567,
        "sent_per_s": 7_000.0,
        "handled_per_s": 6_990.0,
        "lag": 192,
        "tally": Tally(handled=1_234_375, lost=192),
        "partitions": [partition(number) for number in range(16)],
        "consumers": [consumer(number + 1) for number in range(count)],
        "moves": group_moves([handover(str(number)) for number in range(16)]),
        "note": "consumer-4 added",
    }
    return Scene(**usual | facts)


def lines_of(shown: Scene, width: int = 80, height: int = 24) -> list[str]:
    return draw(shown, width, height).plain.split("\n")


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (200, 60), (40, 10), (20, 3)])
@pytest.mark.parametrize("consumers", [1, 4, 12])
def test_the_table_fills_the_terminal_and_never_more(width: int, height: int, consumers: int) -> None:
    lines = lines_of(scene(consumers), width, height)
    assert len(lines) == height
    assert max(map(len, lines)) <= width


def test_at_80_by_24_all_partitions_and_the_keys_are_there() -> None:
    text = "\n".join(lines_of(scene()))
    assert all(f"{number:>4}  consumer-" in text for number in range(16))
    assert "a add   s stop   k kill   q quit" in text
    assert "consumer-1 → consumer-12" in text
    assert "consumer-4 added" in text
    assert "…" not in text


def test_where_there_is_room_each_partition_says_why_it_is_where_it_is() -> None:
    assert sum("claimed: nobody owned it" in line for line in lines_of(scene(), 120, 40)) == 16


def test_a_partition_without_a_living_owner_is_marked() -> None:
    sights = [partition(0, owner=None, astray=True), partition(1, owner="consumer-1", astray=True), partition(2)]
    text = "\n".join(lines_of(scene(partitions=sights)))
    assert "nobody ✗" in text
    assert "consumer-1 ✗" in text
    assert text.count("✗") == 2


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({}, "0.4 s ago"),
        ({"silent_s": None}, "starting"),
        ({"fate": "stopping"}, "hands over what it has"),
        ({"fate": "killed", "silent_s": 3.5}, "killed: silent 3.5 of 8 s"),
        ({"fate": "killed", "partitions": 0}, "killed"),
        ({"fate": "died", "partitions": 0}, "died"),
    ],
)
def test_a_consumer_is_described_in_words(facts: dict[str, Any], words: str) -> None:
    (line,) = [line for line in lines_of(scene(consumers=[consumer(1, **facts)])) if line.startswith("consumer-1 ")]
    assert line.endswith(f"   {words}")


def test_every_consumer_has_its_colour_again_and_again() -> None:
    colours = [colour_of(f"consumer-{number}") for number in range(1, len(COLOURS) + 2)]
    assert len(set(colours)) == len(COLOURS)
    assert colours[0] == colours[-1]


def test_moves_of_one_way_and_one_time_are_told_as_one() -> None:
    moves = [
        move("7", at=110.0),
        move("5", at=101.0, reason="handed over: ada had 5, its share is 4"),
        move("1", at=100.5, after="cy"),
        move("3", at=100.0),
        move("9", at=100.0, reason="taken over: no heartbeat of ada for 8.0 s"),
    ]
    told = [(sight.after, sight.partitions, sight.reason) for sight in group_moves(moves)]
    assert told == [
        ("bo", ("7",), "handed over: ada had 6, its share is 4"),
        ("bo", ("5", "3"), "handed over: ada had 6, its share is 4"),
        ("cy", ("1",), "handed over: ada had 6, its share is 4"),
        ("bo", ("9",), "taken over: no heartbeat of ada for 8.0 s"),
    ]
    assert move_lines(moves)[0] == "  ada -> bo: 9 (taken over: no heartbeat of ada for 8.0 s)"
    assert move_lines(moves)[2] == "  ada -> bo: 3, 5 (handed over: ada had 6, its share is 4)"


def test_rates_are_taken_over_the_last_few_seconds() -> None:
    rates = Rates(over_s=3.0)
    assert rates.per_s("0") == 0.0
    for second in range(10):
        rates.add(float(second), {"0": 100 * second if second < 5 else 400})
    assert rates.per_s("0") == 0.0
    rates.add(10.0, {"0": 700, "new": 30})
    assert rates.per_s("0") == 100.0
    assert rates.per_s("new") == 10.0


def test_the_script_plays_in_quarters_and_says_so() -> None:
    assert [(cue.at_s, cue.action) for cue in cues(20)] == [(5, "add"), (10, "kill"), (15, "stop")]
    assert announcement(20) == "It adds a consumer after 5 s, kills one (SIGKILL) after 10 s, and stops one after 15 s."
    assert [cue.at_s for cue in cues(None)] == [15, 30, 45]


def test_without_a_terminal_there_are_lines() -> None:
    line = progress_line(scene(2))
    assert line.startswith("sent 1,234,567  handled 1,234,375  lag 192  6,990/s")
    assert line.endswith("consumer-1 has 4, consumer-2 has 4")


def test_the_summary_has_everything_in_it() -> None:
    tally = Tally(handled=90, lost=1, twice=2, again=3)
    text = "\n".join(
        summary_lines(Summary(sent=91, tally=tally, moves={"taken over": 4, "claimed": 16}, died=("consumer-2: oh",)))
    )
    figures = {line[:22].strip(): line[22:34].strip() for line in text.split("\n")[:6]}
    assert figures == {
        "events sent": "91",
        "handled": "90",
        "lost": "1",
        "handled twice": "2",
        "handled again": "3",
        "moves": "20",
    }
    assert "16 claimed, 4 taken over" in text
    assert "died by itself: consumer-2: oh" in text
