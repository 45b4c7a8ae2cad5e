"""What a leader tells others without being asked to record anything.

Those that look for a leader hear of its term, and what follows the asker's log term; followers hear
how far the log is committed, if no batch tells them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Never

import trio

from ...transport import NewLeadershipTerm
from ..protocol import rules
from ..protocol.role import Signal

if TYPE_CHECKING:
    from .leadership import Leadership

APP_VERSION = 1

PAUSE_SECONDS: Final = 0.005
"""How long a commit position waits for a batch that carries it. Clients don't wait for it."""

LONGEST_PAUSE_SECONDS: Final = 0.04
"""How long while batch after batch has carried the one before, and then `PAUSE_SECONDS` at most."""

AT_ONCE_BYTES: Final = 16 << 10
"""So much of the log takes longer to apply than a message does to travel."""


def announcement(leadership: Leadership, log_term: int, *, timestamp_ms: int) -> NewLeadershipTerm:
    """Build the message for a member whose log ends in `log_term` (protocol, fix F6)."""
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
        lease_ms=core.timeouts.lease_ms,
    )


class CommitAnnouncements:
    """Tells the followers a commit position that no batch carries.

    A client that waits for each of its writes sends the next one at once, and its batch carries the
    position: a message would be one more for each write, to each follower. But of what is much the
    followers are told before it is applied here: so they apply it meanwhile, and not when the next
    batch has come, whose writers wait for them then.

    Args:
        leadership: that commits.
    """

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership
        self._due = Signal()

    def committing(self, reached: int) -> None:
        """What is below `reached` will be applied in a moment."""
        leadership = self._leadership
        if reached - leadership.announced >= AT_ONCE_BYTES and not self._carried():
            leadership.announce_commit(reached)

    def committed(self) -> None:
        """Something was committed, and applied as far as a slice goes."""
        if not self._carried():
            self._due.notify()

    def _carried(self) -> bool:
        """Whether a batch is under way, or about to be, that carries the commit position."""
        proposals = self._leadership.proposals
        return bool(proposals.in_flight or proposals.waiting)

    async def run(self) -> Never:
        """Announce what is due; until cancelled.

        A look at it costs as much as a small write. So while there was no need for one, the next
        comes later.
        """
        leadership, applier = self._leadership, self._leadership.core.applier
        pause = PAUSE_SECONDS
        while True:
            carried = leadership.announced >= applier.commit_position
            if carried:
                began = trio.current_time()
                await self._due.wait()
                if trio.current_time() - began > pause:
                    pause = PAUSE_SECONDS
            due = applier.commit_position
            await trio.sleep(pause if carried else PAUSE_SECONDS)
            if leadership.announced < due:
                leadership.announce_commit()
                pause = PAUSE_SECONDS
            else:
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
