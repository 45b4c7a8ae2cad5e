"""Facts: what an observer sees happen in a cluster, one frozen value each.

Invariants see facts and nothing else. So each can be tested by itself on a handful of facts, and a
violation can be planted. *Durable* in a fact means that the member's store has reported it durable.
Positions are bytes of the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import attrs

if TYPE_CHECKING:
    from ...node.protocol.membership import Membership
    from ...transport import AppendPosition, NewLeadershipTerm, RequestVote, Vote

    Claim: TypeAlias = RequestVote | Vote | AppendPosition | NewLeadershipTerm


@attrs.frozen
class Batch:
    """A record batch of a log.

    Args:
        position: where it begins.
        end: where it ends.
        term: of the leader that made it.
        prefix: stands for all bytes of the log up to its end.
        membership: the configuration that it carries, None for every other batch.
    """

    position: int
    end: int
    term: int
    prefix: bytes
    membership: Membership | None = None


@attrs.frozen(order=True)
class Point:
    """A place in the order of the log, at which an operation took effect.

    A command's is the position of its batch and its place in it. A query's is the position up to
    which everything was applied when it was answered, and -1: behind every command before that.
    """

    position: int
    index: int


# --- members --------------------------------------------------------------------------------------


@attrs.frozen
class Started:
    """A member has started, with this on its disk.

    Args:
        member: which.
        append: where its log ends.
        term: the highest it has promised.
        voted_for: the candidate it voted for in that term, -1 for none.
        instance: of its store.
    """

    member: int
    append: int
    term: int
    voted_for: int
    instance: int = 0


@attrs.frozen
class Created:
    """There is a machine for a new member, with an empty disk."""

    member: int


@attrs.frozen
class Wiped:
    """A member's disk is lost, with all that was on it."""

    member: int


@attrs.frozen
class Deleted:
    """A file that is not quorate's has gone from a member's folder.

    Args:
        member: whose folder.
        name: of the file.
    """

    member: int
    name: str


@attrs.frozen
class CutOff:
    """The end of a member's log was damaged, and is cut off, durably; it remembers that."""

    member: int
    position: int


@attrs.frozen
class VotingStatus:
    """A member's store has a vote, or none yet.

    Args:
        member: which.
        votes: whether it has one.
        floor: up to there its log is of a history before; configurations in it mean nothing.
    """

    member: int
    votes: bool
    floor: int = 0


@attrs.frozen
class Truncating:
    """A member has begun to cut its log; after a crash it may be cut or not."""

    member: int
    position: int


@attrs.frozen
class Truncated:
    """A member has cut its log, durably."""

    member: int
    position: int


@attrs.frozen
class Installing:
    """A member has begun to put a snapshot in the place of its log."""

    member: int
    position: int


@attrs.frozen
class Installed:
    """A member has begun its log anew, durably, at the position of a snapshot from elsewhere."""

    member: int
    position: int


@attrs.frozen
class Promised:
    """A member's vote, or its adoption of a term, has become durable."""

    member: int
    term: int
    voted_for: int


@attrs.frozen
class TermRecorded:
    """A member has a term in its recording log, durably."""

    member: int
    term: int
    base: int


@attrs.frozen
class Recorded:
    """A batch has become durable at a member."""

    member: int
    batch: Batch


@attrs.frozen
class Appended:
    """A member has submitted an entry of membership to its log; it is not durable yet.

    Args:
        member: which.
        end: where the entry's batch ends.
        membership: the configuration in it.
    """

    member: int
    end: int
    membership: Membership


@attrs.frozen
class InForce:
    """A member decides by a configuration from now on."""

    member: int
    membership: Membership


@attrs.frozen
class Listed:
    """What a member's table of configurations says, durably; the log is known up to its end.

    Args:
        member: which.
        rows: position and configuration of each row, ascending.
    """

    member: int
    rows: tuple[tuple[int, Membership], ...]


@attrs.frozen
class Saved:
    """A member with a vote writes a snapshot, its own or the head of another member's.

    Args:
        member: which.
        position: of the snapshot.
        membership: the configuration in it; None for the first one.
    """

    member: int
    position: int
    membership: Membership | None


@attrs.frozen
class Dismissed:
    """A member's store says, durably, that the member was removed."""

    member: int


