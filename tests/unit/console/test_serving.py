from __future__ import annotations

import threading
import webbrowser
from typing import TYPE_CHECKING

from evenflow.console.serving import open_browser

if TYPE_CHECKING:
    import pytest


def test_a_browser_that_does_not_return_blocks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    closed, done = threading.Event(), threading.Event()

    def stay_open(address: str) -> bool:
        assert closed.wait(30)
        shown.append(address)
        if len(shown) == 2:
            done.set()
        return True

    monkeypatch.setattr(webbrowser, "open", stay_open)
    open_browser("one", "two")
    assert shown == []
    closed.set()
    assert done.wait(30)
    assert shown == ["one", "two"]
