"""What all clients of a server together can make it keep: bytes, sessions, links. Connections have limits of their own.

Who is over them all is not cut off: nothing more is read from those who have something here already, looks into the
log bring one row, and what would have to be kept for a client that does nothing about it is refused.
"""

from __future__ import annotations

from evenflow.amqp.conditions import LIMIT_EXCEEDED, AmqpError

BYTES_MAX = 256 * 1024 * 1024
SESSIONS_MAX = 20_000
LINKS_MAX = 20_000
WRITE_BYTES = 64 * 1024 * 1024
"""What may wait in all sockets together, about; of it each has a share."""
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
        """Whether there may be one more."""
        if self.sessions >= SESSIONS_MAX:
            raise AmqpError(LIMIT_EXCEEDED, f"There are {SESSIONS_MAX} sessions already. End some, or try again later.")

    def check_link(self) -> None:
        if self.links >= LINKS_MAX:
            raise AmqpError(LIMIT_EXCEEDED, f"There are {LINKS_MAX} links already. Detach some, or try again later.")


def write_bytes_high(sockets: int) -> int:
    """How much may wait for one of so many clients before its events wait, too."""
    return max(WRITE_BYTES_LEAST, min(WRITE_BYTES_MOST, WRITE_BYTES // max(1, sockets)))
