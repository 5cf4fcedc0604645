"""What services charge an instance for is published seldom, and not at all where none does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from evenflow.model import CHARGES_HEARTBEATS, Member
from evenflow.runtime.charges import Bill
from evenflow.stores.memory import MemoryStore
from evenflow.testing.fakes import FakeFeed

if TYPE_CHECKING:
    from collections.abc import Mapping


class ChargedFeed(FakeFeed):
    spent = 0.0

    def charges(self) -> Mapping[str, float]:
        return {"read feed": self.spent} if self.spent else {}


def published(bill: Bill, feed: ChargedFeed, heartbeats: int, each: float) -> list[Mapping[str, float]]:
    """What so many heartbeats tell, while each costs so much."""
    me, told = Member(id="ada", nonce="n", ttl_s=8.0), list[dict[str, float]]()
    for _ in range(heartbeats):
        feed.spent += each
        if (news := bill.news(me)) is not None:
            me = replace(me, charges=news)
            told.append(news)
    return [*told]


def test_the_first_is_told_at_once_and_more_after_some_heartbeats() -> None:
    feed = ChargedFeed(1)
    told = published(Bill(feed, MemoryStore()), feed, 2 * CHARGES_HEARTBEATS + 1, 1.5)
    assert told == [
        {"read feed": 1.5 * heartbeats} for heartbeats in (1, 1 + CHARGES_HEARTBEATS, 1 + 2 * CHARGES_HEARTBEATS)
    ]


def test_what_did_not_change_is_no_news() -> None:
    feed = ChargedFeed(1)
    bill = Bill(feed, MemoryStore())
    feed.spent = 2.0
    me = Member(id="ada", nonce="n", ttl_s=8.0, charges=bill.news(Member(id="ada", nonce="n", ttl_s=8.0)))
    assert me.charges == {"read feed": 2.0}
    assert [bill.news(me) for _ in range(3 * CHARGES_HEARTBEATS)] == [None] * (3 * CHARGES_HEARTBEATS)


def test_who_is_charged_nothing_publishes_nothing() -> None:
    feed = ChargedFeed(1)
    assert published(Bill(feed, MemoryStore()), feed, 3 * CHARGES_HEARTBEATS, 0.0) == []
