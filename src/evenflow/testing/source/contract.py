"""The contract that every source keeps, as tests: subclass it, say how to make a source, and let pytest find it.

    class TestMySource(SourceContract):
        @asynccontextmanager
        async def world(self, partitions):
            yield MyWorld(...)        # a SourceWorld: a source, and the hands that put events into what it reads

The contracts themselves are the docstrings in `evenflow.ports`. What a backend cannot do raises NotImplementedError
in its `SourceWorld`, and the tests that ask for it are skipped. No plug-in is needed for the async ones; with
`pytest.register_assert_rewrite("evenflow.testing")` in a conftest.py, failures show the values that they compared.
"""

from __future__ import annotations

from evenflow.testing.source.reads import ReadContract
from evenflow.testing.source.scene import SourceWorld
from evenflow.testing.source.starts import BoundsContract, HubContract, StartContract

__all__ = ["SourceContract", "SourceWorld"]


class SourceContract(HubContract, StartContract, BoundsContract, ReadContract):
    """Everything that a source must do. A subclass has `world`."""
