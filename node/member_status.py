"""What a member reports of itself: one frozen picture of all its parts, made when it is asked for.

It looks at the election and at both roles, so it stands above the rooms that it describes. The data
that it returns is :mod:`.requests.status`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import trio

from ..storage import VotingRight
from ..storage.rows.log_end import EMPTY_LOG
from .follower.following import Following
from .leader.leadership import Leadership
from .protocol.states import LEADER_STATES, State
from .requests.status import NodeStatus, PeerStatus

if TYPE_CHECKING:
    from ..storage import Store
    from ..transport import Links
    from .clocks import Clocks
    from .election.context import ElectionContext
    from .membership.founding import Founders
    from .requests.router import Requests
    from .requests.status import EtcdStatus
    from .state import MemberState
    from .state_machine.applier import Applier
    from .state_machine.snapshots import Snapshots
    from .upkeep.access import Access


STANDINGS: Final = {
    VotingRight.NEW: "fresh",
    VotingRight.RECOVERING: "recovering",
    VotingRight.VOTER: "member",
    VotingRight.REMOVED: "removed",
}
"""The words for a voting status in `INFO` and JSON, where it is called `standing`. They are older
than the names of `VotingRight`, and programs read them."""


@attrs.frozen(eq=False)
class Status:
    """Describes a member, from its parts.

    Args:
        incarnation: the random number of this run of its process.
        since: when this run began (trio's clock).
        state: of the member.
        store: its log.
        links: to the other members.
        applier: of the service.
        snapshots: of the service.
        clocks: the members' clocks.
        founders: knows which members a new cluster waits for.
        election: its current state, and how many elections there were.
        requests: of this member's clients.
        access: how it proves who it is.
        etcd: of its port for clients of etcd; None without one.
    """

    incarnation: int
    since: float
    state: MemberState
    store: Store
    links: Links
    applier: Applier
    snapshots: Snapshots
    clocks: Clocks
    founders: Founders
    election: ElectionContext
    requests: Requests
    access: Access
    etcd: EtcdStatus | None = None

    def now(self, now_ms: int) -> NodeStatus:
        """Describe the member; `now_ms` is the log's time now."""
        now, newest, role = trio.current_time(), self.snapshots.newest, self.state.role
        watch = self.access.watch
        return NodeStatus(
            member_id=self.state.member_id,
            cluster=self.state.config.cluster,
            role=self._role_name(self.election.current),
            state=self.election.current.name,
            state_age_s=now - self.election.state_since,
            term=self.state.leadership_term,
            leader_id=self.state.leader_id,
            log_term=self.store.log_term,
            start_position=self.store.start_position,
            append_position=self.store.append_position,
            commit_position=self.applier.commit_position,
            applied_position=self.applier.applied_position,
            elections=self.election.count,
            uptime_s=now - self.since,
            timestamp_ms=self.applier.timestamp_ms,
            parked=self.requests.parked,
            forwarded=self.requests.forwarded,
            incarnation=self.incarnation,
            entries=self.applier.entries,
            batches=self.applier.batches,
            commits=self.store.commits,
            lease_s=role.reads.lease_left if isinstance(role, Leadership) else 0.0,
            peers=tuple(self._peer_status(peer, now) for peer in self.state.peers),
            snapshot_position=newest.position if newest else -1,
            snapshot_activity=self.snapshots.activity,
            suspended=self.state.suspended,
            disk_full=self.state.disk_full,
            damage=self._damage,
            standing=self._standing,
            not_heard=tuple(self.founders.missing),
            snapshot_timestamp_ms=newest.timestamp_ms if newest else 0,
            snapshot_failure=self.snapshots.failure,
            clock_skew_ms=self.clocks.skew_ms(now_ms),
            config_version=self.state.membership.version,
            joint=self.state.membership.joint,
            voters=tuple(voter.member_id for voter in self.state.membership.voters),
            certificate_expires_ms=watch.expires_ms if watch else 0,
            certificate_trouble=watch.trouble if watch else "",
            leader_heard_ms=role.probe.heard_ms if isinstance(role, Following) else -1,
            leader_round_trip_ms=role.probe.round_trip_ms if isinstance(role, Following) else -1.0,
            etcd=self.etcd,
        )

    @property
    def _standing(self) -> str:
        """The word for whether this member has a vote."""
        if self.state.standby:
            return "standby"
        # Its store may vote, but no configuration counts it yet.
        if self.state.votes and self.state.own not in self.state.quorums.voters:
            return "joining"
        return STANDINGS[self.store.voting_status.kind]

    def _role_name(self, current: State) -> str:
        if isinstance(self.state.role, Leadership):
            return "leader"
        if current is State.CANDIDATE_BALLOT or current in LEADER_STATES:
            return "candidate"
        if self.state.standby:
            return "standby"
        return "witness" if self.state.witness else "follower"

    def _peer_status(self, peer: int, now: float) -> PeerStatus:
        role, links = self.state.role, self.links
        connected, trouble = links.connected(peer), links.trouble(peer)
        position, pulse = -1, None
        if isinstance(role, Leadership):
            if (follower := role.followers.get(peer)) is not None:
                pulse = follower.pulse
                position = follower.match if pulse.heard_at >= 0 else -1
        elif isinstance(role, Following) and peer == role.leader_id:
            pulse = role.pulse
        if pulse is None or pulse.heard_at < 0:
            return PeerStatus(peer, connected, position, None, trouble=trouble)
        heard = now - pulse.heard_at
        return PeerStatus(peer, connected, position, heard, pulse.count, pulse.missed, trouble)

    @property
    def _damage(self) -> str:
        """The damage that is not repaired yet, in words; empty if there is none."""
        applier, store = self.applier, self.store
        if self.state.tables_damage:
            return f"its tables are damaged, and it begins anew: {self.state.tables_damage}"
        if applier.remaking:
            at, end = applier.applied_position, applier.commit_position
            return f"its tables were damaged, and are made anew from the log: {at} of {end}"
        if applier.wanting:
            return "its tables are gone, and it waits for another member's snapshot"
        if store.recorded.lost != EMPTY_LOG:
            return (
                f"the end of its log, from {store.append_position} on, was damaged; until that is "
                "back, it votes only for candidates that have it"
            )
        return ""
