"""What a member says of itself: one frozen picture of all its parts, made when it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import trio

from ...storage import VotingRight
from ..follower.following import Following
from ..leader.leadership import Leadership
from ..protocol.states import LEADER_STATES, State
from .gateway import NodeStatus, PeerStatus

if TYPE_CHECKING:
    from ..election.context import Election
    from ..state import Core
    from .router import Requests

# The words of `INFO` and of the command line, which programs read.
_STANDINGS = {
    VotingRight.NEW: "fresh",
    VotingRight.RECOVERING: "recovering",
    VotingRight.VOTER: "member",
}


@attrs.frozen
class Life:
    """One run of a member's process.

    Args:
        incarnation: a number that was drawn for it.
        since: when it began (trio's clock).
    """

    incarnation: int
    since: float


def status_of(
    core: Core, election: Election, requests: Requests, life: Life, now_ms: int
) -> NodeStatus:
    """Describe a member; `now_ms` is the log's time by now."""
    now, newest = trio.current_time(), core.snapshots.newest
    return NodeStatus(
        member_id=core.member_id,
        cluster=core.config.cluster,
        role=_role_name(core, election.state),
        state=election.state.name,
        state_age_s=now - election.state_since,
        term=core.leadership_term,
        leader_id=core.leader_id,
        log_term=core.store.log_term,
        start_position=core.store.start_position,
        append_position=core.store.append_position,
        commit_position=core.applier.commit_position,
        applied_position=core.applier.applied_position,
        elections=election.count,
        uptime_s=now - life.since,
        timestamp_ms=core.applier.timestamp_ms,
        parked=requests.parked,
        forwarded=requests.forwarded,
        incarnation=life.incarnation,
        entries=core.applier.entries,
        batches=core.applier.batches,
        commits=core.store.commits,
        lease_s=core.role.reads.lease_left if isinstance(core.role, Leadership) else 0.0,
        peers=tuple(_peer_status(core, peer, now) for peer in core.peers),
        snapshot_position=newest.position if newest else -1,
        snapshot_activity=core.snapshots.activity,
        suspended=core.suspended,
        disk_full=core.disk_full,
        damage=core.damage,
        standing="standby" if core.standby else _STANDINGS[core.store.voting_status.kind],
        not_heard=tuple(core.founders.missing),
        snapshot_timestamp_ms=newest.timestamp_ms if newest else 0,
        clock_skew_ms=core.clocks.skew_ms(now_ms),
    )


def _role_name(core: Core, state: State) -> str:
    if isinstance(core.role, Leadership):
        return "leader"
    if state is State.CANDIDATE_BALLOT or state in LEADER_STATES:
        return "candidate"
    return "standby" if core.standby else "follower"


def _peer_status(core: Core, peer: int, now: float) -> PeerStatus:
    role, links = core.role, core.links
    connected, trouble = links.connected(peer), links.trouble(peer)
    position, pulse = -1, None
    if isinstance(role, Leadership):
        follower = role.followers[peer]
        pulse = follower.pulse
        position = follower.match if pulse.heard_at >= 0 else -1
    elif isinstance(role, Following) and peer == role.leader_id:
        pulse = role.pulse
    if pulse is None or pulse.heard_at < 0:
        return PeerStatus(peer, connected, position, None, trouble=trouble)
    heard = now - pulse.heard_at
    return PeerStatus(peer, connected, position, heard, pulse.heartbeats, pulse.missed, trouble)
