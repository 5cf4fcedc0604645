"""The embedded hub: a durable partitioned log in a folder. It knows nothing of leases, groups or checkpoints."""

from evenflow.hub.batch import Batch
from evenflow.hub.hub import Hub, HubInfo, PartitionInfo
from evenflow.hub.keys import partition_of
from evenflow.hub.producer import Producer
from evenflow.hub.writer import Sent

__all__ = ["Batch", "Hub", "HubInfo", "PartitionInfo", "Producer", "Sent", "partition_of"]
