"""AMQP errors: the condition symbols that the service uses and clients understand, each with a description."""

from __future__ import annotations

INTERNAL = "amqp:internal-error"
NOT_FOUND = "amqp:not-found"
UNAUTHORIZED = "amqp:unauthorized-access"
DECODE = "amqp:decode-error"
NOT_ALLOWED = "amqp:not-allowed"
NOT_IMPLEMENTED = "amqp:not-implemented"
INVALID_FIELD = "amqp:invalid-field"
LIMIT_EXCEEDED = "amqp:resource-limit-exceeded"
FRAMING = "amqp:connection:framing-error"
FORCED = "amqp:connection:forced"
WINDOW = "amqp:session:window-violation"
UNATTACHED = "amqp:session:unattached-handle"
HANDLE_IN_USE = "amqp:session:handle-in-use"
DETACH_FORCED = "amqp:link:detach-forced"
CREDIT_EXCEEDED = "amqp:link:transfer-limit-exceeded"
TOO_LARGE = "amqp:link:message-size-exceeded"
STOLEN = "amqp:link:stolen"
ARGUMENT = "com.microsoft:argument-error"
OUT_OF_RANGE = "com.microsoft:argument-out-of-range"
AUTH_FAILED = "com.microsoft:auth-failed"
SERVER_BUSY = "com.microsoft:server-busy"
TIMEOUT = "com.microsoft:timeout"


class AmqpError(Exception):
    """An error to send to the client. The code that catches it decides whether a link, session or connection ends."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(f"{condition}: {description}")
        self.condition = condition
        self.description = description


class DecodeError(AmqpError):
    """The received bytes violate the standard. This ends the connection."""

    def __init__(self, description: str) -> None:
        super().__init__(DECODE, description)
