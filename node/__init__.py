"""A member of a cluster: it elects a leader, keeps the log, and serves the requests of clients.

This room does not store anything itself (``storage``), does not know sockets (``transport``), and
does not know what the commands in the log mean: a service applies them.

Read first, in this order:

1. ``election/election.py``: the protocol, as a tutorial, and its first states.
2. ``protocol/``: by which rules it decides; ``ballots.py`` and ``log_matching.py``.
3. ``leader/leadership.py`` and ``follower/following.py``: the two roles.
4. ``state_machine/applier.py``: from a committed entry to a reply.
5. ``member.py``: how the parts are put together.
"""

from .config.config import (
    Etcd,
    Limits,
    LogLines,
    MemberConfig,
    NodeConfig,
    Security,
    SnapshotPolicy,
    Timeouts,
    Web,
    load_config,
)
from .election.transition import Transition
from .member import Member, open_member
from .protocol.states import EDGES, State, diagram
from .requests.gateway import Gateway
from .requests.request import Request, RequestKind
from .requests.status import EtcdStatus, MemberAddress, NodeStatus, PeerStatus, Topology
from .state_machine.service import Command, Service, SnapshotService
from .state_machine.timers import Timer, Timers

__all__ = [
    "EDGES",
    "Command",
    "Etcd",
    "EtcdStatus",
    "Gateway",
    "Limits",
    "LogLines",
    "Member",
    "MemberAddress",
    "MemberConfig",
    "NodeConfig",
    "NodeStatus",
    "PeerStatus",
    "Request",
    "RequestKind",
    "Security",
    "Service",
    "SnapshotPolicy",
    "SnapshotService",
    "State",
    "Timeouts",
    "Timer",
    "Timers",
    "Topology",
    "Transition",
    "Web",
    "diagram",
    "load_config",
    "open_member",
]