@attrs.frozen
class Committed:
    """A member takes everything below a position for committed."""

    member: int
    position: int


@attrs.frozen
class Claimed:
    """A member sends a message by which others will act."""

    member: int
    message: Claim


# --- leaders --------------------------------------------------------------------------------------


@attrs.frozen
class Said:
    """A member says something that carries neither a request nor log, and nothing about log.

    Args:
        member: which.
        at: when, on trio's clock.
        kind: the name of the message's class.
    """

    member: int
    at: float
    kind: str


@attrs.frozen
class Elected:
    """A member has won a ballot and begins to lead."""

    member: int
    term: int


@attrs.frozen
class LeaderRefused:
    """A member does not follow a leader, for what that says contradicts itself or the log."""

    member: int
    why: str


@attrs.frozen
class Leased:
    """A leader has a lease although another one was elected since."""

    member: int
    term: int


@attrs.frozen
class Writes:
    """A leader has begun to write entries of its term."""

    member: int
    term: int


@attrs.frozen
class Timed:
    """A leader has made a batch, and stamped it with the log's time.

    Args:
        member: that leads.
        ahead_ms: how far this is ahead of the world's time.
        clocks_ms: how far the clock of each member has been at most, by member.
    """

    member: int
    ahead_ms: int
    clocks_ms: tuple[tuple[int, int], ...]


@attrs.frozen
class Deposed:
    """A member does not lead any more."""

    member: int
    term: int


@attrs.frozen
class Counted:
    """A leader counts a member's log up to a position for its quorum."""

    member: int
    follower: int
    term: int
    position: int


@attrs.frozen
class Settled:
    """The cluster has come to rest: a member's log up to a position is the final one."""

    member: int
    position: int


# --- services -------------------------------------------------------------------------------------


@attrs.frozen
class Applied:
    """A member has applied a command of the clients.

    Args:
        member: which.
        serial: which command; clients number them.
        point: where it stands in the log.
        principal: who sent it, as the log says.
    """

    member: int
    serial: int
    point: Point
    principal: int = 0


@attrs.frozen
class Stamped:
    """A member has applied a command of a client session.

    Args:
        member: which.
        session: of the client.
        sequence: of the command within it.
        reply: the service's.
    """

    member: int
    session: int
    sequence: int
    reply: bytes


@attrs.frozen
class Reached:
    """A member's service has applied a whole batch.

    Args:
        member: which.
        position: where the batch ends.
        digest: stands for everything applied so far and all replies to it.
    """

    member: int
    position: int
    digest: bytes


@attrs.frozen
class Holds:
    """A member's service has reported its whole state, at a position at which all members do.

    Args:
        member: which.
        position: up to which it has applied.
        state: stands for all that it holds.
    """

    member: int
    position: int
    state: bytes


@attrs.frozen
class Probed:
    """A member's service was asked something, at a position at which others are asked too.

    Args:
        member: which.
        position: up to which it has applied.
        question: what was asked.
        answer: its reply.
    """

    member: int
    position: int
    question: bytes
    answer: bytes


# --- clients --------------------------------------------------------------------------------------


@attrs.frozen
class Asked:
    """A client asks for something; queries have numbers as commands have.

    Args:
        serial: the number.
        principal: of a command: who sends it.
    """

    serial: int
    principal: int = 0


@attrs.frozen
class Answered:
    """A client was given a reply.

    Args:
        serial: to what.
        point: where in the log it took effect.
        query: it was a query.
    """

    serial: int
    point: Point
    query: bool


@attrs.frozen
class Refused:
    """A client's command was refused: it was not done and never will be."""

    serial: int


Fact: TypeAlias = (
    Started
    | Created
    | Wiped
    | Deleted
    | CutOff
    | VotingStatus
    | Truncating
    | Truncated
    | Installing
    | Installed
    | Promised
    | TermRecorded
    | Recorded
    | Appended
    | InForce
    | Listed
    | Dismissed
    | Saved
    | Committed
    | Claimed
    | Said
    | Elected
    | LeaderRefused
    | Leased
    | Writes
    | Timed
    | Deposed
    | Counted
    | Settled
    | Applied
    | Stamped
    | Reached
    | Holds
    | Probed
    | Asked
    | Answered
    | Refused
)
