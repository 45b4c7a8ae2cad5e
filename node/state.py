"""What a member knows of itself: its identity, its term, and the leader that it last heard.

Plain data. The parts of a member read it, and each fact has one writer; nothing here waits, sends
or writes to disk. What is durable lies in the store: the properties below read it from there.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import attrs
import trio

from ..storage import LogEnd, VotingRight
from .configurations import Configurations
from .counts import Counts
from .protocol.membership import UNKNOWN_STORE
from .protocol.quorum import ANY_STORE, VoterId
from .protocol.role import Role

if TYPE_CHECKING:
    from ..storage import NodeState, Store
    from .config.config import NodeConfig, Timeouts
    from .protocol.quorum import Quorums


@attrs.define
class HandBack:
    """How leadership went back to a preferred member.

    Args:
        at: when we last handed over to it (trio's clock), None once that was judged.
        failures: how often in a row it did not last.
    """

    at: float | None = None
    failures: int = 0


class MemberState:
    """The facts about one member that outlive its elections.

    Args:
        config: its configuration.
        store: its log, its term table and its vote; only read here.

    Attributes:
        member_id: of this member.
        configurations: those in its log.
        membership: the configuration in force.
        peers: the other members that we have a link to, ascending: those of the configuration, and
            others that have called us.
        quorums: the voters, and which of them a decision needs.
        voters: those of the other members that have a vote: they are asked, and may be counted.
        names: as which voter each member counts: with the store that its newest link names. The
            name is in no set of voters if the member has no vote by the configuration, or if
            another store of it has the vote.
        versions: of the protocol that other members speak, as their links to us said.
        role: receives the messages of other members now.
        leadership_term: the term that the member lives in; at the start that of its log, or -1.
        leader_id: the last leader known.
        leader_term: the highest term that anybody was heard to lead.
        leader_contact: when a leader of our term or a newer one was last heard (trio's clock).
        closing: the member is stopping; it stands in no election any more.
        low_on_disk: so little room is left that the member should not become a voter.
        disk_full: too little room is left on the disk; the member appends nothing.
        tables_damage: the damage that a reader has found, in words; the member is about to restart.
        terminated: set when the whole cluster stops, and this member may.
        counts: of what happens in its roles and elections.
        handbacks: for each member that the configuration prefers, how handing over to it went.
    """

    def __init__(self, config: NodeConfig, store: Store) -> None:
        self.config = config
        self.member_id = config.member_id
        self.configurations = Configurations(config, store)
        self._instances = {self.member_id: store.identity.instance_id}
        self.versions: dict[int, int] = {}
        self.peers = tuple(self.configurations.addresses(self.configurations.in_force))
        self.use_configuration()
        self.role = Role()
        self.leadership_term = store.log_term
        self.leader_id: int | None = None
        self.leader_term = -1
        self.leader_contact = float("-inf")
        self.closing = False
        self.low_on_disk = False
        self.disk_full = False
        self.tables_damage = ""
        self.terminated = trio.Event()
        self.counts = Counts()
        self.handbacks = defaultdict[int, HandBack](HandBack)
        self._store = store

    @property
    def timeouts(self) -> Timeouts:
        """How long the member waits for what."""
        return self.config.timeouts

    def use_configuration(self) -> None:
        """Decide by the configuration that is in force in our log now."""
        self.membership = self.configurations.in_force
        self.use_voters(self.membership.quorums)

    def use_voters(self, quorums: Quorums[VoterId]) -> None:
        """Decide by these voters from now on."""
        # Each member has one name, which could not be in a set of both kinds of names.
        kinds = {voter.instance_id == ANY_STORE for voter in quorums.voters}
        assert len(kinds) == 1, f"{quorums}: some stores are named, and some are not"
        self.quorums = quorums
        voters = {voter.member_id for voter in quorums.voters}
        self.voters = tuple(sorted(voters - {self.member_id}))
        members = {self.member_id, *self.peers, *voters}
        self.names = {member: self._name(member) for member in sorted(members)}

    def use_peers(self, peers: tuple[int, ...]) -> None:
        """Note to which members we have links."""
        self.peers = peers
        self.use_voters(self.quorums)
        # Ids that come and go would pile up otherwise: anybody may say hello with any id.
        known = self.names.keys()
        self._instances = {m: store for m, store in self._instances.items() if m in known}
        self.versions = {m: version for m, version in self.versions.items() if m in known}

    def use_store(self, member: int, instance: int) -> bool:
        """Note with which store a member speaks; return whether it spoke with another one before.

        The first store that is heard of a member counts as another one.
        """
        if self._instances.get(member) == instance:
            return False
        self._instances[member] = instance
        self.names[member] = self._name(member)
        return True

    def _name(self, member: int) -> VoterId:
        exact = VoterId(member, self._instances.get(member, ANY_STORE))
        return exact if exact in self.quorums.voters else VoterId(member)

    @property
    def own(self) -> VoterId:
        """The voter as which we count."""
        return self.names[self.member_id]

    @property
    def own_store(self) -> VoterId:
        """We ourselves with our store, whether that has a vote by the configuration or not."""
        return VoterId(self.member_id, self._instances[self.member_id])

    @property
    def standby(self) -> bool:
        """Whether this member follows, and neither stands nor counts."""
        seat = self.membership.seat(self.member_id)
        voter = self.membership.has_vote(self.member_id)
        return seat is not None and not seat.is_to_vote and not voter

    @property
    def witness(self) -> bool:
        """Whether this member has no tables."""
        # By its own file, which decides what it opens. Its seat says the same: `check_role`.
        return self.config.own.witness

    @property
    def needs_claim(self) -> bool:
        """Whether our store asks for our seat, which is another store's by the configuration."""
        membership = self.membership
        seat, version = membership.seat(self.member_id), membership.version
        if version == 0 and self.standby:
            return False
        # Without a vote also if we see no seat: our log may end in the history before a restore,
        # whose configurations are not those of the leader.
        if not self.votes:
            return True
        if version == 0 or seat is None or seat.name == self.own_store:
            return False
        # A voter takes its seat back from a store that has claimed it and was not promoted. So does
        # one that nobody had heard of at the first change. All others leave the seat to the store
        # that has it: two processes would claim it in turns (:mod:`.membership.taken_seat`).
        counted = self.own_store in {*membership.voters, *membership.outgoing}
        founder = (self.member_id, seat.instance) in membership.founders
        return counted or seat.instance in {ANY_STORE, UNKNOWN_STORE} or founder

    def speaks_with(self, member: int) -> int:
        """Return the store with which a member speaks; 0 if it was not heard."""
        return self._instances.get(member, ANY_STORE)

    @property
    def alone(self) -> bool:
        """Whether our own agreement is enough for every decision."""
        return self.quorums.agree({self.own})

    @property
    def votes(self) -> bool:
        """Whether our store may vote; see :mod:`.membership.admission`.

        Whether its vote counts is for the configuration of the candidate to say.
        """
        return self._store.recorded.voting_status.kind is VotingRight.VOTER

    @property
    def promised(self) -> NodeState:
        """Our durable vote."""
        return self._store.node_state

    @property
    def known_term(self) -> int:
        """The highest term that we promised or lived in, or that our log has.

        The log may have terms in which this store has promised nothing, as after a restore.
        """
        promised = self.promised.candidate_term
        return max(promised, self.leadership_term, self._store.log_term)

    @property
    def log_end(self) -> LogEnd:
        """Where our durable log ends."""
        return LogEnd(self._store.log_term, self._store.append_position)

    @property
    def floor(self) -> LogEnd:
        """Where our log must end, at least, before we may lead.

        The cluster began with a log that long, or the end of ours was damaged from there on. While
        our log is shorter than this, we never stand, and we vote only for candidates whose log
        reaches it.
        """
        return max(LogEnd(*self._store.voting_status.floor), LogEnd(*self._store.recorded.lost))

    @property
    def admission(self) -> LogEnd:
        """A bound on the last configuration entry in our log: it does not end behind this.

        An operator's wish to elect a member that is behind does not reach across it. A damaged end
        of the log counts, because such an entry may have been in it.
        """
        recorded = self._store.recorded
        return max(LogEnd(*recorded.admission), LogEnd(*recorded.lost))

    @property
    def suspended(self) -> bool:
        """Whether an operator has suspended the cluster."""
        return self._store.recorded.suspended

    def heard_leader(self, term: int, at: float) -> None:
        """Note that a leader of `term` was alive at a time, unless its term is below ours."""
        self.leader_term = max(self.leader_term, term)
        if term >= self.leadership_term:
            self.leader_contact = at

    def terminate(self) -> None:
        """Note that the cluster stops, and that nothing is left to do here."""
        self.closing = True
        self.terminated.set()
