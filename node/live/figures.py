"""The figures of a member, as Prometheus reads them; `docs/monitoring.md` says what for.

Everything is read at the moment of a scrape, and nothing that may block: free space, for which a
disk has to answer, is what the member's own watch found last. What is not known is left out: a
follower has no figure about how far another follower is behind, and an old one would look like a
new one. No figure has a label for this member, since Prometheus adds one (``instance``); ``peer``
is another member.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import trio

from quorate._version import __version__  # not of a room, so it has no other path

from ...metrics.family import Sample, counter, gauge, histogram, labelled
from ..leader.leadership import Leadership
from ..protocol.quorum import is_active
from ..protocol.states import State
from .process import process_families

if TYPE_CHECKING:
    from ...metrics import Family
    from ..requests.status import NodeStatus
    from .parts import Parts

__all__ = ["ROLES", "member_families"]

ROLES: Final = ("leader", "candidate", "follower", "standby", "witness")


def member_families(member: Parts) -> list[Family]:
    """Return all figures of a member as they are now."""
    status = member.status()
    return [
        *_identity(member, status),
        *_partition(member),
        *_standing(member, status),
        *_elections(member),
        *_positions(member, status),
        *_log(member, status),
        *_peers(member, status),
        *_durations(member),
        *_requests(member, status),
        *_snapshots(member, status),
        *_machine(member, status),
        *process_families(),
    ]


def _identity(member: Parts, status: NodeStatus) -> list[Family]:
    version, implementation = sys.version_info, sys.implementation.name
    python = f"{implementation} {version.major}.{version.minor}.{version.micro}"
    tls = str(int(status.certificate_expires_ms > 0))
    about = (("version", __version__), ("python", python), ("tls", tls))
    return [
        gauge("quorate_build_info", "What runs here.", (Sample(1, about),)),
        gauge(
            "quorate_config_version",
            "Version of the configuration in force; 0 for that of the founders.",
            status.config_version,
        ),
        gauge("quorate_voters", "Voters, by that configuration.", len(status.voters)),
        gauge("quorate_quorum", "Voters that a decision needs.", member.state.quorums.smallest),
    ]


def _partition(member: Parts) -> list[Family]:
    """Return which partition this is, as a figure to join the others with; none without one."""
    config = member.state.config
    if config.partition.folder is None:
        return []
    number = str(config.partition.number) if config.partition.is_one else "meta"
    group = config.cluster.rpartition(".")[0]
    about = (("cluster", group), ("partition", number), ("machine", str(config.member_id)))
    return [
        gauge("quorate_partition_info", "Which partition of which cluster.", (Sample(1, about),))
    ]


def _standing(member: Parts, status: NodeStatus) -> list[Family]:
    states = {state.name: float(state is member.election.current) for state in State}
    roles = {role: float(role == status.role) for role in ROLES}
    closed = member.election.current is State.CLOSED
    leads = status.role == "leader" and closed
    families = [
        gauge(
            "quorate_election_state",
            "1 for the state of the election that this member is in; CLOSED is none.",
            labelled("state", states),
        ),
        gauge("quorate_role", "1 for the role of this member.", labelled("role", roles)),
        gauge(
            "quorate_has_leader",
            "1 while this member leads, or follows a leader.",
            int(closed and status.leader_id is not None),
        ),
        gauge("quorate_is_leader", "1 while this member leads.", int(leads)),
        gauge("quorate_term", "The leadership term that this member is in.", status.term),
        gauge(
            "quorate_suspended", "1 while an operator has the cluster suspended.", status.suspended
        ),
    ]
    if leads:
        # Only a leader hears all voters; a follower hears its leader.
        families.append(
            gauge(
                "quorate_voters_heard",
                "Voters that the leader has heard within the heartbeat timeout, itself included.",
                _voters_heard(member),
            )
        )
        if status.lease_s > 0:
            # Not the log's time: Prometheus compares with a wall clock, and log time may be ahead.
            until = member.clocks.wall_ms() / 1000 + status.lease_s
            families.append(
                gauge(
                    "quorate_lease_expiry_timestamp_seconds",
                    "Until when nobody else can lead, by the promises to this leader.",
                    until,
                )
            )
    return families


def _voters_heard(member: Parts) -> int:
    state, role = member.state, member.state.role
    if not isinstance(role, Leadership):
        return 0
    now, timeout = trio.current_time(), state.timeouts.leader_heartbeat_timeout
    heard = {
        state.names[each.member_id]
        for each in role.followers.voters
        if is_active(each.heard_at, now, timeout)
    }
    return len({state.own, *heard} & state.quorums.voters)


def _elections(member: Parts) -> list[Family]:
    counts = member.state.counts
    elections = tuple(
        Sample(count, (("cause", cause), ("outcome", outcome)))
        for (cause, outcome), count in sorted(counts.elections.items())
    )
    return [
        counter(
            "quorate_elections_total",
            "Elections that this member ended as leader or follower, and attempts that failed.",
            elections,
        ),
        histogram(
            "quorate_election_duration_seconds",
            "Time from the end of the last role to the end of the election.",
            counts.election_duration,
        ),
        counter(
            "quorate_leader_changes_total",
            "How often another leader, or another term, was found than before.",
            counts.leader_changes,
        ),
        counter(
            "quorate_heartbeats_missed_total",
            "Intervals without a heartbeat of the leader, or of followers that came back.",
            counts.heartbeats_missed,
        ),
    ]


def _positions(member: Parts, status: NodeStatus) -> list[Family]:
    families = [
        gauge(
            "quorate_append_position_bytes",
            "Where the log of this member ends, synced or not.",
            member.store.submitted_position,
        ),
        gauge(
            "quorate_durable_position_bytes",
            "Where the log ends that this member's disk has.",
            status.append_position,
        ),
        gauge(
            "quorate_commit_position_bytes",
            "Everything below is known to be committed.",
            status.commit_position,
        ),
        gauge(
            "quorate_applied_position_bytes",
            "Everything below is applied to the state machine.",
            status.applied_position,
        ),
    ]
    if status.snapshot_position >= 0:
        families.append(
            gauge(
                "quorate_snapshot_position_bytes",
                "Position of the newest snapshot.",
                status.snapshot_position,
            )
        )
    return families


def _log(member: Parts, status: NodeStatus) -> list[Family]:
    applier = member.applier
    return [
        gauge(
            "quorate_log_bytes",
            "Bytes of log that are kept.",
            status.append_position - status.start_position,
        ),
        counter(
            "quorate_batches_committed_total",
            "Committed batches that were applied here.",
            applier.batches,
        ),
        counter(
            "quorate_entries_committed_total",
            "Committed entries that were applied here.",
            applier.entries,
        ),
        histogram("quorate_batch_entries", "Entries of a batch.", applier.batch_entries),
        counter(
            "quorate_log_damage_total",
            "Damaged batches that were met in the log; they are fetched from other members.",
            member.repair.met,
        ),
        gauge("quorate_damaged", "1 while damage is not repaired yet.", int(bool(status.damage))),
    ]


def _peers(member: Parts, status: NodeStatus) -> list[Family]:
    """Return what this member knows of other members: as a leader much, as a follower its links."""
    links, role, now_s = member.links, member.state.role, member.clocks.wall_ms() / 1000
    peers = {str(each.member_id): each for each in status.peers}
    traffic = {peer: links.traffic(each.member_id) for peer, each in peers.items()}
    heard = {
        peer: now_s - each.last_heard_s
        for peer, each in peers.items()
        if each.last_heard_s is not None
    }
    families = [
        gauge(
            "quorate_peer_connected",
            "1 while the link to the peer is up.",
            labelled("peer", {peer: float(each.connected) for peer, each in peers.items()}),
        ),
        gauge(
            "quorate_peer_last_heard_timestamp_seconds",
            "When the peer was last heard in this role.",
            labelled("peer", heard),
        ),
        counter(
            "quorate_peer_sent_bytes_total",
            "Bytes sent over the link to the peer.",
            labelled("peer", {peer: sent for peer, (sent, _) in traffic.items()}),
        ),
        counter(
            "quorate_peer_received_bytes_total",
            "Bytes received over the link from the peer.",
            labelled("peer", {peer: received for peer, (_, received) in traffic.items()}),
        ),
    ]
    if isinstance(role, Leadership):
        families += _lags(role, status)
    if status.leader_round_trip_ms >= 0 and status.leader_id is not None:
        families.append(
            gauge(
                "quorate_peer_round_trip_seconds",
                "How long the leader took to answer this standby.",
                labelled("peer", {str(status.leader_id): status.leader_round_trip_ms / 1000}),
            )
        )
    return families


def _lags(role: Leadership, status: NodeStatus) -> list[Family]:
    """Return how far followers are behind, which only their leader knows."""
    positions = {
        str(each.member_id): each.append_position
        for each in status.peers
        if each.append_position >= 0
    }
    end, replication = role.publication_position, role.replication
    behind = {peer: float(max(end - at, 0)) for peer, at in positions.items()}
    known = {peer: replication.lag_seconds(at) for peer, at in positions.items()}
    late = {peer: seconds for peer, seconds in known.items() if seconds is not None}
    return [
        gauge(
            "quorate_peer_lag_bytes",
            "Bytes of the leader's log that the peer has not reported as durable.",
            labelled("peer", behind),
        ),
        gauge(
            "quorate_peer_lag_seconds",
            "The peer has all that the leader had appended so long ago, to a heartbeat interval.",
            labelled("peer", late),
        ),
    ]


def _durations(member: Parts) -> list[Family]:
    counts = member.state.counts
    return [
        histogram(
            "quorate_disk_sync_duration_seconds",
            "How long it took to make a group of batches durable, by the thread that writes.",
            member.store.syncs,
        ),
        histogram(
            "quorate_commit_duration_seconds",
            "Time from the append of an entry to its commit, on the leader.",
            counts.commit_duration,
        ),
        histogram(
            "quorate_apply_duration_seconds",
            "How long the batch of an entry took to be applied.",
            member.applier.apply_duration,
        ),
        histogram(
            "quorate_loop_delay_seconds",
            "How late a timer of 50 ms fired in this process.",
            counts.loop_delay,
        ),
        counter(
            "quorate_clock_stall_total",
            "How often it was later than a quarter of the heartbeat timeout.",
            counts.clock_stalls,
        ),
    ]


def _requests(member: Parts, status: NodeStatus) -> list[Family]:
    counts = member.state.counts
    return [
        counter(
            "quorate_read_requests_total",
            "Requests to read, by the way in which they were answered; "
            "one request has the reads that were sent together.",
            labelled("way", counts.reads),
        ),
        gauge("quorate_requests_parked", "Requests that wait for a leader.", status.parked),
        gauge(
            "quorate_requests_at_leader",
            "Requests that wait for the leader's reply.",
            status.forwarded,
        ),
        counter(
            "quorate_requests_forwarded_total",
            "Requests that were sent to the leader.",
            counts.forwarded,
        ),
        counter(
            "quorate_requests_unknown_outcome_total",
            "Requests that were lost, and may or may not take effect.",
            counts.unknown_outcomes,
        ),
    ]


def _snapshots(member: Parts, status: NodeStatus) -> list[Family]:
    snapshots = member.snapshots
    families = [
        counter(
            "quorate_snapshots_total",
            "Snapshots by outcome.",
            labelled("outcome", snapshots.outcomes),
        ),
        histogram(
            "quorate_snapshot_duration_seconds",
            "How long it took to take one.",
            snapshots.duration,
        ),
    ]
    if status.snapshot_timestamp_ms:
        families.append(
            gauge(
                "quorate_snapshot_timestamp_seconds",
                "Log time of the newest snapshot.",
                status.snapshot_timestamp_ms / 1000,
            )
        )
    return families


def _machine(member: Parts, status: NodeStatus) -> list[Family]:
    families = [
        gauge(
            "quorate_disk_full",
            "1 while too little is free, so that this member appends nothing.",
            int(status.disk_full),
        ),
        gauge(
            "quorate_clock_skew_seconds",
            "How far this machine's clock is ahead of the log's time.",
            status.clock_skew_ms / 1000,
        ),
    ]
    if (free := member.disk_space.free_bytes) is not None:
        families += [
            gauge("quorate_disk_free_bytes", "Free on the disk with the log.", float(free)),
            gauge(
                "quorate_disk_size_bytes", "Size of that disk.", float(member.disk_space.size_bytes)
            ),
        ]
    if status.certificate_expires_ms:
        families.append(
            gauge(
                "quorate_certificate_expiry_timestamp_seconds",
                "When the certificate in use ends.",
                labelled("use", {"members": status.certificate_expires_ms / 1000}),
            )
        )
    return families
