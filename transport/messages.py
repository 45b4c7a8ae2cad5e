"""The messages between members, as frozen data.

The catalogue is that of Aeron Cluster's consensus stream (canvass, ballot, new leadership term,
positions), with Aeron's field names in snake case. Added is what makes the protocol safe, and what
carries the log:

- ``Vote`` says why, and which term the voter has promised. ``NewLeadershipTerm`` carries the
  leader's term table, so a follower finds the longest common prefix in one step.
- ``AppendPosition`` has a READY flag and echoes a confirmation number that ``CommitPosition``
  carries out. Together they are the quorum round of a linearizable read.
- ``LogSubscribe``, ``LogJoined`` and ``LogBatch`` are the live log. ``ReplayRequest`` opens a
  replay on a stream of its own. ``ForwardRequest`` and ``ForwardReply`` carry client requests.
- ``Hello`` and ``HelloReply`` are the first frames of every connection, and appear nowhere else.
  ``Challenge`` and ``ChallengeResponse`` come between them where a cluster key is set.

An annotation gives an integer's width on the wire: ``I64`` is an ``int`` for a type checker, and a
signed 64-bit integer for `codec`, which compiles its codecs from these classes. A position is a
byte offset in the one endless log; ``NULL_VALUE`` stands for "none". Terms, positions and times
have bounds, so receivers can compute with them. A term must be annotated as ``Term``: by that a
member finds the terms that it does not believe (`node/protocol/untrusted.py`).
"""

from typing import TypeAlias

import attrs

