"""The leader's side of catch-up: it sends its log to followers that lag behind the live log.

Each follower has at most one replay, on a stream of its own, so that the live log is not held up. A
replay sends what is durable and waits for more. It stops when the follower has met the live log,
when the follower looks for a leader again, or when the stream breaks.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Never

import trio

from ...errors import DamagedRecordError, StorageError
from ...log_events import log_event
from ...transport import CatchupPosition, LogBatch, StopCatchup, StreamPurpose
from ...transport.network import parse_address_untrusted
from ...transport.streams import CONNECTION_ERRORS
from ..protocol.signal import Signal

if TYPE_CHECKING:
    from ...storage import Store
    from ...transport import Links
    from ..state_machine.applier import ReadLog
    from .follower_progress import Follower

log = logging.getLogger("quorate.node")


class CatchupSender:
    """The catch-up replays of one leadership.

    Args:
        term: the leadership term.
        session_id: names the live log that the followers join.
        store: our log.
        read: reads batches of it, and repairs damaged ones.
        links: to the followers.

    Attributes:
        durable: notify it when more of the log is durable.
    """

    def __init__(
        self, term: int, session_id: int, *, store: Store, read: ReadLog, links: Links
    ) -> None:
        self.durable = Signal()
        self._term = term
        self._session_id = session_id
        self._store = store
        self._read = read
        self._links = links
        self._wanted: dict[int, CatchupPosition] = {}
        self._running: dict[int, trio.CancelScope] = {}
        self._asked = Signal()

    def start(self, follower: Follower, message: CatchupPosition) -> None:
        """Start a replay for a follower, unless one is running (Aeron: onCatchupPosition)."""
        # A follower that repeats itself would otherwise restart its own catch-up.
        if follower.member_id not in self._running:
            self._wanted[follower.member_id] = message
            self._asked.notify()

    def stop(self, member: int) -> None:
        """Stop the replay for a follower, if there is one."""
        self._wanted.pop(member, None)
        # Popped, not only cancelled: a new replay may be asked for before this one has ended.
        scope = self._running.pop(member, None)
        if scope is not None:
            scope.cancel()

    def stop_where_joined(self, follower: Follower) -> None:
        """End a catch-up that has met the live log; repeated as long as the follower asks."""
        # Compared with where its live log began, which is fixed. Aeron compares with the end of the
        # log, which a busy leader keeps moving.
        if follower.join_position is not None and follower.match >= follower.join_position:
            self.stop(follower.member_id)
            self._links.send(follower.member_id, StopCatchup(self._term, follower.member_id))

    async def run(self) -> Never:
        """Start the replays that followers ask for; until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                for member, message in self._wanted.items():
                    scope = self._running[member] = trio.CancelScope()
                    nursery.start_soon(self._replay, member, message, scope)
                self._wanted.clear()
                await self._asked.wait()
        raise AssertionError("the loop does not end")  # pragma: no cover - never reached

    async def _replay(self, member: int, message: CatchupPosition, scope: trio.CancelScope) -> None:
        try:
            with scope:
                await self._send_log(message)
        except* DamagedRecordError:
            raise  # no member has the batch; it is never skipped or sent: this member stops
        # The follower gives up when nothing comes any more, and joins anew.
        except* (*CONNECTION_ERRORS, StorageError) as group:
            words = "catch-up of member %(peer)d ended: %(why)s"
            why = repr(group.exceptions[0])
            log_event(log, logging.DEBUG, "catchup_ended", words, peer=member, why=why)
        finally:
            # A newer replay may stand here by now; it must stay findable for `stop`.
            if self._running.get(member) is scope:
                del self._running[member]

    async def _send_log(self, message: CatchupPosition) -> None:
        """Send the durable log from the requested position on, and wait for more."""
        position = message.log_position
        stream = await self._links.open_stream(
            parse_address_untrusted(message.catchup_endpoint),
            purpose=StreamPurpose.CATCHUP,
            log_session_id=self._session_id,
            join_position=position,
        )
        async with stream:
            while True:
                batches = await self._read(position)
                await stream.send_many(LogBatch(self._term, 0, batch) for batch in batches)
                position += sum(map(len, batches))
                # Only what is durable can be read back; what is newer comes by the live log.
                if position >= self._store.append_position:
                    await self.durable.wait()
