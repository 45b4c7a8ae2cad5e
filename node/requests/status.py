"""What a member reports of itself and of its cluster: plain data."""

from __future__ import annotations

import attrs


@attrs.frozen
class MemberAddress:
    """Where clients reach a member, and the other members, if that is known (else port 0).

    A `standby` follows and serves like the others, but has no vote. With a `redirect_port`,
    cluster clients are sent there, and `client_port` is for all other clients.
    """

    member_id: int
    host: str
    client_port: int
    member_port: int = 0
    standby: bool = False
    redirect_port: int = 0

    @property
    def cluster_port(self) -> int:
        """Where cluster clients reach it."""
        return self.redirect_port or self.client_port


@attrs.frozen
class Topology:
    """The cluster as this member last knew it; the leader is kept during an election."""

    members: tuple[MemberAddress, ...]
    leader_id: int | None
    term: int
    own_id: int
    is_leader: bool

    def address_of(self, member_id: int) -> MemberAddress:
        """Return the address of a member."""
        return next(member for member in self.members if member.member_id == member_id)


@attrs.frozen
class PeerStatus:
    """Another member, as seen from here. Positions are -1 and ages None when never heard.

    Between a leader and a follower both count the `heartbeats` that they heard of each other since
    one leads the other, and the intervals in which none came, `missed`. If there is no link to it,
    `trouble` says why.
    """

    member_id: int
    connected: bool
    append_position: int
    last_heard_s: float | None
    heartbeats: int = 0
    missed: int = 0
    trouble: str = ""


@attrs.frozen
class NodeStatus:
    """What a member says of itself. Ages and uptime in seconds, positions in bytes of the log.

    Of its clients' requests so many are `parked`, waiting for a leader, and so many `forwarded`,
    waiting for its answer. `snapshot_position` is that of the newest snapshot, -1 without one, and
    `snapshot_timestamp_ms` the log's time there, 0 without one; `snapshot_activity` says in words
    what is being done with one, if anything is. A cluster that is `suspended` takes no commands, a
    member whose disk is full (`disk_full`) appends nothing. Its `damage` says in words what was
    damaged here and has not come back yet, empty if nothing. The `standing` of its store is
    ``member`` once it has a vote, ``recovering`` before it is admitted, and ``fresh`` before the
    cluster was founded, for which it has `not_heard` of these members; that of a standby is
    ``standby``, and so is its `role`. Since its start it has applied so many `entries` in so many
    `batches`, and made so many durable `commits` to its log. By what was
    promised to a leader with a lease nobody else can lead for `lease_s` more; 0 if there is none.
    The clock of its machine is `clock_skew_ms` ahead of the log's time, as far as it knows that.
    """

    member_id: int
    cluster: str
    role: str
    state: str
    state_age_s: float
    term: int
    leader_id: int | None
    log_term: int
    start_position: int
    append_position: int
    commit_position: int
    applied_position: int
    elections: int
    uptime_s: float
    timestamp_ms: int
    parked: int
    forwarded: int
    incarnation: int
    snapshot_position: int
    snapshot_activity: str
    suspended: bool
    disk_full: bool
    damage: str
    standing: str
    not_heard: tuple[int, ...]
    entries: int
    batches: int
    commits: int
    lease_s: float
    clock_skew_ms: int
    peers: tuple[PeerStatus, ...]
    snapshot_timestamp_ms: int = 0
