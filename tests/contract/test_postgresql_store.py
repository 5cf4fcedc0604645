"""The PostgreSQL store keeps the contract of stores, against a real server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from evenflow.stores.postgresql.store import PostgreSQLStore, from_url
from evenflow.testing.store.contract import StoreContract
from evenflow.testing.store.twin import TwinContract
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import shared_or_skip

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evenflow.ports import Store


@pytest.fixture(scope="module")
def pooler() -> Iterator[PgBouncer]:
    with PgBouncer(shared_or_skip()) as made:
        yield made


@pytest.mark.process
class TestPostgreSQLStore(StoreContract, TwinContract):
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


@pytest.mark.process
class TestThroughPgBouncer(TestPostgreSQLStore):
    """A pooler in transaction mode, so that nobody can listen: whoever waits for a wake-up waits for its heartbeat."""

    @pytest.fixture(autouse=True)
    def _through_it(self, _schema: None, pooler: PgBouncer) -> None:
        self.url = f"{self.url}&listen=off".replace(f":{shared_or_skip().port}/", f":{pooler.port}/")

    def make_store(self) -> Store:
        return Unwatchable(from_url(self.url))

    def make_client(self, store: Store) -> Store:
        return self.make_store()


class Unwatchable:
    """All of a store but `watch`."""

    def __init__(self, store: PostgreSQLStore) -> None:
        self.heartbeat, self.swap, self.seal, self.commit = store.heartbeat, store.swap, store.seal, store.commit
        self.groups, self.peek, self.checkpoints, self.moves = store.groups, store.peek, store.checkpoints, store.moves
        self.delete, self.steer, self.record, self.actions = store.delete, store.steer, store.record, store.actions
        self.transaction, self.aclose = store.transaction, store.aclose
