"""Replies that wait until this member has applied what they report.

A client of a follower gets replies that the leader made. The leader applies first, so its reply may
be here before the entry is. If the client got it at once, its next serializable read here, or its
next watch, would miss what the reply reported: even its own write. etcd answers once the member
that was asked has applied, and clients such as Patroni count on it.

A member that is cut off or far behind may not get there soon. The write is committed all the same,
so the reply goes out after `HELD_S`. It does at once if too many bytes are held already.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple, Never

import trio

from ...node.protocol.signal import Signal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..keyspace.change import Change
    from ..state.machine import EtcdState
    from .contact import LeaderContact

__all__ = ["HELD_S", "CatchingUp"]

HELD_S: Final = 2.0
"""Seconds for which a reply is held. If smaller, a slow member's clients may miss their own writes;
if larger, clients such as Patroni give up first, though the write is committed."""

MAX_HELD_BYTES: Final = 64 << 20
"""Bytes of replies that are held. If smaller, a slow member's clients may miss their own writes; if
larger, one that reads much there takes the member's memory. From there on, a reply counts as one
that waits for its client, and each connection has a bound of these."""

_LOOK_S: Final = 0.1
"""Between two looks at replies that are held. If smaller, a member that is behind does more work;
if larger, they go out later by as much."""


class _Held(NamedTuple):
    """A reply that is held. Its number keeps callbacks uncompared."""

    revision: int
    number: int
    until: float
    size: int
    answer: Callable[[], None]


class CatchingUp:
    """Holds replies back until this member has caught up with them.

    Args:
        state: of the keyspace, as this member has applied it.
        contact: knows whether there is a leader from which to catch up.
    """

    def __init__(self, state: EtcdState, contact: LeaderContact) -> None:
        self._state = state
        self._contact = contact
        self._held: list[_Held] = []  # a heap
        self._held_bytes = 0
        self._numbers = count()
        self._filled = Signal()
        state.listen(self._applied)

    def when_applied(self, revision: int, size: int, answer: Callable[[], None]) -> None:
        """Call back once a revision is applied here; at once if it is, or if there is no leader.

        Args:
            revision: that a reply reports.
            size: bytes of the reply.
            answer: callback; it must neither block nor raise.
        """
        full = self._held_bytes + size > MAX_HELD_BYTES
        if revision <= self._state.revision or self._contact.lost or full:
            answer()
            return
        until = trio.current_time() + HELD_S
        self._held_bytes += size
        heappush(self._held, _Held(revision, next(self._numbers), until, size, answer))
        self._filled.notify()

    async def applied(self, revision: int, size: int) -> None:
        """Wait as long as `when_applied` does."""
        if revision > self._state.revision:
            here = trio.Event()
            self.when_applied(revision, size, here.set)
            await here.wait()

    async def run(self) -> Never:
        """Let go of what is held for too long, until cancelled."""
        while True:
            while not self._held:
                await self._filled.wait()
            await trio.sleep(_LOOK_S)
            now, lost = trio.current_time(), self._contact.lost
            late = sorted(each for each in self._held if lost or each.until <= now)
            if late:
                self._held = [each for each in self._held if not lost and each.until > now]
                heapify(self._held)
            for each in late:
                self._let_go(each)

    def _applied(self, revision: int, _changes: Sequence[Change]) -> None:
        held = self._held
        while held and held[0].revision <= revision:
            self._let_go(heappop(held))

    def _let_go(self, held: _Held) -> None:
        self._held_bytes -= held.size
        held.answer()