from .fields import (
    I32,
    I64,
    NULL_VALUE,
    PROTOCOL_VERSION,
    U8,
    U32,
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
    """The first frame of a connection: the dialling member, and the purpose.

    Args:
        cluster: name of the cluster.
        member_id: the dialling member; -1 for a client or a tool.
        protocol_version: see `PROTOCOL_VERSION`.
        incarnation: random number of the dialling process, drawn at its start.
        purpose: of the connection.
        log_session_id: for CATCHUP, the log session that the follower wants to join. For CONSENSUS,
            the number of this link, by which two recordings know that they mean the same one.
        join_position: for CATCHUP, the position from which it wants the log.
        called_member_id: the member that the dialler expects; -1 if any will do.
        history: of the cluster, as the dialler's store knows it; 0 if unknown.
        instance: of the dialler's store; 0 for a client or a tool. A vote or a position counts for
            this store, not for any store of the member.
        service: kind of the dialler's service, empty for a tool.
        host: where other members dial the dialler; empty for a tool.
        port: of that address, 0 for a tool.
        credentials: of the dialler; with a cluster key its random bytes for this connection.
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
    instance: U64 = 0
    service: str = ""
    host: str = ""
    port: I32 = 0
    credentials: bytes = b""


@attrs.frozen
class HelloReply:
    """The answer to a hello.

    Args:
        member_id: the answering member.
        status: accepted, or why not.
        reason: if refused, what was found and what expected, in words.
        incarnation: random number of the answering process.
    """

    member_id: I32
    status: HelloStatus
    reason: str
    incarnation: U64


@attrs.frozen
class Challenge:
    """The listener asks the dialler to prove who it is, and proves who it is itself.

    Args:
        correlation_id: of what is challenged; always 0, for the one hello.
        session_id: of this connection, at the listener; the response repeats it.
        challenge: for the dialler's `CredentialsSupplier`.
    """

    correlation_id: I64
    session_id: I64
    challenge: bytes


@attrs.frozen
class ChallengeResponse:
    """The dialler's answer to a `Challenge`."""

    correlation_id: I64
    session_id: I64
    credentials: bytes


@attrs.frozen
class HeartbeatRequest:
    """A standby or a monitor asks the leader for a sign of life.

    The leader answers at once. It may ask for credentials; without any, those of the connection
    count.
    """

    correlation_id: I64
    credentials: bytes = b""


@attrs.frozen
class HeartbeatResponse:
    """The answer to a `HeartbeatRequest`, with its number."""

    correlation_id: I64


@attrs.frozen
class CanvassPosition:
    """How far the sender's log goes; repeated while it looks for a leader."""

    log_leadership_term_id: Term
    log_position: Position
    leadership_term_id: Term
    follower_member_id: I32
    protocol_version: I32 = PROTOCOL_VERSION


@attrs.frozen
class RequestVote:
    """A candidate asks for a vote in `candidate_term_id`.

    With `force`, voters that hear a leader may vote too: that leader asked the candidate to stand.
    With `even_if_behind`, voters whose log goes further may vote too: the candidate fetches what
    its log is missing before it leads.
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
    """One leadership term in a term table: positions [base, end), end -1 = open."""

    term: Term
    base: Position
    end: Position


@attrs.frozen
class Vote:
    """The answer to a RequestVote.

    Args:
        candidate_term_id: the term that the candidate asked for.
        log_leadership_term_id: term at the end of the voter's log.
        log_position: end of the voter's log.
        candidate_member_id: the candidate.
        follower_member_id: the voter.
        vote: given or refused.
        voter_candidate_term_id: highest term that the voter has durably promised.
        reason: why.
        terms: for a candidate that may be behind: terms of the voter's log, ascending, from about
            the end of the candidate's log on. The last one ends where the log does.
        timestamp: the voter's clock, ms since the epoch.
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
    """A pre-vote: before it raises its term, a member asks whether it would get a vote.

    Args:
        proposed_term_id: the term that it would stand in.
        log_leadership_term_id: term at the end of its log.
        log_position: end of its log.
        member_id: the asking member.
        nonce: of this round; the answer repeats it.
        force: the leader asked it to take over.
        even_if_behind: it would fetch what its log is missing before it leads.
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
    """The answer to a Scout; not binding.

    Args:
        proposed_term_id: as asked.
        nonce: as asked.
        member_id: the answering member.
        reason: GRANTED for yes, anything else for no.
        candidate_term_id: highest term that the answering member has durably promised.
    """

    proposed_term_id: Term
    nonce: I64
    member_id: I32
    reason: VoteReason
    candidate_term_id: Term


@attrs.frozen
class NewLeadershipTerm:
    """The leader's answer to a canvass: its term, and its term table.

    ``log_leadership_term_id`` is the last term of the asker's log. The three fields that begin with
    ``next_`` are number, base and end of the term after it in the leader's table. The leader's own
    term is ``leadership_term_id``, which begins at ``term_base_log_position``; its log ends at
    ``log_position``.

    ``commit_position`` is safe to apply up to; ``replication_position`` is durable on a quorum, and
    perhaps not committed yet. ``terms`` holds rows of the leader's table around the asker's log
    term, ascending, at most `MAX_TERM_SPANS`; its own term is the last. ``timestamp`` is in ms
    since the epoch. The leader has no log below ``oldest_position``: a member that needs it
    installs a snapshot. A member that echoes a confirmation number helps no other candidate for
    ``lease_ms``. ``leader_recording_id`` and ``app_version`` are Aeron's; nobody reads them.
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

    ``timestamp`` is its clock in ms since the epoch, unless a read waits for this message.
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

    In a heartbeat ``timestamp`` is the log time by now, in ms since the epoch.
    """

    leadership_term_id: Term
    log_position: Position
    leader_member_id: I32
    confirm_id: Count
    timestamp: Clock = NULL_VALUE


@attrs.frozen
class CatchupPosition:
    """A follower asks for the log from `log_position` on, at `catchup_endpoint`."""

    leadership_term_id: Term
    log_position: Position
    follower_member_id: I32
    catchup_endpoint: str


@attrs.frozen
class StopCatchup:
    """The leader reports that a follower has the live log and needs no catch-up any more."""

    leadership_term_id: Term
    follower_member_id: I32


@attrs.frozen
class StaleLeader:
    """Reports to a leader of an older term which term the sender is in."""

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

    With `even_if_behind` although its log ends before the leader's; `by_operator` if an operator
    chose it.
    """

    leadership_term_id: Term
    leader_member_id: I32
    member_id: I32
    even_if_behind: bool = False
    by_operator: bool = False


@attrs.frozen
class TerminationPosition:
    """The leader asks a follower to stop once it has applied the log up to a position."""

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
    """One record batch, opaque here: the same bytes as in the members' logs."""

    leadership_term_id: Term
    confirm_id: Count
    batch: bytes


@attrs.frozen
class ForwardRequest:
    """A client's request that a member passes on to the leader.

    A command may belong to a client's session, with a sequence number in it; 0 for none. The
    principal is the number of the user that the sending member has let in; 0 for `default`. The
    rules are the version of those by which that member has allowed it; 0 for none.
    """

    request_id: I64
    kind: U8
    flags: U8
    payload: bytes
    session: U64 = 0
    sequence: U64 = 0
    principal: U32 = 0
    rules: U64 = 0


@attrs.frozen
class ForwardReply:
    """The leader's answer to a ForwardRequest."""

    request_id: I64
    status: U8
    payload: bytes


@attrs.frozen
class FoundingStore:
    """The store of a member, by the number drawn when it was made."""

    member_id: I32
    instance_id: U64


@attrs.frozen
class Founding:
    """A member with a NEW store announces it, repeatedly, until the cluster is founded.

    A member that has a vote answers with the stores that the cluster was founded with.

    Args:
        member_id: the sender.
        instance_id: of its store.
        founded: the sender has a vote; otherwise its store is NEW.
        log_term: term at the end of its log; if founded, of the longest log at the founding.
        log_position: where that log ends.
        stores: the founding stores; or the NEW stores that the sender knows of, its own included.
            Ascending by member.
    """

    member_id: I32
    instance_id: U64
    founded: bool
    log_term: Term
    log_position: Position
    stores: tuple[FoundingStore, ...]


@attrs.frozen
class AdmissionRequest:
    """A follower that has the leader's log asks for the admission of its store."""

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
    """First frame of a backup stream: report what you have.

    A `ReplayRequest` may follow on the same stream. Committed batches then come from there on, as
    they are committed, with a `CommitPosition` again and again.
    """

    protocol_version: I32 = PROTOCOL_VERSION


@attrs.frozen
class BackupResponse:
    """The answer to a `BackupQuery`.

    Args:
        member_id: the answering member.
        leader_member_id: the leader that it knows; -1 if none.
        leadership_term_id: the term that it is in.
        start_position: where its log begins.
        commit_position: it knows the log to be committed up to here.
        snapshot_position: of its newest snapshot, -1 without one.
        snapshot_term: leadership term there.
        snapshot_bytes: length of the snapshot's file.
        standby: it has no vote, so readers disturb the cluster least there.
        service: kind of its service.
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

    If that is the one of `position` and `term`, send its file from byte `offset` on. NULL_VALUE
    asks for any.
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


@attrs.frozen
class EventsQuery:
    """First frame of a stream of events: report what happens to you, until the stream ends."""

    protocol_version: I32 = PROTOCOL_VERSION


@attrs.frozen
class EventsReport:
    """What has happened to the sender: lines of JSON, each an event, as in a recording."""

    lines: bytes


Message: TypeAlias = (
    Hello
    | HelloReply
    | Challenge
    | ChallengeResponse
    | HeartbeatRequest
    | HeartbeatResponse
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
    | EventsQuery
    | EventsReport
)
