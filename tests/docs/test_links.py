"""Every link inside the project leads somewhere. Those that lead out of it are not followed: no network is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.docs.documents import anchors, documents, links, name_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("document", documents(), ids=name_of)
def test_all_links_lead_somewhere(document: Path) -> None:
    broken = [link for link in links(document.read_text()) if not leads_somewhere(document, link)]
    assert broken == []


def test_links_are_found_and_judged(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# What, and why?\n\n## Again\n\n## Again\n")
    document = tmp_path / "one.md"
    document.write_text(
        "# Here\n\n[a](other.md) [b](other.md#what-and-why) [c](#here) [d](https://example.com/x) ![e](none.png)\n"
        "[f](other.md#nope) [g](other.md#again-1) `[no](link)`\n\n```text\n[no](link)\n```\n"
    )
    found = links(document.read_text())
    assert [link for link in found if not leads_somewhere(document, link)] == ["none.png", "other.md#nope"]
    assert len(found) == 7


def leads_somewhere(document: Path, link: str) -> bool:
    if "://" in link or link.startswith("mailto:"):
        return True
    path, _, anchor = link.partition("#")
    target = document.parent / path if path else document
    if not target.exists():
        return False
    return not anchor or anchor in anchors(target.read_text())
