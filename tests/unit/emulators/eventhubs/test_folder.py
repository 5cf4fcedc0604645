"""The folder that is served: declared hubs are created, existing hubs stay."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
from typing import TYPE_CHECKING, Any

import pytest

from evenflow.amqp.conditions import AmqpError
from evenflow.embedded.hub import Hub
from evenflow.emulators.eventhubs.folder import (
    HubDeclaration,
    open_exclusively,
    open_folder,
    parse_declaration,
    read_declarations,
)
from evenflow.emulators.eventhubs.namespace import Namespace
from evenflow.emulators.eventhubs.server import LOOPBACK, EventHubsServer, is_loopback, tls_context
from evenflow.errors import Misconfigured

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = {
    "UserConfig": {
        "NamespaceConfig": [
            {
                "Type": "EventHub",
                "Name": "emulatorNs1",
                "Entities": [
                    {"Name": "eh1", "PartitionCount": "2", "ConsumerGroups": [{"Name": "cg1"}, {"Name": "cg2"}]},
                    {"Name": "eh2", "PartitionCount": 1},
                ],
            }
        ],
        "LoggingConfig": {"Type": "File"},
    }
}


def seen(folder: Path, *wanted: HubDeclaration) -> dict[str, Any]:
    """What is served: partitions and groups by the hub's name."""
    hubs = open_folder(folder, wanted)
    found = {hub.name: (hub.partitions, sorted(hub.groups.values())) for hub in hubs}
    for hub in hubs:
        hub.hub.close()
    return found


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("homes", HubDeclaration("homes")),
        ("homes:4", HubDeclaration("homes", 4)),
        ("homes:4:alerts,audit", HubDeclaration("homes", 4, ("alerts", "audit"))),
        ("homes::alerts", HubDeclaration("homes", None, ("alerts",))),
    ],
)
def test_a_hub_is_declared_in_short(text: str, wanted: HubDeclaration) -> None:
    assert parse_declaration(text) == wanted


@pytest.mark.parametrize(
    "text",
    [
        *("", ":4", "homes:four", "a/b:4", "../up:1", ".", "homes:4:a/b", "homes:4:" + "g" * 80, "homes:0", "homes:-1"),
        *("homes:" + "9" * 5_000, "homes:99999", "groups.json:2", "Groups.JSON", "serve.lock", "hub.sqlite", "h" * 256),
    ],
)
def test_what_declares_no_hub_is_refused(text: str) -> None:
    with pytest.raises(Misconfigured):
        parse_declaration(text)


def test_the_config_of_the_emulator_is_understood(tmp_path: Path) -> None:
    (tmp_path / "Config.json").write_text(json.dumps(CONFIG))
    found = read_declarations(tmp_path / "Config.json")
    assert found == [HubDeclaration("eh1", 2, ("cg1", "cg2")), HubDeclaration("eh2", 1)]
    assert seen(tmp_path / "data", *found) == {"eh1": (2, ["$Default", "cg1", "cg2"]), "eh2": (1, ["$Default"])}


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", DEEP, '{"UserConfig":{"NamespaceConfig":[{"Entities":[{"Name":"x"}]}]}}']
)
def test_another_file_is_not(tmp_path: Path, text: str) -> None:
    (tmp_path / "Config.json").write_text(text)
    with pytest.raises(Misconfigured, match="not a Config"):
        read_declarations(tmp_path / "Config.json")
    with pytest.raises(Misconfigured, match="Cannot read"):
        read_declarations(tmp_path / "missing.json")


TOML = """
[hubs.homes]
partitions = 3
groups = ["alerts", "audit"]

[hubs."offices.north"]
"""


def test_hubs_are_declared_in_toml(tmp_path: Path) -> None:
    (tmp_path / "hubs.toml").write_text(TOML)
    found = read_declarations(tmp_path / "hubs.toml")
    assert found == [HubDeclaration("homes", 3, ("alerts", "audit")), HubDeclaration("offices.north")]
    assert seen(tmp_path / "data", *found) == {
        "homes": (3, ["$Default", "alerts", "audit"]),
        "offices.north": (4, ["$Default"]),
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "missing required field `hubs`"),
        ("hubs", "it declares no hubs"),
        ("[hub.homes]", "missing required field|unknown field `hub`"),
        ("[hubs.homes]\npartition = 3", "unknown field `partition`"),
        ('[hubs.homes]\npartitions = "3"', r"Expected `int \| null`, got `str`.*hubs"),
        ('[hubs.homes]\ngroups = "alerts"', "Expected `array`, got `str`"),
        ("[hubs.homes]\npartitions = 0", "1 to"),
        ('[hubs."a/b"]', "not a valid hub name"),
        ('[hubs.homes]\ngroups = ["a/b"]', "not a valid consumer group name"),
    ],
)
def test_toml_that_declares_no_hubs_is_refused_with_its_name(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "hubs.toml").write_text(text)
    with pytest.raises(Misconfigured, match=words) as refused:
        read_declarations(tmp_path / "hubs.toml")
    assert str(refused.value).startswith(f"{tmp_path / 'hubs.toml'}: ")


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "hubs.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(Misconfigured, match="declares no hubs"):
        read_declarations(tmp_path / "hubs.toml")


