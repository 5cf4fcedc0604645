"""What is remembered of looks, and for how long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from evenflow.console.history import LARGE, GroupHistory, spread
from evenflow.operate.inspect.watcher import GroupWatcher
from tests.unit.console.scenes import WALL_S, found, lease, look_at, member, record

if TYPE_CHECKING:
    from evenflow.operate.inspect.survey import Survey


def survey(lag: int | None, partitions: int = 2, mark: int = 1) -> Survey:
    names = [str(number) for number in range(partitions)]
    newest = {} if lag is None else dict.fromkeys(names, 100 + lag)
    leases = [lease(name, 1) for name in names]
    return found(members=[member(1, mark)], leases=leases, records=[record(name, 100) for name in names], newest=newest)


def test_lag_is_remembered_for_each_partition_and_unknown_stays_unknown() -> None:
    history = GroupHistory(60.0)
    for number, lag in enumerate((5, None, 7)):
        history.note(look_at(survey(lag), number * 2.0))
    shown = history.series(large=False, owners=[])
    assert shown["at"] == [WALL_S, WALL_S + 2, WALL_S + 4]
    assert shown["lag"] == {"0": [5, None, 7], "1": [5, None, 7]}


def test_the_lag_of_what_has_ended_stays_known_for_as_long_as_the_others() -> None:
    history, over = GroupHistory(60.0), replace(lease("1", None, 2), ended=True)
    history.note(look_at(survey(5)))
    after = found(members=[member(1)], leases=[lease("0", 1), over], records=[record("0", 100)], newest={"0": 107})
    history.note(look_at(after, 2.0))
    assert history.series(large=False, owners=[])["lag"] == {"0": [5, 7], "1": [5, None]}
    assert history.series(large=True, owners=["node-1"])["shares"] == [[2, 1], [0, 0]]


def test_what_is_older_than_the_window_is_forgotten() -> None:
    history = GroupHistory(10.0)
    for number in range(40):
        history.note(look_at(survey(number), number * 1.0))
    assert history.series(large=False, owners=[])["lag"]["0"] == list(range(29, 40))


def test_looks_that_come_too_fast_are_passed_over() -> None:
    history = GroupHistory(600.0)
    for number in range(10):
        history.note(look_at(survey(1, partitions=LARGE), number * 1.0))
    assert len(history.series(large=False, owners=[])["at"]) == 2


def test_of_a_crowd_only_the_spread_and_the_shares_are_kept() -> None:
    history = GroupHistory(600.0)
    history.note(look_at(survey(3, partitions=LARGE + 1)))
    shown = history.series(large=True, owners=["node-1"])
    assert shown["spread"] == [[3], [3], [3]]
    assert shown["shares"] == [[LARGE + 1], [0]]


def test_the_spread_of_lags() -> None:
    assert spread(list(range(100))) == (50, 95, 99)
    assert spread([]) == (None, None, None)


def test_the_longest_silence_of_an_instance_is_its_closest_shave() -> None:
    history, watcher = GroupHistory(60.0), GroupWatcher()
    for now_s, mark in ((0.0, 1), (1.0, 2), (5.0, 2), (6.0, 3), (7.0, 4)):
        history.note(look_at(survey(1, mark=mark), now_s, watcher))
    assert history.longest_silence_s("node-1") == 4.0
    assert history.longest_silence_s("node-9") is None
