"""A real browser, headless: the Chromium of this machine, driven by Playwright. None is ever downloaded."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect, sync_playwright

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, ConsoleMessage, Page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
DESKTOP, PHONE = (1440, 900), (390, 844)
PATIENCE_MS = 60_000


def chromium() -> str:
    """The program; without one, the test is skipped."""
    found = next((path for name in NAMES if (path := shutil.which(name)) is not None), None)
    if found is None:
        pytest.skip("there is no Chromium here (apt-get install chromium)")
    return found


@contextmanager
def opened_browser() -> Iterator[Browser]:
    # Root has no sandbox, and a container's /dev/shm may be too small for it.
    arguments = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    expect.set_options(timeout=PATIENCE_MS)  # by itself it waits for 5 s, which a busy machine needs for less
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=arguments)
        try:
            yield browser
        finally:
            browser.close()


class Window:
    """One page, and everything that went wrong in it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.errors: list[str] = []
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.errors.append(str(error)))

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.errors.append(f"{message.text} ({message.location['url']})")

    def is_too_wide(self) -> bool:
        """Whether a reader would have to scroll sideways."""
        return bool(self.page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))


@contextmanager
def opened_window(browser: Browser, address: str, size: tuple[int, int] = DESKTOP, *, dark: bool) -> Iterator[Window]:
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]}, color_scheme="dark" if dark else "light"
    )
    context.set_default_timeout(PATIENCE_MS)
    try:
        window = Window(context.new_page())
        window.page.goto(address)
        yield window
    finally:
        context.close()
