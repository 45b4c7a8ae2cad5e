"""What a leader tells those that look for one: its term, and what follows the asker's log term."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..transport import NewLeadershipTerm
from . import rules

if TYPE_CHECKING:
    from .leadership import Leadership

APP_VERSION = 1


def announcement(leadership: Leadership, log_term: int, *, timestamp_ms: int) -> NewLeadershipTerm:
    """Build the message for a member whose log ends in `log_term` (protocol 2.6.1)."""
    core, term, base = leadership.core, leadership.term, leadership.base
    terms = core.store.terms
    following = rules.next_term(terms, log_term, leader_term=term, base=base)
    return NewLeadershipTerm(
        log_leadership_term_id=log_term,
        next_leadership_term_id=following.term,
        next_term_base_log_position=following.base,
        next_log_position=following.end,
        leadership_term_id=term,
        term_base_log_position=base,
        log_position=leadership.publication_position,
        leader_recording_id=0,
        timestamp=timestamp_ms,
        leader_member_id=core.member_id,
        log_session_id=leadership.session_id,
        app_version=APP_VERSION,
        is_startup=leadership.is_startup,
        commit_position=core.applier.commit_position,
        replication_position=leadership.replication_position,
        terms=rules.spans_around(terms, log_term, leader_term=term, base=base),
        oldest_position=core.store.start_position,
    )
