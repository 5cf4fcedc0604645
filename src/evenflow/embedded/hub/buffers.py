"""A pool of buffers for large rows.

Rows are allocated on one thread and freed on another. The allocator returns such memory to the system, and getting it
back costs more than reading the row.
"""

from __future__ import annotations

from threading import Lock

LARGE_BYTES = 64 * 1024
"""The allocator keeps freed blocks below this size."""
KEPT_BYTES_MAX = 6 * 1024 * 1024


class Buffers:
    """A thread-safe pool. The idle buffers are bounded in bytes."""

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
        # Round up, so that the buffer also fits a slightly larger row later.
        return bytearray(-(-size_bytes // LARGE_BYTES) * LARGE_BYTES)

    def give_back(self, buffer: bytearray) -> None:
        with self._lock:
            while self._kept and self._kept_bytes + len(buffer) > KEPT_BYTES_MAX:
                self._kept_bytes -= len(self._kept.pop(0))
            if len(buffer) <= KEPT_BYTES_MAX:
                self._kept.append(buffer)
                self._kept_bytes += len(buffer)
