"""`evenflow container serve` as a program: its line, its options, keys, trouble on purpose, and being killed."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
import urllib.request
from base64 import b64encode
from typing import TYPE_CHECKING, Any

import pytest
from azure.cosmos import CosmosClient, PartitionKey
from azure.cosmos.exceptions import CosmosHttpResponseError

from evenflow.container import Container
from evenflow.cosmos.access import EMULATOR_KEY
from tests.integration.certificates import make_certificate
from tests.integration.programs import answer, evenflow, facts, started
from tests.servers.cosmos import CosmosServer
from tests.servers.processes import LOOPBACK

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

OWN_KEY = b64encode(b"a secret of our own, and long").decode()


def orders_of(server: CosmosServer, key: str = EMULATOR_KEY, **options: Any) -> Any:
    client = CosmosClient(server.url, key, **options)
    return client.get_database_client("shop").get_container_client("orders")


def test_one_line_says_that_it_is_ready_and_sigterm_ends_it(tmp_path: Path) -> None:
    with started("container", "serve", "data", "--port", "0", folder=tmp_path) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.terminate()
        rest, said = process.communicate(timeout=30)
    assert line.startswith("ready: AccountEndpoint=http://127.0.0.1:")
    assert line.endswith(f"/;AccountKey={EMULATOR_KEY};\n")
    assert (rest, said, process.returncode) == ("", "", 0)


def test_containers_are_declared_by_flags_and_health_names_them(tmp_path: Path) -> None:
    declared = ["--container", "shop/orders:/customer", "--container", "shop/lines:/tenant,/user", "--ranges", "3"]
    with CosmosServer(tmp_path / "data", *declared) as server:
        with urllib.request.urlopen(f"{server.url}health", timeout=30) as found:
            assert json.load(found) == {"status": "ready", "databases": {"shop": ["lines", "orders"]}}
        assert len(list(orders_of(server).read_feed_ranges())) == 3
    told = evenflow("container", "serve", "data", "--port", "0", "--container", "shop/orders:/other", folder=tmp_path)
    assert (told.returncode, "has the partition key /customer" in told.stderr) == (1, True)


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--container", "orders"], 1, "is no container"),
        (["--container", "shop/orders:customer"], 1, "is no container"),
        (["--container", "shop/or?ders:/k"], 1, "is no id"),
        (["--host", "0.0.0.0"], 1, "Give one (--key)"),
        (["--key", "not base64!"], 1, "base64"),
        (["--fault", "flood=1"], 2, "no fault"),
        (["--fault", "busy=often"], 2, "no number"),
        (["--fault", "gone=2"], 2, "between 0 and 1"),
        (["--certificate", "missing.pem"], 1, "no certificate"),
        (["--ranges", "0"], 2, "range"),
    ],
)
def test_what_cannot_be_is_told_in_a_sentence(tmp_path: Path, options: list[str], code: int, words: str) -> None:
    done = evenflow("container", "serve", "data", "--port", "0", *options, folder=tmp_path)
    assert (done.returncode, words in " ".join(done.stderr.split())) == (code, True), done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    with CosmosServer(tmp_path / "data") as server:
        done = evenflow("container", "serve", "other", "--port", str(server.port), folder=tmp_path)
    assert (done.returncode, "Choose another port" in done.stderr) == (1, True)


def test_only_who_has_the_key_gets_in_and_nobody_is_shown_it(tmp_path: Path) -> None:
    with CosmosServer(tmp_path / "data", "--key", OWN_KEY, "--container", "shop/orders:/customer") as server:
        assert orders_of(server, OWN_KEY).create_item({"id": "a", "customer": "x"})["id"] == "a"
        with pytest.raises(CosmosHttpResponseError) as refused:
            orders_of(server).read()
        assert refused.value.status_code == 401
        assert OWN_KEY not in str(refused.value)
        for headers in ({}, {"authorization": "type%3Dmaster%26ver%3D1.0%26sig%3D"}, {"authorization": "nonsense"}):
            connection = http.client.HTTPConnection(LOOPBACK, server.port, timeout=30)
            connection.request("GET", "/dbs/shop/colls/orders/docs", headers=headers)
            assert connection.getresponse().status == 401
            connection.close()
    assert OWN_KEY not in server.log


def test_a_request_that_is_too_large_is_refused(tmp_path: Path) -> None:
    with CosmosServer(tmp_path / "data", "--container", "shop/orders:/customer") as server:
        orders = orders_of(server)
        with pytest.raises(CosmosHttpResponseError) as refused:
            orders.create_item({"id": "a", "customer": "x", "v": "x" * (3 * 1024 * 1024)})
        assert refused.value.status_code == 413
        with pytest.raises(CosmosHttpResponseError) as refused:
            orders.create_item({"id": "a", "customer": "x", "v": "x" * (2 * 1024 * 1024)})
        assert refused.value.status_code == 400
        assert orders.create_item({"id": "a", "customer": "x", "v": "x" * (2 * 1024 * 1024 - 100)})["id"] == "a"


@pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning")
def test_tls(tmp_path: Path) -> None:
    pem, key = make_certificate(tmp_path)
    declared = ["--certificate", str(pem), "--certificate-key", str(key), "--container", "shop/orders:/customer"]
    with (
        CosmosServer(tmp_path / "data", *declared) as server,
        CosmosClient(f"https://localhost:{server.port}/", EMULATOR_KEY, connection_verify=str(pem)) as client,
    ):
        orders = client.get_database_client("shop").get_container_client("orders")
        assert orders.create_item({"id": "a", "customer": "x"})["id"] == "a"


def test_too_many_units_are_refused_and_the_client_waits_as_it_is_told(tmp_path: Path) -> None:
    declared = ["--container", "shop/orders:/customer", "--fault", "throttle=20"]
    with CosmosServer(tmp_path / "data", *declared) as server:
        patient = orders_of(server)
        started_s = time.monotonic()
        for number in range(12):
            patient.create_item({"id": str(number), "customer": "x"})
        # 60 units, of which the first 20 are free, and what is asked for while there are some left.
        assert time.monotonic() - started_s > 1.5
        patient.create_item({"id": "large", "customer": "x", "v": "x" * 1_000_000})
        hasty = orders_of(server, retry_throttle_total=1, retry_fixed_interval=1)
        with pytest.raises(CosmosHttpResponseError) as refused:
            hasty.read_item("large", "x")
        assert refused.value.status_code == 429
        assert int(refused.value.headers["x-ms-retry-after-ms"]) > 1_000


def test_ranges_that_seem_gone_and_a_busy_server_by_the_count(tmp_path: Path) -> None:
    declared = ["--container", "shop/orders:/customer", "--fault", "gone=0.25", "--fault", "delay=1ms"]
    with CosmosServer(tmp_path / "data", *declared) as server:
        orders = orders_of(server)
        seen: list[Any] = []
        for number in range(12):
            try:
                orders.upsert_item({"id": str(number), "customer": "x"})
                seen.append(0)
            except CosmosHttpResponseError as error:
                seen.append((error.status_code, error.sub_status))
        assert seen == [0, 0, 0, (410, 1002)] * 3
        # The feed reads the ranges again, and goes on.
        feed = orders.query_items_change_feed(start_time="Beginning", max_item_count=2)
        assert len(list(feed)) == 9
    with CosmosServer(tmp_path / "data", "--fault", "busy=1") as server:
        with pytest.raises(CosmosHttpResponseError) as refused:
            orders_of(server).read_item("0", "x")
        assert refused.value.status_code == 503


def test_a_container_is_shown_split_and_merged_while_it_is_served(tmp_path: Path) -> None:
    with CosmosServer(tmp_path / "data", "--container", "shop/orders:/customer") as server:
        orders = orders_of(server)
        for number in range(20):
            orders.upsert_item({"id": str(number), "customer": f"c{number}"})
        path = "data/shop/orders"
        found = facts("container", "info", path, folder=tmp_path)
        assert (found["documents"], [one["range"] for one in found["ranges"]]) == (20, ["0"])
        made = facts("container", "split", path, "0", folder=tmp_path)
        assert [(one["range"], one["parents"], one["lsn"]) for one in made] == [("1", ["0"], 20), ("2", ["0"], 20)]
        assert len(list(orders.read_feed_ranges(force_refresh=True))) == 2
        assert "gone" in evenflow("container", "split", path, "0", folder=tmp_path).stderr
        assert answer("container", "merge", path, "1", "2", folder=tmp_path).splitlines()[1].startswith("3 ")
        assert "DOCUMENTS  20" in answer("container", "info", path, folder=tmp_path)
        assert len(list(orders.query_items_change_feed(start_time="Beginning"))) == 20


def test_killed_while_writing_nothing_that_was_acknowledged_is_lost(tmp_path: Path) -> None:
    server = CosmosServer(tmp_path / "data", "--container", "shop/orders:/customer", "--ranges", "3")
    acknowledged: list[str] = []
    lock = threading.Lock()
    stop = threading.Event()

    def write(name: int) -> None:
        number = 0
        while not stop.is_set():
            try:
                orders = orders_of(server, retry_total=0, retry_connect=0, retry_read=0)
                while not stop.is_set():
                    number += 1
                    orders.upsert_item({"id": f"{name}-{number}", "customer": f"c{number % 9}"})
                    with lock:
                        acknowledged.append(f"{name}-{number}")
            except Exception:
                # It is killed again and again.
                continue

    server.start()
    writers = [threading.Thread(target=write, args=(name,), daemon=True) for name in range(3)]
    for writer in writers:
        writer.start()
    try:
        for turn in range(4):
            wanted = 40 * (turn + 1) + random.randrange(20)
            while len(acknowledged) < wanted:
                stop.wait(0.01)
            server.kill()
            if turn % 2:
                with Container(tmp_path / "data" / "shop" / "orders") as inside:
                    inside.split(inside.ranges()[0].id)
            server.start()
        stop.set()
        for writer in writers:
            writer.join(60)
        orders = orders_of(server)
        found = list(orders.query_items("SELECT VALUE c.id FROM c", enable_cross_partition_query=True))
        told = [one["id"] for one in orders.query_items_change_feed(start_time="Beginning")]
    finally:
        stop.set()
        server.stop()
    assert set(acknowledged) <= set(found)
    assert (len(found), sorted(found)) == (len(set(found)), sorted(told))
    with Container(tmp_path / "data" / "shop" / "orders") as inside:
        for one in inside.ranges():
            lsns = [change.lsn for change in inside.feed(one.id, mode="all", max_items=10_000).changes]
            assert lsns == sorted(lsns)


def test_databases_are_made_by_clients_and_are_there_again(tmp_path: Path) -> None:
    with CosmosServer(tmp_path / "data") as server:
        client = CosmosClient(server.url, EMULATOR_KEY)
        made = client.create_database(".hidden name").create_container("ümläut", PartitionKey("/k"))
        made.create_item({"id": "a", "k": 1})
        rid = made.read()["_rid"]
    with CosmosServer(tmp_path / "data") as server:
        client = CosmosClient(server.url, EMULATOR_KEY)
        again = client.get_database_client(".hidden name").get_container_client("ümläut")
        assert again.read_item("a", 1)["id"] == "a"
        assert again.read()["_rid"] == rid
        client.delete_database(".hidden name")
        assert list(client.list_databases()) == []
    assert list((tmp_path / "data").iterdir()) == []
