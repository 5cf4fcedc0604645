"""From what a user gives, an object or a URL, to the source or the store."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import pytest

from evenflow import Hub, Misconfigured, Processor, UnknownScheme
from evenflow.operate.dead_letters.folder import FolderDeadLetters
from evenflow.operate.dead_letters.hub import HubDeadLetters
from evenflow.operate.dead_letters.memory import MemoryDeadLetters
from evenflow.sources.hub.source import HubSource
from evenflow.stores.memory import MemoryStore
from evenflow.testing.fakes import FakeSource
from evenflow.urls import (
    DEAD_LETTERS,
    FEEDS,
    SOURCES,
    STORES,
    check_url,
    feed_url,
    hide_secrets,
    open_dead_letters,
    open_source,
    open_store,
)

if TYPE_CHECKING:
    from pathlib import Path


def test_an_object_is_returned_unchanged() -> None:
    source, store = FakeSource(), MemoryStore()
    assert open_source(source) is source
    assert open_store(store) is store


def test_a_hub_becomes_its_source(tmp_path: Path) -> None:
    with Hub.create(tmp_path / "homes", partitions=2) as hub:
        for given in (hub, f"hub:{tmp_path / 'homes'}"):
            source = open_source(given)
            assert isinstance(source, HubSource)
            asyncio.run(source.aclose())


def test_memory_stores_of_the_same_name_are_shared() -> None:
    assert open_store("memory:shared") is open_store("memory:shared")
    assert open_store("memory:shared") is not open_store("memory:another")


@pytest.mark.parametrize("given", [None, 7, object(), MemoryStore()])
def test_an_object_that_is_not_a_source_is_refused(given: Any) -> None:
    with pytest.raises(Misconfigured, match="give a Hub, a Container, a source, or a URL such as 'hub:data/homes'"):
        open_source(given)


@pytest.mark.parametrize("given", [None, 7, object(), FakeSource()])
def test_an_object_that_is_not_a_store_is_refused(given: Any) -> None:
    with pytest.raises(Misconfigured, match="give a store, or a URL such as 'sqlite:data/leases'"):
        open_store(given)


def test_dead_letters_go_to_an_object_a_hub_or_a_url(tmp_path: Path) -> None:
    dead_letters = MemoryDeadLetters()
    assert open_dead_letters(dead_letters) is dead_letters
    assert open_dead_letters("memory:shared") is open_dead_letters("memory:shared")
    with Hub.create(tmp_path / "dead", partitions=1) as hub:
        assert isinstance(open_dead_letters(hub), HubDeadLetters)
    for url, kind in ((f"hub:{tmp_path / 'new'}", HubDeadLetters), (f"jsonl:{tmp_path / 'lines'}", FolderDeadLetters)):
        opened = open_dead_letters(url)
        assert isinstance(opened, kind)
        asyncio.run(opened.aclose())


@pytest.mark.parametrize("given", [None, 7, object(), FakeSource(), MemoryStore()])
def test_an_object_that_cannot_store_dead_letters_is_refused(given: Any) -> None:
    with pytest.raises(Misconfigured, match="cannot store dead letters: give a Hub, or a URL such as 'hub:data/dead'"):
        open_dead_letters(given)


@pytest.mark.parametrize("kind", ["source", "store", "dead letters"])
@pytest.mark.parametrize("url", ["", "homes", "nosuch:x", "nosuch://host/x", "://x", "Hub :x"])
def test_an_unknown_scheme_names_the_known_ones(kind: str, url: str) -> None:
    known = {"source": SOURCES, "store": STORES, "dead letters": DEAD_LETTERS}[kind]
    with pytest.raises(UnknownScheme) as refused:
        check_url(kind, url)
    assert all(f"{scheme}:" in str(refused.value) for scheme in known)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:data/leases", "sqlite:data/leases"),
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://user:secret@host:6379/0", "redis://host:6379/0"),
        ("redis://user:s@cret@host/0", "redis://host/0"),
        ("eventhubs://host/hub?key=secret", "eventhubs://host/hub"),
        ("azblob:///leases?connection_string_env=NAME", "azblob:///leases?connection_string_env=NAME"),
        (
            "s3://b/p?endpoint=http://h:1&secret_access_key=secret&region=eu&access_key_id=secret",
            "s3://b/p?endpoint=http://h:1&region=eu",
        ),
        ("azblob:///leases?endpoint=https://h/me?sig=secret", "azblob:///leases"),
        ("azblob:///leases?endpoint=https%3A%2F%2Fh%2Fme%3Fsig%3Dsecret&shared=no", "azblob:///leases?shared=no"),
        ("azblob:///leases?endpoint=https%3A%2F%2Fme%3Asecret%40h", "azblob:///leases"),
        ("postgresql://me:secret@h/db?schema=a&sslpassword=secret", "postgresql://me@h/db?schema=a"),
        ("postgresql://me@h/db", "postgresql://me@h/db"),
        ("postgresql://:secret@h/db", "postgresql://h/db"),
        ("postgresql://s@cret@h/db", "postgresql://h/db"),
        ("postgresql://me:s@cret@h/db", "postgresql://me@h/db"),
        (
            "postgresql-table://me:secret@h:1/db?table=public.orders&password=secret&mode=all",
            "postgresql-table://me@h:1/db?table=public.orders&mode=all",
        ),
        ("postgresql:///?host=/run/pg&user=me&dbname=db", "postgresql:///?host=/run/pg&user=me&dbname=db"),
        ("kinesis://homes?profile=mine&region=eu", "kinesis://homes?profile=mine&region=eu"),
        (
            "redis-streams://secret@h/s?stream=s.{partition}&partitions=4",
            "redis-streams://h/s?stream=s.{partition}&partitions=4",
        ),
        ("nats://secret@h/S", "nats://h/S"),
        ("eventhubs://user:secret@host/hub?key=secret", "eventhubs://host/hub"),
        ("cosmos://h/d/c?mode=all&key=a%2Bb==&tls=off", "cosmos://h/d/c?mode=all&tls=off"),
        ("AccountEndpoint=https://h:443/;AccountKey=secret==;", "..."),
        ("nats://me:secret@h/S?subject=s.{partition}&partitions=4", "nats://h/S?subject=s.{partition}&partitions=4"),
    ],
)
def test_secrets_are_not_shown(url: str, shown: str) -> None:
    assert hide_secrets(url) == shown


def test_the_table_of_an_advised_command_can_be_opened() -> None:
    shown = hide_secrets("postgresql-table://me:secret@h:1/db?table=public.orders")
    assert repr(open_source(shown)) == repr(open_source("postgresql-table://me@h:1/db?table=public.orders"))


@pytest.mark.parametrize(("url", "meant"), [("S3://b", "s3:"), ("postgresql+asyncpg://h/b", "postgresql:")])
def test_a_similar_scheme_is_suggested(url: str, meant: str) -> None:
    with pytest.raises(UnknownScheme, match=f"did you mean {meant}"):
        check_url("store", url)


def test_a_memory_store_cannot_be_inspected_from_another_process() -> None:
    with pytest.raises(Misconfigured, match="another process cannot read it"):
        open_store("memory:elsewhere", create=False)
    here = open_store("memory:here")
    assert open_store("memory:here", create=False) is here


@pytest.mark.parametrize(
    ("kind", "text", "instead"),
    [
        ("source", "AccountEndpoint=https://h:443/;AccountKey=secret==;", "cosmos:///DATABASE/CONTAINER?"),
        ("store", "AccountEndpoint=https://h:443/;AccountKey=secret==;", "cosmos-leases:///DATABASE/CONTAINER?"),
        ("source", "cosmos://AccountEndpoint=https://h:443/;AccountKey=secret==;", "cosmos:///DATABASE/CONTAINER?"),
        ("source", "Endpoint=sb://h/;SharedAccessKeyName=n;SharedAccessKey=secret", "eventhubs:///HUB?"),
        ("source", "eventhubs://Endpoint=sb://h/;SharedAccessKeyName=n;SharedAccessKey=secret", "eventhubs:///HUB?"),
        ("store", "DefaultEndpointsProtocol=https;AccountName=n;AccountKey=secret", "azblob:///CONTAINER?"),
        ("store", "azblob://DefaultEndpointsProtocol=https;AccountName=n;AccountKey=secret", "azblob:///CONTAINER?"),
        ("dead letters", "Endpoint=sb://h/;SharedAccessKeyName=n;SharedAccessKey=secret", "environment variable"),
    ],
)
def test_a_connection_string_is_refused_without_showing_its_key(kind: str, text: str, instead: str) -> None:
    with pytest.raises(Misconfigured, match="this is a connection string") as refused:
        check_url(kind, text)
    assert instead in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_url_is_suggested_for_the_address_of_an_account() -> None:
    with pytest.raises(UnknownScheme, match="did you mean cosmos://HOST/DATABASE/CONTAINER"):
        check_url("source", "https://shop.documents.azure.com:443/")


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("https://localhost:8081/", "cosmos://HOST/DATABASE/CONTAINER"),
        ("http://shop.documents.azure.com", "cosmos://HOST/DATABASE/CONTAINER"),
        ("data/orders", "container:data/orders"),
        ("cosmo://h/d/c", "cosmos:"),
    ],
)
def test_only_change_feeds_are_suggested_for_a_change_feed(url: str, meant: str) -> None:
    with pytest.raises(UnknownScheme, match=re.escape(f"did you mean {meant}?")) as refused:
        feed_url(url, {})
    named = str(refused.value).partition("known are ")[2].partition(";")[0].split(", ")
    assert set(named) == {f"{scheme}:" for scheme in FEEDS}


@pytest.mark.parametrize(
    ("source", "store", "group", "wrong"),
    [
        (
            "cosmos://localhost/shop",
            "sqlite:leases",
            "mails",
            "cosmos: the path must be one database and one container",
        ),
        ("cosmos://localhost/shop/orders?mod=all", "sqlite:leases", "mails", "mode"),
        ("hub:homes", "cosmos-leases://localhost/shop", "mails", "cosmos-leases: the path must be one database"),
        (
            "cosmos://localhost/shop/orders",
            "cosmos-leases://localhost/shop/leases",
            "a/b",
            "Give the processor another",
        ),
    ],
)
def test_wrong_urls_are_refused_when_a_processor_is_created(source: str, store: str, group: str, wrong: str) -> None:
    with pytest.raises(Misconfigured, match=wrong):
        Processor(source, store, group)


def test_group_names_are_restricted_only_where_they_are_part_of_an_id() -> None:
    Processor("hub:homes", "cosmos-leases://localhost/shop/leases", "a/b")
    Processor("cosmos://localhost/shop/orders", "sqlite:leases", "a/b")


def test_the_error_of_an_unknown_scheme_shows_no_password() -> None:
    with pytest.raises(UnknownScheme) as refused:
        check_url("store", "nosuch://user:secret@host/0")
    assert "secret" not in str(refused.value)
