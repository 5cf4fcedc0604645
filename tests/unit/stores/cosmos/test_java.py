"""A lease container that Java's change feed processors use: both of their layouts, and both of their prefixes."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

import pytest

from evenflow.errors import Misconfigured
from evenflow.model import Convention, Lease, Member, Owner, Position
from evenflow.stores.cosmos import layouts
from evenflow.stores.cosmos.ranges import left_alone
from tests.unit.stores.cosmos.scene import GROUP, PREFIX, SPANS, Place, changed, scene

if TYPE_CHECKING:
    from evenflow.stores.cosmos.store import CosmosLeasesStore

pytestmark = pytest.mark.process


# --- leases that are named by ranges
def _java(lsn: int, low: str, high: str) -> str:
    inner = {"V": 1, "Rid": "AAAAAIAAAAE=", "Continuation": [{"token": f'"{lsn}"', "range": {"min": low, "max": high}}]}
    return base64.b64encode(json.dumps({"V": 1, "Mode": "INCREMENTAL", "Continuation": inner}).encode()).decode()


async def _by_range(place: Place, low: str, high: str, lsn: int, **fields: object) -> None:
    span = {"Range": {"min": low, "max": high}}
    told = {"version": 1, "feedRange": span, "ContinuationToken": _java(lsn, low, high), "Owner": None}
    await place.their_lease(f"{low}-{high}", **{**told, **fields})


@scene
async def test_a_lease_of_javas_for_just_this_range_is_used_as_it_is(place: Place) -> None:
    await _by_range(place, "", "3F", 17)
    me = await place.join()
    assert set(await place.leases()) == {"0"}
    lease = await place.claim(me.owner)
    record = await place.seal(lease)
    assert (record.position, record.ordinal) == (Position("17@-3F", 17), 0)
    await place.commit(lease, 20, 3)
    document = await place.document("-3F")
    assert (document["Owner"], document["LeaseToken"], document["version"]) == ("me", "-3F", 1)
    assert json.loads(base64.b64decode(document["ContinuationToken"]))["Continuation"]["Continuation"][0]["token"] == (
        '"20"'
    )
    assert f"{PREFIX}..0" not in await place.ids()


@scene
async def test_leases_of_parts_and_of_more_are_gone_on_from_and_done_away_with(place: Place) -> None:
    await _by_range(place, "", "1F", 5)
    await _by_range(place, "1F", "FF", 3)
    me = await place.join()
    assert set(await place.leases()) == {"0", "1"}
    first = await place.claim(me.owner, "0")
    assert (await place.seal(first, Position("99", 99))).position == Position("5@,3@1F-3F", 3)
    await place.heartbeat(me)
    assert f"{PREFIX}..1F-FF" in await place.ids(), "the other partition has to go on from it"
    assert f"{PREFIX}..-1F" not in await place.ids()
    second = await place.claim(me.owner, "1")
    assert (await place.seal(second, Position("99", 99))).position == Position("3@3F-FF", 3)
    await place.heartbeat(me)
    there = {name.removeprefix(f"{PREFIX}..") for name in await place.ids() if name.startswith(f"{PREFIX}..")}
    assert there == {"-3F", "3F-FF"}, "in Java's layout, since its hosts can read no other"


@scene
async def test_a_lease_that_java_has_never_written_to_gets_a_continuation_that_it_can_read(place: Place) -> None:
    await _by_range(place, "", "3F", 0, ContinuationToken=None)
    me = await place.join()
    lease = await place.claim(me.owner)
    await place.seal(lease)
    await place.commit(lease, 20, 3)
    state = json.loads(base64.b64decode((await place.document("-3F"))["ContinuationToken"]))
    here = {"min": "", "max": "3F"}
    inner = {"V": 1, "Rid": "AAAAAIAAAAE=", "Continuation": [{"token": '"20"', "range": here}], "Range": here}
    told = {"V": 1, "Rid": "AAAAAIAAAAE=", "Mode": "INCREMENTAL", "StartFrom": {"Type": "BEGINNING"}}
    assert state == {**told, "Continuation": inner}
    assert (await place.leases())["0"].owner == me.owner, "what ours wrote last is ours"


@scene
async def test_a_lease_that_appears_late_among_javas_is_made_as_theirs_are(place: Place) -> None:
    await _by_range(place, "", "3F", 17)
    me = await place.join()
    outcome = await place.swap(Lease(partition="1"), me.owner, late=True)
    assert outcome.ok
    document = await place.document("3F-FF")
    assert (document["version"], document["feedRange"]["Range"]["min"], document["Owner"]) == (1, "3F", "me")
    assert layouts.position_of(document["ContinuationToken"]) == Position("0", 0)
    base64.b64decode(document["ContinuationToken"], validate=True)


@scene
async def test_leases_are_made_as_javas_where_that_is_asked_for(place: Place) -> None:
    store = place.client("&layout=java")
    me = (await store.heartbeat(GROUP, Member(id="me", nonce="me", ttl_s=8.0), None)).me
    assert me is not None
    (outcome,) = await store.swap(GROUP, [changed(Lease(partition="0"), me.owner)])
    assert outcome.lease is not None
    await store.aclose()
    assert [name for name in await place.ids() if ".." in name] == [f"{PREFIX}..-3F"]
    assert (await place.document("-3F"))["feedRange"]["Range"]["max"] == "3F"
    with pytest.raises(Misconfigured, match="it is dotnet, or java"):
        place.client("&layout=cobol")


@scene
async def test_java_says_in_the_continuation_how_it_reads_the_feed(place: Place) -> None:
    inner = {"V": 1, "Rid": "r", "Continuation": [{"token": '"7"', "range": {"min": "", "max": "3F"}}]}
    state = json.dumps({"V": 1, "Mode": "FULL_FIDELITY", "Continuation": inner})
    await _by_range(place, "", "3F", 7, Mode=None, ContinuationToken=base64.b64encode(state.encode()).decode())
    with pytest.raises(Misconfigured, match="Mode 'Full-Fidelity Feed'"):
        await place.join()


@scene
async def test_what_ours_have_stays_theirs_when_its_range_is_gone_until_they_end_it(place: Place) -> None:
    place.store = place.client("&layout=java")
    me = await place.join()
    lease = await place.claim(me.owner)
    await place.seal(lease)
    halves = {"2": ("", "1F"), "3": ("1F", "3F"), "1": ("3F", "FF")}
    place.store.conform(GROUP, Convention(prefix=PREFIX, mode="Incremental Feed", spans=halves))
    await place.heartbeat(me)
    assert {name: lease.owner for name, lease in (await place.leases()).items()} == {"0": me.owner}
    assert (await place.commit(lease, 9, 1)).ok
    assert (await place.swap(lease, None, ended=True)).ok
    assert {name: lease.ended for name, lease in (await place.leases()).items()} == {"0": True}


@scene
async def test_what_ours_had_of_a_merged_range_is_left_to_java_which_has_the_rest(place: Place) -> None:
    spans = {"0": ("", "1F"), "1": ("1F", "3F")}
    place.store = place.client("&layout=java", spans)
    me = await place.join()
    await _by_range(place, "1F", "3F", 5, Owner="java")
    lease = await place.claim(me.owner)
    await place.seal(lease)
    await place.commit(lease, 9, 1)
    assert (await place.swap(lease, None, ended=True)).ok
    assert f"{PREFIX}..-1F" not in await place.ids()
    for _ in range(2):
        await place.heartbeat(me)
        assert f"{PREFIX}..-1F" not in await place.ids(), "not yet: ranges are as they were"
    place.store.conform(GROUP, Convention(prefix=PREFIX, mode="Incremental Feed", spans={"2": ("", "3F")}))
    await place.heartbeat(me)
    part = await place.document("-1F")
    assert (part["Owner"], layouts.position_of(part["ContinuationToken"])) == (None, Position("9", 9))
    assert json.loads(base64.b64decode(part["ContinuationToken"]))["Continuation"]["Range"] == {"min": "", "max": "1F"}
    assert (await place.leases())["2"].owner == Owner("java", 0)
    await place.heartbeat(me)
    assert (await place.document("-1F"))["_etag"] == part["_etag"], "once"


@pytest.mark.parametrize(
    ("covering", "ended", "left"),
    [
        ([("3F", "FF")], [("", "3F")], [("", "3F")]),
        ([("3F", "FF")], [("", "3F"), ("", "1F"), ("1F", "3F")], [("", "3F")]),
        ([("3F", "FF")], [("1F", "3F"), ("", "1F"), ("", "3F")], [("1F", "3F"), ("", "1F")]),
        ([("1F", "FF")], [("", "3F")], []),
        ([("", "FF")], [("", "3F")], []),
    ],
)
def test_what_nobody_speaks_of_is_found_among_the_latest_that_ended(
    covering: list[tuple[str, str]], ended: list[tuple[str, str]], left: list[tuple[str, str]]
) -> None:
    def leases(spans: list[tuple[str, str]]) -> list[layouts.LeaseDocument]:
        return [layouts.blank_of_java("p..", span) for span in spans]

    assert [one.span for one in left_alone(("", "FF"), leases(covering), leases(ended))] == left


# --- leases that are named by names
NAMED = "feedacct.documents.azure.com_shop_orders"


def _conform(store: CosmosLeasesStore) -> CosmosLeasesStore:
    convention = Convention(prefix=PREFIX, prefix_by_names=NAMED, mode="Incremental Feed", spans=SPANS)
    store.conform(GROUP, convention)
    return store


async def _named_lease(place: Place, token: str, lsn: int) -> None:
    """As Java's handleChanges writes it."""
    told = {"LeaseToken": token, "ContinuationToken": f'"{lsn}"', "timestamp": "2026-11-16T08:59:38.615085302Z"}
    await place.container.upsert_item({"id": f"{NAMED}..{token}", **told, "Owner": None})


