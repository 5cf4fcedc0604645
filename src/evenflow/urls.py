"""Turns what a user gives for a source, a store or dead letters, an object or a URL, into the object.

Drivers are imported late.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from evenflow.errors import Misconfigured, UnknownScheme
from evenflow.ports import DeadLetters, Source, Store, Writable

if TYPE_CHECKING:
    from collections.abc import Mapping

SOURCES = {
    "eventhubs": "evenflow.sources.eventhubs",
    "hub": "evenflow.sources.hub",
    "kafka": "evenflow.sources.kafka",
    "nats": "evenflow.sources.nats",
    "postgresql-table": "evenflow.sources.postgresql",
}
STORES = {
    "azblob": "evenflow.stores.azblob",
    "memory": "evenflow.stores.memory",
    **dict.fromkeys(("s3", "gs", "az", "azure"), "evenflow.stores.objects"),
    "postgres": "evenflow.stores.postgresql",
    "postgresql": "evenflow.stores.postgresql",
    **dict.fromkeys(("redis", "rediss", "redis+unix"), "evenflow.stores.redis"),
    **dict.fromkeys(("valkey", "valkeys", "valkey+unix"), "evenflow.stores.redis"),
    "sqlite": "evenflow.stores.sqlite",
}
WRITABLE = {scheme: SOURCES[scheme] for scheme in ("eventhubs", "kafka")}
"""Sources that can be written to: dead letters may go there."""
LETTERS = {
    "hub": "evenflow.letters.hub",
    "jsonl": "evenflow.letters.folder",
    "memory": "evenflow.letters.memory",
    **WRITABLE,
}
"""A scheme, and the module whose `from_url(url)` opens it."""
FOLDERS = {"source": "hub", "store": "sqlite", "dead letters": "jsonl"}
"""What a bare path was meant to be."""

_TABLES: Mapping[str, Mapping[str, str]] = {"source": SOURCES, "store": STORES, "dead letters": LETTERS}


def open_source(source: object) -> Source:
    if isinstance(source, str):
        opened: Source = import_module(check_url("source", source)).from_url(source)
        return opened
    from evenflow.hub import Hub

    if isinstance(source, Hub):
        from evenflow.sources.hub import HubSource

        return HubSource(source)
    if not isinstance(source, Source):
        raise Misconfigured(f"source={source!r}: give a Hub, a source, or a URL such as 'hub:data/homes'.")
    return source


def open_store(store: object, *, create: bool = True) -> Store:
    """With `create` False a store that is not there is an error, for those who only look."""
    if isinstance(store, str):
        opened: Store = import_module(check_url("store", store)).from_url(store, create=create)
        return opened
    if not isinstance(store, Store):
        raise Misconfigured(f"store={store!r}: give a store, or a URL such as 'sqlite:data/leases'.")
    return store


def open_letters(letters: object, *, create: bool = True) -> DeadLetters:
    """A target of dead letters; a hub that can be written to is one. With `create` False it must be there already."""
    if isinstance(letters, str) and letters.partition(":")[0] in WRITABLE:
        from evenflow.letters.hub import HubLetters

        source = open_source(letters)
        assert isinstance(source, Writable)
        return HubLetters(source, owned=True)
    if isinstance(letters, str):
        opened: DeadLetters = import_module(check_url("dead letters", letters)).from_url(letters, create=create)
        return opened
    from evenflow.hub import Hub

    if isinstance(letters, Hub | Writable):
        from evenflow.letters.hub import HubLetters

        return HubLetters(letters)
    if not isinstance(letters, DeadLetters):
        raise Misconfigured(
            f"{letters!r} can hold no dead letters: give a Hub, or a URL such as 'hub:data/dead' or 'jsonl:data/dead'."
        )
    return letters


def check_url(kind: str, url: str) -> str:
    """The module that opens it; UnknownScheme when there is none."""
    schemes = _TABLES[kind]
    scheme, colon, _ = url.partition(":")
    if not colon or scheme not in schemes:
        known = ", ".join(f"{name}:" for name in sorted(schemes))
        guess = f"; did you mean {FOLDERS[kind]}:{url}?" if not colon and url else ""
        raise UnknownScheme(f"{kind} {hide_secrets(url)!r}: no such kind of {kind}; known are {known}{guess}")
    return schemes[scheme]


def hide_secrets(url: str) -> str:
    """A URL without the part that may hold a password or a key."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    address, _, query = rest.partition("?")
    if "@" in query and "@" not in address:
        return f"{scheme}://..."  # an option with an '@', or a password with a '?': nobody can tell
    return f"{scheme}://{address.rpartition('@')[2]}"
