"""Server-sent events: first the whole picture, then whatever sections of it have changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from msgspec import json

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from evenflow.console.watch import Revision

HEARTBEAT_S = 5.0
"""So often something is sent even if nothing changed: whoever hears nothing for longer knows that the way is cut."""


class SectionSource(Protocol):
    """Something with sections that change."""

    version: Revision
    fragments: dict[str, bytes]


async def changes(of: SectionSource, is_over: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Whoever is slow misses pictures in between, and nothing else: what is sent is the difference to what it got."""
    sent: dict[str, bytes] = {}
    while not is_over():
        seen, now = of.version.number, dict(of.fragments)
        changed = {name: text for name, text in now.items() if sent.get(name) != text}
        gone = [name for name in sent if name not in now]
        sent = now
        yield b"data: " + _joined(changed, gone) + b"\n\n" if changed or gone else b": still here\n\n"
        await of.version.wait(seen, HEARTBEAT_S)
    # Whoever hears this knows that nobody will answer, and why.
    yield b"data: " + _joined({"ended": b"true"}, []) + b"\n\n"


def _joined(changed: Mapping[str, bytes], gone: list[str]) -> bytes:
    parts = [json.encode(name) + b":" + text for name, text in changed.items()]
    return b'{"gone":' + json.encode(gone) + b',"sections":{' + b",".join(parts) + b"}}"
