"""Commit: from the followers' positions to the commit position, and its announcement.

A position is committed when a quorum has it durably. Two rules make that safe:

- Only positions that were reported for our own term count, and our own only once durable.
- Nothing is committed before an entry of our own term is on a quorum (Raft §5.4.2). This is why the
  entry that opens the term is written first.

Followers learn of a commit from the next batch. A client that waits for each write sends the next
one at once, so its batch carries the position of the one before, and an extra message would double
the leader's messages. So a separate announcement waits a moment for a batch. Two kinds of commits
are announced before we apply them, unless a batch is on its way:

- Large ones (16 KiB and more), so that followers apply in parallel.
- Those behind which another member has forwarded a request. Its client's port may hold the reply
  until that member has applied (:mod:`...etcd.backend.catching_up`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Never

import trio

from ..protocol import quorum
from ..protocol.signal import Signal
from .follower_progress import MATCH

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...storage import Store
    from ..protocol.role import Role
    from ..state import MemberState
    from ..state_machine.applier import Applier
    from .follower_progress import Followers
    from .replication import Replication

PAUSE_SECONDS: Final = 0.005
"""How long a commit position waits for a batch that carries it. If smaller, more announcements are
sent. If larger, followers apply later: stale reads are older, and watches there hear later. Clients
that wait for their own member are not held up by it, see `Commit.awaited`."""

AT_ONCE_BYTES: Final = 16 << 10
"""From this size on a commit is announced before it is applied here. If smaller, small writes cost
extra messages. If larger, followers apply large ones only after us."""


class Commit:
    """Computes the commit position of one term, and announces it.

    Args:
        role: the leader's; its `changed` is notified when a quorum has more.
        base: where the term begins.
        state: of the member; has the voters.
        store: our own log.
        applier: applies what is committed.
        followers: the other members, with their positions.
        replication: where the log ends, and what was announced.
        on_commit: called after something was committed and applied.

    Attributes:
        replication_position: everything below is durable on a quorum.
        awaited: another member has forwarded a request, and its client may wait until that member
            has applied what is committed.
    """

    def __init__(
        self,
        role: Role,
        *,
        base: int,
        state: MemberState,
        store: Store,
        applier: Applier,
        followers: Followers,
        replication: Replication,
        on_commit: Callable[[], None],
    ) -> None:
        self.replication_position = 0
        self.awaited = False
        self._role = role
        self._base = base
        self._state = state
        self._store = store
        self._applier = applier
        self._followers = followers
        self._replication = replication
        self._on_commit = on_commit
        self._due = Signal()

    def advance(self) -> None:
        """Compute the quorum's position anew; commit and apply what it passed."""
        # Mostly nothing is in flight when a follower reports: it echoes a heartbeat.
        if self.replication_position >= self._replication.end:
            return
        # I-19: our own share counts once it is on disk, like a follower's. What was only sent is
        # lost by a power cut.
        durable = self._store.recorded.append_position
        # F2: `match` is a prefix that both logs have; a position of another term is not in it (H2).
        matches = self._followers.by_voter(durable, MATCH)
        # Not beyond our own durable log, even if a quorum without us has more: what does not stay
        # in memory is read back from there to be applied.
        reached = min(self._state.quorums.position(matches), durable)
        # Not assigned as it is: a follower that canvasses anew lowers its position, and the result
        # must only rise (I-17).
        if reached > self.replication_position:
            self.replication_position = reached
            self._role.changed.notify()
        committed = self._applier.commit_position
        # I-20: without the base, entries of an earlier leader could be committed by counting (H16).
        if reached > committed and quorum.may_commit(reached, base=self._base):
            self._commit(reached)

    def _commit(self, reached: int) -> None:
        """Commit up to a position: apply it, which answers its clients, and announce it."""
        replication = self._replication
        # First, so that the clients answered below find room in the window.
        replication.window.committed(reached)
        # Before we apply: that takes long for large commits, and followers can do it at the same
        # time. A reply that a follower holds would come there before the announcement, too.
        if self.awaited or reached - replication.announced >= AT_ONCE_BYTES:
            self._announce(reached)
        self._applier.commit(reached)
        self._on_commit()
        # Asked again: clients that were just answered may have sent commands, which carry it.
        if not self._carried():
            self._due.notify()

    def announce_awaited(self) -> None:
        """Announce what is committed if a client of another member may wait for it there."""
        # A read brings no batch, and under a lease no message either.
        if self.awaited:
            self._announce(self._applier.commit_position)

    def _announce(self, reached: int) -> None:
        """Announce a commit position now, unless a batch carries it."""
        # While one is in flight, `awaited` stays: that batch may have been made too early, but its
        # own commit comes here again.
        if not self._carried():
            self.awaited = False
            if self._replication.announced < reached:
                self._replication.announce_commit(reached)

    def _carried(self) -> bool:
        """Whether a batch in flight, or soon to be, carries the commit position."""
        window = self._replication.window
        return bool(window.in_flight or window.waiting)

    async def run(self) -> Never:
        """Announce each commit position that no batch has carried in time; until cancelled."""
        replication, applier = self._replication, self._applier
        while True:
            while replication.announced >= applier.commit_position:
                await self._due.wait()
            # Fixed before the pause: later commits have a pause of their own.
            due = applier.commit_position
            await trio.sleep(PAUSE_SECONDS)
            # Read again: a batch or a heartbeat may have carried it in the meantime.
            if replication.announced < due:
                replication.announce_commit()
