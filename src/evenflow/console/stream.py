"""Server-sent events: first all sections, then the ones that have changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from msgspec import json

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from evenflow.console.watch import Revision

HEARTBEAT_S = 5.0
"""Something is sent at least this often, so that pages notice a broken connection."""


class SectionSource(Protocol):
    """Something whose sections change."""

    version: Revision
    fragments: dict[str, bytes]


async def changes(source: SectionSource, is_over: Callable[[], bool]) -> AsyncIterator[bytes]:
    """A slow page skips intermediate states only: each message is the difference to the last one it received."""
    sent: dict[str, bytes] = {}
    while not is_over():
        seen, now = source.version.number, dict(source.fragments)
        changed = {name: text for name, text in now.items() if sent.get(name) != text}
        gone = [name for name in sent if name not in now]
        sent = now
        yield b"data: " + _joined(changed, gone) + b"\n\n" if changed or gone else b": still here\n\n"
        await source.version.wait(seen, HEARTBEAT_S)
    # This lets the page say that the console was stopped.
    yield b"data: " + _joined({"ended": b"true"}, []) + b"\n\n"


def _joined(changed: Mapping[str, bytes], gone: list[str]) -> bytes:
    parts = [json.encode(name) + b":" + text for name, text in changed.items()]
    return b'{"gone":' + json.encode(gone) + b',"sections":{' + b",".join(parts) + b"}}"
