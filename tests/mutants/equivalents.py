"""Mutants that change no behaviour, each with the reason: nothing can notice them, and they count for nothing."""

from __future__ import annotations

EQUIVALENT: dict[str, str] = {}
