"""What the official client's errors mean here: somebody else reads, a setting is wrong, or it may work the next time.

Messages say what to do. What the service said stands in them, since it never holds a key.
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
UNSAID = "CBS Token authentication failed. Status code: None"
"""All that the client keeps of an answer that names a condition: nothing."""


def condition_of(error: BaseException) -> str:
    """The AMQP condition, such as amqp:not-found; empty when there is none."""
    for one in (error, getattr(error, "details", None)):
        found = getattr(one, "condition", None)
        if found is not None:
            value = getattr(found, "value", found)
            return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    short = getattr(error, "error", None)  # the client's own errors leave out where a condition comes from
    return next((one for one in _BY_CONDITION if one.partition(":")[2] == short), "")


def meaning(error: BaseException, where: str, group: str) -> EvenflowError:
    """The error of ours that says what this one means, for whoever reads `where` as consumer group `group`."""
    if isinstance(error, EvenflowError):
        return error
    said = _said(error)
    known = _BY_CONDITION.get(condition_of(error))
    if known is not None:
        return known(where, group, said)
    if _is_refusal(error):
        return _refused(where, group, said)
    if isinstance(error, FileNotFoundError | IsADirectoryError):
        return Misconfigured(f"{where}: connection_verify names no file of certificates: {said}")
    if isinstance(error, ImportError):
        return Misconfigured(f"{where}: {said}. pip install 'evenflow[eventhubs]'")
    if _is_unknown_host(error):
        return SourceUnavailable(
            f"{where}: nobody knows a host of this name ({said}). Is it written as in Azure,"
            " NAME.servicebus.windows.net, and is there a network?"
        )
    return SourceUnavailable(f"{where} does not answer: {said}")


def _is_unknown_host(error: BaseException | None) -> bool:
    """The client keeps the socket's own error as the cause of its own, or of that one's cause."""
    for _ in range(CAUSES_MOST):
        if error is None or isinstance(error, socket.gaierror):
            break
        error = error.__cause__ or error.__context__
    return isinstance(error, socket.gaierror)


def _is_refusal(error: BaseException) -> bool:
    """By name: where they are defined is not part of the client's public face."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"AuthenticationException", "AuthenticationError", "ClientAuthenticationError"})


def _refused(where: str, group: str, said: str) -> EvenflowError:
    if "404" in said or "not-found" in said or "could not be found" in said:
        return _missing(where, group, said)
    if "timed" in said or "Authorization timeout" in said:
        return SourceUnavailable(f"{where} does not answer to the log-in: {said}")
    said = said.replace(UNSAID, "").strip()
    return Misconfigured(
        f"{where} refuses the credential{f': {said}' if said else ''}. Is the key right, is the token still valid, and"
        " does it have the right to listen ('Azure Event Hubs Data Receiver')?"
    )


def _missing(where: str, group: str, said: str) -> EvenflowError:
    return Misconfigured(
        f"{where}: there is no such event hub, or it has no consumer group {group!r}: {said}. Make the group with"
        f" `az eventhubs eventhub consumer-group create`, or name another one with consumer_group=."
    )


def _stolen(where: str, group: str, said: str) -> EvenflowError:
    return LeaseLost(f"{where}: another receiver of consumer group {group!r} has it: {said}")


def _argument(where: str, group: str, said: str) -> EvenflowError:
    if "partition" in said.lower() and "offset" not in said.lower():
        return Misconfigured(f"{where}: there is no such partition: {said}")
    return PositionOutOfRange(f"{where}: the position is not in the log: {said}")


def _too_many(where: str, group: str, said: str) -> EvenflowError:
    return SourceUnavailable(f"{where}: a limit of the service is reached (at most 5 readers without epoch?): {said}")


def _busy(where: str, group: str, said: str) -> EvenflowError:
    return SourceUnavailable(f"{where} is busy: {said}")


_BY_CONDITION: dict[str, Callable[[str, str, str], EvenflowError]] = {
    STOLEN: _stolen,
    BUSY: _busy,
    "amqp:not-found": _missing,
    "amqp:unauthorized-access": _refused,
    "com.microsoft:auth-failed": _refused,
    "com.microsoft:argument-error": _argument,
    "com.microsoft:argument-out-of-range": _argument,
    "com.microsoft:entity-disabled": lambda where, group, said: Misconfigured(f"{where} is disabled: {said}"),
    "amqp:resource-limit-exceeded": _too_many,
}


def _said(error: BaseException) -> str:
    description = getattr(error, "description", None)
    text = description.decode(errors="replace") if isinstance(description, bytes) else str(description or error)
    line = " ".join(text.split()) or type(error).__name__
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}..."
