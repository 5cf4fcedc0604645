"""Async tests of the runtime: in virtual time when they ask for a `stage`, on a real event loop otherwise."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.runtime.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.close()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    scene: Any = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})
    stage = pyfuncitem.funcargs.get("stage")
    if isinstance(stage, Stage):
        stage.play(scene)
    else:
        asyncio.run(scene)
    return True
