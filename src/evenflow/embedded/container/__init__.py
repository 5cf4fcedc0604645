"""The embedded container: JSON documents in a folder, with a change feed. It has no leases or groups."""

from evenflow.embedded.container.container import Container, ContainerInfo
from evenflow.embedded.container.feed import ChangeFeedPage, DocumentChange
from evenflow.embedded.container.keys import MISSING
from evenflow.embedded.container.ranges import PartitionKeyRange

__all__ = ["MISSING", "ChangeFeedPage", "Container", "ContainerInfo", "DocumentChange", "PartitionKeyRange"]
