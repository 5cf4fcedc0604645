"""The line SPENT of `evenflow status`."""

from __future__ import annotations

from msgspec.structs import replace

from evenflow.cli.views import StatusView, show_spent
from tests.unit.console.scenes import TTL_S, WALL_S, found, look_at, member

CHARGES = {
    "read feed": 1_200.25, "write lease": 300.5, "renew lease": 20.0, "read lease": 4.0, "read ranges": 1.0,
    "read container": 0.0,
}  # fmt: skip


def test_request_units_are_summed_up_with_their_age() -> None:
    look = look_at(found(members=[replace(member(1), charges=CHARGES), member(2)]))
    spent = "1,525.8 request units by 1 member: read feed 1,200.2, write lease 300.5, renew lease 20.0, others 5.0"
    assert show_spent(look) == f"{spent} (up to 20s old)"
    assert f"SPENT      {spent} (up to 20s old)" in StatusView(look).as_lines()


def test_a_silent_member_is_not_counted() -> None:
    gone = replace(member(1, heartbeat_at=WALL_S - 3 * TTL_S), charges=CHARGES)
    there = replace(member(2), charges={"read feed": 2.0, "read container": 0.0})
    look = look_at(found(members=[gone, there]))
    assert show_spent(look) == "2.0 request units by 1 member: read feed 2.0 (up to 20s old)"
    assert show_spent(look_at(found(members=[gone]))) == ""
    free = replace(member(1), charges={"read feed": 0.0})
    assert show_spent(look_at(found(members=[free]))) == "0.0 request units by 1 member (up to 20s old)"
