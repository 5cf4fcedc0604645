"""`make pictures`: takes the README's pictures of the flagship example: docs/pictures/console.png and residents.png."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from playwright.sync_api import expect

from tests.integration.home_security import started_demo
from tests.servers.browser import opened_browser, opened_window

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

    from tests.integration.home_security import Demo

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
WIDE, NARROW = (1440, 1060), (1120, 1000)
HOME = 42
PATIENCE_MS = 120_000
INJECT = [sys.executable, "-m", "examples.home_security.inject"]


def main() -> None:
    with opened_browser() as browser:
        _take_console(browser)
        _take_residents(browser)


def _take_console(browser: Browser) -> None:
    with (
        demo("--homes", "20000", "--speed", "6") as one,
        opened_window(browser, one.operator, WIDE, dark=False) as operator,
    ):
        _play(operator.page)
        operator.page.screenshot(path=PICTURES / "console.png")


def _take_residents(browser: Browser) -> None:
    """Few homes that live fast: after two minutes of ours, most of a day of theirs is over.

    While nobody is in this one, somebody breaks in.
    """
    with (
        demo("--homes", "300", "--speed", "600", "--begin", "05:30") as one,
        opened_window(browser, f"{one.residents}homes/{HOME}", NARROW, dark=False) as resident,
    ):
        for sensors in (4, 5):
            expect(resident.page.locator(".sensor")).to_have_count(sensors, timeout=PATIENCE_MS)
            one.act("detectors")
        expect(resident.page.locator(".alarm")).to_contain_text("nobody home", timeout=PATIENCE_MS)
        subprocess.run([*INJECT, one.place.folder, str(HOME), "door", "open", "away"], check=True)
        resident.page.wait_for_timeout(60_000)
        resident.page.screenshot(path=PICTURES / "residents.png")


@contextmanager
def demo(*arguments: str) -> Iterator[Demo]:
    """One that lost nothing."""
    # When a picture fails, that is what is told: killed consumers may still write while their folder is removed.
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        started_demo(Path(folder), *arguments) as one,
    ):
        yield one
        code, out, err = one.end(signal.SIGINT)
        assert code == 0, out + err


def _play(page: Page) -> None:
    """One is added, one is killed, all homes get detectors; then all is well again for a while."""
    page.get_by_role("link", name="aggregate").click()
    page.wait_for_timeout(15_000)
    page.get_by_role("button", name="Add an instance").click()
    # Shares are by load: on a busy machine it may be three, or five.
    expect(page.locator('.cell[data-owner="aggregate-4"]').nth(2)).to_be_attached(timeout=PATIENCE_MS)
    page.wait_for_timeout(15_000)
    page.locator('[data-instance="aggregate-2"]').get_by_role("button", name="Kill -9").click()
    page.get_by_label("Your name").fill("ann")
    page.get_by_role("dialog").get_by_role("button", name="Kill -9").click()
    expect(page.locator('.story li[data-kind="taken over"]').first).to_be_attached(timeout=PATIENCE_MS)
    page.wait_for_timeout(15_000)
    page.get_by_role("button", name="Add carbon-monoxide detectors").click()
    page.get_by_role("button", name="Dismiss").click()
    page.wait_for_timeout(30_000)


if __name__ == "__main__":
    main()
