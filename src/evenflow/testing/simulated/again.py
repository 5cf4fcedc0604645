"""What an instance has handled it does not handle again, while no other has had the partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evenflow.testing.simulated.checkers import Violation

if TYPE_CHECKING:
    from evenflow.model import PartitionId


class OwnRepeats:
    """Whatever becomes of the store meanwhile: the instance remembers it.

    Not where the application marks progress itself, and not where a handler fails in the middle of what it was given.
    """

    def __init__(self, *, active: bool) -> None:
        self._active = active
        self._sealed_by: dict[PartitionId, Any] = {}
        self._handled: dict[PartitionId, int] = {}

    def sealed(self, partition: PartitionId, who: Any) -> None:
        if self._sealed_by.get(partition) is not who:
            self._handled.pop(partition, None)
        self._sealed_by[partition] = who

    def forget(self, partition: PartitionId) -> None:
        self._handled.pop(partition, None)

    def begin_anew(self) -> None:
        self._handled.clear()
        self._sealed_by.clear()

    def handled(self, partition: PartitionId, who: Any, sequence: int) -> None:
        """One that stopped may still have run while another sealed: then it says nothing."""
        if self._sealed_by.get(partition) is who:
            self._handled[partition] = max(sequence, self._handled.get(partition, -1))

    def begins(self, partition: PartitionId, who: Any, first: int) -> None:
        known = self._handled.get(partition, -1)
        if self._active and self._sealed_by.get(partition) is who and first <= known:
            raise Violation(f"partition {partition}: {who} handles {first} again, and no other has had it since")
