"""The PostgreSQL store keeps the contract of stores, against a real server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from evenflow.stores.postgresql import from_url
from evenflow.testing.store_contract import StoreContract
from tests.servers.postgres import shared_or_skip

if TYPE_CHECKING:
    from evenflow.ports import Store


@pytest.mark.process
class TestPostgreSQLStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _schema(self) -> None:
        server = shared_or_skip()
        self.url = f"{server.url()}?schema={server.fresh()}"
        table = server.fresh("effects")
        # Their types are the class's; each test has a table of its own.
        self.make_table = f"CREATE TABLE {table} (name TEXT PRIMARY KEY)"  # type: ignore[misc]
        self.write = f"INSERT INTO {table} (name) VALUES ($1)"  # type: ignore[misc]
        self.read = f"SELECT name FROM {table} ORDER BY name"  # type: ignore[misc]

    def make_store(self) -> Store:
        return from_url(self.url)

    def make_client(self, store: Store) -> Store:
        return from_url(self.url)
