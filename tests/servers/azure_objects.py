"""Azurite as a place for objects: the URL of an object store in a container of it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from evenflow.stores.azblob.options import EMULATOR, EMULATOR_KEY

if TYPE_CHECKING:
    from tests.servers.azurite import Azurite


def azure_url(server: Azurite, **options: str) -> str:
    """Of an empty store. Options take the place of the key, which Azurite's own documents tell."""
    told = {"account": EMULATOR, "endpoint": server.endpoint(), "allow_http": "yes"}
    told |= options or {"account_key": EMULATOR_KEY}
    return f"az://{server.make_container()}?{'&'.join(f'{name}={quote(text)}' for name, text in told.items())}"
