"""Lease documents of all five layouts: what is read of them, and what is written back."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from msgspec import structs

from evenflow.errors import Corrupt, Misconfigured
from evenflow.model import BEGINNING, Checkpoint, Group, Lease, Owner, Position
from evenflow.stores.cosmos import codec as wire
from evenflow.stores.cosmos import layouts
from evenflow.stores.cosmos.names import Names, checked_prefix, prefix_of
from evenflow.stores.cosmos.ranges import go_on_after, places, replaced

PREFIX = "procacct.documents.azure.com_AAAAAA==_AAAAAIAAAAE="
SYSTEM = {"_rid": "r", "_self": "s", "_etag": '"e1"', "_attachments": "attachments/", "_ts": 1_700_000_000}


def java_state(*tokens: tuple[str | None, str, str]) -> str:
    """As Java's newer processors keep it."""
    places = [{"token": token, "range": {"min": low, "max": high}} for token, low, high in tokens]
    inner = {"V": 1, "Rid": "AAAAAIAAAAE=", "Continuation": places, "Range": {"min": "", "max": "FF"}}
    state = {"V": 1, "Rid": "AAAAAIAAAAE=", "Mode": "INCREMENTAL", "StartFrom": {"Type": "NOW"}, "Continuation": inner}
    return base64.b64encode(json.dumps(state).encode()).decode()


V2 = {
    "id": f"{PREFIX}..0",
    "PartitionId": "0",
    "Owner": "host1",
    "ContinuationToken": '"17"',
    "properties": {},
    "timestamp": "2026-11-15T06:50:00.0000000Z",
    "state": 1,
    **SYSTEM,
}
V3 = {
    "id": f"{PREFIX}..0",
    "version": 0,
    "LeaseToken": "0",
    "FeedRange": {"Range": {"min": "", "max": "FF"}},
    "Owner": "host1",
    "ContinuationToken": '"17"',
    "properties": {"theirs": "kept"},
    "Mode": "Incremental Feed",
    "timestamp": "2026-11-15T06:50:00.0000000Z",
    **SYSTEM,
}
V3_BY_RANGE = {
    "id": f"{PREFIX}..-3F",
    "version": 1,
    "LeaseToken": "-3F",
    "FeedRange": {"Range": {"min": "", "max": "3F"}},
    "Owner": None,
    "ContinuationToken": '"17"',
    "properties": {},
    "Mode": "Full-Fidelity Feed",
    "timestamp": "2026-11-15T06:50:00.0000000Z",
    **SYSTEM,
}
JAVA = {
    "id": f"{PREFIX}..0",
    "LeaseToken": "0",
    "ContinuationToken": '"17"',
    "Owner": "host1",
    "timestamp": "2026-11-15T06:50:00.123Z",
    **SYSTEM,
}
JAVA_BY_RANGE = {
    "id": f"{PREFIX}..-3F",
    "LeaseToken": "-3F",
    "version": 1,
    "Owner": "host1",
    "ContinuationToken": java_state(('"17"', "", "3F")),
    "timestamp": "2026-11-15T06:50:00.123456Z[UTC]",
    "feedRange": {"Range": {"min": "", "max": "3F", "isMinInclusive": True, "isMaxInclusive": False}},
    **SYSTEM,
}
ALL = {"v2": V2, "v3": V3, "v3 by range": V3_BY_RANGE, "java": JAVA, "java by range": JAVA_BY_RANGE}


def noted(partition: str, before: layouts.LeaseDocument | None, **more: Any) -> wire.LeaseNote:
    lease = Lease(partition=partition, owner=Owner("host2", 7), epoch=5, revision=99, ttl_s=20.0)
    record = Checkpoint(partition=partition, epoch=5, position=Position("23", 23), ordinal=6, notes={"tries": 1})
    timestamp = layouts.timestamp(1_700_000_100.25)
    return structs.replace(wire.LeaseNote(partition, timestamp, lease, record), **more)


@pytest.mark.parametrize("layout", ALL)
def test_every_layout_is_read(layout: str) -> None:
    found = layouts.read(ALL[layout])
    by_range = "range" in layout
    assert (found.token, found.is_by_range) == (("-3F", True) if by_range else ("0", False))
    assert found.owner == ("" if layout == "v3 by range" else "host1")
    assert layouts.position_of(found.continuation) == Position("17", 17)
    assert found.span == {"v3": ("", "FF"), "v3 by range": ("", "3F"), "java by range": ("", "3F")}.get(layout)
    assert (found.etag, found.written_at) == ('"e1"', 1_700_000_000.0)


