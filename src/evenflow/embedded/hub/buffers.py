"""Memory for large rows, used again and again: the allocator gives back to the system what is freed by another thread
than the one that took it, and fetching it anew costs more than reading the row.
"""

from __future__ import annotations

from threading import Lock

LARGE_BYTES = 64 * 1024
"""Below this, the allocator keeps what it has."""
KEPT_BYTES_MAX = 6 * 1024 * 1024


class Buffers:
    """Buffers to take and give back, from any thread. Those that wait to be taken are bounded in bytes."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: list[bytearray] = []
        self._kept_bytes = 0

    def take(self, size_bytes: int) -> bytearray:
        """A buffer of at least this size."""
        with self._lock:
            if self._kept and len(self._kept[-1]) >= size_bytes:
                buffer = self._kept.pop()
                self._kept_bytes -= len(buffer)
                return buffer
        # Rounded up, so that it fits the next row too when that is a little larger.
        return bytearray(-(-size_bytes // LARGE_BYTES) * LARGE_BYTES)

    def give_back(self, buffer: bytearray) -> None:
        with self._lock:
            while self._kept and self._kept_bytes + len(buffer) > KEPT_BYTES_MAX:
                self._kept_bytes -= len(self._kept.pop(0))
            if len(buffer) <= KEPT_BYTES_MAX:
                self._kept.append(buffer)
                self._kept_bytes += len(buffer)
