"""For those who test an application, or write a store or a source: fakes, contract suites, the simulated world,
and a local Event Hubs for official clients.

The contract suites are imported from their own modules, since they need pytest:
`evenflow.testing.source.contract.SourceContract`, `evenflow.testing.store.contract.StoreContract` and
`evenflow.testing.dead_letters_contract.DeadLettersContract`.
"""

from evenflow.stores.memory import MemoryStore
from evenflow.testing.event_hubs import EventHub, event_hub
from evenflow.testing.fakes import FakeSource
from evenflow.testing.simulated import Violation, simulate

__all__ = ["EventHub", "FakeSource", "MemoryStore", "Violation", "event_hub", "simulate"]
