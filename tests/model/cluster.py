"""The states of the model: members, messages, and what of them still matters."""

from __future__ import annotations

import functools
from typing import Final, NamedTuple

import attrs

from quorate.node.protocol import log_matching
from quorate.storage import LogEnd, NodeState, TermRow
from quorate.storage.log.term_table import with_term
from quorate.transport import NewLeadershipTerm, RequestVote

NOBODY: Final = -1

Log = tuple[int, ...]
"""The terms of the entries, oldest first. A second one of a term admits the store that is new."""

CANVASS, SCOUTING, BALLOT, VOTED, LEADING, FOLLOWING = range(6)
FIRST, RECOVERING, ADMITTED = range(3)
WITHOUT_LEADER = (CANVASS, SCOUTING, BALLOT, VOTED)


class Member(NamedTuple):
    """One member.

    Attributes:
        role: what it does.
        term: that it scouts, stands, leads or follows in.
        other: whom it follows, or whom it as a leader has asked to take over.
        forced: it stands since its leader has asked it; 2 if it may be behind.
        promised: durable, the highest term.
        voted: durable, for whom in that term.
        log: durable.
        store: the one that it began with, a new one without a vote, or one that was admitted.
    """

    role: int = CANVASS
    term: int = -1
    other: int = NOBODY
    forced: int = 0
    promised: int = 0
    voted: int = NOBODY
    log: Log = ()
    store: int = FIRST

    @property
    def votes(self) -> bool:
        """Whether its store has a vote."""
        return self.store != RECOVERING

    @property
    def end(self) -> LogEnd:
        """Where its log ends."""
        return end_of(self.log)

    @property
    def promise(self) -> NodeState:
        """Its durable vote."""
        return NodeState(self.promised, self.voted)

    def back(self) -> Member:
        """The member after a timeout or a crash."""
        return Member(promised=self.promised, voted=self.voted, log=self.log, store=self.store)

    def promising(self, state: NodeState | None) -> Member:
        """The member once a promise is durable."""
        if state is None:
            return self
        assert state.candidate_term >= self.promised
        return self._replace(promised=state.candidate_term, voted=state.voted_for)


class ScoutSent(NamedTuple):
    """A question: would you vote for me?"""

    term: int
    sender: int
    log: Log
    forced: int


class Yes(NamedTuple):
    """The answer to it."""

    term: int
    sender: int
    receiver: int
    forced: int


class VoteAsked(NamedTuple):
    """A request for a vote."""

    term: int
    sender: int
    log: Log
    forced: int
    mark: str = "vote asked"


class VoteGiven(NamedTuple):
    """A vote, with the voter's log."""

    term: int
    sender: int
    receiver: int
    log: Log
    mark: str = "vote"


class Leads(NamedTuple):
    """A leader tells of its term, and of its log."""

    term: int
    sender: int
    log: Log
    mark: str = "leads"
    more: int = 0


class Has(NamedTuple):
    """A follower reports its log to the leader of a term."""

    term: int
    sender: int
    log: Log
    mark: str = "has"


class Stale(NamedTuple):
    """Somebody lives in a newer term."""

    term: int


class Asked(NamedTuple):
    """A leader asks a member to take over."""

    term: int
    receiver: int
    forced: int


Message = ScoutSent | Yes | VoteAsked | VoteGiven | Leads | Has | Stale | Asked


class State(NamedTuple):
    """The cluster, and what must be remembered to judge it.

    Attributes:
        members: by id.
        sent: all messages ever sent.
        won: who has won which term.
        committed: the longest log that was ever committed.
    """

    members: tuple[Member, ...]
    sent: frozenset[Message]
    won: tuple[tuple[int, int], ...] = ()
    committed: Log = ()


class ViolationError(AssertionError):
    """Something that must never be."""


@functools.cache
def end_of(log: Log) -> LogEnd:
    """Where a log ends."""
    return LogEnd(log[-1] if log else -1, len(log))


@functools.cache
def admitted_at(log: Log) -> int:
    """How many entries there are up to the last one that admits a store; 0 without one."""
    return max((i + 1 for i in range(1, len(log)) if log[i] == log[i - 1]), default=0)


def rows(log: Log) -> list[TermRow]:
    """The recording log that belongs to a log."""
    made: list[TermRow] = []
    for position, term in enumerate(log):
        if not made or made[-1].term < term:
            made = [*with_term(tuple(made), TermRow(term, position, None, 0))]
    return made


@functools.cache
def agreed(log: Log, leaders: Log, term: int) -> int:
    """How far a log is the same as that of the leader of a term, as members find out."""
    base = leaders.index(term) if term in leaders else len(leaders)
    mine = rows(log)
    log_term = mine[-1].term if mine else -1
    theirs = log_matching.spans_around(rows(leaders), log_term, leader_term=term, base=base)
    return log_matching.agreement(mine, len(log), theirs)[0]


@functools.cache
def request(message: ScoutSent | VoteAsked) -> RequestVote:
    """The message as members send it."""
    end = end_of(message.log)
    return RequestVote(
        end.term,
        end.position,
        message.term,
        message.sender,
        force=message.forced > 0,
        even_if_behind=message.forced == BEHIND,
    )


FORCED, BEHIND = 1, 2


@functools.cache
def new_term(term: int, leader: int) -> NewLeadershipTerm:
    """The message as members send it, as far as it is looked at here."""
    numbers = {field.name: 0 for field in attrs.fields(NewLeadershipTerm)}
    numbers |= {"leadership_term_id": term, "leader_member_id": leader}
    return NewLeadershipTerm(**numbers)  # type: ignore[arg-type]


def changed(state: State, i: int, member: Member, *messages: Message) -> State:
    """The state once a member has changed and sent messages."""
    members = (*state.members[:i], member, *state.members[i + 1 :])
    sent = state.sent | set(messages) if messages else state.sent
    return State(members, sent, state.won, state.committed)


def essence(state: State) -> State:
    """The state without what can't matter any more; states of equal essence go on alike."""
    members = state.members
    lowest = min(member.promised for member in members)
    sent = frozenset(message for message in state.sent if _matters(message, members, lowest))
    won = tuple(
        (term, winner)
        for term, winner in state.won
        if lowest < term or any((each.role, each.term) == (BALLOT, term) for each in members)
    )
    return State(members, sent, won, state.committed)


def _matters(message: Message, members: tuple[Member, ...], lowest: int) -> bool:
    """Whether a message could still change anything."""
    match message:
        case VoteGiven(term=term, receiver=i):
            return (members[i].role, members[i].term) == (BALLOT, term)
        case Yes(term=term, receiver=i):
            return (members[i].role, members[i].term) == (SCOUTING, term)
        case VoteAsked(term=term, sender=i):
            stands = (members[i].role, members[i].term) == (BALLOT, term)
            return lowest < term or stands
        case ScoutSent(term=term, sender=i):
            return (members[i].role, members[i].term) == (SCOUTING, term)
        case Leads(term=term):
            return lowest <= term
        case Has(term=term, log=log):
            return any((each.role, each.term, each.log) == (LEADING, term, log) for each in members)
        case Stale(term=term):
            return any(each.role == LEADING and each.term < term for each in members)
        case Asked(term=term, receiver=i):
            return (members[i].role, members[i].term) == (FOLLOWING, term)
