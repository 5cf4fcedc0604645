from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from evenflow.embedded.hub import Hub, partition_of
from evenflow.embedded.hub.log import PartitionLog
from evenflow.errors import Misconfigured
from evenflow.model import Event

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from evenflow.embedded.hub import Sent
    from evenflow.embedded.hub.deduplication import PartitionSend


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with Hub.create(tmp_path / "hub", 4) as hub:
        yield hub


def send(hub: Hub, events: Any, **how: Any) -> tuple[Sent, ...]:
    return asyncio.run(hub.send(events, **how))


def stored(hub: Hub, partition: int) -> list[Event]:
    log = hub.opened().log(partition)
    return [event for row in log.read(-1, 1 << 40, 1 << 40).rows for event in log.events(row)]


def bodies(hub: Hub, partition: int) -> list[bytes]:
    return [event.body for event in stored(hub, partition)]


def test_a_send_says_where_the_events_are(hub: Hub) -> None:
    assert send(hub, [b"a", b"b"], partition=2) == (("2", 0, 1),)
    assert send(hub, b"c", partition="2") == (("2", 2, 2),)
    assert bodies(hub, 2) == [b"a", b"b", b"c"]


def test_nothing_to_send_is_no_mistake(hub: Hub) -> None:
    assert send(hub, []) == ()


def test_a_key_decides_the_partition_and_stays_with_the_event(hub: Hub) -> None:
    (sent,) = send(hub, [b"a", b"b"], key="home-1")
    assert sent.partition == str(partition_of("home-1", 4))
    assert {event.key for event in stored(hub, int(sent.partition))} == {"home-1"}


def test_an_events_own_key_wins(hub: Hub) -> None:
    sent = send(hub, [Event(b"own", "home-1"), Event(b"given"), b"given too"], key="home-7")
    numbers = [partition_of(key, 4) for key in ("home-1", "home-7")]
    assert numbers[0] != numbers[1], "keys of one partition show nothing"
    assert {part.partition for part in sent} == {str(number) for number in numbers}
    assert bodies(hub, numbers[0]) == [b"own"]
    assert [(event.body, event.key) for event in stored(hub, numbers[1])] == [
        (b"given", "home-7"),
        (b"given too", "home-7"),
    ]


def test_a_mixed_list_is_grouped_and_keeps_its_order_in_each_partition(hub: Hub) -> None:
    events = [Event(b"%d" % n, f"home-{n % 10}") for n in range(200)]
    sent = send(hub, events)
    assert sum(part.last - part.first + 1 for part in sent) == 200
    for partition in range(4):
        expected = [event.body for event in events if partition_of(event.key or "", 4) == partition]
        assert bodies(hub, partition) == expected


def test_events_without_a_key_take_turns_by_call(hub: Hub) -> None:
    partitions = [send(hub, [b"a", b"b"])[0].partition for _ in range(8)]
    assert partitions[:4] == partitions[4:]
    assert sorted(partitions[:4]) == ["0", "1", "2", "3"]


def test_keyless_events_of_a_mixed_list_stay_together(hub: Hub) -> None:
    sent = send(hub, [Event(b"a"), Event(b"k", "home-1"), Event(b"b")])
    keyless = [n for n in range(4) if b"a" in bodies(hub, n)]
    assert [body for body in bodies(hub, keyless[0]) if body != b"k"] == [b"a", b"b"]
    assert len(sent) <= 2


def test_properties_and_bodies_of_several_kinds_are_kept(hub: Hub) -> None:
    sent = [Event(b"a", None, {"n": 1}), "text é", bytearray(b"array"), memoryview(b"view"), Event("é")]  # type: ignore[arg-type]
    send(hub, sent, partition=0)
    assert bodies(hub, 0) == [b"a", "text é".encode(), b"array", b"view", "é".encode()]
    assert stored(hub, 0)[0].properties == {"n": 1}


def test_an_event_that_was_read_can_be_sent_again(hub: Hub) -> None:
    send(hub, Event(b"a", "k", {"n": 1}), partition=1)
    send(hub, stored(hub, 1), partition=2)
    again = stored(hub, 2)[0]
    assert (again.body, again.key, again.properties, again.sequence) == (b"a", "k", {"n": 1}, 0)


@pytest.mark.parametrize(
    ("events", "how", "message"),
    [
        (b"a", {"partition": 4}, "has no partition 4. It has 0 to 3"),
        (b"a", {"partition": -1}, "has no partition -1"),
        (b"a", {"partition": "one"}, "has no partition 'one'"),
        (b"a", {"partition": 1, "key": "k"}, "Both key and partition are given"),
        (b"a", {"key": 7}, "A key must be text"),
        (b"a", {"key": "\ud800"}, "UTF-8"),
        (Event(b"a", 7), {}, "A key must be text"),  # type: ignore[arg-type]
        (7, {}, "Cannot send int"),
        ([7], {}, "bytes or text, not int"),
        ([b"a", None], {}, "bytes or text, not NoneType"),
        (Event(7), {}, "bytes or text, not int"),  # type: ignore[arg-type]
        (Event(b"a", None, {"o": object()}), {}, "plain values"),
        (Event(b"a", None, {7: "seven"}), {}, "plain values"),  # type: ignore[dict-item]
        (Event(b"a", None, {"n": 1 << 70}), {}, "Cannot store these events"),
    ],
)
def test_what_cannot_be_sent_is_refused_whole(hub: Hub, events: Any, how: dict[str, Any], message: str) -> None:
    with pytest.raises(Misconfigured, match=message):
        send(hub, events, **how)
    assert [bodies(hub, n) for n in range(4)] == [[], [], [], []]


