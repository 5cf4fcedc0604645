"""Translates the official client's errors: another receiver took over, a setting is wrong, or a retry may help.

Messages include the service's own text, which never contains a key.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from evenflow.errors import EvenflowError, LeaseLost, Misconfigured, PositionOutOfRange, SourceUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

STOLEN = "amqp:link:stolen"
BUSY = "com.microsoft:server-busy"
LONGEST = 400
CAUSES_MOST = 5
NO_REASON = "CBS Token authentication failed. Status code: None"
"""The client's text for an answer with a condition. It contains no information."""


def condition_of(error: BaseException) -> str:
    """The AMQP condition, such as amqp:not-found; empty when there is none."""
    for one in (error, getattr(error, "details", None)):
        found = getattr(one, "condition", None)
        if found is not None:
            value = getattr(found, "value", found)
            return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    short = getattr(error, "error", None)  # the client's own errors omit the namespace of a condition
    return next((one for one in _BY_CONDITION if one.partition(":")[2] == short), "")


def meaning(error: BaseException, where: str, group: str) -> EvenflowError:
    """The error as one of ours, for a reader of `where` in the consumer group `group`."""
    if isinstance(error, EvenflowError):
        return error
    reason = _reason(error)
    known = _BY_CONDITION.get(condition_of(error))
    if known is not None:
        return known(where, group, reason)
    if _is_refusal(error):
        return _refused(where, group, reason)
    if isinstance(error, FileNotFoundError | IsADirectoryError):
        return Misconfigured(f"{where}: connection_verify is not a file of certificates: {reason}")
    if isinstance(error, ImportError):
        return Misconfigured(f"{where}: {reason}. pip install 'evenflow[eventhubs]'")
    if _is_unknown_host(error):
        return SourceUnavailable(
            f"{where}: the host name cannot be resolved ({reason}). Check the network, and that the name is"
            " NAME.servicebus.windows.net as in Azure."
        )
    return SourceUnavailable(f"{where} does not answer: {reason}")


def _is_unknown_host(error: BaseException | None) -> bool:
    """The socket's error is among the causes of the client's error."""
    for _ in range(CAUSES_MOST):
        if error is None or isinstance(error, socket.gaierror):
            break
        error = error.__cause__ or error.__context__
    return isinstance(error, socket.gaierror)


def _is_refusal(error: BaseException) -> bool:
    """Compares names, because the modules of these classes are not part of the client's public API."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"AuthenticationException", "AuthenticationError", "ClientAuthenticationError"})


def _refused(where: str, group: str, reason: str) -> EvenflowError:
    if "404" in reason or "not-found" in reason or "could not be found" in reason:
        return _missing(where, group, reason)
    if "timed" in reason or "Authorization timeout" in reason:
        return SourceUnavailable(f"{where} does not answer to the authentication: {reason}")
    reason = reason.replace(NO_REASON, "").strip()
    return Misconfigured(
        f"{where} rejected the credential{f': {reason}' if reason else ''}. Check that the key is right or the token is"
        " still valid, and that it has the right to listen ('Azure Event Hubs Data Receiver')."
    )


def _missing(where: str, group: str, reason: str) -> EvenflowError:
    return Misconfigured(
        f"{where}: the event hub does not exist, or it has no consumer group {group!r}: {reason}. Create the group with"
        f" `az eventhubs eventhub consumer-group create`, or name another one with consumer_group=."
    )


def _stolen(where: str, group: str, reason: str) -> EvenflowError:
    return LeaseLost(f"{where}: another receiver of consumer group {group!r} took over: {reason}")


def _argument(where: str, group: str, reason: str) -> EvenflowError:
    if "partition" in reason.lower() and "offset" not in reason.lower():
        return Misconfigured(f"{where}: this partition does not exist: {reason}")
    return PositionOutOfRange(f"{where}: the position is not in the log: {reason}")


def _too_many(where: str, group: str, reason: str) -> EvenflowError:
    return SourceUnavailable(
        f"{where}: a limit of the service is reached (at most 5 receivers without an owner level?): {reason}"
    )


def _busy(where: str, group: str, reason: str) -> EvenflowError:
    return SourceUnavailable(f"{where} is busy: {reason}")


_BY_CONDITION: dict[str, Callable[[str, str, str], EvenflowError]] = {
    STOLEN: _stolen,
    BUSY: _busy,
    "amqp:not-found": _missing,
    "amqp:unauthorized-access": _refused,
    "com.microsoft:auth-failed": _refused,
    "com.microsoft:argument-error": _argument,
    "com.microsoft:argument-out-of-range": _argument,
    "com.microsoft:entity-disabled": lambda where, group, reason: Misconfigured(f"{where} is disabled: {reason}"),
    "amqp:resource-limit-exceeded": _too_many,
}


def _reason(error: BaseException) -> str:
    description = getattr(error, "description", None)
    text = description.decode(errors="replace") if isinstance(description, bytes) else str(description or error)
    line = " ".join(text.split()) or type(error).__name__
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}..."