@scene
async def test_leases_of_javas_older_processor_are_found_by_names(place: Place) -> None:
    await _named_lease(place, "0", 17)
    _conform(place.store)
    me = await place.join()
    lease = await place.claim(me.owner)
    assert (await place.seal(lease)).position.sequence == 17
    await place.commit(lease, 20, 3)
    kept = await place.container.read_item(f"{NAMED}..0", f"{NAMED}..0")
    assert (kept["ContinuationToken"], kept["Owner"]) == ('"20"', "me")
    assert [name for name in await place.ids() if name.startswith(PREFIX)] == []
    # Whoever comes later finds it in the same place, whatever it asks first, and also when partitions appear.
    for ask in ("moves", "actions", "checkpoints"):
        other = _conform(place.client())
        assert await getattr(other, ask)(GROUP) is not None
        assert _conform(other)._room(GROUP).names.prefix == NAMED
        await other.aclose()


@scene
async def test_where_ours_have_begun_by_numbers_they_stay(place: Place) -> None:
    _conform(place.store)
    me = await place.join()
    await _named_lease(place, "0", 17)
    other = _conform(place.client())
    await other.heartbeat(GROUP, Member(id="other", nonce="other", ttl_s=8.0), None)
    assert other._room(GROUP).names.prefix == PREFIX
    await other.aclose()
    await place.claim(me.owner)
    assert f"{PREFIX}..0" in await place.ids()


