"""The contract of all sources as a test suite: subclass it, provide a source, and let pytest collect it.

    class TestMySource(SourceContract):
        @asynccontextmanager
        async def world(self, partitions):
            yield MyWorld(...)        # a SourceWorld: a source, and the means to put events into what it reads

The contract is documented in the docstrings of `evenflow.ports`. What a backend cannot do raises NotImplementedError
in its `SourceWorld`, and tests that need it are skipped. Async tests need no plug-in. With
`pytest.register_assert_rewrite("evenflow.testing")` in a conftest.py, failures show the compared values.
"""

from __future__ import annotations

from evenflow.testing.source.reads import ReadContract
from evenflow.testing.source.scene import SourceWorld
from evenflow.testing.source.starts import BoundsContract, HubContract, StartContract

__all__ = ["SourceContract", "SourceWorld"]


class SourceContract(HubContract, StartContract, BoundsContract, ReadContract):
    """Everything that a source must do. A subclass implements `world`."""
