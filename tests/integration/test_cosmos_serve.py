"""`evenflow container serve` as a program: its line, its options, keys, trouble on purpose, and being killed."""

from __future__ import annotations

import json
import random
import threading
import time
import urllib.request
from base64 import b64encode
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from azure.cosmos import PartitionKey
from azure.cosmos.exceptions import CosmosHttpResponseError

from evenflow.embedded.container import Container
from evenflow.emulators.cosmos.authorization import EMULATOR_KEY
from tests.integration.certificates import make_certificate
from tests.integration.programs import answer, evenflow, facts, started, wait_for
from tests.servers.cosmos import CosmosServer, connected

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process

OWN_KEY = b64encode(b"a secret of our own, and long").decode()


@contextmanager
def orders_of(server: CosmosServer, key: str = EMULATOR_KEY, **options: Any) -> Iterator[Any]:
    with connected(server, key, **options) as client:
        yield client.get_database_client("shop").get_container_client("orders")


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
        with orders_of(server) as orders:
            assert len(list(orders.read_feed_ranges())) == 3


@pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning")
def test_a_key_of_ones_own_is_demanded_and_not_shown_also_through_tls(tmp_path: Path) -> None:
    pem, key = make_certificate(tmp_path)
    declared = ["--certificate", str(pem), "--certificate-key", str(key), "--container", "shop/orders:/customer"]
    with TlsServer(tmp_path / "data", "--key", OWN_KEY, *declared) as server:
        trusted: Any = {"connection_verify": str(pem)}
        with orders_of(server, OWN_KEY, **trusted) as orders:
            assert orders.create_item({"id": "a", "customer": "x"})["id"] == "a"
        with pytest.raises(CosmosHttpResponseError) as refused, orders_of(server, **trusted) as orders:
            orders.read()
        assert refused.value.status_code == 401
        assert OWN_KEY not in str(refused.value)
    assert OWN_KEY not in server.log


class TlsServer(CosmosServer):
    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}/"


def test_too_many_units_are_refused_and_the_client_waits_as_it_is_told(tmp_path: Path) -> None:
    declared = ["--container", "shop/orders:/customer", "--fault", "throttle=20"]
    with (
        CosmosServer(tmp_path / "data", *declared) as server,
        orders_of(server) as patient,
        orders_of(server, retry_throttle_total=1, retry_fixed_interval=1) as hasty,
    ):
        started_s = time.monotonic()
        for number in range(12):
            patient.create_item({"id": str(number), "customer": "x"})
        # 60 units, of which the first 20 are free, and what is asked for while there are some left.
        assert time.monotonic() - started_s > 1.5
        patient.create_item({"id": "large", "customer": "x", "v": "x" * 1_000_000})
        with pytest.raises(CosmosHttpResponseError) as refused:
            hasty.read_item("large", "x")
        assert refused.value.status_code == 429
        assert int(refused.value.headers["x-ms-retry-after-ms"]) > 1_000


def test_every_fourth_request_finds_its_range_gone(tmp_path: Path) -> None:
    declared = ["--container", "shop/orders:/customer", "--fault", "gone=0.25", "--fault", "delay=1ms"]
    with CosmosServer(tmp_path / "data", *declared) as server, orders_of(server) as orders:
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


def test_a_container_is_shown_split_and_merged_while_it_is_served(tmp_path: Path) -> None:
    declared = ["--container", "shop/orders:/customer"]
    with CosmosServer(tmp_path / "data", *declared) as server, orders_of(server) as orders:
        for number in range(20):
            orders.upsert_item({"id": str(number), "customer": f"c{number}"})
        path = "data/shop/orders"
        found = facts("container", "info", path, folder=tmp_path)
        assert (found["documents"], [one["range"] for one in found["ranges"]]) == (20, ["0"])
        made = facts("container", "split", path, "0", folder=tmp_path)
        assert [(one["range"], one["parents"], one["lsn"]) for one in made] == [("1", ["0"], 20), ("2", ["0"], 20)]
        assert len(list(orders.read_feed_ranges(force_refresh=True))) == 2
        assert "was split or merged" in evenflow("container", "split", path, "0", folder=tmp_path).stderr
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
                with orders_of(server, retry_total=0, retry_connect=0, retry_read=0) as orders:
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
            wait_for(lambda wanted=wanted: len(acknowledged) >= wanted, "more acknowledged writes")  # type: ignore[misc]
            server.kill()
            if turn % 2:
                with Container(tmp_path / "data" / "shop" / "orders") as inside:
                    inside.split(inside.ranges()[0].id)
            server.start()
        stop.set()
        for writer in writers:
            writer.join(60)
        with orders_of(server) as orders:
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
    with CosmosServer(tmp_path / "data") as server, connected(server) as client:
        made = client.create_database(".hidden name").create_container("ümläut", PartitionKey("/k"))
        made.create_item({"id": "a", "k": 1})
        rid = made.read()["_rid"]
    with CosmosServer(tmp_path / "data") as server, connected(server) as client:
        again = client.get_database_client(".hidden name").get_container_client("ümläut")
        assert again.read_item("a", 1)["id"] == "a"
        assert again.read()["_rid"] == rid
        client.delete_database(".hidden name")
        assert list(client.list_databases()) == []
    assert list((tmp_path / "data").iterdir()) == []
