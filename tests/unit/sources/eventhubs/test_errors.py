"""What the official client's errors mean."""

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
from evenflow.sources.eventhubs.reader import THEFT_FORGOTTEN_S, THEFT_REST_MOST_S, Thefts


def link_error(condition: str, said: str) -> AMQPLinkError:
    return AMQPLinkError(condition.encode(), description=said.encode())


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


def test_an_error_of_ours_is_what_it_is() -> None:
    error = LeaseLost()
    assert meaning(error, "", "") is error


def test_a_long_story_is_cut_short() -> None:
    assert len(str(meaning(OSError("x" * 5_000), "hub", "group"))) < 500


def test_a_condition_is_found_wherever_it_is() -> None:
    assert condition_of(ValueError()) == ""
    assert condition_of(AMQPConnectionError(ErrorCondition.NotFound)) == "amqp:not-found"


def test_who_was_robbed_rests_longer_each_time_and_forgets_it() -> None:
    thefts = Thefts()
    assert thefts.rest_s("0", 0.0) == 0.0
    rests = []
    now_s = 0.0
    for _ in range(8):
        thefts.happened("0", now_s)
        rests.append(thefts.rest_s("0", now_s))
        now_s += rests[-1]
        assert thefts.rest_s("0", now_s) == 0.0
    assert rests == [0.5, 1.0, 2.0, 4.0, 8.0, THEFT_REST_MOST_S, THEFT_REST_MOST_S, THEFT_REST_MOST_S]
    assert thefts.rest_s("1", now_s) == 0.0
    assert thefts.rest_s("0", now_s + THEFT_FORGOTTEN_S + 1) == 0.0
    thefts.happened("0", now_s + THEFT_FORGOTTEN_S + 1)
    assert thefts.rest_s("0", now_s + THEFT_FORGOTTEN_S + 1) == 0.5
