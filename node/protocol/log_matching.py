"""Where two logs agree, and what a follower has to do so that its log becomes the leader's.

A log is described by its table of terms: for each term where it begins and ends. Two logs that
have a term with the same beginning have the same bytes in it, up to the shorter end, since each
term has one writer. So a follower compares tables, and never entries.

The rules are those of Aeron Cluster's election, with two differences, each of which closes a way in
which acknowledged entries could be lost:

- A follower compares the whole table of terms, and not one base, before it keeps what it has.
- An announcement about the follower's own log term never truncates: it can only be an older one.

Everything here is a pure function on frozen data, so the model checker runs the very functions that
the member runs.
"""

from __future__ import annotations

import bisect
import operator
from typing import TYPE_CHECKING

import attrs

from ...transport import MAX_TERM_SPANS, NULL_VALUE, NewLeadershipTerm, TermSpan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...storage import TermRow
    from ...transport import CommitPosition

_term_of = operator.attrgetter("term")

_TERMS_BEFORE = 64
"""Terms before the asker's log term that an announcement lists. Fewer: a member whose log parted
long ago asks more often. More: every announcement is longer."""


# --- what a leader announces ----------------------------------------------------------------------


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


WayToJoin = Replicate | Install | Replay
"""How our log becomes that of a leader whom we adopt."""

LogDecision = Disregard | CanvassAgain | Truncate | WayToJoin
"""What an announcement of a leader means for our log."""


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


def follow(message: NewLeadershipTerm, *, terms: Sequence[TermRow], append: int) -> LogDecision:
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
