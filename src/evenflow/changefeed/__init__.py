"""The change feed processor: hosts share the ranges of a monitored container, and handle each document that changes.

It is a `Processor` in the words of Cosmos DB's documentation: a lease is a partition's, a host is an instance, and a
consumer is a call of the handler.
"""

from evenflow.changefeed.context import ChangeContext
from evenflow.changefeed.estimator import LeaseEstimate
from evenflow.changefeed.processor import ChangeFeedProcessor

__all__ = ["ChangeContext", "ChangeFeedProcessor", "LeaseEstimate"]
