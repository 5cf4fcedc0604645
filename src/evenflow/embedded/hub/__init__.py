"""The embedded hub: a durable partitioned log in a folder. It has no leases, groups or checkpoints."""

from evenflow.embedded.hub.batch import Batch
from evenflow.embedded.hub.hub import Hub, HubInfo, PartitionInfo
from evenflow.embedded.hub.keys import partition_of
from evenflow.embedded.hub.producer import Producer
from evenflow.embedded.hub.writer import Sent

__all__ = ["Batch", "Hub", "HubInfo", "PartitionInfo", "Producer", "Sent", "partition_of"]