@pytest.mark.parametrize("layout", ALL)
def test_what_is_written_is_v3s_and_keeps_what_is_not_known(layout: str) -> None:
    before = layouts.read({**ALL[layout], "somebody else's": {"nested": [1]}})
    partition = "7" if before.is_by_range else "0"
    document = wire.lease_document(before.id, noted(partition, before), before, span=("", "3F"))
    assert not document.keys() & SYSTEM.keys()
    assert document["somebody else's"] == {"nested": [1]}
    assert {name: document[name] for name in ("id", "version", "LeaseToken", "Owner", "FeedRange")} == {
        "id": before.id,
        "version": int(before.is_by_range),
        "LeaseToken": before.token,
        "Owner": "host2",
        "FeedRange": {"Range": {"min": "", "max": "3F"}},
    }
    assert document["timestamp"] == "2023-11-14T22:15:00.2500000Z"
    assert layouts.position_of(document["ContinuationToken"]) == Position("23", 23)
    assert document["Mode"] == ("Full-Fidelity Feed" if layout == "v3 by range" else "Incremental Feed")
    if layout == "v2":
        assert (document["PartitionId"], document["state"]) == ("0", 1), "v3's processors keep it, too"
    if layout == "v3":
        assert document["properties"]["theirs"] == "kept"
    if layout == "java by range":
        assert document["feedRange"] == JAVA_BY_RANGE["feedRange"]
        assert (
            document["ContinuationToken"]
            == base64.b64encode(
                json.dumps(json.loads(base64.b64decode(java_state(('"23"', "", "3F")))), separators=(",", ":")).encode()
            ).decode()
        ), "in the form that its processors read"
    else:
        assert document["ContinuationToken"] == '"23"'


@pytest.mark.parametrize("layout", ALL)
def test_our_note_is_in_force_until_somebody_else_writes(layout: str) -> None:
    before = layouts.read(ALL[layout])
    note = noted("0", before)
    document = {**wire.lease_document(before.id, note, before), **SYSTEM}
    found = layouts.read(document)
    assert wire.lease_note(found, "0") == note
    assert wire.is_in_force(note, found)
    for change in ({"Owner": "host1"}, {"Owner": None}, {"timestamp": "2026-11-15T06:50:17.0000000Z"}):
        assert not wire.is_in_force(note, layouts.read({**document, **change}))
    assert not wire.is_in_force(note, layouts.read({**document, "ContinuationToken": '"24"'}))


def test_a_note_that_was_carried_to_another_lease_says_nothing() -> None:
    """.NET's processors give the properties of a lease that was split to its children."""
    document = wire.lease_document(f"{PREFIX}..0", noted("0", None), None)
    child = layouts.read({**document, "id": f"{PREFIX}..1", "LeaseToken": "1"})
    assert wire.lease_note(child, "1") is None


def test_who_is_nobody() -> None:
    note = noted("0", None, lease=None, record=None)
    document = wire.lease_document("x..0", note, None)
    assert (document["Owner"], document["ContinuationToken"]) == (None, None)
    assert layouts.read({**V3, "Owner": "  "}).owner == "", "as .NET's processors see it"


def test_a_late_partition_without_a_checkpoint_is_read_from_its_beginning_by_everybody() -> None:
    note = noted("0", None, lease=Lease(partition="0", late=True), record=None)
    assert wire.lease_document("x..0", note, None)["ContinuationToken"] == '"0"'


@pytest.mark.parametrize(
    ("continuation", "position"),
    [
        ("", None),
        ('"1234"', Position("1234", 1234)),
        ("1234", Position("1234", 1234)),
        ('W/"12"', Position("12", 12)),
        ('"what a later service has"', Position("what a later service has")),
        (java_state(('"9"', "", "1F"), ('"7"', "1F", "3F")), Position("7", 7)),
        (java_state(('"9"', "", "1F"), (None, "1F", "3F")), Position("0", 0)),
        ("e30=", Position("e30=")),
    ],
)
def test_continuations_are_read_in_every_form(continuation: str, position: Position | None) -> None:
    assert layouts.position_of(continuation) == position


def test_a_lease_that_tells_its_range_has_a_place_in_it() -> None:
    assert layouts.position_in(by_range("1F", "3F", 5)) == Position("5@1F-3F", 5)
    assert layouts.position_in(layouts.read(V3)) == Position("17", 17), "it is all there is"
    assert layouts.position_in(layouts.read(JAVA)) == Position("17", 17)
    assert layouts.position_in(layouts.read({**V3, "ContinuationToken": None})) is None


def test_what_others_read_is_never_after_the_position() -> None:
    assert layouts.continuation_of(BEGINNING, None) == '"0"'
    assert layouts.continuation_of(Position("12", 12), None) == '"12"'
    assert layouts.continuation_of(None, None) == ""


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"LeaseToken": None}, "LeaseToken"),
        ({"LeaseToken": 7}, "LeaseToken"),
        ({"Owner": {"name": "x"}}, "Owner"),
        ({"ContinuationToken": 1234}, "ContinuationToken"),
        ({"timestamp": 17}, "timestamp"),
        ({"version": 3}, "version"),
        ({"FeedRange": "all"}, "FeedRange"),
        ({"FeedRange": {"Range": {"min": 1, "max": "FF"}}}, "FeedRange"),
        ({"properties": ["x"]}, "properties"),
        ({"properties": {"x": 1}}, "properties"),
    ],
)
def test_a_document_that_was_edited_is_named_with_the_field(change: dict[str, Any], field: str) -> None:
    with pytest.raises(Corrupt, match=rf"procacct.*\.\.0.*{field}"):
        layouts.read({**V3, **change})


