"""The embedded container: JSON documents in a folder, with a change feed. It knows nothing of leases or groups."""

from evenflow.embedded.container.container import Container, ContainerInfo
from evenflow.embedded.container.feed import Change, Page
from evenflow.embedded.container.keys import MISSING
from evenflow.embedded.container.ranges import Range

__all__ = ["MISSING", "Change", "Container", "ContainerInfo", "Page", "Range"]
