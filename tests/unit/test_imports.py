"""Which package may import which, and where optional dependencies may be imported."""

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

RECORDS = {"model", "errors", "text"}
MAY_IMPORT = {
    "": {"core", "embedded.hub", "errors", "model", "runtime", "signals"},
    "__main__": {"cli"},
    "model": set[str](),
    "errors": set[str](),
    "text": set[str](),
    "ports": RECORDS,
    "core": RECORDS,
    "signals": RECORDS | {"core"},
    "local": RECORDS,
    "drivers": RECORDS,
    "amqp": RECORDS,
    "embedded": set[str](),
    "embedded.hub": RECORDS | {"local"},
    "embedded.container": RECORDS | {"local"},
    "stores": RECORDS | {"ports", "local", "drivers"},
    "sources": RECORDS | {"ports", "embedded.hub", "embedded.container", "amqp", "drivers"},
    "operate": set[str](),
    "operate.inspect": RECORDS | {"ports", "core", "signals"},
    "operate.steer": RECORDS | {"ports", "core", "signals", "operate.inspect"},
    "operate.dead_letters": RECORDS | {"ports", "core", "local", "embedded.hub", "sources"},
    "urls": RECORDS | {"ports", "embedded.hub", "embedded.container", "sources", "stores", "operate.dead_letters"},
    "runtime": RECORDS | {"ports", "core", "signals", "operate.inspect", "urls"},
    "console": RECORDS | {"ports", "core", "signals", "operate.inspect", "operate.steer", "operate.dead_letters"},
    "emulators": set[str](),
    "emulators.eventhubs": RECORDS | {"amqp", "embedded.hub"},
    "emulators.cosmos": RECORDS | {"embedded.container"},
    "changefeed": RECORDS | {"ports", "core", "signals", "operate.inspect", "runtime", "urls"},
    "compat": RECORDS | {"ports", "core", "signals", "operate.inspect", "runtime", "sources", "stores", "urls"},
    "testing": RECORDS
    | {"ports", "core", "signals", "operate.inspect", "operate.dead_letters", "runtime", "stores"}
    | {"embedded.hub", "embedded.container", "emulators.eventhubs", "emulators.cosmos"},
    "cli": RECORDS
    | {"ports", "core", "signals", "operate.inspect", "operate.steer", "operate.dead_letters", "runtime", "stores"}
    | {"sources", "embedded.hub", "embedded.container", "emulators.eventhubs", "emulators.cosmos", "urls", "testing"}
    | {"amqp", "console"},
}
"""A package, and those that it may import from. "" is the top-level package, which only gathers the public names."""

USERS = {
    "local": (*("evenflow.embedded", "evenflow.stores.sqlite", "evenflow.operate.dead_letters.folder"),),
    "drivers": ("evenflow.stores", "evenflow.sources.postgresql", "evenflow.sources.cosmos"),
    "embedded.hub": (
        *("evenflow.sources.hub", "evenflow.operate.dead_letters.hub", "evenflow.emulators.eventhubs"),
        *("evenflow.testing.event_hubs", "evenflow.sources.redis_streams", "evenflow.urls", "evenflow.cli"),
    ),
    "emulators.eventhubs": (
        "evenflow.testing.event_hubs",
        "evenflow.cli.hub.serve",
        "evenflow.sources.eventhubs.decode",
    ),
    "embedded.container": (
        *("evenflow.emulators.cosmos", "evenflow.testing.cosmos", "evenflow.sources.container", "evenflow.urls"),
        "evenflow.cli.container",
    ),
    "emulators.cosmos": ("evenflow.testing.cosmos", "evenflow.cli.container.serve"),
    "sources": ("evenflow.operate.dead_letters.hub", "evenflow.compat.eventhub", "evenflow.urls", "evenflow.cli"),
    "stores": ("evenflow.compat.eventhub", "evenflow.testing", "evenflow.urls", "evenflow.cli"),
    "urls": ("evenflow.runtime.processor", "evenflow.changefeed.processor", "evenflow.compat", "evenflow.cli"),
}
"""Some packages are open to a few modules only (and to the top-level package, for its public names)."""

