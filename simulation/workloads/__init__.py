"""Workloads: the operations of a simulated cluster's clients, and the checks that clients make.

- ``strings`` has registers, lists and counters, and checks linearizability.
- ``bank`` has transactions; ``expiry`` has keys that expire.
- ``sessions`` repeats commands, and checks that each was applied once.
- ``users`` has clients with users at the members' ports, whose rules change.
- ``etcd`` has clients of etcd's keyspace, with leases, watches and tokens.
- ``programs`` use recipes: locks, queues and the like.
- ``samples`` serves a user's own service.

Checks that need all members' logs are in ``simulation/invariants``. Read ``base.py`` first, then
``strings.py``.
"""

from .bank import Bank
from .base import Workload
from .etcd import Etcd
from .expiry import Expiry
from .programs import Programs
from .samples import Sample, Samples, Sampling
from .sessions import Sessions
from .strings import Strings
from .users import UsersAtPorts

__all__ = [
    "Bank",
    "Etcd",
    "Expiry",
    "Programs",
    "Sample",
    "Samples",
    "Sampling",
    "Sessions",
    "Strings",
    "UsersAtPorts",
    "Workload",
]
