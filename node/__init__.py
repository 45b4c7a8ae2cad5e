"""The member: elections, terms of leadership and of following, and the requests of clients.

Read :mod:`.election` for the protocol, :mod:`.rules` for its judgements, :mod:`.leadership` and
:mod:`.following` for the two terms, and :mod:`.member` for how it all hangs together.
"""

from .config.config import Limits, MemberConfig, NodeConfig, SnapshotPolicy, Timeouts, load_config
from .election.transition import Transition
from .member import Member, open_member
from .protocol.states import EDGES, State, diagram
from .requests.gateway import Gateway
from .requests.request import Request, RequestKind
from .requests.status import MemberAddress, NodeStatus, PeerStatus, Topology
from .state_machine.service import Command, Service, SnapshotService
from .state_machine.timers import Timer, Timers

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
