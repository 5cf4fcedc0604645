"""Steering is tried out in virtual time, on the stage of the runtime's tests."""

from __future__ import annotations

from tests.unit.runtime.conftest import pytest_pyfunc_call, stage

__all__ = ["pytest_pyfunc_call", "stage"]
