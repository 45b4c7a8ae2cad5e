"""What the parts of one member share: who it is, its store, its links, and what it last heard."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

import attrs
import trio

from ..errors import SafetyViolationError
from ..storage import EMPTY_LOG, LogEnd, NodeState, VotingRight
from .follower.catchup_rate import Backlog
from .leader.clocks import Clocks
from .leader.lease import Promise
from .membership.admission import Founders
from .protocol.role import Role
from .protocol.rules import quorum
from .readers.pace import Pace
from .state_machine.actions import Actions
from .upkeep.repair import Repair

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from ..storage import Store
    from ..transport import Links, Message
    from .config.config import NodeConfig, Timeouts
    from .protocol.states import State
    from .state_machine.applier import Applier
    from .state_machine.snapshots import Snapshots


CUT_SECONDS: Final = 8.0
"""How long a flush of the tables in front of a snapshot's cut may take on a slow disk: 64 MiB at
`roles.SLOWEST_DISK`. If this is shorter, a leader on a slow disk steps down at a snapshot; if it is
longer, clients wait longer for another leader when the tables' disk hangs."""


def _ignore(_why: str) -> None:
    """Do nothing about a refused leader."""


@attrs.frozen
class Transition:
    """One step of an election, as told to observers and to the log.

    Times are trio's clock in seconds; positions are bytes of the log.
    """

    at: float
    member_id: int
    election: int
    before: State
    after: State
    reason: str
    term: int
    log_end: LogEnd
    commit_position: int


@attrs.define
class Returned:
    """How leadership went back to a preferred member.

    Args:
        at: when we last handed over to it, unless that was judged already (trio's clock).
        failures: how often in a row it did not last.
    """

    at: float | None = None
    failures: int = 0


