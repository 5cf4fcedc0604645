"""Options that `evenflow console` rejects before it serves anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.cli.command import evenflow, message_of

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = "a-token-of-the-house"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--host", "0.0.0.0"], 2, "a token is required"),
        (["--token", "short"], 2, "at least 12 characters"),
        (["--host", "203.0.113.9", "--token", TOKEN], 1, "Cannot serve on 203.0.113.9"),
        (["--store", "leases"], 1, "did you mean sqlite:leases?"),
        (["--store", "sqlite:nothing", "--port", "0"], 1, "There is no store at nothing"),
    ],
)
def test_wrong_options_are_rejected(tmp_path: Path, arguments: list[str], code: int, message: str) -> None:
    given = arguments if "--store" in arguments else ["--store", "sqlite:leases", *arguments]
    done = evenflow("console", "--no-open", *given, folder=tmp_path)
    assert done.returncode == code
    assert message in message_of(done)
    assert "Traceback" not in done.stderr