def test_our_own_part_that_was_edited_is_named() -> None:
    broken = layouts.read({**V3, "properties": {"evenflow": "{"}})
    with pytest.raises(Corrupt, match=r"\.\.0'.*'properties\.evenflow'"):
        wire.lease_note(broken, "0")
    newer = layouts.read({**V3, "properties": {"evenflow": json.dumps({"v": 2, "what": "is new"})}})
    with pytest.raises(Misconfigured, match="newer evenflow"):
        wire.lease_note(newer, "0")


# --- ids
def test_nothing_of_ours_has_an_id_that_others_list() -> None:
    for prefix in (PREFIX, prefix_of(Group("ns", "hub", "group"))):
        names = Names(prefix)
        ours = (names.group, names.member("."), names.member("a"), names.past_lease("0"), names.moves, names.actions)
        assert not any(name.startswith(names.leases) for name in ours)
        assert not {names.marker, f"{prefix}.lock"} & set(ours)
        assert not names.moves.startswith(names.heartbeats), "a heartbeat asks for what it needs, and no more"


def test_no_group_is_asked_for_with_another() -> None:
    odd = ("a", "a.", "a..0", "a@b", "A", "b", "", "..", "x" * 300, "x" * 301, "a~2e")
    groups = [Group(one, other, third) for one in odd for other in odd for third in odd if other and third]
    prefixes = {prefix_of(group) for group in groups}
    assert len(prefixes) == len(groups)
    few = sorted(prefixes)[::17]
    assert not any(one != other and f"{other}..0".startswith(f"{one}.") for one in prefixes for other in few)
    assert all(len(Names(prefix).member("x" * 300)) <= 255 for prefix in prefixes)


@pytest.mark.parametrize("prefix", ["", "a/b", "a#", 'a"', "a\n", "x" * 200])
def test_a_prefix_that_no_document_can_have_is_refused(prefix: str) -> None:
    with pytest.raises(Misconfigured, match="prefix"):
        checked_prefix(prefix)


# --- ranges
SPANS = {"2": ("", "3F"), "3": ("3F", "FF")}


def by_range(low: str, high: str, lsn: int, owner: str = "") -> layouts.LeaseDocument:
    named = {"id": f"{PREFIX}..{low}-{high}", "LeaseToken": f"{low}-{high}", "Owner": owner}
    return layouts.read(
        {**V3_BY_RANGE, **named, "FeedRange": {"Range": {"min": low, "max": high}}, "ContinuationToken": f'"{lsn}"'}
    )


def test_a_lease_of_just_the_range_is_the_partitions() -> None:
    found = places([by_range("", "3F", 5), by_range("3F", "FF", 9)], {}, SPANS, {})
    assert {name: one.token for name, one in found.homes.items()} == {"2": "-3F", "3": "3F-FF"}
    assert found.covers == {}


def test_a_lease_by_id_is_the_partitions_whatever_else_there_is() -> None:
    plain = layouts.read({**V3, "id": f"{PREFIX}..2", "LeaseToken": "2"})
    found = places([by_range("", "3F", 5), plain], {}, SPANS, {})
    assert found.homes == {"2": plain}
    assert [one.token for one in found.covers["2"]] == ["-3F"]


def test_without_the_hubs_ranges_leases_have_the_names_they_have() -> None:
    assert set(places([by_range("", "3F", 5), layouts.read(V3)], {}, {}, {}).homes) == {"-3F", "0"}


def test_a_partition_goes_on_piece_by_piece_where_the_leases_of_its_pieces_are() -> None:
    merged = places([by_range("", "1F", 5), by_range("1F", "3F", 3)], {}, SPANS, {})
    found = go_on_after(merged.covers["2"], SPANS["2"], Position("99", 99))
    assert found == Position("5@,3@1F-3F", 3)
    assert layouts.continuation_of(found, None) == '"3"', "for others, where the last of them is"
    split = places([by_range("", "FF", 8)], {}, SPANS, {})
    for name, span in SPANS.items():
        assert go_on_after(split.covers[name], span, Position("99", 99)) == Position(f"8@{span[0]}-{span[1]}", 8)


@pytest.mark.parametrize("default", [Position("4", 4), Position("9@-3F", 9), BEGINNING])
def test_what_no_lease_speaks_of_begins_where_it_would_without_any(default: Position) -> None:
    partly = places([by_range("0F", "1F", 5)], {}, SPANS, {})
    lsn = max(default.sequence or 0, 0)
    assert go_on_after(partly.covers["2"], SPANS["2"], default).offset == f"{lsn}@,5@0F,{lsn}@1F-3F"


def test_they_go_when_all_that_they_cover_goes_on_elsewhere() -> None:
    split = places([by_range("", "FF", 8)], {}, SPANS, {})
    assert replaced(split, {"2"}, SPANS) == []
    assert [one.token for one in replaced(split, {"2", "3"}, SPANS)] == ["-FF"]