DEPENDENCIES = {
    "msgspec": ("evenflow",),
    "apsw": ("evenflow.embedded", "evenflow.local", "evenflow.stores.sqlite"),
    "aiohttp": ("evenflow.stores.azblob.client", "evenflow.drivers.cosmos.client"),
    "azure": (
        *("evenflow.compat.checkpointstore.official", "evenflow.sources.eventhubs", "evenflow.stores.azblob.client"),
        *("evenflow.compat.eventhub", "evenflow.drivers.cosmos.client", "evenflow.stores.cosmos.client"),
    ),
    "psycopg": ("evenflow.drivers.postgresql",),
    "redis": ("evenflow.sources.redis_streams.client", "evenflow.stores.redis.client"),
    "confluent_kafka": ("evenflow.sources.kafka.client",),
    "nats": ("evenflow.sources.nats.connection",),
    "boto3": ("evenflow.sources.kinesis.client",),
    "botocore": ("evenflow.sources.kinesis.client",),
    "obstore": ("evenflow.stores.objects.client",),
    "certifi": ("evenflow.sources.eventhubs",),
    "starlette": ("evenflow.console",),
    "typer": ("evenflow.cli",),
    "rich": ("evenflow.cli",),
    "uvicorn": ("evenflow.console.serving", "evenflow.emulators.cosmos.server"),
    "uvloop": ("evenflow.runtime.processor", "evenflow.cli.serving"),
    "websockets": ("evenflow.emulators.eventhubs.websocket",),
    "pytest": (
        "evenflow.testing.source",
        "evenflow.testing.store",
        "evenflow.testing.dead_letters_",
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

BACKENDS = ("stores", "sources")
"""Packages of packages: one for each backend, and modules that all of them may use."""


def modules() -> Iterator[tuple[str, str]]:
    for path in sorted(SOURCE.rglob("*.py")):
        parts = ("evenflow", *path.relative_to(SOURCE).with_suffix("").parts)
        yield ".".join(part for part in parts if part != "__init__"), path.read_text()


def package_of(module: str) -> str:
    """The part of the plan that a module belongs to: the longest name that it has a line for."""
    name = module.removeprefix("evenflow").removeprefix(".")
    while name and name not in MAY_IMPORT:
        name = name.rpartition(".")[0]
    return name


def violations(module: str, text: str) -> list[str]:
    """Each import of this module that the plan does not allow."""
    tree = ast.parse(text)
    late = {node for function in ast.walk(tree) if _is_function(function) for node in ast.walk(function)}
    found = []
    for node in ast.walk(tree):
        for name in _imported(node):
            if name.startswith("."):
                found.append(f"{module}: {name} is relative; name the package")
            elif name.split(".")[0] == "evenflow":
                found += _inside(module, name)
            else:
                found += _outside(module, name.split(".")[0], late=node in late)
        if isinstance(node, ast.Name) and node.id == "import_module" and package_of(module) not in ("urls", "cli"):
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
    here, there = package_of(module), package_of(name)
    if here == there:
        return _among_backends(module, name)
    if not there:
        return [f"{module} imports {name}: import from the module itself, not from the package"]
    if there not in MAY_IMPORT[here]:
        return [f"{module} imports {name}: {here or 'evenflow'} may not import {there}"]
    if here and there in USERS and not module.startswith(USERS[there]):
        return [f"{module} imports {name}: {there} is not open to it"]
    return []


def _among_backends(module: str, name: str) -> list[str]:
    """Stores do not know each other, nor do sources. Each is a package; what they share stands beside these."""
    package = package_of(module)
    if package not in BACKENDS or module == f"evenflow.{package}":
        return []
    mine, other = (path.split(".")[2] for path in (module, f"{name}."))
    is_backend = (SOURCE / package / other).is_dir() or other == "memory"
    return [f"{module} imports {name}, which is another one's"] if is_backend and other != mine else []


def _outside(module: str, package: str, *, late: bool) -> list[str]:
    if package in sys.stdlib_module_names:
        impure = package_of(module) == "core" and package not in PURE
        return [f"{module} imports {package}: core is pure"] if impure else []
    if package not in DEPENDENCIES or not module.startswith(DEPENDENCIES[package]):
        return [f"{module} imports {package}, which may not be needed there"]
    return [f"{module} imports {package} at once; it is optional"] if package in LATE and not late else []


@pytest.mark.parametrize(("module", "text"), [pytest.param(*found, id=found[0]) for found in modules()])
def test_every_module_imports_what_it_may(module: str, text: str) -> None:
    assert package_of(module) or module == "evenflow", f"{module}: a new package needs a line in MAY_IMPORT"
    assert violations(module, text) == []


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
        ("evenflow.changefeed.processor", "from evenflow.sources.container.source import ContainerSource"),
        ("evenflow.runtime.pump", "if True:\n    from evenflow.sources.hub.source import HubSource"),
        ("evenflow.runtime.engine", "from evenflow.urls import open_store"),
        ("evenflow.runtime.engine", "import uvloop"),
        ("evenflow.runtime.processor", "import uvloop"),
        ("evenflow.runtime.engine", "from importlib import import_module\nimport_module('evenflow.stores.memory')"),
        ("evenflow.stores.memory", "from evenflow.stores.sqlite.store import SQLiteStore"),
        ("evenflow.stores.memory", "from evenflow.local.bell import Bell"),
        ("evenflow.stores.memory", "import apsw"),
        ("evenflow.sources.kafka.source", "from evenflow.drivers.postgresql.driver import PostgreSQLOptions"),
        ("evenflow.stores.postgresql.store", "import psycopg"),
        ("evenflow.stores.sqlite.store", "import redis"),
        ("evenflow.stores.redis.store", "from evenflow.stores.memory import MemoryStore"),
        ("evenflow.stores.sqlite.store", "from evenflow.runtime.parts import Parts"),
        ("evenflow.stores.sqlite.store", "from evenflow.sources.hub.source import HubSource"),
        ("evenflow.sources.hub.source", "from evenflow.stores.rules import can_send_changes"),
        ("evenflow.sources.kafka.source", "from evenflow.embedded.hub import Hub"),
        ("evenflow.sources.hub.source", "from evenflow.embedded.container import Container"),
        ("evenflow.sources.kafka.source", "from evenflow.sources.hub.source import HubSource"),
        ("evenflow.sources.eventhubs.source", "from evenflow.emulators.eventhubs.server import Server"),
        ("evenflow.core.filed", "from evenflow.embedded.hub import Hub"),
        ("evenflow.operate.dead_letters.memory", "from evenflow.local.database import translated"),
        ("evenflow.operate.dead_letters.redrive", "from evenflow.runtime.hold import Hold"),
        ("evenflow.runtime.pump", "from evenflow.operate.dead_letters.folder import FolderDeadLetters"),
        ("evenflow.embedded.hub.log", "from evenflow.ports import Source"),
        ("evenflow.embedded.hub.log", "from . import facts"),
        ("evenflow.operate.inspect.survey", "from evenflow.runtime.processor import Processor"),
        ("evenflow.operate.inspect.survey", "from evenflow import Processor"),
        ("evenflow.operate.inspect.survey", "import rich"),
        ("evenflow.console.watch", "from evenflow.runtime.clock import system_clock"),
        ("evenflow.console.watch", "from evenflow.urls import open_store"),
        ("evenflow.console.watch", "import uvicorn"),
        ("evenflow.operate.steer.checkpoint_edits", "from evenflow.runtime.hold import Hold"),
        ("evenflow.operate.steer.checkpoint_edits", "from evenflow.stores import rules"),
        ("evenflow.compat.checkpointstore.claims", "from evenflow.stores import rules"),
        ("evenflow.compat.checkpointstore.claims", "from azure.eventhub import CheckpointStore"),
        ("evenflow.embedded.hub.log", "import requests"),
        ("evenflow.testing.fakes", "import pytest"),
        ("evenflow.testing.fakes", "from evenflow.emulators.eventhubs.server import Server"),
        ("evenflow.emulators.eventhubs.service", "from evenflow.sources.hub.source import HubSource"),
        ("evenflow.embedded.hub.log", "from evenflow.amqp.types import decode"),
        ("evenflow.embedded.container.feed", "from evenflow.embedded.hub import Hub"),
        ("evenflow.embedded.container.feed", "from evenflow.emulators.cosmos.http import Request"),
        ("evenflow.emulators.cosmos.feeds", "from evenflow.local.bell import Bell"),
        ("evenflow.testing.fakes", "from evenflow.emulators.cosmos.app import CosmosApp"),
    ],
)  # fmt: skip
def test_a_wrong_import_is_found(module: str, line: str) -> None:
    assert len(violations(module, line)) == 1


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("evenflow.core.decide", "from evenflow.core.plan import plan"),
        ("evenflow.core.decide", "import msgspec"),
        ("evenflow.runtime.processor", "def factory():\n    import uvloop"),
        ("evenflow.stores.sqlite.store", "from evenflow.stores.sqlite.folder import open_files"),
        ("evenflow.stores.memory", "from evenflow.stores import rules"),
        ("evenflow.runtime.pump", "from evenflow.core.filed import fold"),
        ("evenflow.cli.status", "import typer, rich"),
    ],
)
def test_a_right_import_is_not(module: str, line: str) -> None:
    assert violations(module, line) == []


@pytest.mark.parametrize("module", ["evenflow", "evenflow.testing.fakes", "evenflow.testing.simulated"])
def test_the_library_runs_without_what_is_optional(module: str) -> None:
    """Not only by the letter: in a fresh process nothing optional is loaded."""
    optional = set(DEPENDENCIES) - {"msgspec", "apsw"}
    program = f"import sys, {module}; print(*sorted({optional!r} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == ""
