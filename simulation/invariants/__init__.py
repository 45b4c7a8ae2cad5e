"""What must hold in a cluster after every single event, whatever faults it suffers.

One rule each. Each class names the source of its rule; ``I-n``, ``H-n`` and ``F-n`` are numbers of
``docs/protocol.md``. A violation raises :class:`ViolationError` at the event that shows it.

To add an invariant: write a class below `Invariant`, list it here, and plant a violation of it in
``tests/simulation/test_invariants.py``.
"""

from typing import Final

from .base import Invariant, ViolationError
from .clients.exactly_once import ExactlyOnce
from .clients.expiry import EqualExpiry
from .clients.no_phantoms import NoPhantoms
from .clients.nothing_lost import NothingLost
from .clients.once_per_session import OncePerSession
from .clients.real_time_order import RealTimeOrder
from .clients.time_of_a_quorum import TimeOfAQuorum
from .clients.true_principal import TruePrincipal
from .commits.commit_monotonic import CommitMonotonic
from .commits.commit_on_quorum import CommitOnQuorum
from .commits.committed_for_ever import CommittedForEver
from .commits.leader_completeness import LeaderCompleteness
from .commits.only_the_final_log import OnlyTheFinalLog
from .commits.state_machine_safety import StateMachineSafety
from .elections.elected_by_quorum import ElectedByQuorum
from .elections.election_safety import ElectionSafety
from .elections.few_messages import FewMessages
from .elections.fresh_terms import FreshTerms
from .elections.honest_leaders import HonestLeaders
from .elections.one_at_a_time import OneAtATime
from .elections.votes import Votes
from .log.anchored_terms import AnchoredTerms
from .log.counts_are_prefixes import CountsArePrefixes
from .log.durable_stays import DurableStays
from .log.foreign_files_stay import ForeignFilesStay
from .log.leader_append_only import LeaderAppendOnly
from .log.log_matching import LogMatching
from .log.term_table import TermTable
from .log.truthful_reports import TruthfulReports
from .membership.in_force import LastInForce, ListedAsInLog, SavedAsInLog
from .membership.one_change import JointFirst, OneChange, OwnTermFirst, VersionsInOrder
from .membership.shared_quorums import SharedQuorums, StoresCountOnce
from .membership.the_dropped import NotForTheDropped, RemovedIfCommitted

__all__ = ["INVARIANTS", "Invariant", "ViolationError"]

INVARIANTS: Final[tuple[type[Invariant], ...]] = (
    ElectionSafety,
    OneAtATime,
    FreshTerms,
    HonestLeaders,
    Votes,
    ElectedByQuorum,
    LeaderAppendOnly,
    LogMatching,
    TermTable,
    AnchoredTerms,
    DurableStays,
    ForeignFilesStay,
    TruthfulReports,
    CountsArePrefixes,
    LastInForce,
    ListedAsInLog,
    SavedAsInLog,
    VersionsInOrder,
    JointFirst,
    OneChange,
    OwnTermFirst,
    StoresCountOnce,
    SharedQuorums,
    NotForTheDropped,
    RemovedIfCommitted,
    CommitMonotonic,
    CommitOnQuorum,
    CommittedForEver,
    LeaderCompleteness,
    StateMachineSafety,
    OnlyTheFinalLog,
    EqualExpiry,
    TimeOfAQuorum,
    NoPhantoms,
    TruePrincipal,
    ExactlyOnce,
    OncePerSession,
    NothingLost,
    RealTimeOrder,
    FewMessages,
)
"""All of them."""
