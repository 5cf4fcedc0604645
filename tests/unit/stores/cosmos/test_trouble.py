"""What goes wrong with a lease container: an error that says what to do, or waited out; and writes that were lost."""

from __future__ import annotations

import asyncio
import re
from time import monotonic
from typing import Any

import pytest
from azure.cosmos import CosmosClient, PartitionKey
from azure.cosmos.aio import CosmosClient as AsyncClient

from evenflow.changefeed import ChangeFeedProcessor
from evenflow.emulators.cosmos.faults import CosmosFaultOptions
from evenflow.errors import Corrupt, LeaseLost, Misconfigured, StoreUnavailable
from evenflow.model import Group, Member
from evenflow.operate.inspect.survey import Survey, find_group, survey
from evenflow.operate.steer import Operator, resume
from evenflow.operate.steer.exporting import export
from evenflow.runtime.clock import system_clock
from evenflow.sources.cosmos.source import CosmosSource
from evenflow.stores.cosmos.store import CosmosLeasesStore, from_url
from evenflow.testing.cosmos import Cosmos, cosmos
from evenflow.urls import open_store
from tests.servers.cosmos_leases import DATABASE, lease_server, make_container, store_url
from tests.unit.stores.cosmos.scene import GROUP, PREFIX, Place, scene

pytestmark = pytest.mark.process

ME = Member(id="me", nonce="me", ttl_s=8.0)


def heartbeat_once(url: str, group: Group = GROUP) -> None:
    async def play() -> None:
        store = from_url(url)
        try:
            await store.heartbeat(group, ME, None)
        finally:
            await store.aclose()

    asyncio.run(play())


# --- the container
@pytest.mark.parametrize("key", ["/customer", "/a/b"])
def test_a_container_with_another_partition_key_is_refused(key: str) -> None:
    server = lease_server("evenflow")
    with pytest.raises(Misconfigured, match=rf"partitioned by {key}.*/id \(or /partitionKey\)"):
        heartbeat_once(store_url(server, make_container(server, key)))


def test_a_container_that_deletes_its_documents_is_refused() -> None:
    server = lease_server("evenflow")
    with pytest.raises(Misconfigured, match=r"after 60 s \(its time to live\).*-1"):
        heartbeat_once(store_url(server, make_container(server, default_ttl=60)))
    heartbeat_once(store_url(server, make_container(server, default_ttl=-1)))


@pytest.mark.parametrize("kind", ["evenflow", "vercel"])
def test_a_container_that_is_not_there_is_named(kind: str) -> None:
    server = lease_server(kind)
    make_container(server)
    with pytest.raises(Misconfigured, match=r"no container 'none' in the database 'leases'"):
        heartbeat_once(store_url(server, "none"))


def test_credentials_that_are_refused_are_told_without_them() -> None:
    server = lease_server("evenflow")
    with pytest.raises(Misconfigured, match="refuses these credentials") as told:
        heartbeat_once(store_url(server, make_container(server), "&key=c2VjcmV0"))
    assert "c2VjcmV0" not in str(told.value)


def test_a_server_that_is_not_there_is_waited_for() -> None:
    with pytest.raises(StoreUnavailable, match=r"connection refused at 127\.0\.0\.1:1"):
        heartbeat_once("cosmos-leases://127.0.0.1:1/leases/leases?tls=off&timeout_s=0.2")


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ("shared=maybe", "shared='maybe'"),
        ("peer_expiry_s=0", "peer_expiry_s"),
        ("peer_expiry_s=soon", "peer_expiry_s"),
        ("timeout_s=-1", "timeout_s"),
        ("prefix=a/b", "prefix"),
        ("prefx=a", "did you mean prefix"),
    ],
)
def test_what_is_wrong_in_a_url_is_told(more: str, what: str) -> None:
    with pytest.raises(Misconfigured, match=what):
        from_url(f"cosmos-leases://127.0.0.1:1/leases/leases?{more}")


