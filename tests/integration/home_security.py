"""The flagship example as a program: started on any free port, in a folder of its own, with few homes."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import urllib.request
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from evenflow.sources.hub.source import HubSource
from examples.home_security.blobs import Folder
from examples.home_security.places import Place
from examples.home_security.reading import read_about, read_home
from tests.integration.programs import next_line, processes_with, started, wait_for

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Sequence

    from examples.home_security.reading import HomeView

ROOT = Path(__file__).parents[2]
ANY_PORT = ["--port", "0", "--no-open"]
DEMO = [sys.executable, "-m", "examples.home_security", *ANY_PORT]
HURRIED = """
import sys
from examples.home_security import command, session
session.BEGIN_S, session.STALL_S, session.STUCK_S = 2.0, 12.0, 3.0
sys.exit(command.main())
"""
IN_A_HURRY = [sys.executable, "-c", HURRIED, *ANY_PORT]
"""It gives people less time to look and to act; a stall is still longer than the time-to-live."""


class Demo(NamedTuple):
    process: subprocess.Popen[str]
    residents: str
    """The address of the residents' page."""
    operator: str
    """The address of the console, with its token."""
    place: Place

    @property
    def token(self) -> str:
        return unquote(self.operator.partition("#token=")[2])

    def act(self, action: str, group: str = "aggregate", **wanted: Any) -> Any:
        """As a button of the console does."""
        address = f"{self.operator.partition('#')[0]}api/act/{action}?group=local/homes/{group}"
        headers = {"authorization": f"Bearer {self.token}", "content-type": "application/json"}
        request = urllib.request.Request(address, json.dumps({"by": "a test", **wanted}).encode(), headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def home(self, number: int) -> HomeView | None:
        """As the blobs tell it."""
        blobs = Folder(self.place.blobs)

        async def look() -> HomeView | None:
            return await read_home(blobs, await read_about(blobs), number)

        return asyncio.run(look())

    def newest(self) -> dict[str, int]:
        """The last sequence of every partition of the hub."""

        async def look() -> dict[str, int]:
            source = HubSource(self.place.hub)
            try:
                found = await source.bounds([one.id for one in await source.partitions()])
                return {name: one.newest.sequence or 0 for name, one in found.items() if one.newest is not None}
            finally:
                await source.aclose()

        return asyncio.run(look())

    def end(self, number: int) -> tuple[int, str, str]:
        """Its exit code, and what it had still to say."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=90)
        return self.process.returncode, out, err


@contextmanager
def started_demo(folder: Path, *arguments: str, program: Sequence[str] = IN_A_HURRY) -> Iterator[Demo]:
    """Once both pages answer. If the test has not ended it by then, it is killed, and all its processes end."""
    with started(*arguments, folder=ROOT, program=program, TMPDIR=str(folder)) as process:
        residents, operator = [wait_for(partial(_address, process, name), name) for name in ("residents", "operator")]
        (made,) = folder.glob("home-security-*")
        yield Demo(process, residents, operator, Place(made))


def processes_in(folder: Path) -> list[int]:
    """Those that the demo has started."""
    return processes_with(str(folder), "examples.home_security")


def _address(process: subprocess.Popen[str], name: str) -> str | None:
    line = next_line(process)
    assert line, process.communicate()[1]
    found = re.match(rf" +{name} +(\S+)$", line)
    return found[1] if found else None


def figure(text: str, name: str) -> int:
    """Of the summary."""
    found = re.search(rf"^ *{name} +([\d,]+)", text, re.MULTILINE)
    assert found, f"there is no {name!r} in:\n{text}"
    return int(found[1].replace(",", ""))
