"""`evenflow hub send`."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from evenflow.cli.hub.options import AsJson, HubPath
from evenflow.cli.output import print_json, say
from evenflow.embedded.hub import Hub

if TYPE_CHECKING:
    from collections.abc import Iterator

READ_BYTES = 1 << 16


def send(
    path: HubPath,
    text: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT", help="One event per TEXT; - sends the lines of stdin, as a pipe does."),
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="Partition key: events with the same key stay in one partition, in order.")
    ] = None,
    partition: Annotated[str | None, typer.Option(help="Send to this partition (not together with --key).")] = None,
    as_json: AsJson = False,
) -> None:
    """Send events, and return when they are durable."""
    if key is not None and partition is not None:
        raise typer.BadParameter("pass either --key or --partition, not both.")
    if not text and sys.stdin.isatty():
        raise typer.BadParameter("nothing to send; pass TEXT, or - to read lines from the terminal.")
    batches = _lines_of_stdin() if not text or text == ["-"] else iter([[part.encode() for part in text]])
    with Hub(path) as hub:
        sent = asyncio.run(_send_all(hub, batches, key, partition))
    if as_json:
        print_json({"sent": sent})
    else:
        say(f"{sent} {'event' if sent == 1 else 'events'} sent")


async def _send_all(hub: Hub, batches: Iterator[list[bytes]], key: str | None, partition: str | None) -> int:
    sent = 0
    async with hub.producer() as producer:
        while (batch := await asyncio.to_thread(next, batches, None)) is not None:
            await producer.send(batch, key=key, partition=partition)
            sent += len(batch)
    return sent


def _lines_of_stdin() -> Iterator[list[bytes]]:
    """The lines that are available, as one batch: a slow stream is not delayed, a fast one not sent line by line."""
    rest = b""
    while chunk := os.read(sys.stdin.fileno(), READ_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]
    if rest:
        yield [rest]
