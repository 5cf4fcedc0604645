"""The change feed processor: hosts share the ranges of a monitored container and handle every changed document.

It is a `Processor` with the names of Cosmos DB's documentation: a lease belongs to a partition, a host is an instance.
"""

from evenflow.changefeed.context import ChangeContext
from evenflow.changefeed.estimator import LeaseEstimate
from evenflow.changefeed.processor import ChangeFeedProcessor

__all__ = ["ChangeContext", "ChangeFeedProcessor", "LeaseEstimate"]
