"""Where two logs agree, and what a follower has to do so that its log becomes the leader's.

A log is described by its term table: for each term where it begins and ends. Two logs that
have a term with the same beginning have the same bytes in it, up to the shorter end, since each
term has one writer. So a follower compares tables, and never entries.

The rules are those of Aeron Cluster's election, with two differences. Each closes a way in
which acknowledged entries could be lost:

- A follower compares the whole term table, and not one base, before it keeps what it has.
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
    """The term after a log term in the leader's table; `NULL_VALUE` where there is none."""

    term: int = NULL_VALUE
    base: int = NULL_VALUE
    end: int = NULL_VALUE


def next_term(terms: Sequence[TermRow], log_term: int, *, leader_term: int, base: int) -> NextTerm:
    """Return the term after `log_term` in the leader's table (protocol: NLT 2.6.1).

    Args:
        terms: the table.
        log_term: of the member that asks.
        leader_term: the leader's own.
        base: where the leader's own term begins.
    """
    # The leader's own term may not be in its table yet. Then it begins at `base`, and the term
    # before it, which the table may have as open, ends there.
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

    The first one is no newer than the asker's log term, unless the leader's table begins later.
    """
    spans = [
        TermSpan(row.term, row.base, base if row.end is None else row.end)
        for row in _around(terms, log_term, MAX_TERM_SPANS - 1)  # the leader's own comes last
        if row.term < leader_term
    ]
    return (*spans, TermSpan(leader_term, base, NULL_VALUE))


def _around(terms: Sequence[TermRow], log_term: int, most: int) -> Sequence[TermRow]:
    """Return some terms before the asker's log term and those after it, at most `most`."""
    first = max(bisect.bisect_left(terms, log_term, key=_term_of) - _TERMS_BEFORE, 0)
    return terms[first : first + most]


def agreement(mine: Sequence[TermRow], append: int, theirs: Sequence[TermSpan]) -> tuple[int, int]:
    """Return how far two logs agree: the position, and the last common term (-1 for none).

    Equal (term, base) means equal bytes up to the shorter end: one leader wrote the term, and the
    term's row is durable before, or with, its first entry (Kafka KIP-101 argues the same way).

    Args:
        mine: our term table.
        append: where our log ends.
        theirs: the leader's terms, the oldest of which is no newer than our last one.
    """
    # A list that begins at position 0 has all terms with entries; else the leader left out terms
    # that are older than the first one listed.
    listed = {span.term: span for span in theirs}
    oldest = theirs[0].term if theirs and theirs[0].base > 0 else 0
    # Our terms that are older than the list can't be compared.
    older = [row for row in mine if row.term < oldest]
    position, last_term = 0, NULL_VALUE
    if older:
        end, last_term = older[-1].end, older[-1].term
        position = append if end is None else end
    # Until a listed term proves them, we go back to the last of these older terms, and ask about it
    # next. Where these terms have no entries, there is nothing to prove.
    unproven = (position, last_term) if older and position > mine[0].base else None
    for row in mine[len(older) :]:
        end = append if row.end is None else row.end
        other = listed.get(row.term)
        if other is None and row.base == end:
            # An empty term that only we have: the leader never heard of it. It parts nothing.
            continue
        if other is None or other.base != row.base:
            break
        last_term = row.term
        # A common term proves all before it, if both logs have entries of it. So does the leader's
        # own term, which we got from the leader itself after all was compared. An empty term proves
        # nothing: older stores have a row also for a term that they never heard of.
        if row.term == theirs[-1].term or (row.base < end and other.base != other.end):
            unproven = None
        if other.end != NULL_VALUE and other.end < end:
            position = other.end
            break
        position = end
    return unproven or (position, last_term)


def spans_of(terms: Sequence[TermRow], log_term: int, append: int) -> tuple[TermSpan, ...]:
    """Return the terms of a log that ends at `append`, from about the asker's log term on.

    If there are more than a message may have, the newest are left out.
    """
    return tuple(
        TermSpan(row.term, row.base, append if row.end is None else row.end)
        for row in _around(terms, log_term, MAX_TERM_SPANS)
    )


