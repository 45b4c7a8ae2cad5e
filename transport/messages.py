"""The messages between members, as frozen data.

The catalogue is that of Aeron Cluster's consensus stream (canvass, ballot, new leadership term,
positions), with the fields under their own names in snake case, plus what makes the protocol safe
and what carries the log itself:

- ``Vote`` tells why, and in which term the voter lives; ``NewLeadershipTerm`` carries the leader's
  table of terms, so that a follower finds the longest common prefix in one step.
- ``AppendPosition`` has a READY flag and echoes a confirmation number; ``CommitPosition`` carries
  that number out. Together they are the quorum round of a linearizable read.
- ``LogSubscribe``, ``LogJoined`` and ``LogBatch`` are the live log; ``ReplayRequest`` opens a
  replay on a stream of its own; ``ForwardRequest`` and ``ForwardReply`` carry client requests.
- ``Hello`` and ``HelloReply`` are the first frames of every connection, and appear nowhere else.

Every integer has a width on the wire, which its annotation gives: ``I64`` is an ``int`` for a type
checker and a signed 64-bit integer for ``wire.py``, which compiles its codecs from these classes.
A position is a byte offset in the one endless log; ``NULL_VALUE`` stands for "none". Terms,
positions and times have bounds, so that receivers can compute with them. This room judges form
only: whether a position or a term makes sense is the receiver's business.
"""

from typing import TypeAlias

import attrs

from .fields import (
    I32,
    I64,
    NULL_VALUE,
    PROTOCOL_VERSION,
    U8,
    U64,
    AppendFlags,
    Clock,
    Count,
    HelloStatus,
    Milliseconds,
    Position,
    StreamPurpose,
    Term,
    VoteReason,
)


@attrs.frozen
class Hello:
    """The first frame of a connection: who dials, and what for.

    Args:
        cluster: name of the cluster.
        member_id: the dialling member; -1 for a client or a tool.
        protocol_version: see `PROTOCOL_VERSION`.
        incarnation: random number of the dialling process, drawn once at its start.
        purpose: what the connection is for.
        log_session_id: for CATCHUP, the log session that the follower wants to join.
        join_position: for CATCHUP, the position from which it wants the log.
        called_member_id: the member that the dialler believes to reach; -1 if any will do.
        history: of the cluster, as the dialler's store knows it; 0 if it does not know.
        service: the kind of the dialler's service, empty for a tool.
    """

    cluster: str
    member_id: I32
    protocol_version: I32
    incarnation: U64
    purpose: StreamPurpose
    log_session_id: I32 = NULL_VALUE
    join_position: Position = NULL_VALUE
    called_member_id: I32 = NULL_VALUE
    history: U64 = 0
    service: str = ""


@attrs.frozen
class HelloReply:
    """The answer to a hello: accepted, or refused with what was found and what expected."""

    member_id: I32
    status: HelloStatus
    reason: str
    incarnation: U64


@attrs.frozen
class CanvassPosition:
    """How far the sender's log goes; sent again and again while it looks for a leader."""

    log_leadership_term_id: Term
    log_position: Position
    leadership_term_id: Term
    follower_member_id: I32
    protocol_version: I32 = PROTOCOL_VERSION


@attrs.frozen
class RequestVote:
    """A candidate asks for a vote in `candidate_term_id`.

    With `force` even of those that hear a leader: it was the leader that asked it to stand. With
    `even_if_behind` even of those whose log goes further: before it leads it fetches what it lacks.
    """

    log_leadership_term_id: Term
    log_position: Position
    candidate_term_id: Term
    candidate_member_id: I32
    protocol_version: I32 = PROTOCOL_VERSION
    force: bool = False
    even_if_behind: bool = False


@attrs.frozen
class TermSpan:
    """One leadership term in a recording log: positions [base, end), end -1 = open."""

    term: Term
    base: Position
    end: Position


@attrs.frozen
class Vote:
    """The answer to a RequestVote.

    Args:
        candidate_term_id: term that the candidate asked for.
        log_leadership_term_id: term at the end of the voter's log.
        log_position: end of the voter's log.
        candidate_member_id: who asked.
        follower_member_id: who answers.
        vote: given or refused.
        voter_candidate_term_id: highest term that the voter has durably promised.
        reason: why.
        terms: for a candidate that may be behind, the terms of the voter's log, ascending, from
            about the end of the candidate's on; the last one's end is that of the log.
        timestamp: what the voter's clock shows, in ms since the epoch.
    """

    candidate_term_id: Term
    log_leadership_term_id: Term
    log_position: Position
    candidate_member_id: I32
    follower_member_id: I32
    vote: bool
    voter_candidate_term_id: Term
    reason: VoteReason
    terms: tuple[TermSpan, ...] = ()
    timestamp: Clock = NULL_VALUE


