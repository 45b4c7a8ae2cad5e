"""Replies that wait until this member has applied what they tell.

A client of a follower gets replies that the leader made. The leader applies first, so its reply may
be here before the entry is. If the client got it at once, its next serializable read here, or its
next watch, would not have what it was told: not even its own write. etcd answers once the member
that was asked has applied, and clients such as Patroni count on it.

A member that is cut off or far behind may not get there soon. The write is committed all the same,
so the reply goes out after `HELD_S`.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Final, Never

import trio

from ...node.protocol.signal import Signal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..state.change import Change
    from ..state.machine import EtcdState
    from .contact import LeaderContact

__all__ = ["HELD_S", "CatchingUp"]

HELD_S: Final = 2.0
"""Seconds for which a reply is held. If smaller, a slow member's clients may miss their own writes;
if larger, clients such as Patroni give up first, though the write is committed."""

_LOOK_S: Final = 0.1
"""Between two looks at replies that are held. If smaller, a member that is behind does more work;
if larger, they go out later by as much."""


class CatchingUp:
    """Holds replies back until this member has caught up with them.

    Args:
        state: of the keyspace, as this member has applied it.
        contact: knows whether there is a leader from which to catch up.
    """

    def __init__(self, state: EtcdState, contact: LeaderContact) -> None:
        self._state = state
        self._contact = contact
        # Revision, number, until when, and callback; a heap. Numbers keep callbacks uncompared.
        self._held: list[tuple[int, int, float, Callable[[], None]]] = []
        self._compacting: list[tuple[int, float, Callable[[], None]]] = []
        self._numbers = count()
        self._filled = Signal()
        state.listen(self._applied)

    def when_applied(self, revision: int, answer: Callable[[], None]) -> None:
        """Call back once a revision is applied here; at once if it is, or if there is no leader.

        Args:
            revision: that a reply tells.
            answer: callback; it must neither block nor raise.
        """
        if revision <= self._state.revision or self._contact.lost:
            answer()
            return
        until = trio.current_time() + HELD_S
        heappush(self._held, (revision, next(self._numbers), until, answer))
        self._filled.notify()

    def when_compacted(self, revision: int, answer: Callable[[], None]) -> None:
        """Call back once this member has compacted, as `when_applied` does.

        A compaction has no revision of its own, and nobody reports it: `run` looks for it.

        Args:
            revision: what the compaction asked for.
            answer: callback; it must neither block nor raise.
        """
        if revision <= self._state.compacted or self._contact.lost:
            answer()
            return
        self._compacting.append((revision, trio.current_time() + HELD_S, answer))
        self._filled.notify()

    async def applied(self, revision: int) -> None:
        """Wait as long as `when_applied` does."""
        if revision > self._state.revision:
            here = trio.Event()
            self.when_applied(revision, here.set)
            await here.wait()

    async def compacted(self, revision: int) -> None:
        """Wait as long as `when_compacted` does."""
        here = trio.Event()
        self.when_compacted(revision, here.set)
        await here.wait()

    async def run(self) -> Never:
        """Let go of what is held for too long, until cancelled."""
        while True:
            while not self._held and not self._compacting:
                await self._filled.wait()
            await trio.sleep(_LOOK_S)
            now, lost = trio.current_time(), self._contact.lost
            late = sorted(each for each in self._held if lost or each[2] <= now)
            if late:
                self._held = [each for each in self._held if not lost and each[2] > now]
                heapify(self._held)
            for *_, answer in late:
                answer()
            self._look_for_compactions(now, lost=lost)

    def _look_for_compactions(self, now: float, *, lost: bool) -> None:
        waiting, self._compacting = self._compacting, []
        for each in waiting:
            revision, until, answer = each
            if lost or until <= now or revision <= self._state.compacted:
                answer()
            else:
                self._compacting.append(each)

    def _applied(self, revision: int, _changes: Sequence[Change]) -> None:
        held = self._held
        while held and held[0][0] <= revision:
            heappop(held)[3]()
