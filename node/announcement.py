"""What a leader tells others without being asked to record anything.

Those that look for a leader hear of its term, and what follows the asker's log term; followers hear
how far the log is committed, if no batch tells them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Never

import trio

from ..transport import NewLeadershipTerm
from . import rules
from .roles import Signal

if TYPE_CHECKING:
    from .leadership import Leadership

APP_VERSION = 1

PAUSE_SECONDS: Final = 0.005
"""How long a commit position waits for a batch that carries it. Clients don't wait for it."""


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


class CommitAnnouncements:
    """Tells the followers a commit position that no batch has carried for a moment.

    A client that waits for each of its writes sends the next one at once: then a message of its own
    would be one more for each write, to each follower.

    Args:
        leadership: that commits.
    """

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership
        self._due = Signal()

    def due(self) -> None:
        """Something is committed, and no batch is there to carry that."""
        self._due.notify()

    async def run(self) -> Never:
        """Announce what is due; until cancelled."""
        leadership = self._leadership
        while True:
            await self._due.wait()
            await trio.sleep(PAUSE_SECONDS)
            if leadership.announced < leadership.core.applier.commit_position:
                leadership.announce_commit()
