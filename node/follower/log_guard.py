"""Guards our log against leaders that ask for what no correct leader can ask for.

Links are not authenticated: anybody who reaches the member port can send what it likes in the name
of a member. So what a leader says is compared with what we know before our log obeys. A leader that
contradicts itself, or would have us drop committed entries, is not followed. One frame must not be
able to end a member; but a truncation below the commit position that gets as far as our log is a
bug, and ends it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ...errors import SafetyViolationError
from ...log_events import log_event
from ..protocol import log_matching
from ..protocol.untrusted import contradiction

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...storage import Store
    from ...transport import NewLeadershipTerm
    from ..state import MemberState
    from ..state_machine.applier import Applier

log = logging.getLogger("quorate.node")


class LogGuard:
    """Checks leaders, and truncates our log if one may ask for that.

    Args:
        state: of the member.
        store: our log.
        applier: says what is known to be committed.
    """

    def __init__(self, state: MemberState, store: Store, applier: Applier) -> None:
        self._state = state
        self._store = store
        self._applier = applier
        self._observers: list[Callable[[str], None]] = []

    def observe(self, observer: Callable[[str], None]) -> None:
        """Call `observer` with the reason whenever a leader is refused.

        Among honest members that never happens; so a simulation takes it for a violation.
        """
        self._observers.append(observer)

    def refuse(self, sender: int, why: str) -> None:
        """Log that a leader is not followed."""
        for observer in self._observers:
            observer(why)
        log_event(
            log,
            logging.ERROR,
            "leader_refused",
            "member %(member)d: does not follow member %(sender)d: %(why)s",
            member=self._state.member_id,
            sender=sender,
            why=why,
        )

    async def refuses(
        self, sender: int, message: NewLeadershipTerm, decision: log_matching.LogDecision
    ) -> bool:
        """Say whether a leader is not to be followed, and log why.

        Args:
            sender: the leader.
            message: its announcement.
            decision: what the announcement means for our log.
        """
        store = self._store
        # Before our promise rises: a forged frame must not cost us a term either.
        why = contradiction(message, decision, terms=store.terms, append=store.append_position)
        # The only decision that destroys something, so it has a check of its own (I-14).
        if isinstance(decision, log_matching.Truncate):
            why = await self.cut_contradiction(decision.to)
        if why:
            self.refuse(sender, why)
        return bool(why)

    async def cut_contradiction(self, position: int) -> str:
        """Say why our log is not truncated to a position, in words; empty if it may be."""
        commit = self._applier.commit_position
        if position < commit:
            return f"it asks to truncate to {position}, below the commit position {commit}"
        # Leaders write whole batches, so no correct log ends inside of one.
        if await self._store.boundary(position) != position:
            return f"it asks to truncate to {position}, inside of a batch"
        return ""

    async def truncate(self, position: int, last_term: int) -> None:
        """Drop uncommitted entries that are not the leader's.

        Raises:
            SafetyViolationError: some of them are known to be committed.
        """
        committed = self._applier.commit_position
        # The callers have checked this; here it is the last line of defence.
        if position < committed:
            raise SafetyViolationError(
                f"member {self._state.member_id}: asked to truncate the log to {position}, below "
                f"the commit position {committed}: committed entries would be lost"
            )
        # Batches that wait in memory for their commit are among those that are dropped.
        self._applier.forget()
        await self._store.truncate(position, last_term=last_term)
