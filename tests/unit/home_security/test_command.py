"""The example's commands: wrong arguments are rejected with a sentence, before anything starts."""

from __future__ import annotations

import signal
import sys
import tempfile
from typing import TYPE_CHECKING

import pytest

from evenflow.console.serving import bound
from examples.home_security import command, inject

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--homes", "0"), "0 is not above 0"),
        (("--homes", "many"), "many is not an integer"),
        (("--homes", "1.5"), "1.5 is not an integer"),
        (("--speed", "fast"), "fast is not a number"),
        (("--speed", "nan"), "nan is not above 0"),
        (("--begin", "25:00"), "25:00 is not a time of day; write for instance 17:30"),
        (("--begin", "17:30+02:00"), "17:30+02:00 is not a time of day; write for instance 17:30"),
        (("--blobs", ""), "empty; name a folder"),
        (("--port", "99999"), "99999 is not a port; use 0"),
        (("--port", "-1"), "-1 is not a port"),
    ],
)
def test_options_of_the_demo(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["home_security", *arguments])
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        (("--blobs", "ftp://somewhere"), "Blobs are in a folder, or at s3://"),
        (("--blobs", "/proc/nowhere"), "Blobs cannot be kept in /proc/nowhere: "),
        (("--blobs", "/dev/null"), "Name a folder that can be written to"),
        (("--blobs", "s3://nowhere/x?endpoint=http://127.0.0.1:9"), "allow_http=yes"),
    ],
)
def test_a_place_for_blobs_that_cannot_be_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    reported: str,
) -> None:
    assert refused(tmp_path, monkeypatch, *arguments, "--port", "0", "--no-open")
    assert reported in capsys.readouterr().err


def test_a_port_that_was_asked_for_and_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with bound("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        assert refused(tmp_path, monkeypatch, "--port", str(port))
    assert f"Cannot serve on 127.0.0.1:{port}" in capsys.readouterr().err


def refused(folder: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> bool:
    """Whether it ended with that exit code, and left nothing in the folder for temporary files."""
    monkeypatch.setattr(sys, "argv", ["home_security", *arguments])
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    interrupt = signal.getsignal(signal.SIGINT)
    try:
        return command.main() == command.REFUSED and not any(folder.iterdir())
    finally:
        signal.signal(signal.SIGINT, interrupt)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "the following arguments are required: folder, home, sensor, state"),
        (("nowhere", "42", "door", "open"), "There is no demo in nowhere: name the folder that it prints"),
        (("nowhere", "mine", "door", "open"), "argument home: invalid int value: 'mine'"),
        (("nowhere", "42", "door", "open", "sometimes"), "argument armed: invalid choice: 'sometimes'"),
    ],
)
def test_something_that_cannot_happen(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["inject", *arguments])
    try:
        code: object = inject.main()
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    assert message in capsys.readouterr().err