@attrs.define(eq=False)
class Core:
    """The state of a member that outlives elections.

    Attributes:
        config: what the member was told.
        store: its recording, recording log and vote.
        links: to the other members.
        applier: feeds the service.
        snapshots: of the service.
        actions: does what the log asks of all members.
        rng: the only source of randomness.
        clock_ms: the machine's wall clock, milliseconds since the epoch.
        clocks: what that and the other members' show; the log's time goes by it.
        standby: we follow, and neither vote, nor stand, nor count.
        size: number of members that quorums are made of: all but the standbys.
        voters: those of them that are not we, ascending: who is asked, and may be counted.
        role: hears the messages now.
        leadership_term: the term that the member lives in; at the start that of its log, or -1.
        leader_id: the last leader known.
        leader_term: the highest term that anybody was heard to lead.
        leader_contact: when a leader of our term or a newer one was last heard (trio's clock).
        closing: the member stops in order, and stands in no election any more.
        disk_full: too little room is left on the disk: the member appends nothing.
        founders: has a fresh store found the cluster.
        lease_promise: to the leader that has a lease.
        tables_damage: what a reader has found, in words; the member is about to begin anew.
        backlog: what is done otherwise while we fetch log.
        repair: reads the log, and mends what is damaged.
        pace: of readers from outside.
        terminated: set when the whole cluster was told to stop, and this member may.
        returned: to whom we handed over because the configuration prefers it.
        refused: called with the reason when a leader is refused for what it says.
        observers: told of every transition.
    """

    config: NodeConfig
    store: Store
    links: Links
    applier: Applier
    snapshots: Snapshots
    rng: Random
    clock_ms: Callable[[], int]
    standby: bool = attrs.field(
        init=False, default=attrs.Factory(lambda self: self.config.own.standby, takes_self=True)
    )
    size: int = attrs.field(
        init=False, default=attrs.Factory(lambda self: len(self.config.voters), takes_self=True)
    )
    voters: tuple[int, ...] = attrs.field(
        init=False,
        default=attrs.Factory(
            lambda self: tuple(i for i in self.config.voters if i != self.member_id),
            takes_self=True,
        ),
    )
    clocks: Clocks = attrs.field(
        init=False,
        default=attrs.Factory(lambda self: Clocks(self.clock_ms, self.voters), takes_self=True),
    )
    role: Role = attrs.field(factory=Role)
    leadership_term: int = -1
    leader_id: int | None = None
    leader_term: int = -1
    leader_contact: float = float("-inf")
    closing: bool = False
    disk_full: bool = False
    tables_damage: str = ""
    actions: Actions = attrs.field(
        init=False,
        default=attrs.Factory(lambda self: Actions(self.store, self.snapshots), takes_self=True),
    )
    founders: Founders = attrs.field(init=False, default=attrs.Factory(Founders, takes_self=True))
    lease_promise: Promise = attrs.field(
        init=False,
        default=attrs.Factory(lambda self: Promise(self.promised.lease_ms / 1000), takes_self=True),
    )
    backlog: Backlog = attrs.field(
        init=False,
        default=attrs.Factory(
            lambda self: Backlog(self.applier, self.config.limits.catchup_bytes_per_second),
            takes_self=True,
        ),
    )
    repair: Repair = attrs.field(init=False, default=attrs.Factory(Repair, takes_self=True))
    pace: Pace = attrs.field(
        init=False,
        default=attrs.Factory(
            lambda self: Pace(self.config.limits.reader_bytes_per_second), takes_self=True
        ),
    )
    terminated: trio.Event = attrs.field(factory=trio.Event)
    returned: defaultdict[int, Returned] = attrs.field(factory=lambda: defaultdict(Returned))
    refused: Callable[[str], None] = _ignore
    observers: list[Callable[[Transition], None]] = attrs.field(
        factory=list["Callable[[Transition], None]"]
    )

    @property
    def member_id(self) -> int:
        """Who we are."""
        return self.config.member_id

    @property
    def timeouts(self) -> Timeouts:
        """How patient we are."""
        return self.config.timeouts

    @property
    def peers(self) -> tuple[int, ...]:
        """The other members, ascending."""
        return tuple(peer.member_id for peer in self.config.peers)

    @property
    def quorum(self) -> int:
        """Number of members with a vote that a decision needs."""
        return quorum(self.size)

    @property
    def votes(self) -> bool:
        """Whether we may vote, stand and be counted: see :mod:`.admission`."""
        return not self.standby and self.store.recorded.voting_status.kind is VotingRight.VOTER

    @property
    def floor(self) -> LogEnd:
        """What the cluster began with, or what was damaged at the end of our log.

        Who has less votes only for who has it, and never stands.
        """
        return max(self.store.voting_status.floor, self.store.recorded.lost)

    @property
    def may_stand(self) -> bool:
        """Whether we may be elected."""
        return self.votes and self.log_end >= self.floor and self.applies

    @property
    def applies(self) -> bool:
        """Whether what is committed gets applied here, or is waited for not too long."""
        patience = 2 * self.timeouts.leader_heartbeat_timeout + CUT_SECONDS
        return trio.current_time() < self.applier.waits_since + patience

    @property
    def promised(self) -> NodeState:
        """Our durable vote."""
        return self.store.node_state

    @property
    def log_end(self) -> LogEnd:
        """Where our durable log ends."""
        return LogEnd(self.store.log_term, self.store.append_position)

    @property
    def admission(self) -> LogEnd:
        """Where our log has, at least, the last entry that admits a store, or what it has lost.

        A log that is behind that is voted for in no case.
        """
        recorded = self.store.recorded
        return max(recorded.admission, recorded.lost)

    @property
    def damage(self) -> str:
        """What was damaged here and has not come back yet, in words; empty if nothing."""
        if self.tables_damage:
            return f"its tables are damaged, and it begins anew: {self.tables_damage}"
        if self.applier.remaking:
            at, end = self.applier.applied_position, self.applier.commit_position
            return f"its tables were damaged, and are made anew from the log: {at} of {end}"
        if self.applier.wanting:
            return "its tables are gone, and it waits for another member's snapshot"
        if self.store.recorded.lost != EMPTY_LOG:
            return (
                f"the end of its log, from {self.store.append_position} on, was damaged; until it "
                "has it again it votes for nobody who lacks it"
            )
        return ""

    @property
    def suspended(self) -> bool:
        """Whether an operator has suspended the cluster."""
        return self.store.recorded.suspended

    def send(self, member: int, message: Message) -> bool:
        """Send a message; False if it was dropped."""
        return self.links.send(member, message)

    def broadcast(self, message: Message) -> None:
        """Send a message to every peer that there is a link to."""
        self.links.broadcast(message)

    def terminate(self) -> None:
        """The cluster stops, and nothing is left to do here."""
        self.closing = True
        self.terminated.set()

    def heard_leader(self, term: int, at: float) -> None:
        """Note that a leader of `term` was alive at a time, unless it is an older one."""
        self.leader_term = max(self.leader_term, term)
        if term >= self.leadership_term:
            self.leader_contact = at

    async def promise(self, state: NodeState) -> None:
        """Make a vote, or the adoption of a term, durable; only then may anyone hear of it."""
        await self.store.save_node_state(attrs.evolve(state, lease_ms=self.promised.lease_ms))

    async def expect_leases(self, lease_ms: int) -> None:
        """Make durable how long what we promise to a leader may last: see :mod:`.lease`."""
        known = self.promised.lease_ms
        if lease_ms > known or (lease_ms < known and not self.lease_promise.binds):
            await self.store.save_node_state(attrs.evolve(self.promised, lease_ms=lease_ms))

    async def adopt_term(self, term: int) -> None:
        """Promise, durably, not to follow or vote in any term below `term`."""
        if term > self.promised.candidate_term:
            await self.promise(NodeState(term, -1))
        self.leadership_term = term

    async def truncate(self, position: int, last_term: int) -> None:
        """Drop uncommitted entries that are not the leader's.

        Raises:
            SafetyViolationError: some of them are known to be committed.
        """
        committed = self.applier.commit_position
        if position < committed:
            raise SafetyViolationError(
                f"member {self.member_id}: asked to truncate the log to {position}, below the "
                f"commit position {committed}: committed entries would be lost"
            )
        self.applier.forget()
        await self.store.truncate(position, last_term=last_term)
