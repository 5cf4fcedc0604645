"""Every page is in the index and in the navigation of the site, and links hold there too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.docs.documents import ROOT, documents, name_of
from tests.docs.site import ADDED, for_site, site_path

if TYPE_CHECKING:
    from pathlib import Path

NAVIGATION = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]


@pytest.mark.parametrize("document", documents(), ids=name_of)
def test_every_page_is_in_the_site(document: Path) -> None:
    path = site_path(name_of(document))
    assert path is not None
    assert path.startswith("decisions/0") or f" {path}\n" in NAVIGATION


@pytest.mark.parametrize("document", sorted((ROOT / "docs").rglob("*.md")), ids=name_of)
def test_every_page_is_in_the_index(document: Path) -> None:
    index = ROOT / "docs/decisions/README.md" if document.match("decisions/0*") else ROOT / "docs/index.md"
    path = document.relative_to(index.parent)
    assert document in (index, ROOT / "docs/index.md") or f"({path})" in index.read_text()


@pytest.mark.parametrize(
    ("path", "link", "there"),
    [
        ("docs/how-to/seek.md", "[a](checkpoints.md#x)", "[a](checkpoints.md#x)"),
        ("docs/how-to/seek.md", "[a](../../README.md#install)", "[a](../about.md#install)"),
        ("docs/index.md", "[a](../ARCHITECTURE.md)", "[a](ARCHITECTURE.md)"),
        ("README.md", "![a](docs/pictures/x.svg)", "![a](pictures/x.svg)"),
        ("examples/home_security/README.md", "[a](../../docs/index.md)", "[a](../../index.md)"),
        ("docs/how-to/deploy.md", "[`a`](../../deploy)", "`a` (`deploy` in the repository)"),
        ("docs/index.md", "[a](#here) [b](https://example.com)", "[a](#here) [b](https://example.com)"),
        ("docs/index.md", "`[a](../README.md)`", "`[a](../README.md)`"),
        ("docs/index.md", "```sh app\n[a](../README.md)\n```", '```sh title="app"\n[a](../README.md)\n```'),
        ("docs/index.md", "```python\nx\n```", "```python\nx\n```"),
    ],
)
def test_links_and_blocks_are_as_the_site_has_them(path: str, link: str, there: str) -> None:
    assert for_site(link, path) == there


def test_what_is_added_is_there() -> None:
    assert [path for path in ADDED if not (ROOT / path).exists()] == []
