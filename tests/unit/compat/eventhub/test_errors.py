"""Errors are those of the official client, so that `except ConnectError` still works."""

from __future__ import annotations

import pytest
from azure.eventhub._pyamqp.error import AMQPConnectionError, AMQPLinkError, AuthenticationException, ErrorCondition
from azure.eventhub.exceptions import AuthenticationError, ConnectError, ConnectionLostError

from evenflow.compat.eventhub.errors import official
from evenflow.errors import LeaseLost, Misconfigured, SourceUnavailable, StoreUnavailable
from evenflow.sources.eventhubs.client import ManagementError


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "kind", "short"),
    [
        (caused(Misconfigured("a"), ManagementError(404, "no hub")), ConnectError, "not-found"),
        (caused(Misconfigured("a"), ManagementError(401, "no")), AuthenticationError, "unauthorized-access"),
        (caused(SourceUnavailable("a"), ManagementError(500, None)), ConnectError, None),
        (
            caused(LeaseLost("a"), AMQPLinkError(ErrorCondition.LinkStolen, description="taken")),
            ConnectionLostError,
            None,
        ),
        (
            caused(SourceUnavailable("a"), AMQPConnectionError(ErrorCondition.SocketError, description="b")),
            ConnectError,
            None,
        ),
        (
            caused(Misconfigured("a"), AuthenticationException(ErrorCondition.ClientError, description="b")),
            AuthenticationError,
            None,
        ),
        (caused(SourceUnavailable("no proxy"), OSError("b")), ConnectError, None),
        (SourceUnavailable("nothing came"), ConnectError, None),
    ],
)
def test_what_the_service_or_the_connection_said(error: Exception, kind: type[Exception], short: str | None) -> None:
    found = official(error)
    assert type(found) is kind
    assert found.__cause__ is not None
    if short is not None:
        assert getattr(found, "error", None) == short


@pytest.mark.parametrize("error", [StoreUnavailable("a"), Misconfigured("b"), ValueError("c"), LeaseLost("d")])
def test_what_is_another_matter_stays_as_it_is(error: Exception) -> None:
    assert official(error) is error
