"""The embedded container: JSON documents in a folder, with a change feed. It knows nothing of leases or groups."""

from evenflow.container.container import Container, ContainerInfo
from evenflow.container.feed import Change, Page
from evenflow.container.keys import MISSING
from evenflow.container.ranges import Range

__all__ = ["MISSING", "Change", "Container", "ContainerInfo", "Page", "Range"]
