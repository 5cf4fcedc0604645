"""Async tests, as those of the runtime."""

from __future__ import annotations

from tests.unit.runtime.conftest import pytest_pyfunc_call, stage

__all__ = ["pytest_pyfunc_call", "stage"]
