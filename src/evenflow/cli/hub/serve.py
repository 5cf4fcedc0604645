"""`evenflow hub serve`: serves the hubs in a folder to the official clients of Azure Event Hubs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import Struct

from evenflow.cli.hub.options import AsJson
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
from evenflow.emulators.eventhubs.faults import EventHubsFaultOptions
from evenflow.emulators.eventhubs.folder import HubDeclaration, open_exclusively, parse_declaration, read_declarations
from evenflow.emulators.eventhubs.server import (
    EMULATOR_KEY,
    EMULATOR_KEY_NAME,
    LOOPBACK,
    EventHubsServer,
    connection_string,
    tls_context,
)
from evenflow.errors import Misconfigured

KEY_VARIABLE = "EVENFLOW_HUB_KEY"
HIDDEN = "***"
TLS_PORT = 5671


def serve(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="Folder of the hubs.", show_default=False)],
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port to listen on; 0 picks a free one.")] = 5672,
    host: Annotated[str, typer.Option(help="Address to listen on. Beyond loopback, --key is required.")] = LOOPBACK,
    hub: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:PARTITIONS:GROUP,GROUP", help="Serve this hub; create it if it does not exist."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Read the hubs from TOML, or from the emulator's Config.json.")
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=KEY", help="Require tokens signed with this key.", envvar=KEY_VARIABLE, show_envvar=True
        ),
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also serve TLS, with this certificate (PEM).")
    ] = None,
    certificate_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Private key, if it is not in the certificate's file.")
    ] = None,
    tls_port: Annotated[int, typer.Option(min=0, max=65_535, help="Port for TLS; 0 picks a free one.")] = TLS_PORT,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND=VALUE",
            help="Inject a fault: drop=5s, delay=100ms, busy=0.1 (a fraction), throttle=1000 (events per second).",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Serve hubs to the official clients of Azure Event Hubs, until SIGTERM or Ctrl-C."""
    if certificate_key is not None and certificate is None:
        raise typer.BadParameter("has no effect without --certificate; pass both.", param_hint="--certificate-key")
    hubs = [*(read_declarations(config) if config is not None else []), *(_hub(text) for text in hub or [])]
    options = _ServeOptions(
        data=data,
        hubs=hubs,
        host=host,
        port=port,
        keys=dict(_key(text) for text in key or []),
        certificate=certificate,
        certificate_key=certificate_key,
        tls_port=tls_port,
        faults=EventHubsFaultOptions(**faults_from(fault or [], _FAULTS)),
        as_json=as_json,
    )
    allow_many_sockets()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_serve(options))


class _ServeOptions(Struct, frozen=True, kw_only=True):
    data: Path
    hubs: list[HubDeclaration]
    host: str
    port: int
    keys: dict[str, str]
    certificate: Path | None
    certificate_key: Path | None
    tls_port: int
    faults: EventHubsFaultOptions
    as_json: bool


async def _serve(options: _ServeOptions) -> None:
    stopped = asyncio.Event()
    on_shutdown(stopped.set)
    tls = None if options.certificate is None else tls_context(options.certificate, options.certificate_key)
    with open_exclusively(options.data, options.hubs) as hubs:
        server = EventHubsServer(hubs, keys=options.keys, faults=options.faults)
        try:
            port = await server.listen(options.host, options.port)
            tls_port = None if tls is None else await server.listen(options.host, options.tls_port, tls)
            _print_ready(options, server, port, tls_port)
            await stopped.wait()
        finally:
            await server.aclose()


def _print_ready(options: _ServeOptions, server: EventHubsServer, port: int, tls_port: int | None) -> None:
    hubs = list(server.namespace)
    name = next(iter(options.keys), EMULATOR_KEY_NAME)
    # The operator's own key is a secret and is not shown; that of the emulator is public.
    shown = HIDDEN if options.keys else EMULATOR_KEY
    first = connection_string(port, hubs[0].name, host=options.host, key_name=name, key=shown)
    if not options.as_json:
        also = f" (TLS on port {tls_port})" if tls_port is not None else ""
        print(f"ready: {first}{also}", flush=True)
        return
    facts: dict[str, Any] = {
        "port": port,
        "tls_port": tls_port,
        "connection_string": first,
        "hubs": [
            {"name": hub.name, "partitions": hub.partitions, "groups": sorted(hub.groups.values())} for hub in hubs
        ],
    }
    print_json(facts)


def _hub(text: str) -> HubDeclaration:
    try:
        return parse_declaration(text)
    except Misconfigured as error:
        raise typer.BadParameter(str(error), param_hint="--hub") from error


def _key(text: str) -> tuple[str, str]:
    name, equals, key = text.partition("=")
    if not equals or not name or not key:
        raise typer.BadParameter("not NAME=KEY; write for instance sender=SECRET.", param_hint="--key")
    return name, key


_FAULTS = {
    "drop": FaultOption("drop_s", short_duration_s, 0.001, DAY_S, "must be between a millisecond and a day"),
    "delay": FaultOption("delay_s", short_duration_s, 0.0, DAY_S, "must be at most a day"),
    "busy": FaultOption("busy", float, 0.0, 1.0, "must be between 0 and 1"),
    "throttle": FaultOption("throttle", float, 1.0, 1e9, "must be at least 1 event per second"),
}
