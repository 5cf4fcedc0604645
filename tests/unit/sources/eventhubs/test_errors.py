"""The translation of the official client's errors."""

from __future__ import annotations

import pytest
from azure.core.exceptions import ClientAuthenticationError
from azure.eventhub._pyamqp.error import AMQPConnectionError, AMQPLinkError, AuthenticationException, ErrorCondition
from azure.eventhub.exceptions import ConnectError

from evenflow.errors import (
    EvenflowError,
    LeaseLost,
    Misconfigured,
    PositionOutOfRange,
    SourceUnavailable,
)
from evenflow.sources.eventhubs.errors import condition_of, meaning
from evenflow.sources.eventhubs.reader import STOLEN_FORGET_S, STOLEN_REST_MOST_S, StolenLinks


def link_error(condition: str, description: str) -> AMQPLinkError:
    return AMQPLinkError(condition.encode(), description=description.encode())


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (link_error("amqp:link:stolen", "New receiver with higher epoch"), LeaseLost),
        (link_error("amqp:not-found", "no such group"), Misconfigured),
        (link_error("amqp:unauthorized-access", "Listen claim required"), Misconfigured),
        (link_error("com.microsoft:server-busy", "busy"), SourceUnavailable),
        (link_error("com.microsoft:argument-error", "The supplied offset is invalid"), PositionOutOfRange),
        (link_error("com.microsoft:argument-out-of-range", "The specified partition is invalid"), Misconfigured),
        (link_error("amqp:resource-limit-exceeded", "5 receivers"), SourceUnavailable),
        (link_error("com.microsoft:entity-disabled", "disabled"), Misconfigured),
        (link_error("amqp:link:detach-forced", "idle"), SourceUnavailable),
        (AMQPConnectionError(ErrorCondition.SocketError, description="refused"), SourceUnavailable),
        (AuthenticationException(ErrorCondition.ClientError, description="token is wrong"), Misconfigured),
        (AuthenticationException(ErrorCondition.ClientError, description="status 404, no such hub"), Misconfigured),
        (ClientAuthenticationError("no identity here"), Misconfigured),
        (ConnectError("lost", link_error("amqp:link:stolen", "stolen")), LeaseLost),  # type: ignore[arg-type]
        (TimeoutError(), SourceUnavailable),
        (OSError("no route"), SourceUnavailable),
        (ImportError("aiohttp"), Misconfigured),
    ],
)
def test_an_error_has_one_meaning(error: Exception, kind: type[EvenflowError]) -> None:
    found = meaning(error, "event hub homes", "alerts")
    assert type(found) is kind
    assert "event hub homes" in str(found)


def test_an_error_of_evenflow_is_not_translated() -> None:
    error = LeaseLost()
    assert meaning(error, "", "") is error


def test_a_long_description_is_truncated() -> None:
    assert len(str(meaning(OSError("x" * 5_000), "hub", "group"))) < 500


def test_a_condition_is_found_in_all_kinds_of_errors() -> None:
    assert condition_of(ValueError()) == ""
    assert condition_of(AMQPConnectionError(ErrorCondition.NotFound)) == "amqp:not-found"


def test_pauses_after_stolen_links_grow_and_are_forgotten() -> None:
    stolen_links = StolenLinks()
    assert stolen_links.rest_s("0", 0.0) == 0.0
    rests = []
    now_s = 0.0
    for _ in range(8):
        stolen_links.add("0", now_s)
        rests.append(stolen_links.rest_s("0", now_s))
        now_s += rests[-1]
        assert stolen_links.rest_s("0", now_s) == 0.0
    assert rests == [0.5, 1.0, 2.0, 4.0, 8.0, STOLEN_REST_MOST_S, STOLEN_REST_MOST_S, STOLEN_REST_MOST_S]
    assert stolen_links.rest_s("1", now_s) == 0.0
    assert stolen_links.rest_s("0", now_s + STOLEN_FORGET_S + 1) == 0.0
    stolen_links.add("0", now_s + STOLEN_FORGET_S + 1)
    assert stolen_links.rest_s("0", now_s + STOLEN_FORGET_S + 1) == 0.5
