"""The console in a real browser, on a group of real processes: what is seen when one is killed, and one retired."""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import product
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from msgspec.structs import replace
from playwright.sync_api import expect

from evenflow.embedded.hub import Hub
from evenflow.model import Change, Group, Member
from evenflow.stores.sqlite.store import SQLiteStore
from tests.integration.programs import PATIENCE_S, end, next_line, started, wait_for
from tests.servers.browser import DESKTOP, PATIENCE_MS, PHONE, opened_browser, opened_window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

    from tests.integration.scene import Scene
    from tests.servers.browser import Window

T = TypeVar("T")

pytestmark = [pytest.mark.process, pytest.mark.slow]

PARTITIONS = 8
CROWD = 2_000
"""Far more than can be shown one by one."""
STANDING_S = 3_600.0
"""Longer than any run of the tests: nothing becomes silent."""
KEY = "local/homes/alerts"
TOKEN = "a-token-that-outlives-a-console"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with opened_browser() as browser:
        yield browser


def aside(do: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """On a thread of its own: Playwright has an event loop on this one, beside which no other can run."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(do, *arguments, **options).result()


@contextmanager
def console_of(scene: Scene, *more: str, port: int = 0) -> Iterator[str]:
    """Its address."""
    with console_at(scene.folder, scene.store_url, scene.hub, "--port", str(port), *more) as address:
        yield address


@contextmanager
def console_at(folder: Path, store_url: str, hub: Path, *more: str) -> Iterator[str]:
    urls = ("--store", store_url, "--source", f"hub:{hub}", "--every", "0.3", "--no-open")
    with started("console", *urls, *more, folder=folder) as console:
        yield next_line(console).strip()
        code, _, err = end(console)
        assert (code, "Traceback" in err) == (0, False), err


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a console on groups that are only looked at; records are enough for that."""
    folder = tmp_path_factory.mktemp("standing")
    aside(_make_standing, folder)
    with console_at(folder, f"sqlite:{folder / 'leases'}", folder / "homes", "--port", "0") as address:
        yield address


def _make_standing(folder: Path) -> None:
    with Hub.create(folder / "homes", PARTITIONS) as hub:
        for partition in range(PARTITIONS):
            asyncio.run(hub.send([b"hello"] * 5, partition=partition))
    asyncio.run(_make_owner(folder / "leases", "alerts", PARTITIONS))
    asyncio.run(_make_owner(folder / "leases", "crowd", CROWD))


async def _make_owner(folder: Path, group_name: str, partitions: int) -> None:
    """A group whose one member owns all of its partitions."""
    store, group = SQLiteStore(folder), Group("local", "homes", group_name)
    ledger = await store.heartbeat(group, Member(id="ada", nonce="1", ttl_s=STANDING_S), None)
    assert ledger.me is not None
    first = Change(
        partition="", revision=0, history=0, owner=ledger.me.owner, epoch=1, ttl_s=STANDING_S, reason="claimed"
    )
    await store.swap(group, [replace(first, partition=str(number)) for number in range(partitions)])
    await store.aclose()


def owners(page: Page) -> set[str | None]:
    return {cell.get_attribute("data-owner") for cell in page.locator(".cell").all()}


def wait_for_owners(page: Page, *names: str) -> None:
    def are_there() -> bool:
        return page.locator(".cell").count() == PARTITIONS and owners(page) == set(names)

    wait_until(page, are_there, f"the partitions to be owned by {names}")


def ordinals(scene: Scene) -> dict[str, int]:
    """How many events were handled, by checkpoints."""
    return {name: record.ordinal for name, record in aside(scene.checkpoints).items()}


def wait_until(page: Page, condition: Callable[[], bool], what: str) -> None:
    """The page's own events are heard meanwhile."""

    def look() -> bool:
        page.wait_for_timeout(100)
        return condition()

    wait_for(look, what, PATIENCE_S)


def test_a_kill_and_a_retirement_are_seen_with_their_reasons(scene: Scene, browser: Browser) -> None:
    scene.make_hub(PARTITIONS)
    _, bo, cy = aside(scene.start_even, "ada", "bo", "cy")
    with (
        scene.load(),
        console_of(scene, "--group", "alerts", "--allow-actions") as address,
        opened_window(browser, address, dark=False) as window,
    ):
        page = window.page
        wait_for_owners(page, "ada", "bo", "cy")
        # The token was in the address, and is not there any more.
        assert "token" not in page.url
        expect(page.locator(".instances li")).to_have_count(3)
        expect(page.locator(".tile", has_text="events/s").locator("dd").first).to_have_text(re.compile(r"[1-9]"))

        cy.kill()
        taken = page.locator('.story li[data-kind="taken over"]').first
        expect(taken).to_contain_text(re.compile(r"no heartbeat of cy for \d+\.\d s"))
        expect(taken).to_contain_text(re.compile(r"at most [\d,]+ events? handled twice"))
        expect(taken).to_contain_text("upper bound")
        wait_for_owners(page, "ada", "bo")
        expect(page.locator('.instances li[data-instance="cy"]')).to_contain_text("silent")
        # The time for which its partitions had no live owner is in the timeline, in red.
        expect(page.locator("#timeline rect.k-silent").first).to_be_attached()

        page.locator('[data-do="retire"][data-instance="bo"]').click()
        page.get_by_label("Your name").fill("ann")
        page.get_by_label("Reason, for the record").fill("its machine is old")
        page.get_by_role("dialog").get_by_role("button", name="Retire", exact=True).click()
        expect(page.get_by_role("dialog")).to_have_count(0)
        wait_for_owners(page, "ada")
        assert bo.exit_code() == 0
        handed = page.locator('.story li[data-kind="handed over"]').first
        expect(handed).to_contain_text("bo leaves")
        expect(handed).to_contain_text("0 events handled twice")
        record = page.locator(".log tbody tr").first
        expect(record).to_contain_text("retire")
        expect(record).to_contain_text("ann (console, 127.0.0.1)")
        expect(record).to_contain_text("its machine is old")
        assert window.errors == []
    aside(scene.wait_until_handled)


@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_nothing_moves_and_nothing_is_covered_when_something_is_wrong_or_is_done(
    scene: Scene, browser: Browser, size: tuple[int, int]
) -> None:
    scene.make_hub(PARTITIONS)
    (ada,) = aside(scene.start_even, "ada")
    with (
        console_of(scene, "--group", "alerts", "--allow-actions") as address,
        opened_window(browser, address, size, dark=False) as window,
    ):
        page = window.page
        wait_for_owners(page, "ada")
        expect(page.locator(".findings")).to_contain_text("no problems")
        before = places(page)
        # Shown in the bar, and in the line, both of which were there before.
        pause(page, "3")
        expect(page.locator(".findings .line .pill")).to_contain_text("paused")
        assert places(page) == before
        ada.kill()
        expect(page.locator(".findings .line")).to_contain_text("silent", timeout=PATIENCE_MS)
        assert places(page) == before
        covered = page.evaluate(COVERED)
        assert covered == []
        page.locator(".findings summary").click()
        expect(page.locator(".findings li").first).to_be_visible()
        assert not window.is_too_wide()
        assert window.errors == []


COVERED = """() => {
  window.scrollTo(0, document.body.scrollHeight);
  const [bar] = document.querySelector("#jobs").getClientRects();
  const under = (box) => box.bottom > bar.top && box.top < bar.bottom;
  const isUnder = (one) => [...one.getClientRects()].some(under);
  return [...document.querySelectorAll("main button")].filter(isUnder).map((one) => one.textContent);
}"""
"""Buttons at the very end of the page that cannot be pressed, since the bar covers them."""


def places(page: Page) -> list[float]:
    """Where the parts of the page begin: the map, the timeline, the plot, and the instances."""
    tops = "document.querySelector(one).getBoundingClientRect().top + window.scrollY"
    parts = '[".figures", ".findings", ".map", ".instances"]'
    return [round(top) for top in page.evaluate(f"{parts}.map((one) => {tops})")]


def test_it_fits_every_window_in_light_and_dark(standing: str, browser: Browser) -> None:
    for size, dark in product((DESKTOP, PHONE), (False, True)):
        with opened_window(browser, f"{standing}#/{KEY}", size, dark=dark) as window:
            fits(window, dark=dark)


def test_a_window_that_is_made_narrow_and_wide_again_loses_nothing(standing: str, browser: Browser) -> None:
    with opened_window(browser, f"{standing}#/{KEY}", dark=False) as window:
        page = window.page
        wait_for_owners(page, "ada")
        expect(page.locator(".story li").first).to_be_attached()
        for width in (800, 1440, 800):
            page.set_viewport_size({"width": width, "height": 900})
            expect(page.locator(".column")).to_have_count(1 if width < 900 else 2)
            expect(page.locator("main section:empty")).to_have_count(0)
            expect(page.locator(".story li").first).to_be_attached()
        assert window.errors == []


def test_the_skip_link_leads_to_the_group_and_not_out_of_it(standing: str, browser: Browser) -> None:
    with opened_window(browser, f"{standing}#/{KEY}", dark=False) as window:
        page = window.page
        wait_for_owners(page, "ada")
        page.keyboard.press("Tab")
        expect(page.locator(".skip")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("main")).to_be_focused()
        assert page.url.endswith(f"#/{KEY}")
        expect(page.locator(".cell")).to_have_count(PARTITIONS)


def test_a_crowd_of_partitions_can_be_seen_and_searched(standing: str, browser: Browser) -> None:
    with opened_window(browser, f"{standing}#/local/homes/crowd", PHONE, dark=False) as window:
        page = window.page
        expect(page.locator("canvas#crowd")).to_have_attribute("aria-label", re.compile("^2,000 partitions: "))
        expect(page.locator(".partitions tbody tr")).to_have_count(200)
        page.get_by_label("Find a partition or owner").fill("1999")
        expect(page.locator(".partitions tbody tr")).to_have_count(1)
        page.locator(".partitions tbody tr button").click()
        expect(page.get_by_role("dialog", name="Partition 1999")).to_contain_text("(epoch 1)")
        assert page.locator("*").count() < 5_000
        assert not window.is_too_wide()
        assert window.errors == []


def fits(window: Window, *, dark: bool) -> None:
    page = window.page
    wait_for_owners(page, "ada")
    assert not window.is_too_wide()
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", background)[:3])) < 200) is dark
    # By keyboard: into the map, along it, and into a partition; Escape leads back.
    page.locator(".cell").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name="Partition 1")).to_contain_text("ada owns it")
    assert not window.is_too_wide()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert page.evaluate("document.activeElement.dataset.partition") == "1"
    # Nothing can be done here, so nothing is offered.
    assert page.locator('[data-do="retire"], [data-do="pause"], [data-do="seek"]').count() == 0
    assert window.errors == []


