"""The application without a server: whatever is asked, the answer is one that a client understands, and never a 500."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from base64 import b64decode, b64encode
from email.utils import formatdate
from threading import Event, Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evenflow.emulators.cosmos.app import BODY_BYTES_MAX, CosmosApp
from evenflow.emulators.cosmos.authorization import EMULATOR_KEY, _signed
from evenflow.emulators.cosmos.faults import CosmosFaultOptions
from evenflow.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ORDERS = "dbs/shop/colls/orders"
QUERY = {"x-ms-documentdb-isquery": "true", "x-ms-documentdb-query-enablecrosspartition": "true"}
UNDERSTOOD = {200, 201, 204, 304, 400, 403, 404, 405, 409, 410, 412, 413, 501}


class Asker:
    def __init__(self, app: CosmosApp) -> None:
        self.app = app
        self.headers: dict[str, str] = {}

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        date: str | None = None,
        key: str = EMULATOR_KEY,
        **more: str,
    ) -> tuple[int, Any]:
        raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        date = formatdate(usegmt=True) if date is None else date
        kind, link = _signed(tuple(path.strip("/").split("/")) if path.strip("/") else ())
        text = f"{method.lower()}\n{kind}\n{link}\n{date.lower()}\n\n"
        signature = b64encode(hmac.new(b64decode(key), text.encode(), hashlib.sha256).digest()).decode()
        headers = {"authorization": quote(f"type=master&ver=1.0&sig={signature}"), "x-ms-date": date, "host": "here"}
        headers |= {name.replace("_", "-"): value for name, value in more.items()}
        return asyncio.run(self._ask(method, path, raw, headers))

    async def _ask(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, Any]:
        messages: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            messages.append(message)

        raw = [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
        sent = quote(path).encode()
        scope = {"type": "http", "method": method, "path": path, "raw_path": b"/" + sent, "headers": raw}
        await self.app({**scope, "scheme": "http", "query_string": b""}, receive, send)
        self.headers = {name.decode(): value.decode("latin-1") for name, value in messages[0]["headers"]}
        text = messages[1]["body"]
        return messages[0]["status"], json.loads(text) if text else None


@pytest.fixture
def asker(tmp_path: Path) -> Iterator[Asker]:
    """Each test has its own, since its threads and files are opened by what is asked."""
    app = CosmosApp(tmp_path, ranges=2, allow_admin=True)
    found = Asker(app)
    assert found.ask("POST", "dbs", {"id": "shop"})[0] == 201
    made = {"id": "orders", "partitionKey": {"paths": ["/k"], "kind": "Hash", "version": 2}}
    assert found.ask("POST", "dbs/shop/colls", made)[0] == 201
    assert found.ask("POST", f"{ORDERS}/docs", {"id": "a", "k": "x", "n": 1})[0] == 201
    yield found
    app.close()


HEADERS = {
    "x_ms_documentdb_partitionkey": ['["x"]', "[]", "[{}]", "x", "[[1]]", '["x","y"]', "[1e999]", "{"],
    "x_ms_documentdb_partitionkeyrangeid": ["0", "1", "9", "x", "-1", "99999999999999"],
    "x_ms_max_item_count": ["-1", "1", "0", "x", "99999999999999999", "²"],
    "x_ms_continuation": ["x", "W10=", "", "eyJhIjoxfQ=="],
    "a_im": ["Incremental Feed", "Full-Fidelity Feed", "nonsense"],
    "if_none_match": ["*", '"0"', '"1"', '"99"', '"-1"', "x", '"²"'],
    "if_modified_since": ["Sun, 15 Nov 2026 23:02:31 GMT", "yesterday", ""],
    "if_match": ["*", '"x"'],
    "x_ms_start_epk": ["", "00", "FF", "zz"],
    "x_ms_end_epk": ["", "00", "FF", "zz"],
    "x_ms_documentdb_isquery": ["true", "false"],
    "x_ms_documentdb_query_enablecrosspartition": ["true"],
    "x_ms_documentdb_is_upsert": ["true"],
    "x_ms_cosmos_is_query_plan_request": ["True"],
    "x_ms_cosmos_intended_collection_rid": ["x"],
    "x_ms_cosmos_changefeed_wire_format_version": ["2021-09-15"],
    "prefer": ["return=minimal"],
    "content_length": ["x", "5", "99999999999"],
}
BODIES: list[Any] = [
    None,
    b"",
    b"nonsense",
    b"\xff\xfe",
    b"[" * 9000,
    [],
    1,
    {},
    {"id": "b", "k": "x"},
    {"id": "a", "k": "x"},
    {"id": 7},
    {"id": "x/y"},
    {"id": "a", "k": []},
    b'{"id": "deep", "k": "x", "v": ' + b"[" * 200 + b"]" * 200 + b"}",
    {"id": "c2", "partitionKey": {"paths": ["/k"]}},
    {"id": "c3", "partitionKey": {"paths": "k"}},
    {"id": "c3", "partitionKey": {"paths": ["/k"], "version": 1}},
    {"query": "SELECT * FROM c", "parameters": []},
    {"query": "SELECT * FROM c WHERE c.n = @n", "parameters": [{"name": "@n", "value": {"deep": [1]}}]},
    {"query": 7},
    {"query": "x", "parameters": 7},
    {"with": "1"},
    {"at": 7},
]
PATHS = [
    "",
    "dbs",
    "dbs/shop",
    "dbs/missing",
    "dbs/..",
    "dbs/shop/colls",
    ORDERS,
    "dbs/shop/colls/missing",
    "dbs/shop/colls/..",
    f"{ORDERS}/docs",
    f"{ORDERS}/docs/a",
    f"{ORDERS}/docs/" + "x" * 300,
    f"{ORDERS}/docs/a/b",
    f"{ORDERS}/pkranges",
    f"{ORDERS}/pkranges/9/split",
    f"{ORDERS}/pkranges/0/merge",
    f"{ORDERS}/sprocs/x",
    "dbs/" + "n" * 5000,
    "offers",
    "nothing/at/all",
]


@settings(max_examples=500, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["GET", "POST", "PUT", "PATCH", "HEAD"]),
    st.sampled_from(PATHS),
    st.sampled_from(BODIES),
    st.fixed_dictionaries({}, optional={name: st.sampled_from(values) for name, values in HEADERS.items()}),
)
def test_whatever_is_asked_the_answer_is_understood(
    asker: Asker, method: str, path: str, body: Any, headers: dict[str, str]
) -> None:
    status, reply = asker.ask(method, path, body, **headers)
    assert status in UNDERSTOOD, reply
    if status >= 400:
        assert reply["code"]
        assert reply["message"].endswith("."), reply


KNOWN = "SELECT * FROM c WHERE AND OR NOT ( ) = < c.n c.id 'x' 1 , VALUE COUNT(1) ORDER BY IN TOP OFFSET LIMIT @p"
WORDS = KNOWN.split(" ")


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(WORDS), max_size=14).map(" ".join), st.booleans())
def test_no_query_ends_in_a_500(asker: Asker, text: str, whole: bool) -> None:
    query = text if whole else f"SELECT * FROM c WHERE {text}"
    body = {"query": query, "parameters": [{"name": "@p", "value": 1}]}
    status, reply = asker.ask("POST", f"{ORDERS}/docs", body, **{name.replace("-", "_"): "true" for name in QUERY})
    assert status in (200, 400, 501), reply


def test_a_large_body_is_refused_before_and_while_it_is_read(asker: Asker) -> None:
    status, reply = asker.ask("POST", f"{ORDERS}/docs", b"x" * (BODY_BYTES_MAX + 1))
    assert (status, reply["code"]) == (413, "RequestEntityTooLarge")
    status, _ = asker.ask("POST", f"{ORDERS}/docs", b"", content_length=str(BODY_BYTES_MAX + 1))
    assert status == 413


def test_a_document_has_two_megabytes_at_most(asker: Asker) -> None:
    def create(size_bytes: int) -> int:
        return asker.ask("POST", f"{ORDERS}/docs", {"id": f"large-{size_bytes}", "k": "x", "v": "x" * size_bytes})[0]

    most = 2 * 1024 * 1024
    assert (create(most - 100), create(most)) == (201, 400)


@pytest.mark.parametrize(
    ("given_to", "status"),
    [
        ({"key": b64encode(b"another").decode()}, 401),
        ({"date": "Sun, 06 Nov 1994 08:49:37 GMT"}, 403),
        ({"date": "soon"}, 401),
        ({"authorization": "type=aad&ver=1.0&sig=x"}, 401),
        ({"authorization": "%"}, 401),
        ({"authorization": ""}, 401),
    ],
)
def test_unsigned_requests_are_refused(asker: Asker, given_to: dict[str, str], status: int) -> None:
    found, reply = asker.ask("GET", "dbs/shop", **given_to)
    assert found == status
    assert EMULATOR_KEY not in json.dumps(reply)


def test_every_answer_has_an_activity_and_a_charge(asker: Asker) -> None:
    asker.ask("GET", "dbs/shop", x_ms_activity_id="mine")
    assert asker.headers["x-ms-activity-id"] == "mine"
    asker.ask("GET", f"{ORDERS}/docs/a", x_ms_documentdb_partitionkey='["x"]')
    assert (asker.headers["x-ms-request-charge"], len(asker.headers["x-ms-activity-id"])) == ("1.00", 36)


def test_the_account_returns_the_address_that_the_client_used(asker: Asker) -> None:
    _, reply = asker.ask("GET", "", host="elsewhere:99")
    assert reply["writableLocations"] == [{"name": "local", "databaseAccountEndpoint": "http://elsewhere:99/"}]


def test_sub_status_says_what_is_the_matter(asker: Asker) -> None:
    feed = {"a_im": "Incremental Feed", "x_ms_documentdb_partitionkeyrangeid": "0"}
    made = {"id": "moved", "partitionKey": {"paths": ["/k"]}}
    asker.ask("POST", "dbs/shop/colls", made)
    asker.ask("POST", "dbs/shop/colls/moved/pkranges/0/split", {})
    assert asker.ask("GET", "dbs/shop/colls/moved/docs", **feed)[0] == 410
    assert asker.headers["x-ms-substatus"] == "1002"
    assert asker.ask("GET", "dbs/shop/colls/missing/docs", **feed)[0] == 404
    assert asker.headers["x-ms-substatus"] == "1003"
    assert asker.ask("GET", f"{ORDERS}/docs", x_ms_cosmos_intended_collection_rid="x")[0] == 400
    assert asker.headers["x-ms-substatus"] == "1024"
    wrong = {"x_ms_documentdb_partitionkey": '["y"]'}
    assert asker.ask("POST", f"{ORDERS}/docs", {"id": "q", "k": "x"}, **wrong)[0] == 400
    assert asker.headers["x-ms-substatus"] == "1001"


def test_ranges_are_returned_if_they_are_new(asker: Asker) -> None:
    path = "dbs/shop/colls/shaped/pkranges"
    asker.ask("POST", "dbs/shop/colls", {"id": "shaped", "partitionKey": {"paths": ["/k"]}})
    _, reply = asker.ask("GET", path)
    assert [one["id"] for one in reply["PartitionKeyRanges"]] == ["0", "1"]
    seen = asker.headers["etag"]
    assert asker.ask("GET", path, if_none_match=seen)[0] == 304
    asker.ask("POST", f"{path}/0/split", {})
    asker.ask("POST", f"{path}/3/split", {})
    _, reply = asker.ask("GET", path, if_none_match=seen)
    assert {one["id"]: one["parents"] for one in reply["PartitionKeyRanges"]} == {
        "2": ["0"],
        "4": ["0", "3"],
        "5": ["0", "3"],
    }


def test_a_feed_of_all_versions_begins_now(asker: Asker) -> None:
    path = "dbs/shop/colls/versions/docs"
    asker.ask("POST", "dbs/shop/colls", {"id": "versions", "partitionKey": {"paths": ["/k"]}})
    place = {"a_im": "Full-Fidelity Feed", "x_ms_documentdb_partitionkeyrangeid": "0"}
    status, reply = asker.ask("GET", path, **place)
    assert (status, "from now on" in reply["message"]) == (400, True)
    assert asker.ask("GET", path, if_none_match="*", **place)[0] == 304


def test_a_continuation_goes_on_with_its_own_query_alone(asker: Asker) -> None:
    path, of_x = "dbs/shop/colls/paged/docs", {"x_ms_documentdb_partitionkey": '["x"]'}
    asker.ask("POST", "dbs/shop/colls", {"id": "paged", "partitionKey": {"paths": ["/k"]}})
    for id in ("a", "b", "c"):
        asker.ask("POST", path, {"id": id, "k": "x"})

    def page(query: str, **headers: str) -> tuple[int, Any]:
        more = {"x_ms_documentdb_isquery": "true", "x_ms_max_item_count": "2", **of_x, **headers}
        return asker.ask("POST", path, {"query": query}, **more)

    assert page("SELECT * FROM c")[0] == 200
    token = {"x_ms_continuation": asker.headers["x-ms-continuation"]}
    assert [one["id"] for one in page("SELECT * FROM c", **token)[1]["Documents"]] == ["c"]
    for status, reply in (
        page("SELECT * FROM c ORDER BY c.id DESC", **token),
        page("SELECT * FROM c", **token, x_ms_documentdb_partitionkey='["y"]'),
        asker.ask("GET", path, **token),
    ):
        assert (status, "that of another query" in reply["message"]) == (400, True)


PLAN = {"x_ms_cosmos_is_query_plan_request": "True", "content_type": "application/query+json"}


def test_a_plan_sends_the_same_query_to_every_range(asker: Asker) -> None:
    def plan(query: str, **headers: str) -> Any:
        status, reply = asker.ask("POST", f"{ORDERS}/docs", {"query": query, "parameters": []}, **PLAN, **headers)
        assert status == 200, reply
        return reply

    reply = plan("SELECT * FROM c WHERE STARTSWITH(c.id, 'a')")
    assert reply["queryRanges"] == [{"min": "", "max": "FF", "isMinInclusive": True, "isMaxInclusive": False}]
    assert reply["queryInfo"] == {"distinctType": "None", "rewrittenQuery": "", "top": None}
    assert plan("SELECT TOP 3 * FROM c")["queryInfo"]["top"] == 3
    narrow = plan("SELECT * FROM c", x_ms_documentdb_partitionkey='["x"]')["queryRanges"][0]
    assert "" < narrow["min"] < narrow["max"] < "FF"


@pytest.mark.parametrize("more", ["ORDER BY c.n", "OFFSET 2 LIMIT 1"])
def test_there_is_no_plan_for_results_that_need_merging(asker: Asker, more: str) -> None:
    for query in (f"SELECT * FROM c {more}", "SELECT VALUE COUNT(1) FROM c"):
        status, reply = asker.ask("POST", f"{ORDERS}/docs", {"query": query}, **PLAN)
        assert (status, "merged across ranges" in reply["message"]) == (501, True)


def test_a_query_of_one_range_returns_only_that_range(asker: Asker) -> None:
    more = {"x_ms_documentdb_isquery": "true", "x_ms_continuation": ""}
    found: list[str] = []
    for number in range(20):
        asker.ask("POST", f"{ORDERS}/docs", {"id": f"by-range-{number}", "k": f"k{number}"})
    for range_id in ("0", "1"):
        query = {"query": "SELECT * FROM c WHERE STARTSWITH(c.id, 'by-range-')"}
        _, reply = asker.ask("POST", f"{ORDERS}/docs", query, x_ms_documentdb_partitionkeyrangeid=range_id, **more)
        assert asker.headers["x-ms-session-token"].split(":")[0] == range_id
        assert "," not in asker.headers["x-ms-session-token"]
        found += [one["id"] for one in reply["Documents"]]
    assert sorted(found) == sorted(f"by-range-{number}" for number in range(20))


def test_the_latest_version_comes_in_the_form_that_was_asked_for(asker: Asker) -> None:
    path = "dbs/shop/colls/formed/docs"
    asker.ask("POST", "dbs/shop/colls", {"id": "formed", "partitionKey": {"paths": ["/k"]}})
    asker.ask("POST", path, {"id": "a", "k": "x"})
    place = {"a_im": "Incremental Feed", "x_ms_documentdb_partitionkey": '["x"]'}
    _, reply = asker.ask("GET", path, x_ms_cosmos_changefeed_wire_format_version="2021-09-15", **place)
    (change,) = reply["Documents"]
    assert (change["current"]["id"], change["metadata"]["lsn"], set(change)) == ("a", 1, {"current", "metadata"})
    (document,) = asker.ask("GET", path, **place)[1]["Documents"]
    assert (document["id"], document["_lsn"]) == ("a", 1)


def test_a_container_names_its_database(asker: Asker) -> None:
    asker.ask("POST", "dbs", {"id": "two words"})
    asker.ask("POST", "dbs/two words/colls", {"id": "c", "partitionKey": {"paths": ["/k"]}})
    for method, path in (("POST", "dbs/two words/colls"), ("GET", "dbs/two words/colls/c")):
        body = {"id": f"by {method}", "partitionKey": {"paths": ["/k"]}} if method == "POST" else None
        asker.ask(method, path, body)
        assert asker.headers["x-ms-alt-content-path"] == "dbs/two%20words"
        assert asker.headers["x-ms-content-path"] == asker.ask("GET", "dbs/two words")[1]["_rid"]


def test_no_write_passes_over_a_condition(asker: Asker) -> None:
    path, key = f"{ORDERS}/docs", {"x_ms_documentdb_partitionkey": '["if"]'}
    asker.ask("POST", path, {"id": "if", "k": "if"})
    upsert = {"x_ms_documentdb_is_upsert": "true"}
    for status, reply in (
        asker.ask("POST", path, {"id": "if", "k": "if", "n": 2}, if_none_match="*", **upsert),
        asker.ask("PUT", f"{path}/if", {"id": "if", "k": "if", "n": 2}, if_none_match="*", **key),
        asker.ask("DELETE", f"{path}/if", if_none_match="*", **key),
    ):
        assert (status, "If-None-Match for writes" in reply["message"]) == (501, True)
    assert "n" not in asker.ask("GET", f"{path}/if", **key)[1]


@pytest.mark.parametrize(
    ("method", "path", "headers", "says"),
    [
        ("POST", f"{ORDERS}/sprocs", {}, "stored procedures"),
        ("GET", "offers", {}, "throughput"),
        ("POST", "dbs/shop/users", {}, "users"),
        ("GET", f"{ORDERS}/docs", {"a_im": "Incremental Feed"}, "feed_range="),
    ],
)
def test_unsupported_features_answer_501_and_say_why(
    asker: Asker, method: str, path: str, headers: dict[str, str], says: str
) -> None:
    status, reply = asker.ask(method, path, {}, **headers)
    assert (status, says in reply["message"]) == (501, True)


def test_the_error_for_an_unknown_range_lists_the_existing_ones(asker: Asker) -> None:
    feed = {"a_im": "Incremental Feed", "x_ms_documentdb_partitionkeyrangeid": "77"}
    status, reply = asker.ask("GET", f"{ORDERS}/docs", **feed)
    assert (status, reply["message"]) == (400, "There is no range '77'. Existing ranges: 0, 1.")


def test_ranges_are_split_and_merged_on_request(tmp_path: Path) -> None:
    asker = Asker(CosmosApp(tmp_path, ranges=4, allow_admin=True))
    asker.ask("POST", "dbs", {"id": "shop"})
    asker.ask("POST", "dbs/shop/colls", {"id": "orders", "partitionKey": {"paths": ["/k"]}})
    for number in range(10):
        asker.ask("POST", f"{ORDERS}/docs", {"id": f"i{number}", "k": f"k{number}"})

    def act(range_id: str, what: str, body: object) -> tuple[int, Any]:
        return asker.ask("POST", f"{ORDERS}/pkranges/{range_id}/{what}", body)

    status, made = act("0", "split", {})
    assert status == 201, made
    children = [one["id"] for one in made["PartitionKeyRanges"]]
    assert (children, made["PartitionKeyRanges"][0]["parents"]) == (["4", "5"], ["0"])
    assert act("0", "split", {})[0] == 410
    assert act("4", "split", {"at": "nonsense"})[0] == 400
    assert act("4", "merge", {})[0] == 400
    status, made = act("4", "merge", {"with": "5"})
    assert (status, made["PartitionKeyRanges"][0]["parents"]) == (201, ["0", "4", "5"])
    seen: list[str] = []
    for range_id in ("1", "2", "3", "6"):
        place = {"a_im": "Incremental Feed", "x_ms_documentdb_partitionkeyrangeid": range_id}
        _, reply = asker.ask("GET", f"{ORDERS}/docs", **place)
        seen += [one["id"] for one in reply["Documents"]] if reply else []
    assert sorted(seen) == [f"i{number}" for number in range(10)]
    asker.app.close()


def test_admin_is_asked_for(tmp_path: Path) -> None:
    asker = Asker(CosmosApp(tmp_path))
    asker.ask("POST", "dbs", {"id": "shop"})
    asker.ask("POST", "dbs/shop/colls", {"id": "orders", "partitionKey": {"paths": ["/k"]}})
    status, reply = asker.ask("POST", f"{ORDERS}/pkranges/0/split", {})
    assert (status, "--allow-admin" in reply["message"]) == (403, True)
    asker.app.close()


def test_trouble_comes_by_the_count(tmp_path: Path) -> None:
    asker = Asker(CosmosApp(tmp_path, faults=CosmosFaultOptions(busy=0.5)))
    asker.ask("POST", "dbs", {"id": "shop"})
    asker.ask("POST", "dbs/shop/colls", {"id": "orders", "partitionKey": {"paths": ["/k"]}})
    found = [asker.ask("GET", f"{ORDERS}/docs")[0] for _ in range(6)]
    assert found == [200, 503] * 3
    asker.app.close()


def test_a_folder_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(Misconfigured, match="is a file"):
        CosmosApp(tmp_path / "file")
    with pytest.raises(Misconfigured, match=r"Not a directory\. Give a folder"):
        CosmosApp(tmp_path / "file" / "data")
    with pytest.raises(Misconfigured, match="base64"):
        CosmosApp(tmp_path / "data", key="not base64!")


def test_a_container_that_is_being_made_is_not_there_yet(asker: Asker) -> None:
    account, answers = asker.app.account, set[int]()
    account.create_database("busy")
    names, is_over = ["first"], Event()

    def look() -> None:
        other = Asker(asker.app)
        while not is_over.is_set():
            answers.add(other.ask("GET", f"dbs/busy/colls/{names[-1]}")[0])

    looking = Thread(target=look)
    looking.start()
    for number in range(30):
        names.append(str(number))
        account.create_container("busy", {"id": names[-1], "partitionKey": {"paths": ["/id"]}})
    is_over.set()
    looking.join()
    assert answers <= {200, 404}
