"""Translates errors to those of the official client, so that an application's `except ConnectError` still works."""

from __future__ import annotations

from typing import Any

from azure.eventhub.exceptions import AuthenticationError, ConnectError, EventHubError

from evenflow.errors import EvenflowError, SourceUnavailable
from evenflow.sources.eventhubs.client import ManagementError
from evenflow.sources.eventhubs.errors import condition_of

AUTHENTICATION = "unauthorized-access"


def official(error: Exception) -> Exception:
    """The official error if the service or the connection failed; else the error itself."""
    cause = error.__cause__
    if isinstance(error, EvenflowError) and isinstance(cause, ManagementError):
        return _refused(cause)
    found: Exception | None = None
    if isinstance(error, EvenflowError) and isinstance(cause, Exception) and hasattr(cause, "condition"):
        found = _created(cause)
    elif isinstance(error, SourceUnavailable):
        found = ConnectError(str(error))
    if not isinstance(found, EventHubError):
        return error
    found.__cause__ = error
    return found


def _refused(cause: ManagementError) -> EventHubError:
    """A management request that the service answered with an error."""
    short = condition_of(cause).partition(":")[2]
    kind = AuthenticationError if short == AUTHENTICATION else ConnectError
    found = kind(str(cause))
    found.error, found.__cause__ = short or None, cause
    return found


def _created(cause: Exception) -> Exception:
    from azure.eventhub._transport._pyamqp_transport import PyamqpTransport

    transport: Any = PyamqpTransport
    created: Exception = transport._create_eventhub_exception(cause)
    return created
