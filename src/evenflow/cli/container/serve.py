"""`evenflow container serve`: embedded containers in a folder, for the official clients of Azure Cosmos DB."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evenflow.cli.container.info import AsJson
from evenflow.cli.output import print_json
from evenflow.cli.serving import DAY_S, Fault, allow_many_sockets, faults_from, new_loop, on_ending, short_duration_s
from evenflow.embedded.container.ranges import RANGES_MAX
from evenflow.emulators.cosmos.account import DEFAULT_RANGES, parse_declaration
from evenflow.emulators.cosmos.app import CosmosApp
from evenflow.emulators.cosmos.authorization import EMULATOR_KEY
from evenflow.emulators.cosmos.faults import CosmosFaultOptions

if TYPE_CHECKING:
    from evenflow.emulators.cosmos.server import CosmosServer

LOOPBACK = "127.0.0.1"
KEY_VARIABLE = "EVENFLOW_COSMOS_KEY"
HIDDEN = "***"
_FAULTS = {
    "delay": Fault("delay_s", short_duration_s, 0.0, DAY_S, "give no more than a day"),
    "busy": Fault("busy", float, 0.0, 1.0, "a share is between 0 and 1"),
    "gone": Fault("gone", float, 0.0, 1.0, "a share is between 0 and 1"),
    "throttle": Fault("throttle", float, 1.0, 1e9, "give a number of request units a second, at least 1"),
}


def serve(
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="The folder that databases are kept in.", show_default=False)
    ],
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0 is any that is free.")] = 8081,
    host: Annotated[str, typer.Option(help="Where to listen. Beyond this machine a key is demanded.")] = LOOPBACK,
    container: Annotated[
        list[str] | None,
        typer.Option(metavar="DATABASE/CONTAINER:/KEY", help="Declare a container; make it if it is not there."),
    ] = None,
    ranges: Annotated[
        int, typer.Option(min=1, max=RANGES_MAX, help="How many ranges a new container has.")
    ] = DEFAULT_RANGES,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="The key in base64; that of Microsoft's emulator by default.",
            envvar=KEY_VARIABLE,
            show_envvar=True,
        ),
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Serve TLS instead, with this certificate (PEM).")
    ] = None,
    certificate_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The certificate's key, where it is another file.")
    ] = None,
    allow_admin: Annotated[bool, typer.Option("--allow-admin", help="Let clients split and merge ranges.")] = False,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND=VALUE",
            help="Trouble on purpose: delay=100ms, busy=0.1 (a share: 503), gone=0.01 (a share: 410), throttle=400 "
            "(request units a second; beyond: 429).",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Serve containers to the official clients of Azure Cosmos DB, until SIGTERM or Ctrl-C."""
    from evenflow.emulators.cosmos.server import (  # it needs the extra `serve`, and the other commands do not
        CosmosServer,
        bind,
    )

    wanted = [parse_declaration(text) for text in container or []]
    faults = CosmosFaultOptions(**faults_from(fault or [], _FAULTS))
    allow_many_sockets()
    with ExitStack() as ends:
        taken = ends.enter_context(bind(host, port, key or EMULATOR_KEY))
        app = CosmosApp(data, key=key or EMULATOR_KEY, ranges=ranges, allow_admin=allow_admin, faults=faults)
        ends.callback(app.close)
        for one in wanted:
            app.account.declare(one)
        scheme = "http" if certificate is None else "https"
        found: int = taken.getsockname()[1]
        # A key of one's own is not shown.
        facts = {"url": f"{scheme}://{host}:{found}/", "port": found, "key": EMULATOR_KEY if key is None else HIDDEN}
        server = CosmosServer(app, lambda: _say_ready(facts, as_json=as_json), certificate, certificate_key)
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(_serve(server, taken))


async def _serve(server: CosmosServer, taken: socket.socket) -> None:
    on_ending(server.end)
    await server.run_on(taken)


def _say_ready(facts: dict[str, object], *, as_json: bool) -> None:
    if as_json:
        print_json(facts)
    else:
        print(f"ready: AccountEndpoint={facts['url']};AccountKey={facts['key']};", flush=True)