def ends_early(mine: Sequence[TermRow], theirs: Sequence[TermSpan]) -> bool:
    """Say whether our last term is closed although the leader has more of it."""
    # We replicated it to where it ended for an earlier leader. That one failed before its own term
    # reached anybody, and the term went on elsewhere.
    if not mine or mine[-1].end is None:
        return False
    return any(span.term == mine[-1].term and span.end != mine[-1].end for span in theirs)


@attrs.frozen
class Disregard:
    """The announcement means nothing for our log."""

    reason: str


@attrs.frozen
class CanvassAgain:
    """The announcement is about another log term than ours: ask again."""


@attrs.frozen
class Truncate:
    """Our log and the leader's part at `to`; terms behind `last_term` are not the leader's.

    `last_term` is open afterwards, even if nothing is dropped: the leader may have more of it.
    """

    to: int
    last_term: int


@attrs.frozen
class Replicate:
    """Copy `term` up to `stop`, beginning at `base` (None: it is our log term already)."""

    term: int
    base: int | None
    stop: int


@attrs.frozen
class Install:
    """The leader's log begins behind our end, at `oldest`: install a snapshot that reaches it.

    The logs were not compared, so our log is not known to be a prefix of the leader's.
    """

    oldest: int


@attrs.frozen
class Replay:
    """Nothing earlier than the leader's own term is missing.

    Catch up to `catchup_join` unless that is None.
    """

    catchup_join: int | None


WayToJoin = Replicate | Install | Replay
"""How our log becomes that of a leader that we adopt."""

LogDecision = Disregard | CanvassAgain | Truncate | WayToJoin
"""What an announcement of a leader means for our log."""


def is_stale(message: NewLeadershipTerm | CommitPosition, newest: int) -> bool:
    """Say whether a message is from a leader of the past.

    Args:
        message: from the leader.
        newest: the highest term that we promised durably, or heard anybody lead. The first makes it
            safe. The second keeps a member that was paused from following, one after the other, all
            the leaders whose messages wait for it.
    """
    return message.leadership_term_id < newest


def is_about_own_term(message: NewLeadershipTerm) -> bool:
    """Say whether it is for members that have the leader's own term in their logs already.

    A term has one writer, so what such a member has of it cannot be in conflict with the leader's
    log. Whatever the message says, it never truncates.
    """
    return message.log_leadership_term_id == message.leadership_term_id


def follow(message: NewLeadershipTerm, *, terms: Sequence[TermRow], append: int) -> LogDecision:
    """Decide what a NewLeadershipTerm means for our log (Aeron: Election.onNewLeadershipTerm).

    Args:
        message: of a leader that is not stale.
        terms: our term table.
        append: our append position.
    """
    log_term = terms[-1].term if terms else NULL_VALUE
    if message.log_leadership_term_id != log_term:
        return CanvassAgain()
    if append < message.oldest_position:
        # The leader has dropped what would have to be compared.
        return Install(message.oldest_position)
    if not message.terms or (terms and message.terms[0].term > log_term and message.terms[0].base):
        return Disregard("the leader's term table does not reach back to our log term")
    position, last_term = agreement(terms, append, message.terms)
    if position < append or last_term != log_term or ends_early(terms, message.terms):
        if is_about_own_term(message):
            # It can't part from what its own sender wrote: it is older than what we have since.
            return Disregard("an older message about our own term")
        return Truncate(position, last_term)
    # From here on our log is a prefix of the leader's.
    if append >= message.term_base_log_position:
        ahead = append < message.log_position
        return Replay(message.log_position if ahead else None)
    if message.next_leadership_term_id == NULL_VALUE:
        return Disregard("malformed: our log ends below the term, and no term follows ours")
    if append < message.next_term_base_log_position:
        # Our last term goes on at the leader.
        return Replicate(log_term, None, message.next_term_base_log_position)
    if message.next_log_position != NULL_VALUE:
        return Replicate(
            message.next_leadership_term_id,
            message.next_term_base_log_position,
            message.next_log_position,
        )
    return Disregard("the term after ours is still open at the leader")
