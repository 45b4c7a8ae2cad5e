"""What a member reports of itself and of its cluster: plain data."""

from __future__ import annotations

import attrs


@attrs.frozen
class MemberAddress:
    """Where clients reach a member. Ports are 0 if they are not known or not set.

    Args:
        member_id: its id.
        host: name or IP address.
        client_port: TCP port for clients, 0 for none.
        member_port: TCP port for other members.
        standby: it follows and serves like any member, but has no vote.
        redirect_port: TCP port to which cluster clients are sent; 0 sends them to `client_port`.
        witness: it has a vote and no tables, so no client is sent there.
        tls_port: TCP port for clients with TLS, 0 for none.
    """

    member_id: int
    host: str
    client_port: int
    member_port: int = 0
    standby: bool = False
    redirect_port: int = 0
    witness: bool = False
    tls_port: int = 0

    def port(self, *, tls: bool) -> int:
        """Return the port for clients with or without TLS."""
        return self.tls_port if tls else self.client_port

    def cluster_port(self, *, tls: bool) -> int:
        """Return the port to which cluster clients with or without TLS are sent."""
        # The redirect port speaks TLS only if nothing else is spoken.
        redirect = self.redirect_port if tls == (not self.client_port) else 0
        return redirect or self.port(tls=tls)


@attrs.frozen
class Topology:
    """The cluster as this member last knew it.

    Args:
        members: all members, ascending by id.
        leader_id: the last known leader, also during an election; None before the first, and if
            it is a witness, to which no client is sent.
        term: the leadership term that this member is in.
        own_id: this member.
        is_leader: this member leads and takes requests.
        version: of the configuration.
        quorum: how many members have what is committed, at least.
        witness: this member is a witness: it has no tables.
    """

    members: tuple[MemberAddress, ...]
    leader_id: int | None
    term: int
    own_id: int
    is_leader: bool
    version: int = 0
    quorum: int = 1
    witness: bool = False

    def address_of(self, member_id: int) -> MemberAddress | None:
        """Return the address of a member; None if it has none any more."""
        return next((each for each in self.members if each.member_id == member_id), None)


@attrs.frozen
class PeerStatus:
    """Another member, as this one sees it.

    Args:
        member_id: its id.
        connected: our link to it is up.
        append_position: where its log ends, as known to us while we lead; -1 if never heard.
        last_heard_s: seconds since it was last heard in our role; None if never.
        heartbeats: heartbeats received since one of the two members leads the other.
        missed: heartbeat intervals since then in which nothing came.
        trouble: why there is no link to it; empty if there is one.
    """

    member_id: int
    connected: bool
    append_position: int
    last_heard_s: float | None
    heartbeats: int = 0
    missed: int = 0
    trouble: str = ""


@attrs.frozen
class EtcdStatus:
    """The etcd keyspace, as a member has applied it, and the member's port for it.

    Args:
        revision: the last one.
        compacted: the first revision that can still be read; 0 while all can.
        keys: that exist.
        leases: that exist.
        watches: of the clients of this member.
        connections: of clients to this member.
    """

    revision: int
    compacted: int
    keys: int
    leases: int
    watches: int
    connections: int


@attrs.frozen
class NodeStatus:
    """What a member reports of itself. Ages and uptime are seconds; positions are bytes of the log.

    Args:
        member_id: its id.
        cluster: name of its cluster.
        role: "leader", "candidate", "follower", "standby" or "witness".
        state: state of the election, by its name in `State`.
        state_age_s: how long it has been in that state.
        term: the leadership term that it is in.
        leader_id: the last known leader, None before the first.
        log_term: the term of the last batch in its log.
        start_position: where its log begins.
        append_position: where its durable log ends.
        commit_position: everything below is known to be committed.
        applied_position: everything below is applied to the service.
        elections: how many elections it took part in since its start.
        uptime_s: time since its start.
        timestamp_ms: log time of the last applied batch, milliseconds since the epoch.
        parked: requests of its clients that wait for a leader.
        forwarded: requests of its clients that wait for the leader's reply.
        incarnation: random number of this run of the process.
        snapshot_position: position of the newest snapshot, -1 without one.
        snapshot_activity: what is being done with a snapshot, in words; empty if nothing.
        suspended: an operator has suspended the cluster, which takes no commands.
        disk_full: less than the reserve is free, and the member appends nothing.
        damage: what was damaged here and is not repaired yet, in words; empty if nothing.
        standing: its voting status: ``member`` once its store has a vote, ``recovering`` before it
            is admitted, ``fresh`` before the cluster was founded, ``standby`` if it never votes,
            ``joining`` if its store may vote and it is no voter yet.
        not_heard: members that a NEW store has not heard, without which it cannot found the
            cluster.
        entries: entries applied since the start.
        batches: batches applied since the start.
        commits: durable commits of its log since the start.
        lease_s: for how long nobody else can lead, by the promises to a leader with a lease; else
            0.
        clock_skew_ms: how far the machine's clock is ahead of the log's time, as far as is known.
        peers: the other members.
        snapshot_timestamp_ms: log time of the newest snapshot, 0 without one.
        snapshot_failure: why the last snapshot that ended failed, in words; empty if it did not.
        config_version: of the configuration in force in its log; 0 for what the founders' files
            say.
        joint: the voters are changing.
        voters: the members that are voters by that configuration; in a joint one the new voters.
        certificate_expires_ms: when the certificate in use ends, milliseconds since the epoch; 0
            without one.
        certificate_trouble: why new files of a certificate are not used, in words; empty if none.
        leader_heard_ms: of a standby: how long ago the leader answered it last, in milliseconds;
            -1 if it has not.
        leader_round_trip_ms: of a standby: how long that answer took, in milliseconds.
        etcd: of the port for clients of etcd; None on a member without one.
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
    snapshot_failure: str = ""
    config_version: int = 0
    joint: bool = False
    voters: tuple[int, ...] = ()
    certificate_expires_ms: int = 0
    certificate_trouble: str = ""
    leader_heard_ms: int = -1
    leader_round_trip_ms: float = -1.0
    etcd: EtcdStatus | None = None