# --- documents
@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"Owner": 5}, "Owner is 5"),
        ({"LeaseToken": None}, "LeaseToken is missing"),
        ({"LeaseToken": "77"}, "LeaseToken is '77', and the id ends otherwise"),
        ({"ContinuationToken": 5}, "ContinuationToken is 5"),
        ({"ContinuationToken": "yesterday"}, "ContinuationToken is 'yesterday', which is no place in the feed"),
        ({"FeedRange": "all"}, "FeedRange is 'all', which is no range"),
        ({"FeedRange": {"Range": {"min": "", "max": "FF"}}, "Owner": None}, r"FeedRange is .*'FF'\).* is .*'3F'\)"),
        ({"version": 7}, "version is 7"),
        ({"timestamp": 5}, "timestamp is 5"),
        ({"properties": []}, "properties is no object of texts"),
        ({"properties": {"evenflow": "?"}}, r"properties\.evenflow"),
    ],
)
def test_a_lease_that_was_edited_by_hand_is_paused_and_named_with_the_field(change: dict[str, Any], field: str) -> None:
    """It stops no other; nothing is written to it; and it goes on when it is put back."""

    @scene
    async def play(place: Place) -> None:
        me = await place.join()
        lease, other = await place.claim(me.owner), await place.claim(me.owner, "1")
        await place.seal(lease)
        await place.seal(other)
        since = (await place.heartbeat(me)).cursor
        before = await place.document()
        edited = dict(await place.container.upsert_item({**before, **change}))
        assert (await place.commit(lease, 5, 5)).why == "epoch", "nobody writes over it"
        ledger = await place.heartbeat(me, since)
        assert ledger.cursor.history == since.history, "nothing was lost"
        wish = ledger.state.pause_of("0")
        assert wish is not None
        assert re.search(rf"In the store cosmos-leases://.*{PREFIX}\.\.0'.*{field}.*Put it back", wish.why), wish.why
        owners = {one.partition: one.owner for one in (await place.leases()).values()}
        assert owners == {"0": None, "1": me.owner}
        assert not (await place.swap((await place.leases())["0"], me.owner)).ok
        with pytest.raises(LeaseLost, match=r"is damaged|cannot be read"):
            await place.seal(lease)
        assert (await place.commit(other, 5, 5)).ok
        with pytest.raises(Corrupt, match="cannot be exported completely"):
            await export(place.store, GROUP, system_clock())
        with pytest.raises(Misconfigured, match=rf"partition 0 is paused by the store itself.*{field}"):
            await resume(place.store, GROUP, ["0"], Operator("anna", ""), system_clock())
        assert (await place.document())["_etag"] == edited["_etag"]
        await place.container.upsert_item(before)
        again = await place.heartbeat(me, ledger.cursor)
        assert again.state.pauses == {}
        assert (await place.leases())["0"].owner == me.owner
        assert (await place.commit(lease, 6, 6)).ok

    play()


@scene
async def test_a_lease_under_another_id_is_named_and_disturbs_nobody(place: Place) -> None:
    me = await place.join()
    await place.claim(me.owner)
    await place.container.upsert_item({**await place.document(), "id": f"{PREFIX}..zero"})
    ledger = await place.heartbeat(me)
    assert list(ledger.state.pauses) == ["zero"]
    assert "LeaseToken is '0'" in ledger.state.pauses["zero"].why
    assert (await place.leases())["0"].owner == me.owner


def test_a_lease_that_somebody_made_up_is_named_and_stops_no_other() -> None:
    server = lease_server("evenflow")
    monitored, leases = make_container(server, "/customer"), make_container(server)
    told: list[tuple[str, str | None]] = []
    processor = ChangeFeedProcessor(
        f"cosmos://127.0.0.1:{server.port}/{DATABASE}/{monitored}", store_url(server, leases), "feed", start="beginning"
    )
    processor.on_changes(lambda changes, context: None)
    processor.on_error(lambda error, lease_token: told.append((str(error), lease_token)))

    async def play() -> Survey:
        source = CosmosSource(f"cosmos://127.0.0.1:{server.port}/{DATABASE}/{monitored}")
        prefix = (await source.convention("feed")).prefix
        made_up = {"id": f"{prefix}..77", "version": 0, "LeaseToken": "77", "timestamp": "2026-11-15T06:50:00.0000000Z"}
        async with AsyncClient(server.url, server.key) as client:
            await client.get_database_client(DATABASE).get_container_client(leases).upsert_item(made_up)
        async with asyncio.timeout(30.0), processor:
            while not told or len(processor.owned) < 2:  # noqa: ASYNC110 - it comes from threads and tasks
                await asyncio.sleep(0.01)
        store = from_url(store_url(server, leases))
        try:
            return await survey(store, await find_group(store, "feed", source), source)
        finally:
            await store.aclose()
            await source.aclose()

    found = asyncio.run(play())
    ((what, token),) = told
    assert token == "77"
    said = (
        rf"has no range '77'.*the document '\S+\.\.77' \(by its LeaseToken\) in the store cosmos-leases://\S+/{leases}"
    )
    assert re.search(said, what), what
    assert re.search(said, found.problems[0]), found.problems


