"""The internals of the official client that are used exist: a release that changes them is noticed here.

And what a request for a page says.
"""

from __future__ import annotations

import asyncio
import inspect
from datetime import UTC, datetime
from typing import Any

import pytest
from azure.core.pipeline import PipelineResponse
from azure.core.pipeline.policies import CustomHookPolicy, HeadersPolicy
from azure.cosmos.aio import ContainerProxy, CosmosClient
from azure.cosmos.aio._cosmos_client_connection_async import CosmosClientConnection

from evenflow.drivers.cosmos.positions import Range
from evenflow.emulators.cosmos.authorization import EMULATOR_KEY
from evenflow.errors import SourceUnavailable
from evenflow.sources.cosmos.client import NOW, PageRequest, _headers, _session_lsn
from evenflow.sources.cosmos.source import CosmosSource

RANGE = Range("7", ("1F", "3F"), ())


@pytest.mark.parametrize("name", ["QueryFeed", "_ReadPartitionKeyRanges"])
def test_methods_that_are_used_are_there(name: str) -> None:
    parameters = list(inspect.signature(getattr(CosmosClientConnection, name)).parameters)
    assert parameters[1:] in (
        ["path", "collection_id", "query", "options", "partition_key_range_id", "kwargs"],
        ["collection_link", "feed_options", "kwargs"],
    )


def test_attributes_that_are_used_are_there() -> None:
    client = CosmosClient("http://127.0.0.1:1/", EMULATOR_KEY)
    container = client.get_database_client("a database").get_container_client("orders")
    assert isinstance(container, ContainerProxy)
    assert container.container_link == "dbs/a database/colls/orders"
    connection: Any = container.client_connection
    assert (connection.url_connection, connection.master_key) == ("http://127.0.0.1:1/", EMULATOR_KEY)
    assert (connection.resource_tokens, connection.aad_credentials) == (None, None)
    assert connection.connection_policy.PreferredLocations == []
    assert connection.connection_policy.RetryOptions.MaxRetryAttemptCount == 9


def test_the_client_lets_answers_be_taken_and_headers_be_added() -> None:
    client: Any = CosmosClient("http://127.0.0.1:1/", EMULATOR_KEY)
    policies = [
        getattr(one, "_policy", one) for one in client.client_connection.pipeline_client._pipeline._impl_policies
    ]
    kinds = [type(one) for one in policies]
    assert HeadersPolicy in kinds
    assert CustomHookPolicy in kinds
    response: Any = PipelineResponse(None, None, None)  # type: ignore[arg-type]
    response.http_response = "another"
    assert response.http_response == "another"


def asked(after: int = 5, **more: Any) -> dict[str, str]:
    wanted = {"within": RANGE.span, "whole": False, **more}
    return _headers(PageRequest(RANGE, after, max_items=10, rid="rid", **wanted))


def test_a_request_says_where_to_go_on_and_in_which_container() -> None:
    assert asked() == {
        "A-IM": "Incremental Feed",
        "If-None-Match": '"5"',
        "x-ms-cosmos-intended-collection-rid": "rid",
    }
    assert asked(NOW)["If-None-Match"] == "*"
    assert "If-None-Match" not in asked(0)
    since = asked(0, since=datetime(2026, 1, 2, 3, 4, 5, 600_000, tzinfo=UTC))
    assert (since["If-Modified-Since"], "If-None-Match" in since) == ("Fri, 02 Jan 2026 03:04:05 GMT", False)
    since = asked(5, since=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    assert (since["If-Modified-Since"], since["If-None-Match"]) == ("Fri, 02 Jan 2026 03:04:05 GMT", '"5"')


def test_all_versions_start_at_the_given_position() -> None:
    whole = asked(0, whole=True)
    assert (whole["A-IM"], whole["If-None-Match"]) == ("Full-Fidelity Feed", '"0"')
    assert whole["x-ms-cosmos-changefeed-wire-format-version"] == "2021-09-15"


def test_a_piece_of_a_range_is_named_by_its_ends() -> None:
    piece = asked(within=("1F", "2F"))
    assert (piece["x-ms-start-epk"], piece["x-ms-end-epk"]) == ("1F", "2F")
    assert piece["x-ms-read-key-type"] == "EffectivePartitionKeyRange"


@pytest.mark.parametrize(
    ("token", "lsn"), [("0:-1#42", 42), ("3:1#42#4=17#5=18", 42), ("0:42", 42), ("", None), ("0:nonsense", None)]
)
def test_the_last_lsn_is_in_the_session_token(token: str, lsn: int | None) -> None:
    assert _session_lsn({"x-ms-session-token": token}) == lsn


def test_a_server_that_cannot_be_reached_is_reported_with_its_address() -> None:
    async def main() -> None:
        source = CosmosSource("cosmos://127.0.0.1:9/shop/orders")
        with pytest.raises(SourceUnavailable, match=r"connection refused at 127\.0\.0\.1:9"):
            await source.partitions()
        await source.aclose()

    asyncio.run(main())