def test_a_group_is_found_in_the_list_and_what_is_away_comes_back(scene: Scene, browser: Browser) -> None:
    scene.make_hub(PARTITIONS)
    (ada,) = aside(scene.start_even, "ada")
    with console_of(scene) as address, opened_window(browser, address, dark=False) as window:
        page = window.page
        page.get_by_role("link", name="alerts").click()
        wait_for_owners(page, "ada")

        # A dead owner stays the owner as long as no other takes over; and a dead instance creates no new store.
        ada.kill()
        away = scene.store.rename(scene.store.with_name("away"))
        expect(page.locator(".findings")).to_contain_text("Stale since")
        expect(page.locator(".link")).to_have_text("stale")
        assert owners(page) == {"ada"}
        away.rename(scene.store)
        expect(page.locator(".findings")).not_to_contain_text("Stale since")
        expect(page.locator(".link")).to_have_text("live")
        assert window.errors == []


def test_a_console_that_ends_and_comes_back_is_found_again(scene: Scene, browser: Browser) -> None:
    scene.make_hub(PARTITIONS)
    aside(scene.start_even, "ada")
    options = ("--group", "alerts", "--allow-actions", "--token", TOKEN)
    with console_of(scene, *options) as address:
        port = int(address.rstrip("/").rpartition(":")[2])
        context = browser.new_context()
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        page.goto(f"{address}#token={TOKEN}")
        wait_for_owners(page, "ada")
        pause(page, "3")
        pause(page, "4")
        # What was said before does not come up again.
        page.get_by_role("button", name="Dismiss").click()
        expect(page.locator("#jobs")).to_have_text("Results of your actions appear here.")
    expect(page.locator(".findings")).to_contain_text("The console was stopped at")
    assert "ada" in owners(page)
    with console_of(scene, *options, port=port):
        expect(page.locator(".link")).to_have_text("live", timeout=PATIENCE_MS)
        expect(page.locator(".findings")).to_contain_text("paused")
        # It counts what it is asked for from one again, and is heard.
        pause(page, "5")
        context.close()


