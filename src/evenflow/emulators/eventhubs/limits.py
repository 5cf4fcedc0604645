"""Limits on what all clients of a server together may hold: bytes, sessions, links. Connections have their own limits.

Exceeding the limits does not close connections. The server stops reading from clients that already hold memory, log
reads return one row, and it refuses to keep anything more for clients that do not consume.
"""

from __future__ import annotations

from evenflow.amqp.conditions import LIMIT_EXCEEDED, AmqpError

BYTES_MAX = 256 * 1024 * 1024
SESSIONS_MAX = 20_000
LINKS_MAX = 20_000
WRITE_BYTES = 64 * 1024 * 1024
"""About how much may be buffered in all sockets together; each socket gets a share."""
WRITE_BYTES_MOST, WRITE_BYTES_LEAST = 256 * 1024, 16 * 1024


class ServerLimits:
    def __init__(self) -> None:
        self.held_bytes = 0
        self.sessions = 0
        self.links = 0

    @property
    def is_full(self) -> bool:
        return self.held_bytes > BYTES_MAX

    def check_session(self) -> None:
        """Raise if the maximum number of sessions is reached."""
        if self.sessions >= SESSIONS_MAX:
            raise AmqpError(LIMIT_EXCEEDED, f"The server has {SESSIONS_MAX} sessions, the maximum. End some, or retry.")

    def check_link(self) -> None:
        if self.links >= LINKS_MAX:
            raise AmqpError(LIMIT_EXCEEDED, f"The server has {LINKS_MAX} links, the maximum. Detach some, or retry.")


def write_bytes_high(sockets: int) -> int:
    """How much may be buffered for each of this many clients before the server stops sending events."""
    return max(WRITE_BYTES_LEAST, min(WRITE_BYTES_MOST, WRITE_BYTES // max(1, sockets)))
