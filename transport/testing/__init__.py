"""A network in memory, in virtual time, that can be cut, slowed down and broken at will.

It is a room of its own, like `trio.testing`: members run unchanged on it, in tests and in the
simulation, and `quorate restored` serves a state with it. Nothing in `transport/` outside this
folder imports it. Read `memory_network` first, then `direction`, which is one way of a connection.
"""

from .direction import Pace
from .memory_network import MemoryConnection, MemoryHost, MemoryNetwork

__all__ = ["MemoryConnection", "MemoryHost", "MemoryNetwork", "Pace"]
