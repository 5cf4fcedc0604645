"""The residents' page in a real browser, on a desk and on a phone, while no consumer runs."""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
import uvicorn
from playwright.sync_api import expect

from examples.home_security.blobs import Folder
from examples.home_security.keeping import Keeper
from examples.home_security.reports import reports_of
from examples.home_security.residents import residents
from tests.servers.browser import DESKTOP, PHONE, opened_browser, opened_window
from tests.servers.processes import answers, free_port, wait_until
from tests.unit.home_security.a_day import BURGLED, announced_in, lived_in
from tests.unit.home_security.streams import report, stored

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Request

    from evenflow.model import Event
    from tests.servers.browser import Window

T = TypeVar("T")

pytestmark = [pytest.mark.process, pytest.mark.slow]

QUIET = 7
MINUTES = 120


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with opened_browser() as browser:
        yield browser


def aside(do: Coroutine[Any, Any, T]) -> T:
    """Playwright has an event loop on this thread, beside which no other can run."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, do).result()


class Town:
    """A folder of blobs, and a server that reads it."""

    def __init__(self, path: Path, *, is_empty: bool = False) -> None:
        self._blobs = Folder(path)
        self._port = free_port()
        self._events: list[Event] = []
        if not is_empty:
            self.is_announced()
            self.lives()

    def is_announced(self) -> None:
        aside(announced_in(self._blobs))

    def lives(self) -> None:
        self._events = aside(lived_in(self._blobs, MINUTES))

    def address(self, home: int) -> str:
        return f"http://127.0.0.1:{self._port}/homes/{home}"

    @contextmanager
    def served(self) -> Iterator[None]:
        server = uvicorn.Server(
            uvicorn.Config(residents(self._blobs), port=self._port, log_level="error", lifespan="off")
        )
        thread = Thread(target=server.run)
        thread.start()
        try:
            wait_until(lambda: answers(self._port), "the residents' page")
            yield
        finally:
            server.should_exit = True
            thread.join()

    def door_opens(self, home: int) -> None:
        """As a consumer would write it."""

        async def write() -> None:
            keeper = Keeper(self._blobs, "0", 2)
            await keeper.start()
            last_ms = reports_of([self._events[-1].body])[0].at
            keeper.add(stored([*self._events, report(home, last_ms + 700)])[-1:])
            await keeper.write()

        aside(write())


@pytest.fixture
def town(tmp_path: Path) -> Town:
    return Town(tmp_path / "blobs")


@pytest.fixture(scope="module")
def quiet_town(tmp_path_factory: pytest.TempPathFactory) -> Town:
    """For tests that only look. (Each has a server of its own, since a server's threads come with its requests.)"""
    return Town(tmp_path_factory.mktemp("town") / "blobs")


def sensor(window: Window, name: str) -> str:
    return window.page.locator(f".sensor.s-{name} .word").inner_text()


def test_a_home_is_seen_at_a_glance_on_a_desk_and_on_a_phone(browser: Browser, quiet_town: Town) -> None:
    with quiet_town.served():
        for size, dark in ((DESKTOP, False), (PHONE, True)):
            with opened_window(browser, quiet_town.address(BURGLED), size, dark=dark) as window:
                _check_glance(window)
                assert not window.is_too_wide(), size
                assert window.errors == [], size


def _check_glance(window: Window) -> None:
    page = window.page
    expect(page.locator("h1")).to_have_text("43 Acacia Street")
    expect(page.locator(".sensor")).to_have_count(5)
    assert (sensor(window, "door"), sensor(window, "glass")) == ("open", "whole")
    expect(page.locator(".warning")).to_contain_text("Break-in")
    expect(page.locator(".alerts li").first).to_contain_text("Front door")
    expect(page.locator(".state")).to_contain_text(re.compile(r"Complete up to [\d:]+.* UTC"))
    expect(page.locator(".sensor.s-motion")).to_contain_text("since")
    expect(page.locator(".chart rect.known")).to_have_count(6)  # a row each, without seams
    assert page.locator(".chart .alert").count() >= 1


def test_the_timeline_can_be_read_with_the_keyboard(browser: Browser, quiet_town: Town) -> None:
    with quiet_town.served(), opened_window(browser, quiet_town.address(BURGLED), dark=False) as window:
        page = window.page
        expect(page.locator('.choice [aria-pressed="true"]')).to_have_text("6 hours")
        page.locator(".chart").focus()
        page.keyboard.press("ArrowLeft")
        expect(page.locator(".words")).to_contain_text("front door active")
        expect(page.locator(".words")).to_contain_text("armed, home empty")
        page.keyboard.press("Home")
        expect(page.locator(".words")).to_contain_text("no reports")
        page.get_by_role("button", name="1 hour").click()
        expect(page.locator('.choice [aria-pressed="true"]')).to_have_text("1 hour")
        assert window.errors == []


def test_a_home_is_found_also_from_a_page_that_does_not_exist(browser: Browser, quiet_town: Town) -> None:
    start = quiet_town.address(0).removesuffix("homes/0")
    with quiet_town.served(), opened_window(browser, f"{start}nowhere", PHONE, dark=True) as window:
        page = window.page
        expect(page.locator("h1")).to_have_text("There is no such page")
        page.get_by_role("link", name="begin at the beginning").click()
        expect(page.locator("h1")).to_have_text("What happens at home?")
        window.errors.clear()  # the browser reports the page that does not exist as one
        page.get_by_role("combobox").fill("no such street")
        expect(page.locator("#found")).to_contain_text("No such home")
        page.get_by_role("combobox").fill("acacia 8")
        expect(page.get_by_role("option")).to_have_text(re.compile("8 Acacia Street"))
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_have_text("8 Acacia Street")
        assert page.url == quiet_town.address(QUIET)
        assert window.errors == []


def test_a_home_that_does_not_exist_is_not_asked_for_again(browser: Browser, quiet_town: Town) -> None:
    with quiet_town.served(), opened_window(browser, quiet_town.address(5_000), dark=False) as window:
        window.page.clock.install()
        window.page.reload()
        expect(window.page.locator("main")).to_contain_text("There is no home 5000")
        asked = len(window.errors)
        assert "404" in window.errors[-1]
        with window.page.expect_event("requestfinished", predicate=_is_marker):
            window.page.clock.run_for(60_000)
            window.page.evaluate(f"fetch('{MARKER}')")
        assert len(window.errors) == asked


MARKER = "/?marker"


def _is_marker(request: Request) -> bool:
    """What is asked for behind everything that the page asks for by itself."""
    return request.url.endswith(MARKER)


def test_what_is_written_is_seen_by_a_page_that_is_open(browser: Browser, town: Town) -> None:
    with town.served(), opened_window(browser, town.address(QUIET), dark=False) as window:
        expect(window.page.locator(".sensor.s-door .word")).to_have_text("closed")
        town.door_opens(QUIET)
        expect(window.page.locator(".sensor.s-door .word")).to_have_text("open")


def test_when_the_server_goes_what_was_seen_stays_and_says_so(browser: Browser, town: Town) -> None:
    with ExitStack() as stack:
        with town.served():
            window = stack.enter_context(opened_window(browser, town.address(QUIET), dark=False))
            expect(window.page.locator(".sensor")).to_have_count(5)
        expect(window.page.locator(".state")).to_contain_text("the server does not answer")
        expect(window.page.locator(".sensor")).to_have_count(5)
        with town.served():
            expect(window.page.locator(".state")).not_to_contain_text("does not answer")


def test_what_is_not_there_yet_is_waited_for_without_an_error(browser: Browser, tmp_path: Path) -> None:
    town = Town(tmp_path / "blobs", is_empty=True)
    with town.served(), opened_window(browser, town.address(QUIET), dark=False) as window:
        page = window.page
        expect(page.locator("main")).to_contain_text("Nothing has been written here yet")
        town.is_announced()
        expect(page.locator("main")).to_contain_text("This home has not reported yet")
        town.lives()
        expect(page.locator("h1")).to_have_text("8 Acacia Street")
        assert window.errors == []