@attrs.frozen
class Scout:
    """A member asks, before it raises its term, whether it would get a vote in that term.

    Args:
        proposed_term_id: the term that it would stand in.
        log_leadership_term_id: term at the end of its log.
        log_position: end of its log.
        member_id: who asks.
        nonce: which round of questions this is; the answer quotes it.
        force: the leader has asked it to take over.
        even_if_behind: it would fetch what its log lacks before it leads.
    """

    proposed_term_id: Term
    log_leadership_term_id: Term
    log_position: Position
    member_id: I32
    nonce: I64
    force: bool = False
    even_if_behind: bool = False


@attrs.frozen
class ScoutReply:
    """The answer to a Scout; it binds nobody.

    Args:
        proposed_term_id: as asked.
        nonce: as asked.
        member_id: who answers.
        reason: GRANTED for yes, anything else for no.
        candidate_term_id: the highest term that the answering member has durably promised.
    """

    proposed_term_id: Term
    nonce: I64
    member_id: I32
    reason: VoteReason
    candidate_term_id: Term


@attrs.frozen
class NewLeadershipTerm:
    """The leader's answer to a canvass: its term, and what follows the sender's log term.

    ``commit_position`` is safe to apply up to; ``replication_position`` only tells how far the
    leader's own replication has come. ``terms`` is the tail of the leader's table of terms,
    ascending, at most `MAX_TERM_SPANS` of them. ``timestamp`` is in ms since the epoch. The
    leader has no log below ``oldest_position``: who needs it installs a snapshot. Whoever echoes a
    confirmation number helps nobody else to lead for ``lease_ms``.
    """

    log_leadership_term_id: Term
    next_leadership_term_id: Term
    next_term_base_log_position: Position
    next_log_position: Position
    leadership_term_id: Term
    term_base_log_position: Position
    log_position: Position
    leader_recording_id: I64
    timestamp: Milliseconds
    leader_member_id: I32
    log_session_id: I32
    app_version: I32
    is_startup: bool
    commit_position: Position
    replication_position: Position
    terms: tuple[TermSpan, ...]
    oldest_position: Position = 0
    lease_ms: I32 = 0


@attrs.frozen
class AppendPosition:
    """How far the follower has durably recorded the log of this term.

    ``timestamp`` is what its clock shows, in ms since the epoch, unless a read waits for this.
    """

    leadership_term_id: Term
    log_position: Position
    follower_member_id: I32
    flags: AppendFlags
    confirm_id: Count
    timestamp: Clock = NULL_VALUE


@attrs.frozen
class CommitPosition:
    """How far the log is committed; also the leader's heartbeat.

    ``timestamp`` is the log's time by now, in ms since the epoch, of a heartbeat.
    """

    leadership_term_id: Term
    log_position: Position
    leader_member_id: I32
    confirm_id: Count
    timestamp: Clock = NULL_VALUE


@attrs.frozen
class CatchupPosition:
    """A follower asks for the log from `log_position`, to be sent to `catchup_endpoint`."""

    leadership_term_id: Term
    log_position: Position
    follower_member_id: I32
    catchup_endpoint: str


@attrs.frozen
class StopCatchup:
    """The leader tells a follower that it has the live log and needs no catch-up any more."""

    leadership_term_id: Term
    follower_member_id: I32


@attrs.frozen
class StaleLeader:
    """Tells a leader of an older term which term the sender lives in."""

    leadership_term_id: Term
    member_id: I32


@attrs.frozen
class LeadershipCession:
    """The leader gives up its leadership."""

    leadership_term_id: Term
    log_position: Position
    leader_member_id: I32


@attrs.frozen
class TimeoutNow:
    """The leader asks `member_id` to take over (Raft dissertation, section 3.10).

    With `even_if_behind` although its log does not reach as far as the leader's; `by_operator` if
    an operator has chosen it.
    """

    leadership_term_id: Term
    leader_member_id: I32
    member_id: I32
    even_if_behind: bool = False
    by_operator: bool = False


@attrs.frozen
class TerminationPosition:
    """The leader asks a follower to stop in order once it has applied the log up to a position."""

    leadership_term_id: Term
    log_position: Position


@attrs.frozen
class TerminationAck:
    """A follower has applied the log up to the position of termination, and stops."""

    leadership_term_id: Term
    log_position: Position
    member_id: I32


@attrs.frozen
class LogSubscribe:
    """A follower asks the leader for the live log on the leader's link to it."""

    leadership_term_id: Term
    log_session_id: I32
    follower_member_id: I32


