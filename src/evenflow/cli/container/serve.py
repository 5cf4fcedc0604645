"""`evenflow container serve`: serves the containers in a folder to the official clients of Azure Cosmos DB."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from evenflow.cli.container.info import AsJson
from evenflow.cli.output import print_json
from evenflow.cli.serving import (
    DAY_S,
    FaultOption,
    allow_many_sockets,
    faults_from,
    new_loop,
    on_shutdown,
    short_duration_s,
)
from evenflow.embedded.container.ranges import RANGES_MAX
from evenflow.emulators.cosmos.account import DEFAULT_RANGES, parse_declaration
from evenflow.emulators.cosmos.app import CosmosApp
from evenflow.emulators.cosmos.authorization import EMULATOR_KEY
from evenflow.emulators.cosmos.faults import CosmosFaultOptions

LOOPBACK = "127.0.0.1"
KEY_VARIABLE = "EVENFLOW_COSMOS_KEY"
HIDDEN = "***"
_FAULTS = {
    "delay": FaultOption("delay_s", short_duration_s, 0.0, DAY_S, "must be at most a day"),
    "busy": FaultOption("busy", float, 0.0, 1.0, "must be between 0 and 1"),
    "gone": FaultOption("gone", float, 0.0, 1.0, "must be between 0 and 1"),
    "throttle": FaultOption("throttle", float, 1.0, 1e9, "must be at least 1 request unit per second"),
}


def serve(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="Folder of the databases.", show_default=False)],
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port to listen on; 0 picks a free one.")] = 8081,
    host: Annotated[str, typer.Option(help="Address to listen on. Beyond loopback, --key is required.")] = LOOPBACK,
    container: Annotated[
        list[str] | None,
        typer.Option(metavar="DATABASE/CONTAINER:/KEY", help="Serve this container; create it if it does not exist."),
    ] = None,
    ranges: Annotated[
        int, typer.Option(min=1, max=RANGES_MAX, help="Number of ranges of a new container.")
    ] = DEFAULT_RANGES,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="Account key in base64.",
            envvar=KEY_VARIABLE,
            show_envvar=True,
            show_default="the key of Microsoft's emulator",
        ),
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Serve TLS instead of HTTP, with this certificate (PEM).")
    ] = None,
    certificate_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Private key, if it is not in the certificate's file.")
    ] = None,
    allow_admin: Annotated[bool, typer.Option("--allow-admin", help="Let clients split and merge ranges.")] = False,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND=VALUE",
            help="Inject a fault: delay=100ms, busy=0.1 (a fraction gets 503), gone=0.01 (a fraction gets 410),"
            " throttle=400 (429 above this many request units per second).",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Serve containers to the official clients of Azure Cosmos DB, until SIGTERM or Ctrl-C."""
    from evenflow.emulators.cosmos.server import bind  # needs the extra `serve`; the other commands do not

    containers = [parse_declaration(text) for text in container or []]
    faults = CosmosFaultOptions(**faults_from(fault or [], _FAULTS))
    allow_many_sockets()
    with (
        bind(host, port, key or EMULATOR_KEY) as listening,
        closing(CosmosApp(data, key=key or EMULATOR_KEY, ranges=ranges, allow_admin=allow_admin, faults=faults)) as app,
    ):
        for one in containers:
            app.account.declare(one)
        facts = _ready_facts(host, listening, is_tls=certificate is not None, has_own_key=key is not None)
        _run(app, listening, lambda: _print_ready(facts, as_json=as_json), certificate, certificate_key)


def _run(
    app: CosmosApp, listening: socket.socket, ready: Callable[[], None], certificate: Path | None, key: Path | None
) -> None:
    from evenflow.emulators.cosmos.server import CosmosServer

    server = CosmosServer(app, ready, certificate, key)

    async def serve() -> None:
        on_shutdown(server.end)
        await server.run_on(listening)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(serve())


def _ready_facts(host: str, listening: socket.socket, *, is_tls: bool, has_own_key: bool) -> dict[str, object]:
    """What clients need to connect. The operator's own key is a secret and is not shown; the emulator's is public."""
    port: int = listening.getsockname()[1]
    url = f"{'https' if is_tls else 'http'}://{host}:{port}/"
    return {"url": url, "port": port, "key": HIDDEN if has_own_key else EMULATOR_KEY}


def _print_ready(facts: dict[str, object], *, as_json: bool) -> None:
    if as_json:
        print_json(facts)
    else:
        print(f"ready: AccountEndpoint={facts['url']};AccountKey={facts['key']};", flush=True)