@scene
async def test_where_others_have_leases_by_numbers_those_are_meant(place: Place) -> None:
    await _named_lease(place, "0", 17)
    await place.their_lease("0", Owner=None, ContinuationToken='"5"')
    _conform(place.store)
    me = await place.join()
    assert (await place.seal(await place.claim(me.owner))).position.sequence == 5


@scene
async def test_names_that_no_lease_could_begin_with_disturb_nobody(place: Place) -> None:
    convention = Convention(prefix=PREFIX, prefix_by_names=NAMED + "s" * 200, mode="Incremental Feed", spans=SPANS)
    place.store.conform(GROUP, convention)
    me = await place.join()
    await place.claim(me.owner)
    assert f"{PREFIX}..0" in await place.ids()


@scene
async def test_a_prefix_that_was_asked_for_is_the_one(place: Place) -> None:
    await _named_lease(place, "0", 17)
    store = _conform(place.client(f"&prefix={PREFIX}"))
    await store.heartbeat(GROUP, Member(id="me", nonce="me", ttl_s=8.0), None)
    assert store._room(GROUP).names.prefix == PREFIX
    await store.aclose()


@scene
async def test_two_sets_of_leases_are_told_apart_by_people(place: Place) -> None:
    await _named_lease(place, "0", 17)
    _conform(place.store)
    me = await place.join()
    await place.claim(me.owner)
    await place.their_lease("0", Owner=None, ContinuationToken='"5"')
    other = _conform(place.client())
    with pytest.raises(Misconfigured, match=r"Say by prefix= .* which of them are meant"):
        await other.heartbeat(GROUP, Member(id="other", nonce="other", ttl_s=8.0), None)
    await other.aclose()


@scene
async def test_whoever_owns_a_part_owns_the_partition(place: Place) -> None:
    await _by_range(place, "", "1F", 5, Owner="java")
    await _by_range(place, "1F", "3F", 3)
    await place.join()
    lease = (await place.leases())["0"]
    assert lease.owner == Owner("java", 0)
