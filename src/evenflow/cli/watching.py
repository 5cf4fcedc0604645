"""Shows pictures of a group one after the other, in place on a terminal, one below the other elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from evenflow.cli.picture import Picture


async def watch(pictures: AsyncIterator[Picture]) -> None:
    console = Console()
    if not console.is_terminal:
        async for picture in pictures:
            print("\n".join([*_lines(picture), ""]), flush=True)
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:
        async for picture in pictures:
            live.update(Text("\n".join(_lines(picture)), no_wrap=True, overflow="crop"), refresh=True)


def _lines(picture: Picture) -> list[str]:
    return [*picture.as_lines(), *(f"warning: {problem}" for problem in picture.problems)]