def pause(page: Page, partition: str) -> None:
    page.locator('header [data-do="pause"]').click()
    page.get_by_label("Your name").fill("ann")
    page.get_by_label("Partitions (empty: all)").fill(partition)
    page.get_by_role("dialog").get_by_role("button", name="Pause", exact=True).click()
    expect(page.locator("#jobs")).to_contain_text(f"paused partition {partition}")


def test_a_seek_is_looked_at_before_it_is_done(scene: Scene, browser: Browser) -> None:
    scene.make_hub(PARTITIONS)
    aside(scene.start_even, "ada")
    aside(scene.send_to_all, [b"hello"] * 5)
    with (
        console_of(scene, "--group", "alerts", "--allow-actions") as address,
        opened_window(browser, address, dark=True) as window,
    ):
        page = window.page
        wait_for_owners(page, "ada")
        wait_until(page, lambda: set(ordinals(scene).values()) == {5}, "all to be handled")
        page.locator('header [data-do="seek"]').click()
        go = page.get_by_role("dialog").get_by_role("button", name="Seek", exact=True)
        expect(go).to_be_disabled()
        page.get_by_label("Partitions (empty: all)").fill("2, 5")
        page.get_by_role("button", name="Preview").click()
        rows = page.locator("dialog tbody tr")
        expect(rows).to_have_count(2)
        expect(rows.first).to_have_text(re.compile(r"^24-105$"))
        go.click()
        wait_until(page, lambda: ordinals(scene)["2"] > 6, "partition 2 to be handled again")
        expect(page.locator(".log tbody tr").first).to_contain_text("seek")
        assert ordinals(scene)["1"] == 5
        assert window.errors == []


