"""evenflow's stores behave as azure-eventhub's own checkpoint store does: one suite, run by both, sync and async."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from functools import wraps
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from azure.eventhub._eventprocessor.common import LoadBalancingStrategy
from azure.eventhub._eventprocessor.ownership_manager import OwnershipManager
from azure.eventhub.aio._eventprocessor._ownership_manager import OwnershipManager as AsyncOwnershipManager

from tests.contract.checkpointstores import KINDS, NAMES, Face, Shop, entry, place_of, play

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from tests.contract.checkpointstores import Entry

CLOCKS_S = 5.0
"""Blobs are stamped by the second."""


@pytest.fixture(params=KINDS, ids="-".join)
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Shop:
    kind, face = request.param
    return Shop(kind, face, place_of(kind, request, tmp_path))


def scene(test: Callable[[Shop], Coroutine[Any, Any, None]]) -> Callable[[Shop], None]:
    @wraps(test)
    def run(shop: Shop) -> None:
        play(shop, test)

    del run.__wrapped__  # pytest would take it for async
    return run


def unless_azurite(test: Callable[[Shop], Coroutine[Any, Any, None]]) -> Callable[[Shop], Coroutine[Any, Any, None]]:
    """Azurite overlooks the If-None-Match with which the official store first claims, so that the last one wins."""

    @wraps(test)
    async def run(shop: Shop) -> None:
        if shop.kind != "official":
            await test(shop)

    return run


# --- ownership
@scene
async def test_at_first_there_is_nothing(shop: Shop) -> None:
    client = shop.client()
    assert await client.ownership() == {}
    assert await client.checkpoints() == {}


@scene
async def test_a_first_claim_has_no_etag_and_gets_one(shop: Shop) -> None:
    asked = entry("0", "a")
    (granted,) = await shop.client().claim(asked)
    assert asked == entry("0", "a")  # what was given is left as it was
    assert {name: granted[name] for name in asked} == asked
    assert granted["etag"]
    assert isinstance(granted["last_modified_time"], float)
    assert abs(granted["last_modified_time"] - time.time()) < CLOCKS_S
    assert await shop.client().ownership() == {"0": granted}


@scene
@unless_azurite
async def test_who_comes_second_is_left_out(shop: Shop) -> None:
    (granted,) = await shop.client().claim(entry("0", "a"))
    other = shop.client()
    assert await other.claim(entry("0", "b")) == []
    assert await other.ownership() == {"0": granted}


@scene
async def test_a_renewal_changes_the_etag_and_moves_the_time(shop: Shop) -> None:
    client = shop.client()
    (first,) = await client.claim(entry("0", "a"))
    (second,) = await client.claim(first)
    (third,) = await client.claim((await client.ownership())["0"])
    assert len({first["etag"], second["etag"], third["etag"]}) == 3
    assert first["last_modified_time"] <= second["last_modified_time"] <= third["last_modified_time"]
    assert (await shop.client().ownership())["0"] == third


@scene
async def test_the_time_moves_with_renewals_and_only_then(shop: Shop) -> None:
    client, other = shop.client(), shop.client()
    (mine,) = await client.claim(entry("0", "a"))
    (theirs,) = await other.claim(entry("1", "b"))
    deadline_s = time.monotonic() + 10.0
    while mine["last_modified_time"] <= theirs["last_modified_time"]:
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.05)
        (mine,) = await client.claim(mine)
    assert await client.ownership() == {"0": mine, "1": theirs}


@scene
async def test_an_old_etag_is_refused_to_everybody(shop: Shop) -> None:
    client = shop.client()
    (first,) = await client.claim(entry("0", "a"))
    (second,) = await client.claim(first)
    assert await client.claim(first) == []
    assert await shop.client().claim({**first, "owner_id": "b"}) == []
    assert await shop.client().claim({**first, "owner_id": ""}) == []
    (third,) = await client.claim(second)
    assert await shop.client().ownership() == {"0": third}


@scene
async def test_an_etag_of_something_else_is_refused(shop: Shop) -> None:
    client = shop.client()
    (granted,) = await client.claim(entry("0", "a"))
    for etag in (granted["etag"], "0x8D0000000000000", "x"):
        assert await client.claim(entry("1", "a", etag=etag)) == []
    assert [found["owner_id"] for found in (await client.ownership()).values()] == ["a"]
    assert [found["partition_id"] for found in await client.claim(granted)] == ["0"]


@scene
async def test_the_current_etag_lets_anybody_take_it(shop: Shop) -> None:
    loser, winner = shop.client(), shop.client()
    (before,) = await loser.claim(entry("0", "a"))
    seen = (await winner.ownership())["0"]
    (taken,) = await winner.claim({**seen, "owner_id": "b"})
    assert (taken["owner_id"], await loser.ownership()) == ("b", {"0": taken})
    assert await loser.claim(before) == []


@scene
async def test_claims_of_one_owner_are_each_on_their_own(shop: Shop) -> None:
    client = shop.client()
    zero, one = await client.claim(entry("0", "a"), entry("1", "a"))
    await shop.client().claim({**one, "owner_id": "b"})
    (two,) = await client.claim(entry("2", "a"))  # the etag of 0 is as good as before
    granted = await client.claim(zero, one, two, entry("3", "a"))
    assert [found["partition_id"] for found in granted] == ["0", "2", "3"]
    assert {name: found["owner_id"] for name, found in (await client.ownership()).items()} == {
        "0": "a",
        "1": "b",
        "2": "a",
        "3": "a",
    }


@scene
async def test_who_lets_go_is_listed_as_nobody(shop: Shop) -> None:
    client, other = shop.client(), shop.client()
    (mine,) = await client.claim(entry("0", "a"))
    (released,) = await client.claim({**mine, "owner_id": ""})
    assert (released["owner_id"], await other.ownership()) == ("", {"0": released})
    assert await client.claim(mine) == []
    (taken,) = await other.claim({**(await other.ownership())["0"], "owner_id": "b"})
    assert taken["owner_id"] == "b"


@scene
async def test_who_let_go_may_come_back(shop: Shop) -> None:
    client = shop.client()
    for _ in range(3):
        known = (await client.ownership()).get("0", {})
        (mine,) = await client.claim({**entry("0", "a"), **known, "owner_id": "a"})
        (mine,) = await client.claim(mine)
        await client.claim({**mine, "owner_id": ""})
    assert (await client.ownership())["0"]["owner_id"] == ""


@scene
async def test_of_a_renewal_and_letting_go_only_the_first_counts(shop: Shop) -> None:
    client = shop.client()
    (mine,) = await client.claim(entry("0", "a"))
    (renewed,) = await client.claim(mine)
    assert await client.claim({**mine, "owner_id": ""}) == []
    (released,) = await client.claim({**renewed, "owner_id": ""})
    assert await client.claim(renewed) == []
    assert await client.ownership() == {"0": released}


@scene
async def test_groups_know_nothing_of_each_other(shop: Shop) -> None:
    client = shop.client()
    (here,) = await client.claim(entry("0", "a"))
    there: list[Entry] = []
    for name in NAMES:
        there += await client.claim({**entry("0", "b"), name: "another"})
    await client.update("0", "5", 5)
    assert [found["owner_id"] for found in there] == ["b"] * 3
    assert await client.ownership() == {"0": here}
    for found, name in zip(there, NAMES, strict=True):
        assert await client.ownership(**{name: "another"}) == {"0": found}
        assert await client.checkpoints(**{name: "another"}) == {}


@scene
async def test_case_has_no_meaning_in_a_namespace(shop: Shop) -> None:
    client, name = shop.client(), "HOMES.servicebus.windows.net"
    (mine,) = await client.claim(entry("0", "a"))
    found = await client.ownership(fully_qualified_namespace=name)
    assert found == {"0": {**mine, "fully_qualified_namespace": name}}


@scene
async def test_one_call_may_be_about_several_groups(shop: Shop) -> None:
    client = shop.client()
    granted = await client.claim(entry("0", "a"), {**entry("0", "a"), "consumer_group": "another"})
    assert [found["consumer_group"] for found in granted] == ["$Default", "another"]


# --- races
@scene
@unless_azurite
async def test_of_claims_at_the_same_time_exactly_one_wins(shop: Shop) -> None:
    clients = [shop.client() for _ in range(4)]
    for partition in ("0", "1"):
        asked = (client.claim(entry(partition, f"owner-{at}")) for at, client in enumerate(clients))
        (won,) = [granted for answer in await asyncio.gather(*asked) for granted in answer]
        assert (await clients[0].ownership())[partition] == won


@scene
async def test_of_a_renewal_and_takeovers_at_the_same_time_exactly_one_wins(shop: Shop) -> None:
    clients = [shop.client() for _ in range(4)]
    (current,) = await clients[0].claim(entry("0", "owner-0"))
    winners = Counter[str]()
    for _ in range(10):
        seen = (await clients[0].ownership())["0"]
        asked = (client.claim({**seen, "owner_id": f"owner-{at}"}) for at, client in enumerate(clients))
        (current,) = [granted for answer in await asyncio.gather(*asked) for granted in answer]
        assert (await clients[0].ownership())["0"] == current
        winners[current["owner_id"]] += 1
    assert winners.total() == 10


# --- checkpoints
@scene
async def test_a_checkpoint_is_where_its_owner_put_it_last(shop: Shop) -> None:
    client = shop.client()
    await client.claim(entry("0", "a"), entry("1", "a"))
    for offset, sequence in (("100", 7), ("300", 9), ("200", 8)):  # back, too: it is the owner's to say
        await client.update("0", offset, sequence)
        found = await shop.client().checkpoints()
        assert found == {"0": {**NAMES, "partition_id": "0", "offset": offset, "sequence_number": sequence}}
    await client.update("1", "4294967296000", 2**40)
    assert (await client.checkpoints())["1"]["sequence_number"] == 2**40


@scene
async def test_checkpoints_survive_every_change_of_owners(shop: Shop) -> None:
    first, second = shop.client(), shop.client()
    await first.claim(entry("0", "a"))
    await first.update("0", "100", 7)
    (taken,) = await second.claim({**(await second.ownership())["0"], "owner_id": "b"})
    assert (await second.checkpoints())["0"]["offset"] == "100"
    await second.update("0", "200", 8)
    await second.claim({**taken, "owner_id": ""})
    assert (await first.checkpoints())["0"]["offset"] == "200"
    await second.update("0", "250", 9)  # nobody has claimed it since
    assert (await first.checkpoints())["0"]["offset"] == "250"


@scene
async def test_a_checkpoint_needs_no_claim(shop: Shop) -> None:
    """A client may receive from one partition that it names, and then it claims nothing."""
    client = shop.client()
    for offset, sequence in (("100", 7), ("90", 6), ("200", 8)):
        await client.update("0", offset, sequence)
        assert (await client.checkpoints())["0"]["offset"] == offset
    assert await client.ownership() == {}
    other = shop.client()
    await other.claim(entry("0", "a"))
    await other.update("0", "300", 9)
    for offset in ("310", "320", "330"):
        await client.update("0", offset, 9)
    await other.update("0", "400", 10)
    assert (await client.checkpoints())["0"]["sequence_number"] == 10


# --- azure-eventhub's own ownership managers
class Balancer:
    """One azure-eventhub processor, without its receivers."""

    def __init__(self, client: Face, face: str, number: int, partitions: int, strategy: LoadBalancingStrategy) -> None:
        ids = [str(partition) for partition in range(partitions)]
        hub = SimpleNamespace(
            _address=SimpleNamespace(hostname=NAMES["fully_qualified_namespace"]),
            eventhub_name=NAMES["eventhub_name"],
            get_partition_ids=(lambda: _soon(ids)) if face == "async" else (lambda: ids),
        )
        kind: Any = AsyncOwnershipManager if face == "async" else OwnershipManager
        self.id = f"owner-{number}"
        self._manager = kind(hub, NAMES["consumer_group"], self.id, client.store, 60.0, strategy, None)
        self._is_async = face == "async"
        self.owned: set[str] = set()

    async def cycle(self) -> None:
        claim = self._manager.claim_ownership
        self.owned = set(await claim() if self._is_async else await asyncio.to_thread(claim))

    async def release(self, partition: str) -> None:
        release = self._manager.release_ownership
        await (release(partition) if self._is_async else asyncio.to_thread(release, partition))


async def _soon(ids: list[str]) -> list[str]:
    return ids


async def _settle(balancers: list[Balancer], client: Face, partitions: int, pause_s: float) -> None:
    """Each goes round at its own pace, until it is even; then nobody acts on what another one has.

    In between, somebody may still act on what was taken from it since its last cycle: so it is with azure-eventhub.
    """
    chance, deadline_s = random.Random(7), time.monotonic() + 120.0

    async def go_round(balancer: Balancer, until: asyncio.Event) -> None:
        while not until.is_set():
            began_s = time.monotonic()
            await balancer.cycle()
            # Nothing is taken from an owner that renews all the time: on a busy machine, too, it must pause.
            least_s = max(pause_s, 3 * (time.monotonic() - began_s))
            await asyncio.sleep(least_s * (1 + chance.random()))

    done = asyncio.Event()
    rounds = [asyncio.create_task(go_round(balancer, done)) for balancer in balancers]
    shares = Counter[str]()
    while not _is_even(shares, balancers, partitions):
        assert time.monotonic() < deadline_s, shares
        await asyncio.sleep(0.02)
        shares = Counter(found["owner_id"] for found in (await client.ownership()).values())
    done.set()
    await asyncio.gather(*rounds)
    for balancer in balancers:
        await balancer.cycle()
    listed = {name: found["owner_id"] for name, found in (await client.ownership()).items()}
    assert sorted(listed.items()) == sorted((name, one.id) for one in balancers for name in one.owned)
    assert _is_even(Counter(listed.values()), balancers, partitions)


def _is_even(shares: Counter[str], balancers: list[Balancer], partitions: int) -> bool:
    counts = [shares[balancer.id] for balancer in balancers]
    return sum(counts) == partitions and max(counts) - min(counts) <= 1


def test_official_owners_settle_to_an_even_share(shop: Shop) -> None:
    strategy = LoadBalancingStrategy.BALANCED if shop.kind == "memory" else LoadBalancingStrategy.GREEDY
    partitions, pause_s = (4, 0.3) if shop.kind == "azblob" else (8, 0.02)

    async def settle(shop: Shop) -> None:
        watcher = shop.client()
        balancers = [Balancer(shop.client(), shop.face, at, partitions, strategy) for at in range(2)]
        await _settle(balancers, watcher, partitions, pause_s)
        balancers.append(Balancer(shop.client(), shop.face, 2, partitions, strategy))
        await _settle(balancers, watcher, partitions, pause_s)
        leaver = balancers.pop(0)
        for partition in list(leaver.owned):
            await leaver.release(partition)
        await _settle(balancers, watcher, partitions, pause_s)

    play(shop, settle)


def test_every_kind_is_what_a_client_wants(shop: Shop) -> None:
    from azure.eventhub import CheckpointStore
    from azure.eventhub.aio import CheckpointStore as AsyncCheckpointStore

    async def look(shop: Shop) -> None:
        wanted = cast(type, AsyncCheckpointStore if shop.face == "async" else CheckpointStore)
        assert isinstance(shop.client().store, wanted)

    play(shop, look)
