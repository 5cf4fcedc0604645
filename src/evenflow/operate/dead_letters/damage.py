"""How readers treat a damaged record: they read on, and raise an error at the end.

A caller sees everything that can still be read, and cannot mistake it for everything there is.
"""

from __future__ import annotations

from evenflow.errors import Corrupt


class DamageReport:
    """Collects the places that could not be read; the error names the first."""

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
                f"{self._first}{more}: the contents of these records are missing. Keep a copy, then repair or remove "
                "them, or restore the target from a backup."
            )
