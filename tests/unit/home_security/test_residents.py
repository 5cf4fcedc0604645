"""The server of the residents' page, which reads the blobs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from starlette.testclient import TestClient

from evenflow.errors import StoreUnavailable
from examples.home_security.blobs import Folder
from examples.home_security.keeping import Keeper
from examples.home_security.layout import ABOUT, LAYOUT, About, pack
from examples.home_security.residents import NOT_REPORTED, NOTHING_YET, PAGE, residents
from tests.unit.home_security.a_day import BURGLED, HOMES, a_day_in

if TYPE_CHECKING:
    from pathlib import Path

    from examples.home_security.blobs import Found


class Counted(Folder):
    """Counts reads; fails if the test wants it."""

    reads = 0
    is_away = False

    async def get(self, path: str) -> Found | None:
        self.reads += 1
        if self.is_away:
            raise StoreUnavailable("The blobs do not answer.")
        return await super().get(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("blobs")
    asyncio.run(a_day_in(Folder(path), minutes=90))
    return path


@pytest.fixture
def blobs(folder: Path) -> Counted:
    return Counted(folder)


@pytest.fixture
def client(blobs: Counted) -> TestClient:
    return TestClient(residents(blobs), "http://localhost")


def test_a_home_is_three_reads(client: TestClient, blobs: Counted) -> None:
    client.get(f"/api/homes/{BURGLED}")
    blobs.reads = 0
    facts = client.get(f"/api/homes/{BURGLED}").json()
    assert blobs.reads == 3
    assert facts["address"] == f"{BURGLED + 1} Acacia Street"
    assert [one["sensor"] for one in facts["sensors"]] == ["motion", "door", "window", "glass", "co"]
    assert [one["state"] for one in facts["sensors"] if one["sensor"] == "door"] == ["open"]
    assert facts["alerts"][0][1] == "break-in"
    assert sum(span[1] for span in facts["spans"]) == 90


def test_what_has_not_changed_is_not_sent_again(client: TestClient) -> None:
    first = client.get("/api/homes/7")
    again = client.get("/api/homes/7", headers={"if-none-match": first.headers["etag"]})
    other = client.get("/api/homes/8", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content, other.status_code) == (304, b"", 200)


def test_homes_that_there_are_not(client: TestClient) -> None:
    answer = client.get(f"/api/homes/{HOMES}")
    assert (answer.status_code, answer.json()["error"]) == (404, "There is no home 50: they are numbered from 0 to 49.")


def test_search(client: TestClient) -> None:
    assert client.get("/api/search?text=aca%2043").json() == {"homes": [{"home": 42, "address": "43 Acacia Street"}]}
    assert client.get("/api/search").json() == {"homes": []}


def test_an_outage_is_reported_in_a_sentence_and_ends(client: TestClient, blobs: Counted) -> None:
    blobs.is_away = True
    answer = client.get("/api/homes/7")
    assert (answer.status_code, answer.json()) == (503, {"error": "The blobs do not answer."})
    blobs.is_away = False
    assert client.get("/api/homes/7").status_code == 200


@pytest.mark.parametrize("path", ["/api/about", "/api/search?text=1", "/api/homes/7", "/api/homes/5000"])
def test_a_page_waits_while_there_is_nothing_yet(tmp_path: Path, path: str) -> None:
    """An error would stand in the browser's console."""
    answer = TestClient(residents(Folder(tmp_path)), "http://localhost").get(path)
    assert (answer.status_code, answer.json()) == (200, {"waiting": NOTHING_YET})


def test_a_home_that_has_not_reported_yet_is_waited_for(tmp_path: Path) -> None:
    blobs = Folder(tmp_path)
    asyncio.run(blobs.put(ABOUT, pack(About(LAYOUT, 1, HOMES)), None))
    client = TestClient(residents(blobs), "http://localhost")
    answer = client.get("/api/homes/7")
    assert (answer.status_code, answer.json()) == (200, {"waiting": NOT_REPORTED})
    assert client.get(f"/api/homes/{HOMES}").status_code == 404
    asyncio.run(Keeper(blobs, "0", 1).start())
    assert client.get("/api/homes/7").json() == {"waiting": NOT_REPORTED}


def test_a_damaged_blob_is_reported(tmp_path: Path) -> None:
    blobs = Folder(tmp_path)
    asyncio.run(a_day_in(blobs, minutes=2))
    (tmp_path / "recent" / "0").write_bytes(b"\x00garbage")
    answer = TestClient(residents(blobs), "http://localhost").get("/api/homes/7")
    assert (answer.status_code, "is damaged" in answer.json()["error"]) == (500, True)


@pytest.mark.parametrize("path", ["/", "/homes/42", "/homes/99999999999999999999"])
def test_every_address_is_the_page(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.text.startswith("<!doctype html>")
    assert "default-src 'self'" in answer.headers["content-security-policy"]


def test_an_address_that_there_is_not_is_still_a_page(client: TestClient) -> None:
    answer = client.get("/no/such/page")
    assert (answer.status_code, answer.text[:15]) == (404, "<!doctype html>")
    response = client.get("/api/nothing")
    assert (response.status_code, response.json()) == (404, {"error": "There is no such thing here."})


def test_the_page_is_small_and_loads_nothing_from_other_servers() -> None:
    files = {path.name: path.read_text() for path in PAGE.iterdir()}
    assert sum(map(len, files.values())) < 40_000
    for name, text in files.items():
        assert "://" not in text.replace("http://www.w3.org/2000/svg", ""), name
