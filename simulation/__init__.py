"""Simulated clusters: real members under simulated time, network and disk, from a seed.

:func:`simulate` runs a whole plan, with storms and checks. :func:`open_world` gives a cluster to a
script. Nothing that a member needs imports this package.

- ``world``, ``machines``: the simulated cluster: clocks, disks, processes, the scheduler
- ``nemesis``, ``faults``: what goes wrong; ``storm``, ``scenarios``: when, and how often
- ``door``, ``workloads``: clients and what they do
- ``watching``, ``invariants``: what is recorded and checked after every event

Read ``plan.py`` first, then ``storm.py`` and ``world.py``.
"""

from .invariants import Invariant, ViolationError
from .ledger import Ledger
from .machines.host import Host, Place, ServiceFactory
from .machines.scheduler import run, seeded_scheduler
from .observer import Observer
from .plan import Outcome, Plan, simulate
from .scenarios import SCENARIOS, Scenario
from .watching.trace import Trace
from .workloads import Sample
from .world import Setting, World, open_world

__all__ = [
    "SCENARIOS",
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
