"""Simulated clusters: real members under simulated time, network and disk, from a seed.

:func:`simulate` runs a whole plan, storms and checks included; :func:`open_world` gives a
cluster to a script of one's own. Nothing that a member needs imports this room.
"""

from .invariants import Invariant, ViolationError
from .ledger import Ledger
from .machines.host import Host, Place, ServiceFactory
from .machines.scheduler import run, seeded_scheduler
from .observer import Observer
from .plan import Outcome, Plan, simulate
from .scenarios import SCENARIOS, Scenario
from .watching.trace import Event, Trace
from .workloads import Sample
from .world import Setting, World, open_world

__all__ = [
    "SCENARIOS",
    "Event",
    "Host",
    "Invariant",
    "Ledger",
    "Observer",
    "Outcome",
    "Place",
    "Plan",
    "Sample",
    "Scenario",
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