def test_an_event_that_is_too_large_is_refused(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evenflow.embedded.hub.records.EVENT_BYTES_MAX", 2_000_000)
    with pytest.raises(Misconfigured, match="an event has 2000001 bytes"):
        send(hub, [b"small", bytes(2_000_001)], partition=0)
    assert bodies(hub, 0) == []


class Transactions:
    """Counts the sends in each transaction."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        real = PartitionLog.append

        def append(
            log: PartitionLog,
            groups: Sequence[Sequence[Event]],
            now_us: int,
            marks: Sequence[PartitionSend | None] = (),
        ) -> list[tuple[int, int]]:
            self.sizes.append(len(groups))
            return real(log, groups, now_us, marks)

        monkeypatch.setattr(PartitionLog, "append", append)


def test_sends_at_the_same_time_share_transactions_and_keep_their_places(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    transactions = Transactions(monkeypatch)

    async def main() -> list[tuple[Sent, ...]]:
        async with hub.producer() as producer:
            sends = [producer.send([b"%d-0" % n, b"%d-1" % n], partition=0) for n in range(100)]
            return await asyncio.gather(*sends)

    answers = asyncio.run(main())
    assert len(transactions.sizes) < 20
    assert sum(transactions.sizes) == 100
    found = bodies(hub, 0)
    for n, ((_, first, last),) in enumerate(answers):
        assert found[first : last + 1] == [b"%d-0" % n, b"%d-1" % n]


def test_a_transaction_takes_only_so_many(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evenflow.embedded.hub.writer.GROUP_EVENTS", 5)
    transactions = Transactions(monkeypatch)

    async def main() -> None:
        await asyncio.gather(
            *[hub.send([b"x", b"y"], partition=0) for _ in range(20)], hub.send([b"z"] * 9, partition=0)
        )

    asyncio.run(main())
    assert max(transactions.sizes) == 2
    assert len(bodies(hub, 0)) == 49


def test_one_senders_mistake_is_not_the_others(hub: Hub) -> None:
    async def main() -> list[Any]:
        sends = [hub.send(b"%d" % n, partition=0) for n in range(5)]
        sends.insert(2, hub.send(Event(b"bad", None, {"n": 1 << 70}), partition=0))
        return await asyncio.gather(*sends, return_exceptions=True)

    answers = asyncio.run(main())
    assert isinstance(answers.pop(2), Misconfigured)
    assert sorted(sent.first for (sent,) in answers) == [0, 1, 2, 3, 4]
    assert sorted(bodies(hub, 0)) == [b"0", b"1", b"2", b"3", b"4"]


def test_each_sender_gets_an_error_of_its_own(hub: Hub) -> None:
    hub.opened().log(0).path.write_bytes(b"")

    async def main() -> list[Any]:
        return await asyncio.gather(*[hub.send(b"x", partition=0) for _ in range(3)], return_exceptions=True)

    errors = asyncio.run(main())
    assert len({id(error) for error in errors}) == 3
    assert all("is damaged" in str(error) for error in errors)
    assert send(hub, b"y", partition=1) == (("1", 0, 0),)


def test_several_event_loops_may_send(hub: Hub) -> None:
    for n in range(3):
        assert send(hub, b"x", partition=0) == (("0", n, n),)


def test_a_cancelled_send_does_not_affect_others(hub: Hub) -> None:
    async def main() -> tuple[Sent, ...]:
        cancelled = asyncio.create_task(hub.send(b"x", partition=0))
        await asyncio.sleep(0)
        cancelled.cancel()
        return await hub.send(b"y", partition=0)

    ((_, first, last),) = asyncio.run(main())
    assert bodies(hub, 0)[first : last + 1] == [b"y"]


def test_a_closed_hub_refuses(hub: Hub) -> None:
    async def main() -> None:
        async with hub.producer() as producer:
            await producer.send(b"x")
            await hub.aclose()
            with pytest.raises(Misconfigured, match="is closed"):
                await producer.send(b"y")

    asyncio.run(main())
    hub.close()


def test_closing_waits_for_what_is_being_sent(hub: Hub) -> None:
    async def main() -> Any:
        sending = [asyncio.create_task(hub.send(b"x", partition=n % 4)) for n in range(40)]
        await asyncio.sleep(0)
        await hub.aclose()
        return await asyncio.gather(*sending)

    assert len(asyncio.run(main())) == 40
    with Hub(hub.path) as again:
        assert sum(partition.count for partition in again.info().partitions) == 40