def test_what_was_declared_once_is_there_again(tmp_path: Path) -> None:
    assert seen(tmp_path) == {"hub": (4, ["$Default"])}
    assert seen(tmp_path, HubDeclaration("homes", 2, ("alerts",))) == {
        "hub": (4, ["$Default"]),
        "homes": (2, ["$Default", "alerts"]),
    }
    assert seen(tmp_path, HubDeclaration("HOMES", 3, ("audit", "Alerts"))) == {
        "hub": (4, ["$Default"]),
        "homes": (3, ["$Default", "alerts", "audit"]),
    }


def test_a_hub_does_not_shrink(tmp_path: Path) -> None:
    seen(tmp_path, HubDeclaration("homes", 3))
    with pytest.raises(Misconfigured, match="cannot shrink"):
        open_folder(tmp_path, [HubDeclaration("homes", 2)])


def test_a_folder_that_is_a_hub_is_served_as_that(tmp_path: Path) -> None:
    Hub.create(tmp_path / "homes", 2).close()
    assert seen(tmp_path / "homes", HubDeclaration("homes", None, ("alerts",))) == {
        "homes": (2, ["$Default", "alerts"])
    }
    with pytest.raises(Misconfigured, match="itself a hub"):
        open_folder(tmp_path / "homes", [HubDeclaration("other")])


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Misconfigured, match="is a file"):
        open_folder(tmp_path / "file")
    (tmp_path / "groups.json").write_text("garbage")
    with pytest.raises(Misconfigured, match="damaged"):
        open_folder(tmp_path)


def test_a_folder_has_one_server(tmp_path: Path) -> None:
    """Nor can one of its hubs have another, and when the block ends it is free."""
    with open_exclusively(tmp_path / "data", [HubDeclaration("homes", 1)]) as hubs:
        for one in hubs:
            one.hub.close()
        for taken in (tmp_path / "data", tmp_path / "data" / "homes"):
            with (
                pytest.raises(Misconfigured, match=f"already served by process {os.getpid()}"),
                open_exclusively(taken),
            ):
                pass
    with open_exclusively(tmp_path / "data" / "homes") as hubs:
        assert [one.name for one in hubs] == ["homes"]
        hubs[0].hub.close()
        with pytest.raises(Misconfigured, match="already served"), open_exclusively(tmp_path / "data"):
            pass


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Misconfigured, match="Cannot write"), open_exclusively(tmp_path / "file" / "data"):
        pass


def test_names_have_no_case(tmp_path: Path) -> None:
    served = open_folder(tmp_path, [HubDeclaration("Homes", 2)])
    namespace = Namespace(served)
    assert namespace.hub("hOMES").name == "Homes"
    with pytest.raises(AmqpError, match="not-found"):
        namespace.hub("home")
    for text in ("2", "-1", "x", "", "٣", "1" * 30):
        with pytest.raises(AmqpError, match="out-of-range"):
            served[0].partition_number(text)
    served[0].hub.close()


@pytest.mark.parametrize(
    ("host", "here"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("example.com", False)],
)
def test_which_hosts_are_this_machine(host: str, here: bool) -> None:
    assert is_loopback(host) is here


def test_a_port_that_is_taken_and_a_certificate_that_is_none(tmp_path: Path) -> None:
    async def act() -> None:
        server = EventHubsServer([])
        port = await server.listen()
        with pytest.raises(Misconfigured, match="Cannot listen"):
            await server.listen(port=port)
        await server.aclose()
        await server.aclose()
        with pytest.raises(Misconfigured, match="certificate"):
            tls_context(tmp_path / "none.pem")

    asyncio.run(act())


def test_who_comes_in_while_the_server_closes_is_sent_away() -> None:
    """A leaked socket would make the garbage collector warn."""

    async def act(turns: int) -> None:
        server = EventHubsServer([])
        port = await server.listen()
        clients = [socket.create_connection((LOOPBACK, port)) for _ in range(5)]
        for _ in range(turns):
            await asyncio.sleep(0)
        await server.aclose()
        for client in clients:
            client.close()

    for turns in range(5):
        asyncio.run(act(turns))
    gc.collect()
