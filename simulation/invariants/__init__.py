"""What must hold in a cluster after every single event, whatever was done to it.

One file each; each class says where its rule is from. What is wrong is told by
:class:`ViolationError`, at the event at which it shows.
"""

from typing import Final

from .anchored_terms import AnchoredTerms
from .base import Invariant, ViolationError
from .commit_monotonic import CommitMonotonic
from .commit_on_quorum import CommitOnQuorum
from .committed_for_ever import CommittedForEver
from .counts_are_prefixes import CountsArePrefixes
from .durable_stays import DurableStays
from .election_safety import ElectionSafety
from .exactly_once import ExactlyOnce
from .expiry import EqualExpiry
from .few_messages import FewMessages
from .foreign_files_stay import ForeignFilesStay
from .fresh_terms import FreshTerms
from .honest_leaders import HonestLeaders
from .leader_append_only import LeaderAppendOnly
from .leader_completeness import LeaderCompleteness
from .log_matching import LogMatching
from .no_phantoms import NoPhantoms
from .nothing_lost import NothingLost
from .once_per_session import OncePerSession
from .one_at_a_time import OneAtATime
from .only_the_final_log import OnlyTheFinalLog
from .real_time_order import RealTimeOrder
from .state_machine_safety import StateMachineSafety
from .term_table import TermTable
from .time_of_a_quorum import TimeOfAQuorum
from .truthful_reports import TruthfulReports
from .votes import Votes

__all__ = ["INVARIANTS", "Invariant", "ViolationError"]

INVARIANTS: Final[tuple[type[Invariant], ...]] = (
    ElectionSafety,
    OneAtATime,
    FreshTerms,
    HonestLeaders,
    Votes,
    LeaderAppendOnly,
    LogMatching,
    TermTable,
    AnchoredTerms,
    DurableStays,
    ForeignFilesStay,
    TruthfulReports,
    CountsArePrefixes,
    CommitMonotonic,
    CommitOnQuorum,
    CommittedForEver,
    LeaderCompleteness,
    StateMachineSafety,
    OnlyTheFinalLog,
    EqualExpiry,
    TimeOfAQuorum,
    NoPhantoms,
    ExactlyOnce,
    OncePerSession,
    NothingLost,
    RealTimeOrder,
    FewMessages,
)
"""All of them."""
