"""Where a receiver begins, who may read a partition, what a token grants, what an address names."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

import pytest

from evenflow.amqp.conditions import AmqpError
from evenflow.amqp.types import Described
from evenflow.embedded.hub import Hub
from evenflow.emulators.eventhubs.addresses import EntityAddress, covers, parse_entity, parse_path
from evenflow.emulators.eventhubs.claims import ConnectionClaims
from evenflow.emulators.eventhubs.faults import EventHubsFaultOptions, EventHubsFaults
from evenflow.emulators.eventhubs.receivers import ReceiverRegistry
from evenflow.emulators.eventhubs.selector import StartPosition, after, parse, start_of
from evenflow.model import Event

if TYPE_CHECKING:
    from pathlib import Path

NAME = "apache.org:selector-filter:string"


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("amqp.annotation.x-opt-offset > '-1'", StartPosition("offset", "-1", False)),
        ("amqp.annotation.x-opt-offset > '@latest'", StartPosition("offset", "@latest", False)),
        ("amqp.annotation.x-opt-offset >= '100'", StartPosition("offset", "100", True)),
        ("amqp.annotation.x-opt-sequence-number > '7'", StartPosition("sequence", "7", False)),
        ("amqp.annotation.x-opt-sequence-number >= 7", StartPosition("sequence", "7", True)),
        ("amqp.annotation.x-opt-sequence-number > '@latest'", StartPosition("sequence", "@latest", False)),
        ("amqp.annotation.x-opt-enqueued-time > '1700000000000'", StartPosition("time", "1700000000000", False)),
        ("amqp.annotation.x-opt-enqueued-time >= '1700000000000.25'", StartPosition("time", "1700000000000", True)),
        (b"amqp.annotation.x-opt-enqueuedtimeutc > 5", StartPosition("time", "5", False)),
    ],
)
def test_selectors_of_all_clients_are_understood(text: Any, start: StartPosition) -> None:
    assert parse(text) == start
    assert start_of({NAME: Described(NAME, text)}) == start
    assert start_of({NAME: text}) == start


def test_without_a_selector_it_is_the_beginning() -> None:
    assert start_of({}) == start_of({"other": 1}) == StartPosition("offset", "-1", False)


@pytest.mark.parametrize("text", [None, 5, "", "x > 1", "amqp.annotation.x-opt-offset > ''", "a" * 10_000])
def test_other_selectors_are_refused(text: Any) -> None:
    with pytest.raises(AmqpError, match="argument-error"):
        parse(text)


def test_positions(tmp_path: Path) -> None:
    async def act() -> None:
        times = iter(range(1_000_000, 9_000_000, 1_000_000))
        hub = Hub.create(tmp_path / "h", 1, wall_us=lambda: next(times, 9_000_000))
        async with hub:
            for n in range(4):
                await hub.send([Event(b"%d" % n)], partition=0)
            log = hub.opened().log(0)
            written = [log.enqueued_us(n - 1) or 0 for n in range(4)]
            log.remove_before(1)

            def found(text: str) -> int:
                return after(parse(f"amqp.annotation.x-opt-{text}"), log)

            assert found("offset > '-1'") == found("offset >= '-1'") == 0
            assert found("offset > '@latest'") == found("sequence-number > '@latest'") == 3
            assert (found("offset > '2'"), found("offset >= '2'")) == (2, 1)
            assert found("sequence-number > '0'") == found("sequence-number > '-5'") == 0
            assert found("sequence-number >= '4'") == found("sequence-number > '3'") == 3
            assert found(f"enqueued-time > '{written[2] // 1000}'") == 2
            assert found(f"enqueued-time >= '{written[2] // 1000}'") == 1
            assert found("enqueued-time > '99999999999999999999'") == 3
            assert found("enqueued-time > '-5'") == 0
            for text in ("sequence-number > '4'", "offset >= '5'"):
                with pytest.raises(AmqpError, match="argument-error"):
                    found(text)

    asyncio.run(act())


class Receiver:
    def __init__(self, epoch: int | None) -> None:
        self.epoch = epoch
        self.receiver_name = "nil"
        self.condition = ""

    def detach(self, error: AmqpError | None = None) -> None:
        assert error is not None
        self.condition = error.condition


def test_the_highest_epoch_reads_alone() -> None:
    receivers = ReceiverRegistry()
    plain, low, same, high = Receiver(None), Receiver(1), Receiver(1), Receiver(2)
    receivers.admit("p", plain)
    receivers.admit("p", low)
    assert plain.condition == "amqp:link:stolen"
    receivers.leave("p", plain)
    receivers.admit("p", same)
    assert low.condition == "amqp:link:stolen"
    receivers.leave("p", low)
    receivers.admit("p", high)
    receivers.leave("p", same)
    for late in (Receiver(1), Receiver(None)):
        with pytest.raises(AmqpError, match="amqp:link:stolen"):
            receivers.admit("p", late)
    assert high.condition == ""
    receivers.admit("other partition", Receiver(None))
    receivers.leave("p", high)
    receivers.admit("p", Receiver(0))


def test_a_refused_newcomer_leaves_no_trace() -> None:
    receivers = ReceiverRegistry()
    holder = Receiver(5)
    receivers.admit("p", holder)
    for _ in range(3):
        with pytest.raises(AmqpError):
            receivers.admit("p", Receiver(4))
    receivers.leave("p", holder)
    receivers.leave("p", holder)
    receivers.admit("p", Receiver(None))


@pytest.mark.parametrize(
    ("address", "path", "place"),
    [
        ("homes", ("homes",), EntityAddress("homes")),
        ("amqps://host/homes", ("homes",), EntityAddress("homes")),
        ("amqp://host:5672/homes/Partitions/3", ("homes", "Partitions", "3"), EntityAddress("homes", "3")),
        ("homes/consumergroups/$Default/partitions/3", None, EntityAddress("homes", "3", "$Default")),
        ("homes/elsewhere", None, None),
        ("sb://host", (), None),
        ("", (), None),
        ("a/b/c/d", None, None),
    ],
)
def test_addresses(address: str, path: Any, place: EntityAddress | None) -> None:
    assert parse_entity(parse_path(address)) == place
    if path is not None:
        assert parse_path(address) == path


def test_a_right_to_a_path_is_one_to_all_below_it() -> None:
    assert covers((), ("homes",))
    assert covers(("Homes",), ("homes", "Partitions", "1"))
    assert not covers(("homes", "Partitions", "1"), ("homes",))
    assert not covers(("home",), ("homes",))


def test_without_keys_everybody_may() -> None:
    claims = ConnectionClaims({})
    claims.put("anything", "jwt", "sb://host/homes")
    assert claims.until_s(("homes",)) == math.inf


def test_with_keys_a_connection_needs_a_token() -> None:
    claims = ConnectionClaims({"app": "key"})
    assert claims.until_s(("homes",)) == 0
    for token, kind in [("x", "jwt"), (5, "servicebus.windows.net:sastoken")]:
        with pytest.raises(AmqpError, match="auth-failed"):
            claims.put(token, kind, "sb://host/homes")


def test_faults_go_by_the_count() -> None:
    async def act() -> None:
        busy = EventHubsFaults(EventHubsFaultOptions(busy=0.25))
        assert [busy.is_busy() for _ in range(8)] == [False, False, False, True] * 2
        throttled = EventHubsFaults(EventHubsFaultOptions(throttle=10.0))
        assert throttled.receivable_events(1_000) == 10
        assert throttled.receivable_events(1_000) == 0
        assert throttled.allows_send(10)
        assert not throttled.allows_send(1)
        calm = EventHubsFaults()
        assert not calm.is_busy()
        assert calm.allows_send(1_000_000)

    asyncio.run(act())
