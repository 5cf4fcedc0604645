"""`evenflow hub tail`: prints the events of a hub as they arrive. It joins no group and writes nothing."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evenflow.cli.hub.options import AsJson, HubPath
from evenflow.cli.output import UNKNOWN, print_json, printable
from evenflow.cli.quantities import parse_moment
from evenflow.model import Position
from evenflow.sources.hub.source import HubSource

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from evenflow.model import Event, PartitionId
    from evenflow.ports import Start

READ_EVENTS = 500
READ_BYTES = 1 << 20
WAIT_S = 5.0


def tail(
    path: HubPath,
    begin: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="Start at earliest, latest, a sequence (with --partition), or a time such as 2026-02-03T04:05Z.",
        ),
    ] = "latest",
    partition: Annotated[str | None, typer.Option(help="Only this partition.", show_default="all")] = None,
    count: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Exit after N events.", show_default="no limit")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print events as they arrive: PARTITION SEQUENCE TIME KEY BODY. Ctrl-C exits."""
    start = _start(begin, partition)
    try:
        asyncio.run(_tail(path, start, partition, count, as_json=as_json))
    except (KeyboardInterrupt, BrokenPipeError):
        pass  # Ctrl-C, or the reader of the pipe has ended: both are a normal end


def _start(text: str, partition: str | None) -> Start:
    if text in ("earliest", "latest"):
        return text
    if text.isdecimal():
        if partition is None:
            raise typer.BadParameter("a sequence is per partition; add --partition ID.", param_hint="--from")
        before = int(text) - 1
        return Position(str(before), before)
    moment = parse_moment(text)
    if moment is None:
        raise typer.BadParameter(
            f"{text!r} is not earliest, latest, a sequence or a time such as 2026-02-03T04:05Z.", param_hint="--from"
        )
    return moment


async def _tail(path: Path, start: Start, partition: str | None, count: int | None, *, as_json: bool) -> None:
    source = HubSource(str(path))
    try:
        names = [partition] if partition is not None else [one.id for one in await source.partitions()]
        printed = 0
        async with aclosing(_merged(source, names, start)) as events:
            async for name, event in events:
                if as_json:
                    print_json(as_facts(name, event))
                else:
                    print(_line(name, event), flush=True)
                printed += 1
                if printed == count:
                    return
    finally:
        await source.aclose()


async def _merged(
    source: HubSource, names: list[PartitionId], start: Start
) -> AsyncGenerator[tuple[PartitionId, Event], None]:
    """The events of all partitions as they arrive. Older events come partition by partition."""
    # All starts are resolved before the first read, so that "latest" means the same time in all partitions.
    after = {name: await source.resolve(name, start) for name in names}
    events: asyncio.Queue[tuple[PartitionId, Event] | Exception] = asyncio.Queue(maxsize=READ_EVENTS)
    readers = [asyncio.create_task(_follow(source, name, after[name], events)) for name in names]
    try:
        while True:
            found = await events.get()
            if isinstance(found, Exception):
                raise found
            yield found
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


async def _follow(
    source: HubSource,
    name: PartitionId,
    after: Position,
    events: asyncio.Queue[tuple[PartitionId, Event] | Exception],
) -> None:
    try:
        reader = await source.open(name, after, epoch=0)
        try:
            while True:
                for event in (await reader.read(READ_EVENTS, READ_BYTES, WAIT_S)).events:
                    await events.put((name, event))
        finally:
            await reader.aclose()
    except Exception as error:
        await events.put(error)


def as_facts(partition: PartitionId, event: Event) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "partition": partition,
        "sequence": event.sequence,
        "offset": event.offset,
        "enqueued_at": event.enqueued_at.isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "key": event.key,
        "properties": event.properties,
    }
    with suppress(UnicodeDecodeError):
        return facts | {"body": event.body.decode()}
    return facts | {"body_base64": event.body}


def _line(partition: PartitionId, event: Event) -> str:
    at = event.enqueued_at.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    body = printable(event.body.decode(errors="backslashreplace"))
    return f"{partition:>3} {event.sequence:>9} {at} {printable(event.key or UNKNOWN)} {body}"
