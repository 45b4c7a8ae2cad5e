"""The judgements of the protocol, as pure functions on frozen data.

Who may stand, who gets a vote, who has won, where the quorum is, and what a leader's
NewLeadershipTerm means for one's own log. Nothing here waits, sends or writes; so each rule is
tested in a line, and a model of the protocol can use the very functions that the member uses.

The rules are those of Aeron Cluster's election, with these differences, each of which closes a way
in which acknowledged entries could be lost:

- A leader of a term below one's own promise is refused (a stale leader could recapture a member).
- Only what a member reports for the leader's own term counts for the quorum.
- A follower compares the whole table of terms, not one base, before it keeps what it has.
- A NewLeadershipTerm about its own term never truncates: it can only be an older message.
"""

from __future__ import annotations

import bisect
import math
import operator
from typing import TYPE_CHECKING, TypeVar

import attrs

from ...storage import NodeState, TermRow
from ...transport import (
    MAX_TERM_SPANS,
    NULL_VALUE,
    CommitPosition,
    NewLeadershipTerm,
    RequestVote,
    Scout,
    TermSpan,
    Vote,
    VoteReason,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

T = TypeVar("T", int, float)

VETO_ROUNDS = 2
"""Failed ballots in a row after which one negative vote no longer vetoes a majority."""

_term_of = operator.attrgetter("term")
_TERMS_BEFORE = 64  # rows below the asker's log term that a NewLeadershipTerm lists


@attrs.frozen(order=True)
class LogEnd:
    """How far a log goes: the last term of its recording log, then its append position.

    The order is the one in which logs are more up to date (Raft §5.4.1).
    """

    term: int
    position: int


NEVER = LogEnd(NULL_VALUE, 0)
"""Where a log ends that is empty."""


def log_end(message: RequestVote | Vote | Scout) -> LogEnd:
    """Return where its sender's log ends."""
    return LogEnd(message.log_leadership_term_id, message.log_position)


def quorum(members: int) -> int:
    """Return how many of `members` a decision needs."""
    return members // 2 + 1


# --- who may stand --------------------------------------------------------------------------------


def would_vote_for(member: LogEnd | None, candidate: LogEnd) -> bool:
    """Say whether a member whose log ends at `member` (None = not heard) would vote for us."""
    return member is not None and member <= candidate


def is_unanimous_candidate(
    own: LogEnd, others: Mapping[int, LogEnd | None], absent: Collection[int]
) -> bool:
    """Say whether every other member would vote for us, and they make a quorum with us.

    Args:
        own: where our log ends.
        others: where the log of each other member ends, None if it has not canvassed.
        absent: members known to be gone (the leader that closed in order; a process whose port
            refuses): nobody waits for them (Aeron: ClusterMember.isUnanimousCandidate).
    """
    willing = 1
    for member, end in others.items():
        if member in absent:
            continue
        if not would_vote_for(end, own):
            return False
        willing += 1
    return willing >= quorum(len(others) + 1)


def is_quorum_candidate(own: LogEnd, others: Mapping[int, LogEnd | None]) -> bool:
    """Say whether a quorum, we included, would vote for us."""
    willing = 1 + sum(would_vote_for(end, own) for end in others.values())
    return willing >= quorum(len(others) + 1)


# --- ballots --------------------------------------------------------------------------------------


@attrs.frozen
class BallotDecision:
    """What a member does with a request for its vote.

    Args:
        vote: granted or refused.
        reason: why.
        promise: the node state to make durable before the answer leaves, None for no change.
    """

    vote: bool
    reason: VoteReason
    promise: NodeState | None = None


@attrs.frozen
class VoterView:
    """What a voter looks at in itself before it answers a candidate.

    Args:
        own: where its log ends.
        promised: its durable vote.
        bound: it has promised a leader to elect nobody else, and that promise still holds.
        admission: where the last entry that admits a store ends in its log.
        has_vote: its store has a vote at all.
    """

    own: LogEnd
    promised: NodeState
    bound: bool = False
    admission: LogEnd = NEVER
    has_vote: bool = True


def consider(
    request: RequestVote, voter: VoterView, *, in_ballot: bool, leader_alive: bool
) -> BallotDecision:
    """Decide a request for our vote.

    Args:
        request: the candidate's request.
        voter: what we know of ourselves.
        in_ballot: we are canvassing, nominating or voting ourselves.
        leader_alive: we lead, or heard our leader within the heartbeat timeout.
    """
    if not voter.has_vote:
        return BallotDecision(False, VoteReason.NO_VOTE)
    term, promised = request.candidate_term_id, voter.promised
    if term < promised.candidate_term:
        return BallotDecision(False, VoteReason.TERM)
    if term == promised.candidate_term:
        # A repeated request gets the same answer (one vote per term, whoever asks again).
        if promised.voted_for == request.candidate_member_id:
            return BallotDecision(True, VoteReason.GRANTED)
        return BallotDecision(False, VoteReason.ALREADY_VOTED)
    if leader_alive:
        return BallotDecision(False, VoteReason.LEADER_ALIVE)
    if voter.bound:
        return BallotDecision(False, VoteReason.PROMISED)
    if not in_ballot:
        return BallotDecision(False, VoteReason.BUSY)
    # A store that was lost has voted, too. Its votes count for no log that does not have the entry
    # that admits the store in its place (:mod:`.membership.admission`).
    may_be_behind = request.even_if_behind and log_end(request) >= voter.admission
    if voter.own > log_end(request) and not may_be_behind:
        # Aeron: Election.onRequestVote raises its own candidate term here, so that the member
        # with the better log stands in a term that beats this one.
        return BallotDecision(False, VoteReason.LOG_NEWER, NodeState(term, NULL_VALUE))
    return BallotDecision(True, VoteReason.GRANTED, NodeState(term, request.candidate_member_id))


def consider_scout(
    scout: Scout, voter: VoterView, *, in_ballot: bool, leader_alive: bool
) -> VoteReason:
    """Answer a pre-vote as we would answer the ballot that it asks about; nothing is promised."""
    request = RequestVote(
        scout.log_leadership_term_id,
        scout.log_position,
        scout.proposed_term_id,
        scout.member_id,
        even_if_behind=scout.even_if_behind,
    )
    if scout.force:
        # The leader has asked its sender to take over, and releases us before the ballot.
        voter = attrs.evolve(voter, bound=False)
    return consider(request, voter, in_ballot=in_ballot, leader_alive=leader_alive).reason


def may_take_over(request: RequestVote, *, own: LogEnd, term: int) -> bool:
    """Say whether a member of `term` leaves its leader for a candidate that the leader has asked.

    The log decides here as in a ballot: who could not win it must not end a term for it.
    """
    able = own <= log_end(request) or request.even_if_behind
    return request.force and request.candidate_term_id > term and able


def gives_way(own: LogEnd, member_id: int, scout: Scout) -> bool:
    """Say which of two members that scout at the same time lets the other go first.

    Both would answer yes, raise the same term, and split the votes.
    """
    return (log_end(scout), scout.member_id) > (own, member_id)


def is_supported(
    answers: Mapping[int, VoteReason], others: Collection[int], absent: Collection[int]
) -> bool | None:
    """Say what the answers to a scout mean: a quorum would vote for us, it would not, or wait.

    Members that have not answered are waited for, unless they are known to be absent; when the
    round is over, pass all of those as absent.
    """
    yes = 1 + sum(reason is VoteReason.GRANTED for reason in answers.values())
    open_answers = [member for member in others if member not in answers and member not in absent]
    if yes >= quorum(len(others) + 1):
        return True if not open_answers else None
    return None if yes + len(open_answers) >= quorum(len(others) + 1) else False


def is_unanimous_leader(
    votes: Mapping[int, bool], others: Collection[int], absent: Collection[int]
) -> bool:
    """Say whether every other member that is not absent voted for us, and we have a quorum."""
    if any(not votes.get(member, False) for member in others if member not in absent):
        return False
    return has_majority(votes, len(others) + 1)


def is_quorum_leader(votes: Mapping[int, bool], members: int, failed_rounds: int) -> bool:
    """Say at the end of a ballot whether a majority carries us.

    One negative vote vetoes in the first rounds, so that the best log is preferred; after
    :data:`VETO_ROUNDS` lost ones a majority is enough, or one member could veto for ever.
    """
    if failed_rounds < VETO_ROUNDS and not all(votes.values()):
        return False
    return has_majority(votes, members)


def has_majority(votes: Mapping[int, bool], members: int) -> bool:
    """Say whether our own vote and those of others are a quorum."""
    return 1 + sum(votes.values()) >= quorum(members)


# --- the quorum's position ------------------------------------------------------------------------


def quorum_position(positions: Iterable[int], members: int) -> int:
    """Return the highest position that a quorum has reached.

    Args:
        positions: what each member has durably recorded; members that are inactive or unknown
            may be left out or count 0.
        members: the size of the cluster.
    """
    return _of_quorum(positions, members, nobody=0)


def quorum_time(times: Iterable[float], members: int) -> float:
    """Return the latest time at which a quorum was heard, or the like; minus infinity if none was.

    Args:
        times: of each member; some may be left out.
        members: the size of the cluster.
    """
    return _of_quorum(times, members, nobody=-math.inf)


def _of_quorum(values: Iterable[T], members: int, *, nobody: T) -> T:
    """Return the highest value that a quorum has at least."""
    ranked = sorted(values, reverse=True)
    needed = quorum(members)
    return ranked[needed - 1] if len(ranked) >= needed else nobody


def may_commit(reached: int, *, base: int) -> bool:
    """Say whether what a quorum has recorded is committed: not before an entry of our own term is.

    Entries of earlier terms can still be replaced while a rival may hold a newer term than their
    own (Raft §5.4.2, figure 8); one of our own term settles all before it.

    Args:
        reached: what a quorum has recorded durably.
        base: where our term begins.
    """
    return reached > base


def is_active(heard_at: float, now: float, timeout: float) -> bool:
    """Say whether a member was heard recently enough to count (strictly within the timeout)."""
    return heard_at + timeout > now


# --- what the leader tells, and what a follower makes of it ---------------------------------------


@attrs.frozen
class NextTerm:
    """What follows a log term in the leader's recording log."""

    term: int = NULL_VALUE
    base: int = NULL_VALUE
    end: int = NULL_VALUE


def next_term(terms: Sequence[TermRow], log_term: int, *, leader_term: int, base: int) -> NextTerm:
    """Return the term after `log_term` as the leader tells it (protocol: NLT 2.6.1).

    The leader's own term may not be in its recording log yet; then it begins at `base`, and there
    the term before ends, open as it may be. Nothing follows the leader's own term.
    """
    if log_term >= leader_term:
        return NextTerm()
    index = bisect.bisect_right(terms, log_term, key=_term_of)
    if index == len(terms):
        return NextTerm(leader_term, base, NULL_VALUE)
    row = terms[index]
    open_end = NULL_VALUE if row.term == leader_term else base
    return NextTerm(row.term, row.base, open_end if row.end is None else row.end)


def spans_around(
    terms: Sequence[TermRow], log_term: int, *, leader_term: int, base: int
) -> tuple[TermSpan, ...]:
    """Return the leader's terms around the asker's log term, and its own, open, at the end.

    The first of them is no newer than the asker's log term, unless the leader's table begins behind
    that.
    """
    spans = [
        TermSpan(row.term, row.base, base if row.end is None else row.end)
        for row in _around(terms, log_term, MAX_TERM_SPANS - 1)  # the leader's own comes last
        if row.term < leader_term
    ]
    return (*spans, TermSpan(leader_term, base, NULL_VALUE))


def _around(terms: Sequence[TermRow], log_term: int, most: int) -> Sequence[TermRow]:
    """Return the terms before an asker's log term, not too many, and what follows."""
    first = max(bisect.bisect_left(terms, log_term, key=_term_of) - _TERMS_BEFORE, 0)
    return terms[first : first + most]


def agreement(mine: Sequence[TermRow], append: int, theirs: Sequence[TermSpan]) -> tuple[int, int]:
    """Return how far two logs agree by their tables of terms: position, and last common term.

    Equal (term, base) means equal bytes up to the shorter end, since one leader wrote a term and
    its row is durable before, or with, its first entry (Kafka KIP-101 argues the same way). For the
    same reason a common term proves all before it, if both have something of it, or if it is the
    leader's own: that we have only from the leader itself, when all was compared. An empty term
    proves nothing: one of which a member never heard has no row, and in older stores an empty one.
    So one that only we have parts nothing, either. Without a proof the terms older than those
    listed are left, and asked about next with the last of them. A list that begins at position 0
    is of all terms that have entries. The term is -1 if none is common.

    Args:
        mine: our recording log.
        append: where our log ends.
        theirs: the leader's terms, the oldest of which is no newer than our last one.
    """
    listed = {span.term: span for span in theirs}
    oldest = theirs[0].term if theirs and theirs[0].base > 0 else 0
    older = [row for row in mine if row.term < oldest]
    position, last_term = 0, NULL_VALUE
    if older:
        end, last_term = older[-1].end, older[-1].term
        position = append if end is None else end
    unproven = (position, last_term) if older and position > mine[0].base else None
    for row in mine[len(older) :]:
        end = append if row.end is None else row.end
        other = listed.get(row.term)
        if other is None and row.base == end:
            continue
        if other is None or other.base != row.base:
            break
        last_term = row.term
        if row.term == theirs[-1].term or (row.base < end and other.base != other.end):
            unproven = None
        if other.end != NULL_VALUE and other.end < end:
            position = other.end
            break
        position = end
    return unproven or (position, last_term)


def spans_of(terms: Sequence[TermRow], log_term: int, append: int) -> tuple[TermSpan, ...]:
    """Return the terms of a log that ends at `append`, from about the asker's log term on.

    If there are too many the newest are left out.
    """
    return tuple(
        TermSpan(row.term, row.base, append if row.end is None else row.end)
        for row in _around(terms, log_term, MAX_TERM_SPANS)
    )


def ends_early(mine: Sequence[TermRow], theirs: Sequence[TermSpan]) -> bool:
    """Say whether our last term is closed although the leader has more of it.

    We replicated it to where it ended for an earlier leader, which then fell before its own term
    reached anybody.
    """
    if not mine or mine[-1].end is None:
        return False
    return any(span.term == mine[-1].term and span.end != mine[-1].end for span in theirs)


@attrs.frozen
class Disregard:
    """The message says nothing to us."""

    reason: str


@attrs.frozen
class CanvassAgain:
    """The message is about another log term than ours: ask again."""


@attrs.frozen
class Truncate:
    """Our log and the leader's part at `to`; terms behind `last_term` are not the leader's.

    `last_term` is open again afterwards, even where nothing is dropped: the leader may have more.
    """

    to: int
    last_term: int


@attrs.frozen
class Replicate:
    """Fetch `term` up to `stop`, beginning at `base` (None: it is our log term already)."""

    term: int
    base: int | None
    stop: int


@attrs.frozen
class Install:
    """The leader's log begins behind our end, at `oldest`: install a snapshot from there on.

    The logs were not compared, so what we have is not known to be the leader's.
    """

    oldest: int


@attrs.frozen
class Replay:
    """Our log reaches the leader's term; catch up to `catchup_join` unless that is None."""

    catchup_join: int | None


Following = Disregard | CanvassAgain | Truncate | Replicate | Install | Replay


def is_stale(message: NewLeadershipTerm | CommitPosition, newest: int) -> bool:
    """Say whether the message is of a leader of the past.

    Args:
        message: what it says.
        newest: the highest term that we promised durably, or heard anybody lead. The first makes
            it safe; without the second a member that was paused would follow one leader of its
            backlog after the other.
    """
    return message.leadership_term_id < newest


def is_about_own_term(message: NewLeadershipTerm) -> bool:
    """Say whether it speaks to members that have the leader's own term in their logs already.

    A term has one writer, so what such a member has of it can't be in conflict: whatever the
    message says, it never truncates.
    """
    return message.log_leadership_term_id == message.leadership_term_id


def follow(message: NewLeadershipTerm, *, terms: Sequence[TermRow], append: int) -> Following:
    """Decide what a NewLeadershipTerm means for our log (Aeron: Election.onNewLeadershipTerm).

    Args:
        message: of a leader that is not stale.
        terms: our recording log.
        append: our append position.
    """
    log_term = terms[-1].term if terms else NULL_VALUE
    if message.log_leadership_term_id != log_term:
        return CanvassAgain()
    if append < message.oldest_position:
        return Install(message.oldest_position)
    if not message.terms or (terms and message.terms[0].term > log_term and message.terms[0].base):
        return Disregard("the leader's table of terms does not reach back to our log term")
    position, last_term = agreement(terms, append, message.terms)
    if position < append or last_term != log_term or ends_early(terms, message.terms):
        if is_about_own_term(message):
            return Disregard("an older message about our own term")
        return Truncate(position, last_term)
    if append >= message.term_base_log_position:
        ahead = append < message.log_position
        return Replay(message.log_position if ahead else None)
    if message.next_leadership_term_id == NULL_VALUE:
        return Disregard("malformed: our log ends below the term, and no term follows ours")
    if append < message.next_term_base_log_position:
        return Replicate(log_term, None, message.next_term_base_log_position)
    if message.next_log_position != NULL_VALUE:
        return Replicate(
            message.next_leadership_term_id,
            message.next_term_base_log_position,
            message.next_log_position,
        )
    return Disregard("the term after ours is still open at the leader")
