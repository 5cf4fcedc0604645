"""`evenflow hub serve`: hubs in a folder, for the official clients of Azure Event Hubs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import Struct

from evenflow.cli.hub.options import AsJson
from evenflow.cli.output import print_json
from evenflow.cli.serving import DAY_S, Fault, allow_many_sockets, faults_from, new_loop, on_ending, short_duration_s
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
    data: Annotated[Path, typer.Argument(metavar="DATA", help="The folder that hubs are kept in.", show_default=False)],
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0 is any that is free.")] = 5672,
    host: Annotated[str, typer.Option(help="Where to listen. Beyond this machine a key is demanded.")] = LOOPBACK,
    hub: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:PARTITIONS:GROUP,GROUP", help="Declare a hub; make it if it is not there."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Declare hubs: TOML, or the emulator's Config.json.")
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=KEY", help="Check tokens by this key.", envvar=KEY_VARIABLE, show_envvar=True),
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Serve TLS as well, with this certificate (PEM).")
    ] = None,
    certificate_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The certificate's key, where it is another file.")
    ] = None,
    tls_port: Annotated[int, typer.Option(min=0, max=65_535, help="Where TLS is served.")] = TLS_PORT,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND=VALUE",
            help="Trouble on purpose: drop=5s, delay=100ms, busy=0.1 (a share), throttle=1000 (events a second).",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Serve hubs to the official clients of Azure Event Hubs, until SIGTERM or Ctrl-C."""
    if certificate_key is not None and certificate is None:
        raise typer.BadParameter("it is of no use without a --certificate.", param_hint="--certificate-key")
    wanted = [*(read_declarations(config) if config is not None else []), *(_hub(text) for text in hub or [])]
    plan = _Plan(
        data=data,
        wanted=wanted,
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
        runner.run(_serve(plan))


class _Plan(Struct, frozen=True, kw_only=True):
    data: Path
    wanted: list[HubDeclaration]
    host: str
    port: int
    keys: dict[str, str]
    certificate: Path | None
    certificate_key: Path | None
    tls_port: int
    faults: EventHubsFaultOptions
    as_json: bool


async def _serve(plan: _Plan) -> None:
    stopped = asyncio.Event()
    on_ending(stopped.set)
    tls = None if plan.certificate is None else tls_context(plan.certificate, plan.certificate_key)
    with open_exclusively(plan.data, plan.wanted) as hubs:
        server = EventHubsServer(hubs, keys=plan.keys, faults=plan.faults)
        try:
            port = await server.listen(plan.host, plan.port)
            tls_port = None if tls is None else await server.listen(plan.host, plan.tls_port, tls)
            _say_ready(plan, server, port, tls_port)
            await stopped.wait()
        finally:
            await server.aclose()


def _say_ready(plan: _Plan, server: EventHubsServer, port: int, tls_port: int | None) -> None:
    hubs = list(server.namespace)
    name = next(iter(plan.keys), EMULATOR_KEY_NAME)
    # A key that is one is not shown: whoever may have it has it.
    shown = HIDDEN if plan.keys else EMULATOR_KEY
    first = connection_string(port, hubs[0].name, host=plan.host, key_name=name, key=shown)
    if not plan.as_json:
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
        raise typer.BadParameter("a key is written NAME=KEY.", param_hint="--key")
    return name, key


_FAULTS = {
    "drop": Fault("drop_s", short_duration_s, 0.001, DAY_S, "give a millisecond to a day"),
    "delay": Fault("delay_s", short_duration_s, 0.0, DAY_S, "give no more than a day"),
    "busy": Fault("busy", float, 0.0, 1.0, "a share is between 0 and 1"),
    "throttle": Fault("throttle", float, 1.0, 1e9, "give a number of events a second, at least 1"),
}
