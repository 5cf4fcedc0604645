"""The flagship example in a real browser: an operator adds a consumer and kills one, a resident sees the door open."""

from __future__ import annotations

import asyncio
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from examples.home_security.inject import inject
from tests.integration.home_security import figure, processes_in, started_demo
from tests.servers.browser import DESKTOP, PHONE, opened_browser, opened_window

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

    from tests.integration.home_security import Demo
    from tests.servers.browser import Window

# It starts nine processes and a browser: on a busy machine that alone takes its time.
pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]

HOME = 7


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with opened_browser() as browser:
        yield browser


def test_an_operator_and_a_resident(tmp_path: Path, browser: Browser) -> None:
    with started_demo(tmp_path, "--homes", "300", "--speed", "10", "--begin", "11:00") as demo:
        with opened_window(browser, demo.operator, DESKTOP, dark=False) as operator:
            _the_console(operator)
        with opened_window(browser, demo.residents, PHONE, dark=True) as resident:
            _the_home(resident, demo)
        code, out, err = demo.end(signal.SIGINT)
    assert code == 0, out + err
    assert [figure(out, name) for name in ("lost", "counted twice", "handled twice")] == [0, 0, 0]
    assert processes_in(tmp_path) == []


def _the_console(window: Window) -> None:
    page = window.page
    page.get_by_role("link", name="aggregate").click()
    expect(page.locator(".cell")).to_have_count(16)
    _owned_by(page, "1", "2", "3")
    page.get_by_role("button", name="Add an instance").click()
    expect(page.locator(".job")).to_contain_text("aggregate-4 was started")
    expect(page.locator('.instances li[data-instance="aggregate-4"]')).to_be_attached()
    # Its share, which goes by load: how many that are depends on how busy each keeps its owner on this machine.
    expect(page.locator('.cell[data-owner="aggregate-4"]').first).to_be_attached()

    page.locator('[data-instance="aggregate-1"]').get_by_role("button", name="Kill -9").click()
    page.get_by_label("Your name").fill("ann")
    page.get_by_role("dialog").get_by_role("button", name="Kill -9").click()
    taken = page.locator('.story li[data-kind="taken over"]').first
    expect(taken).to_contain_text("no heartbeat of aggregate-1")
    _owned_by(page, "2", "3", "4")
    planned = page.locator(".tile", has_text="duplicates (planned)")
    expect(planned.locator(".note")).to_contain_text("exact")
    expect(planned.locator("dd").first).to_have_text("0")
    for name, value in (("events lost", "0"), ("handled twice", "0")):
        expect(page.locator(".tile", has_text=name).locator("dd").first).to_have_text(value)
    assert not window.is_too_wide()
    assert window.errors == []


def _the_home(window: Window, demo: Demo) -> None:
    page = window.page
    page.get_by_role("combobox").fill(str(HOME))
    page.get_by_role("option").click()
    # It reports every six seconds, to a consumer that may be busy.
    expect(page.locator("h1")).to_have_text("8 Acacia Street")
    # Playwright has an event loop on this thread, beside which no other can run.
    with ThreadPoolExecutor(1) as thread:
        happens = inject(demo.place, HOME, [("door", "open")], "away")
        thread.submit(asyncio.run, happens).result()
    # The home itself says that the door is closed whenever it reports: what is there to stay is the minute.
    expect(page.locator(".chart .s-door").first).to_be_attached()
    expect(page.locator(".warning").first).to_contain_text("Break-in")
    expect(page.locator(".state")).to_contain_text("Live")
    assert not window.is_too_wide()
    assert window.errors == []


def _owned_by(page: Page, *numbers: str) -> None:
    """All of them, and nobody else."""
    names = "|".join(f"aggregate-{number}" for number in numbers)

    def owners() -> list[str | None]:
        return [cell.get_attribute("data-owner") for cell in page.locator(".cell").all()]

    for _ in range(300):
        found = owners()
        if len(set(found)) == len(numbers) and all(re.fullmatch(names, owner or "") for owner in found):
            return
        page.wait_for_timeout(100)
    raise AssertionError(f"owned by {sorted(map(str, set(owners())))}")
