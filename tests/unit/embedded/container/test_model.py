"""The container against a plain dictionary: whatever is written, split, merged and expired, readers see the same.

Two readers follow every range, in pages of random size, through splits and merges: one of the latest versions, one of
all versions and deletes. They use only what the pages contain.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from evenflow.embedded.container import Container
from evenflow.embedded.container.documents import SYSTEM_PROPERTIES
from evenflow.errors import DocumentChanged, DocumentExists, DocumentMissing, RangeGone

if TYPE_CHECKING:
    from evenflow.embedded.container.feed import Mode

KEYS = st.sampled_from(["a", "b", "c", 1, 1.5, True, None])
IDS = st.sampled_from(["x", "y", "z"])
PAGES = st.integers(1, 4)


def own(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in SYSTEM_PROPERTIES}


class Follower:
    """Reads the feed of the whole space, by parts that each have an LSN."""

    def __init__(self, container: Container, mode: Mode) -> None:
        self._container = container
        self._mode = mode
        self._parts: list[tuple[str, str, int]] = [("", "FF", 0)]
        self.copy: dict[tuple[str, str], dict[str, Any]] = {}
        self.seen_changes: list[tuple[str, int]] = []

    def read(self, max_items: int) -> bool:
        """One page of each part; whether there may be more."""
        parts, more = [], False
        for low, high, after in self._parts:
            for one in self._container.ranges():
                if one.overlaps(low, high):
                    part = max(low, one.min), min(high, one.max)
                    page = self._container.feed(one.id, after, within=part, mode=self._mode, max_items=max_items)
                    self._take(page.changes, after)
                    parts.append((*part, page.after))
                    more = more or not page.is_last
        self._parts = parts
        return more

    def _take(self, changes: list[Any], after: int) -> None:
        for change in changes:
            assert change.lsn > after
            document = change.document or change.previous_document
            name = repr(document["key"]), document["id"]
            self.seen_changes.append((change.kind, change.lsn))
            if change.document is None:
                assert own(self.copy.pop(name)) == own(change.previous_document)
            else:
                if change.kind:
                    assert (name in self.copy) == (change.kind == "replace")
                self.copy[name] = change.document
        assert [change.lsn for change in changes] == sorted(change.lsn for change in changes)


class Containers(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="evenflow-test-"))
        self.now_us = 1_700_000_000_000_000
        self.container = Container.create(
            self.folder / "c", "/key", 2, default_ttl_s=-1, retention_s=None, wall_us=lambda: self.now_us
        )
        self.other = Container(self.folder / "c", wall_us=lambda: self.now_us)
        self.model: dict[tuple[str, str], dict[str, Any]] = {}
        self.keys: dict[str, Any] = {}
        self.due_us: dict[tuple[str, str], int] = {}
        self.latest = Follower(self.container, "latest")
        self.all = Follower(self.other, "all")

    def teardown(self) -> None:
        while self.latest.read(3):
            pass
        while self.all.read(3):
            pass
        assert self.all.copy == self.model
        assert {name: self.latest.copy[name] for name in self.model} == self.model
        self.container.close()
        self.other.close()
        shutil.rmtree(self.folder)

    def _drop_expired(self) -> None:
        for name in [name for name, due_us in self.due_us.items() if due_us <= self.now_us]:
            del self.model[name], self.due_us[name]

    def _wrote(self, document: dict[str, Any]) -> None:
        name = repr(document["key"]), document["id"]
        self.model[name], self.keys[name[0]] = document, document["key"]
        self.due_us.pop(name, None)
        if "ttl" in document:
            self.due_us[name] = (self.now_us // 1_000_000 + document["ttl"]) * 1_000_000

    @rule(key=KEYS, id=IDS, number=st.integers(0, 9), ttl=st.sampled_from([None, None, None, 2]))
    def upsert(self, key: Any, id: str, number: int, ttl: int | None) -> None:
        document = {"id": id, "key": key, "number": number} | ({} if ttl is None else {"ttl": ttl})
        self._wrote(self.container.upsert(document))

    @rule(key=KEYS, id=IDS)
    def insert(self, key: Any, id: str) -> None:
        if (repr(key), id) in self.model:
            with pytest.raises(DocumentExists):
                self.other.insert({"id": id, "key": key})
        else:
            self._wrote(self.other.insert({"id": id, "key": key}))

    @rule(key=KEYS, id=IDS, right=st.booleans())
    def replace(self, key: Any, id: str, right: bool) -> None:
        there = self.model.get((repr(key), id))
        wanted = {"id": id, "key": key, "again": True}
        if there is None:
            with pytest.raises(DocumentMissing):
                self.container.replace(wanted, if_match='"any"')
        elif right:
            self._wrote(self.container.replace(wanted, if_match=there["_etag"]))
        else:
            with pytest.raises(DocumentChanged):
                self.container.replace(wanted, if_match='"any"')

    @rule(key=KEYS, id=IDS)
    def delete(self, key: Any, id: str) -> None:
        if (repr(key), id) in self.model:
            self.container.delete(id, key)
            del self.model[repr(key), id]
            self.due_us.pop((repr(key), id), None)
        else:
            with pytest.raises(DocumentMissing):
                self.container.delete(id, key)

    @rule(which=st.integers(0, 20))
    @precondition(lambda self: len(self.container.ranges()) < 8)
    def split(self, which: int) -> None:
        ranges = self.container.ranges()
        parent = ranges[which % len(ranges)]
        first, second = self.container.split(parent.id)
        assert (first.min, first.max, second.max) == (parent.min, second.min, parent.max)
        assert first.lsn == second.lsn == parent.lsn
        with pytest.raises(RangeGone) as gone:
            self.other.feed(parent.id)
        assert gone.value.children == (first.id, second.id)

    @rule(which=st.integers(0, 20))
    @precondition(lambda self: len(self.container.ranges()) > 1)
    def merge(self, which: int) -> None:
        ranges = self.container.ranges()
        first = which % (len(ranges) - 1)
        child = self.other.merge(ranges[first + 1].id, ranges[first].id)
        assert {ranges[first].id, ranges[first + 1].id} <= set(child.parents)

    @rule(seconds=st.integers(1, 3))
    def time_passes(self, seconds: int) -> None:
        self.now_us += seconds * 1_000_000
        self._drop_expired()

    @rule(max_items=PAGES)
    def read_latest(self, max_items: int) -> None:
        self.latest.read(max_items)

    @rule(max_items=PAGES)
    def read_all(self, max_items: int) -> None:
        self.all.read(max_items)

    @invariant()
    def documents_are_the_same(self) -> None:
        found = {(repr(one["key"]), one["id"]): one for one in self.other.query("SELECT * FROM c")}
        assert found == self.model

    @invariant()
    def the_ranges_cover_the_space(self) -> None:
        ranges = self.container.ranges()
        assert (ranges[0].min, ranges[-1].max) == ("", "FF")
        assert [one.max for one in ranges[:-1]] == [one.min for one in ranges[1:]]

    @rule(key=KEYS, id=IDS)
    def read_one(self, key: Any, id: str) -> None:
        there = self.model.get((repr(key), id))
        if there is None:
            with pytest.raises(DocumentMissing):
                self.other.read(id, key)
        else:
            assert self.other.read(id, key) == there


TestContainers = Containers.TestCase
TestContainers.settings = settings(
    max_examples=30, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
