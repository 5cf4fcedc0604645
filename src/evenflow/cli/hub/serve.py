"""`evenflow hub serve`: hubs in a folder, for the official clients of Azure Event Hubs."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evenflow.amqp.folder import declared, declared_in, open_folder
from evenflow.amqp.server import LOOPBACK, Server, connection_string
from evenflow.cli.hub.options import AsJson
from evenflow.cli.output import print_json

if TYPE_CHECKING:
    from evenflow.amqp.folder import Declared


def serve(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="The folder that hubs are kept in.", show_default=False)],
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0 is any that is free.")] = 5672,
    host: Annotated[str, typer.Option(help="Where to listen.")] = LOOPBACK,
    hub: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME:PARTITIONS:GROUP,GROUP",
            help="Declare a hub. It is made if it is not there. Repeat it for more.",
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Declare hubs as the emulator's Config.json does.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Serve hubs to the official clients of Azure Event Hubs, until SIGTERM or Ctrl-C."""
    wanted = [*(declared_in(config) if config is not None else []), *(declared(text) for text in hub or [])]
    asyncio.run(_serve(data, wanted, host, port, as_json=as_json))


async def _serve(data: Path, wanted: list[Declared], host: str, port: int, *, as_json: bool) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    server = Server(open_folder(data, wanted))
    try:
        taken = await server.listen(host, port)
        _say_ready(server, taken, as_json=as_json)
        await stopped.wait()
    finally:
        await server.aclose()


def _say_ready(server: Server, port: int, *, as_json: bool) -> None:
    hubs = list(server.dialect.namespace)
    first = connection_string(port, hubs[0].name)
    if as_json:
        facts: dict[str, Any] = {
            "port": port,
            "connection_string": first,
            "hubs": [
                {"name": hub.name, "partitions": hub.partitions, "groups": sorted(hub.groups.values())} for hub in hubs
            ],
        }
        print_json(facts)
    else:
        print(f"ready: {first}", flush=True)
