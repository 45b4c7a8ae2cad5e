"""The member: elections, terms of leadership and of following, and the requests of clients.

Read :mod:`.election` for the protocol, :mod:`.rules` for its judgements, :mod:`.leadership` and
:mod:`.following` for the two terms, and :mod:`.member` for how it all hangs together.
"""

from .config import Limits, MemberConfig, NodeConfig, SnapshotPolicy, Timeouts, load_config
from .core import Transition
from .gateway import (
    Gateway,
    MemberAddress,
    NodeStatus,
    PeerStatus,
    Request,
    RequestKind,
    Topology,
)
from .member import Member, open_member
from .service import Command, Service, SnapshotService
from .states import EDGES, State, diagram
from .timers import Timer, Timers

__all__ = [
    "EDGES",
    "Command",
    "Gateway",
    "Limits",
    "Member",
    "MemberAddress",
    "MemberConfig",
    "NodeConfig",
    "NodeStatus",
    "PeerStatus",
    "Request",
    "RequestKind",
    "Service",
    "SnapshotPolicy",
    "SnapshotService",
    "State",
    "Timeouts",
    "Timer",
    "Timers",
    "Topology",
    "Transition",
    "diagram",
    "load_config",
    "open_member",
]