@attrs.frozen
class LogJoined:
    """The leader's answer: live batches follow on this link, from `join_position` on."""

    leadership_term_id: Term
    log_session_id: I32
    join_position: Position
    leader_member_id: I32


@attrs.frozen
class LogBatch:
    """One record batch of the log, opaque here: the same bytes as in the recordings."""

    leadership_term_id: Term
    confirm_id: Count
    batch: bytes


@attrs.frozen
class ForwardRequest:
    """A client's request that a member passes on to the leader.

    A command may belong to a client's session, with a sequence number there; 0 for none.
    """

    request_id: I64
    kind: U8
    flags: U8
    payload: bytes
    session: U64 = 0
    sequence: U64 = 0


@attrs.frozen
class ForwardReply:
    """The leader's answer to a ForwardRequest."""

    request_id: I64
    status: U8
    payload: bytes


@attrs.frozen
class FoundingStore:
    """The store of a member, by the number that was drawn when it was made."""

    member_id: I32
    instance_id: U64


@attrs.frozen
class Founding:
    """A member whose store is fresh tells so, again and again, until the cluster is founded.

    A member that has a vote answers it with the stores with which the cluster began.

    Args:
        member_id: who tells.
        instance_id: of its store.
        founded: the sender has a vote; else its store is fresh.
        log_term: term at the end of its log; if it is founded, of the longest one back then.
        log_position: where that log ends.
        stores: those with which the cluster began, or the fresh ones that the sender has heard of,
            its own included; ascending by member.
    """

    member_id: I32
    instance_id: U64
    founded: bool
    log_term: Term
    log_position: Position
    stores: tuple[FoundingStore, ...]


@attrs.frozen
class AdmissionRequest:
    """A follower that has the leader's log asks to be admitted with its store."""

    leadership_term_id: Term
    member_id: I32
    instance_id: U64


@attrs.frozen
class ReplayRequest:
    """First frame of a replay stream: send the log [position, stop_position)."""

    position: Position
    stop_position: I64


@attrs.frozen
class BackupQuery:
    """First frame of a backup stream: say what you have.

    A `ReplayRequest` may follow on the same stream: committed batches are sent from there on, as
    they are committed, and a `CommitPosition` again and again.
    """

    protocol_version: I32 = PROTOCOL_VERSION


@attrs.frozen
class BackupResponse:
    """The answer to a `BackupQuery`.

    Args:
        member_id: who answers.
        leader_member_id: who leads, as far as it knows; -1 if it does not.
        leadership_term_id: the term that it lives in.
        start_position: where its log begins.
        commit_position: up to where it knows the log to be committed.
        snapshot_position: of its newest snapshot, -1 without one.
        snapshot_term: leadership term there.
        snapshot_bytes: length of its file.
        standby: it has no vote; readers disturb it least.
        service: the kind of its service.
    """

    member_id: I32
    leader_member_id: I32
    leadership_term_id: Term
    start_position: Position
    commit_position: Position
    snapshot_position: Position = NULL_VALUE
    snapshot_term: Term = NULL_VALUE
    snapshot_bytes: Count = 0
    standby: bool = False
    service: str = ""


@attrs.frozen
class SnapshotRequest:
    """First frame of a snapshot stream: send your newest snapshot.

    If that is the one of `position` and `term`, only from byte `offset` of its file on; NULL_VALUE
    for whatever it is.
    """

    position: Position
    term: Term
    offset: Count


@attrs.frozen
class SnapshotOffer:
    """The answer: parts of a snapshot's file follow, from byte `offset` to `file_bytes`.

    `head` is the first part of the file; it is empty if there is no snapshot.
    """

    offset: Count
    file_bytes: Count
    head: bytes


@attrs.frozen
class SnapshotPart:
    """The next part of a snapshot's file, from byte `offset` on; opaque here."""

    offset: Count
    part: bytes


Message: TypeAlias = (
    Hello
    | HelloReply
    | CanvassPosition
    | RequestVote
    | Vote
    | NewLeadershipTerm
    | AppendPosition
    | CommitPosition
    | CatchupPosition
    | StopCatchup
    | StaleLeader
    | LeadershipCession
    | TimeoutNow
    | Scout
    | ScoutReply
    | LogSubscribe
    | LogJoined
    | LogBatch
    | ForwardRequest
    | ForwardReply
    | Founding
    | AdmissionRequest
    | ReplayRequest
    | TerminationPosition
    | TerminationAck
    | BackupQuery
    | BackupResponse
    | SnapshotRequest
    | SnapshotOffer
    | SnapshotPart
)
