"""URLs of stores that are wrong in themselves: refused before there is a connection, and without a secret."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from evenflow.compat.checkpointstore.aio import EvenflowCheckpointStore
from evenflow.errors import Misconfigured
from evenflow.operate.inspect.survey import operable
from evenflow.urls import open_store

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

SECRET = "open-sesame"
KEYS = f"region=eu-north-1&allow_http=yes&access_key_id=me&secret_access_key={SECRET}"


async def look(url: str) -> None:
    store = open_store(url, create=False)
    try:
        await operable(store).groups()
    finally:
        await store.aclose()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (f"s3://leases?endpoint=127.0.0.1:1&{KEYS}", "endpoint= must be an http or https URL"),
        (f"s3://leases?endpont=http://h&{KEYS}", "did you mean endpoint?"),
        (f"redis://me:1?{SECRET}@127.0.0.1", "'?' in a password"),
        (f"postgresql://me:p@{SECRET}@127.0.0.1:1/db", "An @ in a password is written %40"),
        ("postgresql://?bogus=1", "there is no option 'bogus'; the options are schema,"),
        ("postgresql://me@127.0.0.1:1/db?scheme=x", "did you mean schema?"),
        (f"postgresql://me:p?{SECRET}@127.0.0.1:1/db", "cannot be understood"),
        ("postgresql://me@127.0.0.1:1/db?sslmode=bogus", 'invalid sslmode value: "bogus"'),
        ("sqlite:leases?timeout=3", "has no options"),
        ("memory:", "another process cannot read it"),
    ],
)
def test_a_wrong_url_is_refused_without_its_secret(url: str, said: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        asyncio.run(look(url))
    assert said in str(refused.value)
    assert SECRET not in str(refused.value)


async def entered(url: str) -> None:
    async with EvenflowCheckpointStore(url):
        pass


async def used(url: str) -> None:
    store = EvenflowCheckpointStore(url)
    try:
        await store.list_ownership("a", "b", "c")
    finally:
        await store.close()


@pytest.mark.parametrize(
    ("url", "said"), [("azblob://homes", "names no container"), ("postgresql://?bogus=1", "no option 'bogus'")]
)
@pytest.mark.parametrize("do", [entered, used])
def test_a_checkpoint_store_refuses_it_too(url: str, said: str, do: Callable[[str], Awaitable[None]]) -> None:
    async def soon() -> None:
        async with asyncio.timeout(30):
            await do(url)

    with pytest.raises(Misconfigured, match=said):
        asyncio.run(soon())