@scene
async def test_an_end_that_cannot_be_read_keeps_children_waiting(place: Place) -> None:
    """They would begin anywhere."""
    me = await place.join()
    lease = await place.claim(me.owner)
    assert (await place.swap(lease, None, ended=True)).ok
    name = f"{PREFIX}.evenflow.past.0"
    past = dict(await place.container.read_item(name, name))
    await place.container.upsert_item({**past, "LeaseToken": None})
    ledger = await place.heartbeat(me)
    (parent,) = (one for one in ledger.leases if one.partition == "0")
    assert (parent.ended, set(ledger.state.pauses)) == (False, {"0"})


@scene
async def test_leases_of_another_mode_are_no_ones_to_take(place: Place) -> None:
    await place.their_lease(Mode="Full-Fidelity Feed")
    with pytest.raises(
        Misconfigured, match=rf"{PREFIX}\.\.0'.*has the Mode 'Full-Fidelity Feed'.*another processor name"
    ):
        await place.join()


@scene
async def test_a_row_that_was_edited_by_hand_is_named(place: Place) -> None:
    me = await place.join()
    name = place.store._room(GROUP).names.member("me")
    await place.container.upsert_item({"id": name, "evenflow": {"mark": 1}})
    with pytest.raises(Corrupt, match=r"member\.me', field 'evenflow'"):
        await place.heartbeat(me)


@scene
async def test_a_group_does_not_take_anothers_leases_for_its_own(place: Place) -> None:
    await place.join()
    other = from_url(f"{place.url}&prefix={PREFIX}")
    try:
        with pytest.raises(Misconfigured, match=r"belong to the group acct.*shop/orders/feed"):
            await other.heartbeat(Group("acct.documents.azure.com", "shop/invoices", "feed"), ME, None)
    finally:
        await other.aclose()


@scene
async def test_a_prefix_that_is_told_is_the_prefix(place: Place) -> None:
    await place.join()
    same = from_url(f"{place.url}&prefix={PREFIX}")
    try:
        ledger = await same.peek(GROUP)
        assert ledger is not None
        assert [member.id for member in ledger.members] == ["me"]
    finally:
        await same.aclose()


@scene
async def test_a_tool_finds_a_group_under_whatever_prefix_it_is(place: Place) -> None:
    await place.join()
    tool = from_url(place.url)
    try:
        assert await tool.groups() == [GROUP]
        assert await tool.peek(GROUP) is not None
    finally:
        await tool.aclose()


# --- lost writes
@scene
async def test_an_emptied_container_is_noticed(place: Place) -> None:
    me = await place.join()
    await place.claim(me.owner)
    since = (await place.heartbeat(me)).cursor
    for name in await place.ids():
        await place.container.delete_item(name, name)
    ledger = await place.heartbeat(me, since)
    assert ledger.cursor.history > since.history
    assert (ledger.whole, ledger.leases) == (True, ())


@scene
async def test_a_container_that_was_put_back_is_noticed(place: Place) -> None:
    me = await place.join()
    await place.claim(me.owner)
    before = [dict(one) async for one in place.container.read_all_items()]
    lease = await place.claim(me.owner)
    since = (await place.heartbeat(me)).cursor
    for one in before:
        await place.container.upsert_item(one)
    ledger = await place.heartbeat(me, since)
    assert ledger.cursor.history > since.history
    assert ledger.leases[0].epoch < lease.epoch