async def _make_ended(scene: Scene) -> None:
    """Ada had two partitions; one was split, and she has the children."""
    store, group = SQLiteStore(scene.store), Group("local", "homes", "split")
    ledger = await store.heartbeat(group, Member(id="ada", nonce="1", ttl_s=8.0), None)
    assert ledger.me is not None
    first = Change(partition="", revision=0, history=0, owner=ledger.me.owner, epoch=1, ttl_s=8.0, reason="claimed")
    await store.swap(group, [replace(first, partition=name) for name in ("0", "8", "9", "10", "11")])
    leases = {lease.partition: lease for lease in (await store.heartbeat(group, ledger.me, None)).leases}
    over = [
        Change(
            partition=name, revision=leases[name].revision, history=0, owner=None, epoch=2, ended=True, reason=reason
        )
        for name, reason in (("8", "ended: split into 10, 11"), ("9", "ended"))
    ]
    await store.swap(group, over)
    await store.aclose()


def test_what_has_ended_is_folded_away_and_stays_in_the_timeline(scene: Scene, browser: Browser) -> None:
    scene.make_hub(1)
    aside(lambda: asyncio.run(_make_ended(scene)))
    with (
        console_of(scene) as address,
        opened_window(browser, f"{address}#/local/homes/split", dark=True) as window,
    ):
        page = window.page
        expect(page.locator(".state")).to_contain_text("3 of 3 owned")
        assert [cell.get_attribute("data-partition") for cell in page.locator(".cell").all()] == ["0", "10", "11"]
        rows = page.locator(".partitions tbody tr[data-row]")
        expect(rows).to_have_count(3)
        # Its past is still there, in its owner's colour.
        expect(page.locator('.lane[data-partition="8"] .band')).to_be_attached()
        expect(page.locator('.lane[data-partition="8"] .k-unowned')).to_have_count(0)
        page.get_by_role("button", name="2 ended partitions").click()
        expect(rows).to_have_count(5)
        expect(rows.nth(3)).to_contain_text("ended: split into 10, 11")
        expect(rows.nth(3).locator(".bad, .pill")).to_have_count(0)
        page.get_by_role("button", name="2 ended partitions").click()
        expect(rows).to_have_count(3)
        assert window.errors == []
