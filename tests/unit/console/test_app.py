"""The console as its pages meet it: what is answered, what is refused, what is done and recorded."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from evenflow.console import (
    LOOPBACK_NAMES,
    ActionCall,
    ActionResult,
    Console,
    ConsoleAccess,
    CustomAction,
    CustomFigure,
    Subject,
)
from evenflow.errors import Misconfigured
from evenflow.model import Change, Checkpoint, DeadLetter, Event, Group, Member, Position
from evenflow.operate.dead_letters.memory import MemoryDeadLetters
from evenflow.operate.inspect.hints import Hints
from evenflow.runtime.clock import system_clock
from evenflow.stores.memory import MemoryStore
from evenflow.testing.fakes import FakeSource

if TYPE_CHECKING:
    from collections.abc import Iterator

TOKEN = "a-token-of-the-house"
KNOWN = {"authorization": f"Bearer {TOKEN}"}


class Scene:
    """A group of one instance that owns two partitions, with one dead letter; and a console on it."""

    def __init__(self) -> None:
        self.store, self.source, self.dead_letters = MemoryStore(), FakeSource(2), MemoryDeadLetters()
        self.group = asyncio.run(self._make())
        self.key = f"{self.group.namespace}/{self.group.hub}/alerts"
        self.pressed: list[ActionCall] = []
        self.hints: Hints | None = None

    async def _make(self) -> Group:
        identity = await self.source.identity()
        group = Group(identity.namespace, identity.hub, "alerts")
        ledger = await self.store.heartbeat(group, Member(id="one", nonce="1", ttl_s=8.0), None)
        assert ledger.me is not None
        for name in ("0", "1"):
            owner = ledger.me.owner
            change = Change(partition=name, revision=0, history=0, owner=owner, epoch=1, ttl_s=8.0, reason="claimed")
            await self.store.swap(group, [change])
            for number in range(3):
                self.source.append(name, b"event %d" % number)
            first = Checkpoint(partition=name, epoch=1, position=Position("0", 0), ordinal=1)
            await self.store.seal(group, name, 1, first)
        event = Event(b"bad", key="home-7", sequence=1)
        dead_letter = DeadLetter(partition="0", event=event, reason="poison", error="KeyError: 'x'", attempts=3)
        await self.dead_letters.file(group, "0", [dead_letter])
        return group

    def console(self, **access: Any) -> Console:
        async def add(asked: ActionCall) -> str:
            self.pressed.append(asked)
            return "instance four was started"

        async def break_in(asked: ActionCall) -> ActionResult:
            return ActionResult(text="the burglar is in", link="/homes/7")

        subject = Subject(
            store=self.store, source=self.source, dead_letters=lambda: self.dead_letters, hints=self.hints
        )
        offers = [
            CustomAction(name="add", label="Add an instance", run=add, groups=("alerts",)),
            CustomAction(
                name="break-in", label="Break in", run=break_in, about="instance", subjects=lambda group: ["one"]
            ),
        ]
        figures = [CustomFigure(label="events lost", value=0, mood="good")]
        return Console(
            subject, system_clock(), access=ConsoleAccess(**access), actions=offers, figures=lambda group: figures
        )

    def actions(self) -> list[tuple[str, str, str]]:
        done = asyncio.run(self.store.actions(self.group))
        return [(action.kind, action.by, action.why) for action in done]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def client_of(console: Console, scene: Scene, headers: dict[str, str] | None = None) -> TestClient:
    """Asks about the scene's group, unless another one is given."""
    client = TestClient(console, "http://localhost", headers=headers)
    client.params = {"group": scene.key}
    return client


@pytest.fixture
def acting(scene: Scene) -> Iterator[TestClient]:
    with client_of(scene.console(token=TOKEN, allow_actions=True), scene, KNOWN) as client:
        yield client


@pytest.fixture
def looking(scene: Scene) -> Iterator[TestClient]:
    with client_of(scene.console(hosts=LOOPBACK_NAMES), scene) as client:
        yield client


# --- looking
def test_the_page_and_what_it_needs_are_served(looking: TestClient) -> None:
    page = looking.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "main.js" in page.text
    assert looking.get("/main.js").headers["content-type"].startswith("text/javascript")
    assert looking.get("/console.css").status_code == 200
    assert looking.get("/nothing.js").status_code == 404
    assert looking.get("/../app.py").status_code == 404


def test_a_partition_is_explained_and_a_plan_made(looking: TestClient) -> None:
    shown = looking.get("/api/partition", params={"partition": "1"}).json()
    assert shown["where"].startswith("one owns it")
    assert looking.get("/api/plan", params={"members": "2"}).json()["moving"] == 1
    assert looking.get("/api/rows", params={"text": "1"}).json()["total"] == 1
    assert looking.get("/api/history").json()["lag"] == {"0": [2], "1": [2]}


