"""Simulated clusters: real members under simulated time, network and disk, from a seed.

:func:`simulate` runs a whole plan, storms and checks included; :func:`open_world` gives a
cluster to a script of one's own. Nothing that a member needs imports this room.
"""

from .host import Host, Place, ServiceFactory
from .invariants import Invariants, ViolationError
from .ledger import Ledger
from .run import Outcome, Plan, simulate
from .scheduler import run, seeded_scheduler
from .trace import Event, Trace
from .world import Setting, World, open_world

__all__ = [
    "Event",
    "Host",
    "Invariants",
    "Ledger",
    "Outcome",
    "Place",
    "Plan",
    "ServiceFactory",
    "Setting",
    "Trace",
    "ViolationError",
    "World",
    "open_world",
    "run",
    "seeded_scheduler",
    "simulate",
]
