"""Who may enter which room: the directions in which modules import each other, and where optional packages may be."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import evenflow

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = Path(evenflow.__file__).parent

WORDS = {"model", "errors"}
MAY_ENTER = {
    "": {"core", "errors", "hub", "model", "observe", "runtime"},
    "__main__": {"cli"},
    "model": set[str](),
    "errors": set[str](),
    "ports": WORDS,
    "core": WORDS,
    "local": WORDS,
    "drivers": WORDS,
    "hub": WORDS | {"local"},
    "container": WORDS | {"local"},
    "observe": WORDS | {"ports", "core"},
    "stores": WORDS | {"ports", "local", "drivers"},
    "sources": WORDS | {"ports", "hub", "container", "amqp", "drivers"},
    "letters": WORDS | {"ports", "core", "local", "hub", "sources"},
    "urls": WORDS | {"ports", "hub", "container", "sources", "stores", "letters"},
    "runtime": WORDS | {"ports", "core", "observe", "urls"},
    "steer": WORDS | {"ports", "core", "observe"},
    "console": WORDS | {"ports", "core", "observe", "steer", "letters"},
    "amqp": WORDS | {"hub"},
    "cosmos": WORDS | {"container"},
    "changefeed": WORDS | {"ports", "core", "observe", "runtime", "urls"},
    "compat": WORDS | {"ports", "core", "observe", "runtime", "sources", "stores", "urls"},
    "testing": WORDS
    | {"ports", "core", "observe", "runtime", "stores", "letters", "hub", "amqp", "container", "cosmos"},
    "cli": WORDS
    | {
        "ports",
        "core",
        "observe",
        "runtime",
        "steer",
        "stores",
        "sources",
        "hub",
        "letters",
        "urls",
        "testing",
        "amqp",
        "console",
        "container",
        "cosmos",
    },
}
"""A room, and those that it may import from. "" is the package itself, which only gathers the public names."""

KEYS = {
    "local": ("evenflow.hub", "evenflow.container", "evenflow.stores.sqlite", "evenflow.letters.folder"),
    "drivers": ("evenflow.stores", "evenflow.sources.postgresql", "evenflow.sources.cosmos"),
    "hub": (
        *("evenflow.sources.hub", "evenflow.letters.hub", "evenflow.amqp", "evenflow.testing.event_hubs"),
        *("evenflow.sources.redis_streams", "evenflow.urls", "evenflow.cli"),
    ),
    "amqp": ("evenflow.testing.event_hubs", "evenflow.cli.hub.serve", "evenflow.sources.eventhubs_decode"),
    "container": (
        *("evenflow.cosmos", "evenflow.testing.cosmos", "evenflow.sources.container", "evenflow.urls"),
        "evenflow.cli.container",
    ),
    "cosmos": ("evenflow.testing.cosmos", "evenflow.cli.container.serve"),
    "sources": ("evenflow.letters.hub", "evenflow.compat.eventhub", "evenflow.urls", "evenflow.cli"),
    "stores": ("evenflow.compat.eventhub", "evenflow.testing", "evenflow.urls", "evenflow.cli"),
    "urls": ("evenflow.runtime.processor", "evenflow.changefeed.processor", "evenflow.compat", "evenflow.cli"),
}
"""Some rooms are open to a few modules only (and to the package itself, for its public names)."""

PACKAGES = {
    "msgspec": ("evenflow",),
    "apsw": ("evenflow.hub", "evenflow.container", "evenflow.local", "evenflow.stores.sqlite"),
    "aiohttp": ("evenflow.stores.azblob_link", "evenflow.drivers.cosmos"),
    "azure": (
        *("evenflow.compat.checkpointstore.official", "evenflow.sources.eventhubs", "evenflow.stores.azblob_link"),
        "evenflow.compat.eventhub",
        *("evenflow.drivers.cosmos", "evenflow.stores.cosmos_leases_link"),
    ),
    "psycopg": ("evenflow.drivers.postgresql",),
    "redis": ("evenflow.sources.redis_streams_link", "evenflow.stores.redis_link"),
    "confluent_kafka": ("evenflow.sources.kafka_driver",),
    "nats": ("evenflow.sources.nats_connection",),
    "boto3": ("evenflow.sources.kinesis_link",),
    "botocore": ("evenflow.sources.kinesis_link",),
    "obstore": ("evenflow.stores.objects_link",),
    "certifi": ("evenflow.sources.eventhubs",),
    "starlette": ("evenflow.console",),
    "typer": ("evenflow.cli",),
    "rich": ("evenflow.cli",),
    "uvicorn": ("evenflow.console.serving", "evenflow.cosmos.serving"),
    "uvloop": ("evenflow.runtime.processor", "evenflow.cli.serving"),
    "websockets": ("evenflow.amqp.websocket",),
    "pytest": (
        "evenflow.testing.source_",
        "evenflow.testing.store_",
        "evenflow.testing.letters_",
        "evenflow.testing.fixtures",
    ),
}
"""What does not come with Python, and where it may be imported."""

LATE = {"uvloop"}
"""Optional where it is used: imported inside a function that does without it."""

PURE = {
    *("__future__", "typing", "collections", "functools", "itertools", "math", "zlib", "dataclasses"),
    *("bisect", "heapq"),
}
"""All that core needs of the standard library: no clock, no chance, no I/O, no logging."""

SHARED = {"rules", "room", "damage", "telling", "strangers", "waiting", "documents"}
"""What all stores, or all sources, may use; otherwise each is on its own, in files that begin with its name."""


def modules() -> Iterator[tuple[str, str]]:
    for path in sorted(SOURCE.rglob("*.py")):
        parts = ("evenflow", *path.relative_to(SOURCE).with_suffix("").parts)
        yield ".".join(part for part in parts if part != "__init__"), path.read_text()


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def trespasses(module: str, text: str) -> list[str]:
    """Each import of this module that the plan of the house does not allow."""
    tree = ast.parse(text)
    late = {node for function in ast.walk(tree) if _is_function(function) for node in ast.walk(function)}
    found = []
    for node in ast.walk(tree):
        for name in _imported(node):
            if name.startswith("."):
                found.append(f"{module}: {name} is relative; name the room")
            elif name.split(".")[0] == "evenflow":
                found += _inside(module, name)
            else:
                found += _outside(module, name.split(".")[0], late=node in late)
        if isinstance(node, ast.Name) and node.id == "import_module" and room_of(module) not in ("urls", "cli"):
            found.append(f"{module} imports by a name that nobody can check")
    return found


def _is_function(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        if node.level:
            return ["." * node.level + (node.module or "")]
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def _inside(module: str, name: str) -> list[str]:
    here, there = room_of(module), room_of(name)
    if here == there:
        return _among_neighbours(module, name)
    if there not in MAY_ENTER:
        return [f"{module} imports {name}: import from the module itself, not from the package"]
    if there not in MAY_ENTER[here]:
        return [f"{module} imports {name}: {here or 'evenflow'} may not enter {there}"]
    if here and there in KEYS and not module.startswith(KEYS[there]):
        return [f"{module} imports {name}: {there} is not open to it"]
    return []


def _among_neighbours(module: str, name: str) -> list[str]:
    """Stores do not know each other, nor do sources."""
    if room_of(module) not in ("stores", "sources") or module.count(".") < 2 or name.count(".") < 2:
        return []
    mine, other = (path.split(".")[2].split("_")[0] for path in (module, name))
    return [] if other == mine or other in SHARED else [f"{module} imports {name}, which is another one's"]


def _outside(module: str, package: str, *, late: bool) -> list[str]:
    if package in sys.stdlib_module_names:
        impure = room_of(module) == "core" and package not in PURE
        return [f"{module} imports {package}: core is pure"] if impure else []
    if package not in PACKAGES or not module.startswith(PACKAGES[package]):
        return [f"{module} imports {package}, which may not be needed there"]
    return [f"{module} imports {package} at once; it is optional"] if package in LATE and not late else []


@pytest.mark.parametrize(("module", "text"), [pytest.param(*found, id=found[0]) for found in modules()])
def test_every_module_keeps_to_its_rooms(module: str, text: str) -> None:
    assert room_of(module) in MAY_ENTER, f"{module}: a new room needs a line in MAY_ENTER"
    assert trespasses(module, text) == []


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("evenflow.core.plan", "import asyncio"),
        ("evenflow.core.plan", "from time import monotonic"),
        ("evenflow.core.decide", "import random"),
        ("evenflow.core.view", "import logging"),
        ("evenflow.core.view", "from evenflow.ports import Store"),
        ("evenflow.core.view", "def look():\n    import os"),
        ("evenflow.model", "from evenflow.errors import Transient"),
        ("evenflow.ports", "from evenflow.runtime.hold import Hold"),
        ("evenflow.runtime.pump", "from evenflow.stores.memory import MemoryStore"),
        ("evenflow.runtime.pump", "from evenflow.changefeed.context import ChangeContext"),
        ("evenflow.changefeed.processor", "from evenflow.sources.container import ContainerSource"),
        ("evenflow.runtime.pump", "if True:\n    from evenflow.sources.hub import HubSource"),
        ("evenflow.runtime.engine", "from evenflow.urls import open_store"),
        ("evenflow.runtime.engine", "import uvloop"),
        ("evenflow.runtime.processor", "import uvloop"),
        ("evenflow.runtime.engine", "from importlib import import_module\nimport_module('evenflow.stores.memory')"),
        ("evenflow.stores.memory", "from evenflow.stores.sqlite import SQLiteStore"),
        ("evenflow.stores.memory", "from evenflow.local.bell import Bell"),
        ("evenflow.stores.memory", "import apsw"),
        ("evenflow.sources.kafka", "from evenflow.drivers.postgresql import Address"),
        ("evenflow.stores.postgresql", "import psycopg"),
        ("evenflow.stores.sqlite", "import redis"),
        ("evenflow.stores.redis", "from evenflow.stores.memory import MemoryStore"),
        ("evenflow.stores.sqlite", "from evenflow.runtime.parts import Parts"),
        ("evenflow.stores.sqlite", "from evenflow.sources.hub import HubSource"),
        ("evenflow.sources.hub", "from evenflow.stores.rules import fits"),
        ("evenflow.sources.kafka", "from evenflow.hub import Hub"),
        ("evenflow.sources.hub", "from evenflow.container import Container"),
        ("evenflow.sources.kafka", "from evenflow.sources.hub import HubSource"),
        ("evenflow.sources.eventhubs", "from evenflow.amqp.server import Server"),
        ("evenflow.core.filed", "from evenflow.hub import Hub"),
        ("evenflow.letters.memory", "from evenflow.local.database import translated"),
        ("evenflow.letters.redrive", "from evenflow.runtime.hold import Hold"),
        ("evenflow.runtime.pump", "from evenflow.letters.folder import FolderLetters"),
        ("evenflow.hub.log", "from evenflow.ports import Source"),
        ("evenflow.hub.log", "from . import facts"),
        ("evenflow.observe.survey", "from evenflow.runtime.processor import Processor"),
        ("evenflow.observe.survey", "from evenflow import Processor"),
        ("evenflow.observe.survey", "import rich"),
        ("evenflow.console.watch", "from evenflow.runtime.clock import system_clock"),
        ("evenflow.console.watch", "from evenflow.urls import open_store"),
        ("evenflow.console.watch", "import uvicorn"),
        ("evenflow.steer.visit", "from evenflow.runtime.hold import Hold"),
        ("evenflow.steer.visit", "from evenflow.stores import rules"),
        ("evenflow.compat.checkpointstore.claims", "from evenflow.stores import rules"),
        ("evenflow.compat.checkpointstore.claims", "from azure.eventhub import CheckpointStore"),
        ("evenflow.hub.log", "import requests"),
        ("evenflow.testing.fakes", "import pytest"),
        ("evenflow.testing.fakes", "from evenflow.amqp.server import Server"),
        ("evenflow.amqp.dialect", "from evenflow.sources.hub import HubSource"),
        ("evenflow.hub.log", "from evenflow.amqp.types import decode"),
        ("evenflow.container.feed", "from evenflow.hub import Hub"),
        ("evenflow.container.feed", "from evenflow.cosmos.wire import Request"),
        ("evenflow.cosmos.feeds", "from evenflow.local.bell import Bell"),
        ("evenflow.testing.fakes", "from evenflow.cosmos.app import CosmosApp"),
    ],
)  # fmt: skip
def test_a_wrong_import_is_found(module: str, line: str) -> None:
    assert len(trespasses(module, line)) == 1


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("evenflow.core.decide", "from evenflow.core.plan import plan"),
        ("evenflow.core.decide", "import msgspec"),
        ("evenflow.runtime.processor", "def factory():\n    import uvloop"),
        ("evenflow.stores.sqlite", "from evenflow.stores.sqlite_files import open_files"),
        ("evenflow.stores.memory", "from evenflow.stores import rules"),
        ("evenflow.runtime.pump", "from evenflow.core.filed import fold"),
        ("evenflow.cli.status", "import typer, rich"),
    ],
)
def test_a_right_import_is_not(module: str, line: str) -> None:
    assert trespasses(module, line) == []


@pytest.mark.parametrize("module", ["evenflow", "evenflow.testing.fakes", "evenflow.testing.simulated"])
def test_the_library_runs_without_what_is_optional(module: str) -> None:
    """Not only by the letter: in a fresh process nothing optional is loaded."""
    optional = set(PACKAGES) - {"msgspec", "apsw"}
    program = f"import sys, {module}; print(*sorted({optional!r} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == ""