def test_dead_letters_can_be_browsed(looking: TestClient) -> None:
    shown = looking.get("/api/dead_letters").json()
    assert [(one["id"], one["state"], one["error"]) for one in shown["dead_letters"]] == [
        ("0@1", "dead", "KeyError: 'x'")
    ]
    assert "event" not in shown["dead_letters"][0]
    assert looking.get("/api/dead_letter", params={"dead_letter": "0@1"}).json()["event"]["body"] == "bad"
    assert looking.get("/api/dead_letter", params={"dead_letter": "0@9"}).status_code == 400


@pytest.mark.parametrize(
    ("path", "more", "status", "words"),
    [
        ("/api/partition", {"partition": "9"}, 400, "no partition '9'"),
        ("/api/history", {"group": "fake/fake/nope"}, 400, "The store has no group"),
        ("/api/stream", {"group": "nope"}, 400, "The store has no group"),
        ("/api/nothing", {}, 404, "no such path"),
    ],
)
def test_what_is_not_there_is_said(
    looking: TestClient, path: str, more: dict[str, str], status: int, words: str
) -> None:
    answer = looking.get(path, params=more)
    assert answer.status_code == status
    assert words in answer.json()["error"]


def test_every_answer_carries_what_browsers_shall_forbid(looking: TestClient) -> None:
    for path in ("/", "/main.js", "/api/about", "/api/nothing"):
        headers = looking.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert (headers["x-content-type-options"], headers["x-frame-options"]) == ("nosniff", "DENY")
        assert "access-control-allow-origin" not in headers
    assert looking.get("/api/about").headers["cache-control"] == "no-store"


def test_a_name_that_is_not_ours_is_refused(looking: TestClient) -> None:
    answer = looking.get("/api/about", headers={"host": "evil.example"})
    assert answer.status_code == 421
    assert looking.get("/", headers={"host": "evil.example"}).status_code == 421


# --- who may
def test_where_reading_needs_the_token_the_page_comes_without_data(scene: Scene) -> None:
    with client_of(scene.console(token=TOKEN, reading_needs_token=True), scene) as client:
        assert client.get("/").status_code == 200
        for path in ("/api/about", "/api/stream", "/api/history", "/api/dead_letters"):
            assert client.get(path).status_code == 401
        assert client.get("/api/about", headers={"authorization": "Bearer wrong"}).status_code == 401
        assert client.get("/api/history", headers=KNOWN).status_code == 200


def test_it_changes_nothing_unless_it_is_allowed_to(scene: Scene, looking: TestClient) -> None:
    for path in ("/api/act/pause", "/api/act/add", "/api/preview"):
        answer = looking.post(path, json={})
        assert answer.status_code == 403
        assert "--allow-actions" in answer.json()["error"]
    assert scene.actions() == []


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"authorization": ""}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"content-type": "text/plain"}, 415),
    ],
)
def test_an_action_needs_the_token_and_comes_from_our_own_page(
    scene: Scene, acting: TestClient, headers: dict[str, str], status: int
) -> None:
    answer = acting.post("/api/act/pause", content=b"{}", headers={"content-type": "application/json"} | headers)
    assert answer.status_code == status
    assert scene.actions() == []


def test_actions_without_a_token_are_no_console() -> None:
    subject = Subject(store=MemoryStore())
    with pytest.raises(Misconfigured, match="token"):
        Console(subject, system_clock(), access=ConsoleAccess(allow_actions=True))
    with pytest.raises(Misconfigured, match="token"):
        Console(subject, system_clock(), access=ConsoleAccess(reading_needs_token=True))


# --- acting
def test_pause_and_resume_are_done_and_recorded(scene: Scene, acting: TestClient) -> None:
    shown = acting.post("/api/act/pause", json={"partitions": ["1"], "by": "ann", "why": "lunch"}).json()
    assert (shown["state"], shown["label"]) == ("done", "pause")
    ledger = asyncio.run(scene.store.peek(scene.group))
    assert ledger is not None
    assert list(ledger.state.pauses) == ["1"]
    acting.post("/api/act/resume", json={"by": "ann"})
    assert scene.actions() == [
        ("resume", "ann (console, testclient)", ""),
        ("pause", "ann (console, testclient)", "lunch"),
    ]


def test_an_instance_is_asked_to_retire(scene: Scene, acting: TestClient) -> None:
    assert acting.post("/api/act/retire", json={"instance": "one"}).json()["state"] == "done"
    ledger = asyncio.run(scene.store.peek(scene.group))
    assert ledger is not None
    assert list(ledger.state.retired) == ["one#1"]
    failed = acting.post("/api/act/retire", json={"instance": "missing"}).json()
    assert failed["state"] == "failed"
    assert "has no instance 'missing'" in failed["outcome"]


