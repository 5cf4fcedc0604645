"""The simulated world: the real runtime over virtual time, a store and a source with faults, and checkers."""

from evenflow.testing.simulated.checkers import Violation
from evenflow.testing.simulated.options import Options, draw
from evenflow.testing.simulated.run import simulate
from evenflow.testing.simulated.world import World

__all__ = ["Options", "Violation", "World", "draw", "simulate"]
