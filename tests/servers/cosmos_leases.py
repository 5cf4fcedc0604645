"""Empty lease containers, on servers like Cosmos DB that are started once a test process."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from azure.cosmos import CosmosClient, PartitionKey

from tests.servers.cosmos import shared_local, shared_plain_vercel_or_skip
from tests.servers.processes import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers.cosmos import CosmosServer

DATABASE = "leases"
_numbers = count(1)


def lease_server(kind: str) -> CosmosServer:
    return shared_local() if kind == "evenflow" else shared_plain_vercel_or_skip()


def connected(server: CosmosServer) -> Any:
    """The official client."""
    return CosmosClient(server.url, server.key, **server.options)


def make_container(server: CosmosServer, key: str = "/id", **options: Any) -> str:
    """A new and empty one; its name."""
    name = f"leases{next(_numbers)}"
    with connected(server) as client:
        database = client.create_database_if_not_exists(DATABASE)
        database.create_container(name, PartitionKey(key), **options)
    return name


def store_url(server: CosmosServer, container: str, more: str = "", port: int | None = None) -> str:
    return f"cosmos-leases://{LOOPBACK}:{port or server.port}/{DATABASE}/{container}?tls=off{more}"


def documents(server: CosmosServer, container: str, prefix: str = "") -> Iterator[dict[str, Any]]:
    """All of a container, as the official client has them."""
    with connected(server) as client:
        found = client.get_database_client(DATABASE).get_container_client(container)
        for one in found.query_items("SELECT * FROM c", enable_cross_partition_query=True):
            if one["id"].startswith(prefix):
                yield dict(one)