@scene
async def test_a_checkpoint_that_is_gone_is_noticed_and_restored(place: Place) -> None:
    me = await place.join()
    lease = await place.claim(me.owner)
    await place.seal(lease)
    history = (await place.heartbeat(me)).cursor.history
    await place.container.delete_item(f"{PREFIX}..0", f"{PREFIX}..0")
    assert (await place.commit(lease, 5, 5)).ok
    assert (await place.heartbeat(me)).cursor.history > history
    assert [record.ordinal for record in await place.store.checkpoints(GROUP)] == [5]


@scene
async def test_a_lease_that_others_have_ended_and_buried_meanwhile_is_not_lost(place: Place) -> None:
    """A host that stood still while its range was taken over and split commits what it had in hand."""
    me = await place.join()
    lease = await place.claim(me.owner)
    await place.seal(lease)
    history = (await place.heartbeat(me)).cursor.history
    mine, place.store = place.store, place.client()
    try:
        other = await place.join("other")
        taken = await place.claim(other.owner)
        await place.seal(taken)
        assert (await place.swap(taken, None, ended=True)).ok
        assert f"{PREFIX}..0" not in await place.ids()
    finally:
        await place.store.aclose()
        place.store = mine
    assert (await place.commit(lease, 5, 5)).why == "epoch"
    assert (await place.heartbeat(me)).cursor.history == history


# --- a service that is busy
def made(server: Cosmos) -> str:
    with CosmosClient(server.url, server.key) as client:
        client.create_database_if_not_exists(DATABASE).create_container_if_not_exists("leases", PartitionKey("/id"))
    return f"cosmos-leases://127.0.0.1:{server.port}/{DATABASE}/leases"


def test_who_is_told_to_come_later_does(tmp_path: Any) -> None:
    async def play(url: str) -> float:
        store = from_url(url)
        try:
            began_s = monotonic()
            since = None
            for _ in range(12):
                since = (await store.heartbeat(GROUP, ME, since)).cursor
            return monotonic() - began_s
        finally:
            await store.aclose()

    with cosmos(path=tmp_path, faults=CosmosFaultOptions(throttle=60.0)) as server:
        took_s = asyncio.run(play(made(server)))
    assert took_s > 1.0, "twelve heartbeats cost more than a second's units"


def test_what_is_refused_now_and_then_is_asked_again(tmp_path: Any) -> None:
    with cosmos(path=tmp_path, faults=CosmosFaultOptions(busy=0.3)) as server:
        heartbeat_once(made(server))


# --- a container of the official client
def test_a_container_with_another_partition_key_in_place_of_the_known_one_is_waited_for() -> None:
    """Its first answer may be to a write that began before: that must not end the program either."""
    leases = {"id": "leases", "partitionKey": {"paths": ["/id"]}}

    async def play(server: Cosmos) -> None:
        papers = from_url(made(server))._papers
        kept = await papers.create({"id": "a"}, "write lease")
        assert kept is not None
        server.account.delete_container(DATABASE, "leases")
        server.account.create_container(DATABASE, {**leases, "partitionKey": {"paths": ["/customer"]}})
        with pytest.raises(StoreUnavailable, match="partitioned by /customer"):
            await papers.replace({"id": "a"}, kept["_etag"], "write lease")
        server.account.delete_container(DATABASE, "leases")
        server.account.create_container(DATABASE, leases)
        assert await papers.create({"id": "a"}, "write lease") is not None
        await papers.aclose()

    with cosmos() as server:
        asyncio.run(play(server))


def test_a_container_of_the_official_client_is_used_and_stays_its_owners() -> None:
    async def play() -> None:
        server = lease_server("evenflow")
        name = make_container(server)
        async with AsyncClient(server.url, server.key) as client:
            container = client.get_database_client(DATABASE).get_container_client(name)
            store = open_store(container)
            assert isinstance(store, CosmosLeasesStore)
            ledger = await store.heartbeat(GROUP, ME, None)
            assert ledger.me is not None
            await store.aclose()
            assert [one["id"] async for one in container.read_all_items()] != []

    asyncio.run(play())
