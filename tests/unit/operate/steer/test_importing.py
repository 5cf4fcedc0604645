"""Leases of EventProcessorHosts: how each of them writes its own, and what becomes of the checkpoints in them."""

from __future__ import annotations

import asyncio
import json

import pytest

from evenflow import Misconfigured, PositionOutOfRange
from evenflow.model import Group, Position
from evenflow.operate.steer.importing import HostLease, host_lease, import_checkpoints, plan_import
from evenflow.operate.steer.operator import Operator
from evenflow.runtime.clock import system_clock
from evenflow.stores.memory import MemoryStore
from evenflow.testing.fakes import FakeSource

GROUP = Group("fake", "fake", "alerts")
DOTNET = {"PartitionId": "1", "Owner": "host-7", "Token": "guid", "Epoch": 4, "Offset": "30064771072"}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({**DOTNET, "SequenceNumber": 7}),
        json.dumps({"partitionId": "1", "owner": "host-7", "epoch": 4, "offset": "30064771072", "sequenceNumber": 7}),
        json.dumps({"partition_id": 1, "owner": "host-7", "epoch": "4", "offset": 30064771072, "sequence_number": "7"}),
        "\ufeff" + json.dumps({**DOTNET, "SequenceNumber": 7}),
    ],
)
def test_every_hosts_lease_is_understood(text: str) -> None:
    expected = HostLease(partition="1", offset="30064771072", sequence=7, owner="host-7", epoch=4)
    assert host_lease("alerts/1", text.encode()) == expected


def test_a_lease_without_a_checkpoint_has_no_offset() -> None:
    assert host_lease("0", b'{"PartitionId":"0","Offset":null,"SequenceNumber":0}').offset is None


def of_zero(more: str) -> bytes:
    return b'{"PartitionId":"0","Offset":"7",%s}' % more.encode()


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"no json", b"[]", b"7", b"{}", b'{"Offset":"1"}', b'{"PartitionId":"0","Epoch":"x"}'),
        *map(of_zero, ('"SequenceNumber":1e400', '"SequenceNumber":NaN', '"SequenceNumber":1.5', '"Epoch":1e400')),
        *map(of_zero, ('"SequenceNumber":true', '"SequenceNumber":[7]', '"PartitionId":{}', '"Offset":[1]')),
        b"[" * 100_000,
        b'{"PartitionId":' * 100_000,
        of_zero('"SequenceNumber":' + "9" * 5_000),
    ],
    ids=lambda text: text[:60].decode(),
)
def test_an_invalid_lease_is_reported_with_its_name(text: bytes) -> None:
    with pytest.raises(Misconfigured, match="container/alerts/0 is not a lease"):
        host_lease("container/alerts/0", text)


def lease(partition: str, sequence: int | None) -> HostLease:
    offset = None if sequence is None else str(sequence)
    return HostLease(partition=partition, offset=offset, sequence=sequence, owner="old")


def source_with(count: int) -> FakeSource:
    source = FakeSource(3)
    for partition in "012":
        for number in range(count):
            source.append(partition, b"%d" % number)
    return source


def test_it_is_planned_and_carried_out_into_a_group_that_is_new() -> None:
    async def main() -> None:
        source, store, who = source_with(10), MemoryStore(), Operator("me", "moving")
        source.trim("1", 5)
        plan = await plan_import(store, source, GROUP, [lease("2", None), lease("0", 6), lease("1", 2)])
        assert [(one.partition, one.after, one.lag_after) for one in plan] == [
            ("0", Position("6", 6), 3),
            ("1", Position("4", 4), 5),
            ("2", None, None),
        ]
        assert "removed by retention" in plan[1].note
        assert "never wrote" in plan[2].note
        assert await store.groups() == []
        done = await import_checkpoints(store, source, GROUP, plan, who, system_clock())
        assert sorted(done) == ["0", "1"]
        records = {one.partition: one.position for one in await store.checkpoints(GROUP)}
        assert records == {"0": Position("6", 6), "1": Position("4", 4)}
        ledger = await store.peek(GROUP)
        assert ledger is not None
        assert not ledger.members
        assert ledger.state.source == (await source.identity()).made
        assert [action.kind for action in await store.actions(GROUP)] == ["import"]
        (again,) = await plan_import(store, source, GROUP, [lease("0", 3)])
        assert (again.before, again.note) == (Position("6", 6), "moves backward")

    asyncio.run(main())


def test_what_fits_no_partition_or_no_log_is_refused() -> None:
    async def main() -> None:
        source, store = source_with(3), MemoryStore()
        with pytest.raises(Misconfigured, match="no partition 7"):
            await plan_import(store, source, GROUP, [lease("7", 1)])
        with pytest.raises(Misconfigured, match="two leases of partition 0"):
            await plan_import(store, source, GROUP, [lease("0", 1), lease("0", 2)])
        with pytest.raises(PositionOutOfRange, match="Is this the hub"):
            await plan_import(store, source, GROUP, [lease("0", 100)])

    asyncio.run(main())
