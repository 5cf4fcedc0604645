"""What the browser gets: small, all written here, from nowhere else, and within its own policy."""

from __future__ import annotations

import re

from evenflow.console.app import PAGE

SIZE_MOST = 150_000
FILES = sorted(PAGE.iterdir())
TEXTS = {path.name: path.read_text() for path in FILES}


def test_it_is_below_150_kilobytes() -> None:
    assert sum(path.stat().st_size for path in FILES) < SIZE_MOST


def test_it_loads_nothing_from_other_sites() -> None:
    known = {"http://www.w3.org/2000/svg"}
    found = {url for text in TEXTS.values() for url in re.findall(r"(?:https?:)?//[\w.-]+\.[\w/.-]+", text)}
    assert found - known - {url for url in found if url.startswith("//")} == set()


def test_every_file_that_is_named_is_there() -> None:
    named = {name for text in TEXTS.values() for name in re.findall(r'from "\./([\w.]+)"', text)}
    named |= set(re.findall(r'(?:href|src)="([\w.]+)"', TEXTS["index.html"]))
    assert named <= set(TEXTS)
    scripts = {name for name in TEXTS if name.endswith(".js")}
    assert scripts - named == set()


def test_nothing_is_written_that_the_policy_forbids() -> None:
    for name, text in TEXTS.items():
        assert "innerHTML" not in text, name
        assert "eval(" not in text, name
        assert not re.search(r"\bstyle=", text), name
    assert not re.search(r"<script(?![^>]*src=)", TEXTS["index.html"])
    assert not re.search(r"\son\w+=", TEXTS["index.html"])