def test_a_seek_is_looked_at_first(scene: Scene, acting: TestClient) -> None:
    shown = acting.post("/api/preview", json={"to": "shift", "shift": 1}).json()["partitions"]
    rows = [(row["partition"], row["before"], row["after"], row["lag_before"], row["lag_after"]) for row in shown]
    assert rows == [("0", "0", "1", 2, 1), ("1", "0", "1", 2, 1)]
    assert scene.actions() == []


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"to": "time"}, "valid date and time"),
        ({"to": "time", "time": 1e30}, "valid date and time"),
        ({"to": "offset", "offset": " "}, "Enter an offset"),
        ({"to": "shift"}, "number of events to shift"),
        ({"to": "group"}, "name of another group"),
        ({"to": "nowhere"}, "not a valid action"),
        ({"partitions": ["9"]}, "no partition 9"),
        ({"colour": "red"}, "not a valid action"),
    ],
)
def test_a_seek_that_says_too_little_is_an_error(acting: TestClient, wanted: dict[str, Any], words: str) -> None:
    answer = acting.post("/api/preview", json=wanted)
    assert answer.status_code == 400
    assert words in answer.json()["error"]


def test_a_seek_in_a_group_whose_owner_is_silent_goes_on_extra_the_page(scene: Scene, acting: TestClient) -> None:
    shown = acting.post("/api/act/seek", json={"to": "earliest", "by": "ann"})
    assert shown.status_code == 202
    assert shown.json()["state"] == "running"
    assert any("waiting for one" in line for line in shown.json()["lines"])


def test_a_redrive_is_asked_for(scene: Scene, acting: TestClient) -> None:
    shown = acting.post("/api/act/redrive", json={"dead_letters": ["0@1"], "by": "ann"})
    assert shown.status_code in (200, 202)
    assert acting.get("/api/dead_letters").json()["dead_letters"][0]["state"] == "again"
    assert scene.actions()[0][:2] == ("redrive", "ann (console, testclient)")


def test_an_offer_of_the_embedding_program_is_a_recorded_action(scene: Scene, acting: TestClient) -> None:
    shown = acting.post("/api/act/add", json={"by": "ann", "why": "load", "subject": "x"}).json()
    assert (shown["state"], shown["outcome"]) == ("done", "instance four was started")
    assert [(asked.group, asked.subject, asked.who.why) for asked in scene.pressed] == [(scene.group, "x", "load")]
    assert scene.actions() == [("add", "ann (console, testclient)", "load")]
    assert acting.post("/api/act/nonsense", json={}).status_code == 404


def test_a_custom_action_names_its_instances_and_links_to_its_result(scene: Scene, acting: TestClient) -> None:
    shown = acting.post("/api/act/break-in", json={"by": "ann", "subject": "one"}).json()
    assert (shown["outcome"], shown["details"]) == ("the burglar is in", {"link": "/homes/7"})
    offers = scene.console(token=TOKEN, allow_actions=True)._extra(scene.group)["custom_actions"]
    assert [(offer["name"], offer["subjects"]) for offer in offers] == [("add", None), ("break-in", ["one"])]


@pytest.mark.parametrize("link", ["javascript:alert(1)", "//elsewhere/x", "https://elsewhere", ""])
def test_a_link_leads_nowhere_else(link: str) -> None:
    with pytest.raises(Misconfigured, match="a path on this server"):
        ActionResult(text="done", link=link)


@pytest.mark.parametrize(
    ("hints", "flags"),
    [(None, "--group alerts"), (Hints(flags="--store sqlite:x"), "--store sqlite:x --group alerts")],
)
def test_commands_name_the_group_that_is_looked_at(scene: Scene, hints: Hints | None, flags: str) -> None:
    scene.hints = hints
    assert scene.console()._extra(scene.group)["allowed"]["flags"] == flags


def test_too_much_is_refused(acting: TestClient) -> None:
    answer = acting.post("/api/act/pause", json={"why": "x" * 100_000})
    assert answer.status_code == 400
    assert "too large" in answer.json()["error"]


def test_it_can_be_mounted_in_another_application(scene: Scene) -> None:
    console = scene.console()
    with TestClient(Starlette(routes=[Mount("/api/console", console)])) as client:
        page = client.get("/api/console/")
        assert "main.js" in page.text
        assert page.headers["cache-control"] == "no-cache"
        shown = client.get("/api/console/api/partition", params={"group": scene.key, "partition": "0"})
        assert shown.json()["row"]["lag"] == 2
        assert client.post("/api/console/api/act/pause", json={}).status_code == 403
        assert client.portal is not None
        client.portal.call(console.aclose)


def test_metrics_of_all_groups_are_served(scene: Scene) -> None:
    """At once, also to the first who asks."""
    with TestClient(scene.console(), "http://localhost") as client:
        answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lags = [line for line in answer.text.splitlines() if line.startswith("evenflow_partition_lag_events{")]
    assert lags == [
        f'evenflow_partition_lag_events{{namespace="{scene.group.namespace}",hub="{scene.group.hub}",group="alerts",'
        f'partition="{name}"}} 2'
        for name in ("0", "1")
    ]


def test_metrics_ask_for_the_token_where_reading_does(scene: Scene) -> None:
    with TestClient(scene.console(token=TOKEN, reading_needs_token=True), "http://localhost") as client:
        assert client.get("/metrics").status_code == 401
        assert client.get("/metrics", headers=KNOWN).status_code == 200
