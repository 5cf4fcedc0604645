"""What a reader does about a record that is damaged: it reads on, and says so at the end.

Whoever only looks sees all that can still be read; nobody takes what is left for all there is, since the reading ends
with an error.
"""

from __future__ import annotations

from evenflow.errors import Corrupt


class DamageReport:
    """The places that could not be read, of which the first is told."""

    def __init__(self) -> None:
        self._first = ""
        self._count = 0

    def found(self, where: str, error: Exception) -> None:
        self._first = self._first or f"{where} is damaged ({error})"
        self._count += 1

    def check(self) -> None:
        if self._count:
            more = f" and so are {self._count - 1} more" if self._count > 1 else ""
            raise Corrupt(
                f"{self._first}{more}: what these records say is missing. Keep a copy, then mend or remove them, or "
                "restore the target from a backup."
            )
