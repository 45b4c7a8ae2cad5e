"""The states of the model: members and messages, reduced to what still matters."""

from __future__ import annotations

import functools
from typing import Final, NamedTuple

import attrs

from quorate.node.protocol import log_matching
from quorate.storage import LogEnd, NodeState, TermRow
from quorate.storage.rows.term_table import with_term
from quorate.transport import NewLeadershipTerm, RequestVote

NOBODY: Final = -1

Log = tuple[int, ...]
"""The terms of the entries, oldest first. The second entry of a term admits the new store."""

CANVASS, SCOUTING, BALLOT, VOTED, LEADING, FOLLOWING = range(6)
FIRST, RECOVERING, ADMITTED = range(3)
WITHOUT_LEADER = (CANVASS, SCOUTING, BALLOT, VOTED)


class Member(NamedTuple):
    """One member.

    Attributes:
        role: its role.
        term: the term of its pre-vote, candidacy or leadership, or of the leader that it follows.
        other: the leader that it follows; for a leader, the member nominated as its successor.
        forced: it is a candidate because its leader nominated it; 2 if its log may be behind.
        promised: durable: the highest term.
        voted: durable: the candidate that it voted for in that term.
        log: durable.
        store: its first store, a new store without a vote, or an admitted store.
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
        """Return whether its store has a vote."""
        return self.store != RECOVERING

    @property
    def end(self) -> LogEnd:
        """Return the end of its log."""
        return end_of(self.log)

    @property
    def promise(self) -> NodeState:
        """Return its durable vote."""
        return NodeState(self.promised, self.voted)

    def back(self) -> Member:
        """Return the member after a timeout or a crash."""
        return Member(promised=self.promised, voted=self.voted, log=self.log, store=self.store)

    def promising(self, state: NodeState | None) -> Member:
        """Return the member after a promise became durable."""
        if state is None:
            return self
        assert state.candidate_term >= self.promised
        return self._replace(promised=state.candidate_term, voted=state.voted_for)


class ScoutSent(NamedTuple):
    """A pre-vote request."""

    term: int
    sender: int
    log: Log
    forced: int


class Yes(NamedTuple):
    """A positive answer to a pre-vote request."""

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
    """A leader announces its term and its log."""

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
    """The sender is in a newer term."""

    term: int


class Asked(NamedTuple):
    """A leader nominates a member as its successor."""

    term: int
    receiver: int
    forced: int


Message = ScoutSent | Yes | VoteAsked | VoteGiven | Leads | Has | Stale | Asked


class State(NamedTuple):
    """The cluster, and the facts that the checks need.

    Attributes:
        members: the members by id.
        sent: all messages ever sent.
        won: the winner of each term.
        committed: the longest log that was ever committed.
    """

    members: tuple[Member, ...]
    sent: frozenset[Message]
    won: tuple[tuple[int, int], ...] = ()
    committed: Log = ()


class ViolationError(AssertionError):
    """A property of the election is violated."""


@functools.cache
def end_of(log: Log) -> LogEnd:
    """Return the end of a log."""
    return LogEnd(log[-1] if log else -1, len(log))


@functools.cache
def admitted_at(log: Log) -> int:
    """Return the number of entries up to the last one that admits a store; 0 without one."""
    return max((i + 1 for i in range(1, len(log)) if log[i] == log[i - 1]), default=0)


def rows(log: Log) -> list[TermRow]:
    """Return the recording log of a log."""
    made: list[TermRow] = []
    for position, term in enumerate(log):
        if not made or made[-1].term < term:
            made = [*with_term(tuple(made), TermRow(term, position, None, 0))]
    return made


@functools.cache
def agreed(log: Log, leaders: Log, term: int) -> int:
    """Return how far a log equals that of a term's leader, by the members' own comparison."""
    base = leaders.index(term) if term in leaders else len(leaders)
    mine = rows(log)
    log_term = mine[-1].term if mine else -1
    theirs = log_matching.spans_around(rows(leaders), log_term, leader_term=term, base=base)
    return log_matching.agreement(mine, len(log), theirs)[0]


@functools.cache
def request(message: ScoutSent | VoteAsked) -> RequestVote:
    """Return the message as members send it."""
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
    """Return the message as members send it, with the fields that the rules use."""
    numbers = {field.name: 0 for field in attrs.fields(NewLeadershipTerm)}
    numbers |= {"leadership_term_id": term, "leader_member_id": leader}
    return NewLeadershipTerm(**numbers)  # type: ignore[arg-type]


def changed(state: State, i: int, member: Member, *messages: Message) -> State:
    """Return the state after a member has changed and sent messages."""
    members = (*state.members[:i], member, *state.members[i + 1 :])
    sent = state.sent | set(messages) if messages else state.sent
    return State(members, sent, state.won, state.committed)


def essence(state: State) -> State:
    """Remove everything that can no longer matter; states of equal essence have equal futures."""
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
    """Return whether a message could still change anything."""
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
