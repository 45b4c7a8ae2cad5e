"""The leader's side of catch-up: replays of its recording to followers that are behind.

One replay at most for each follower, on a stream of its own, so that the live log is not held up.
It sends what is durable, waits for more at the end, and stops when the leader says so (it has met
the live log), when the follower canvasses anew, or when the stream breaks.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Never

import trio

from ...errors import DamagedRecordError, StorageError
from ...transport import CatchupPosition, LogBatch, StopCatchup, StreamPurpose
from ...transport.network import parse_address_untrusted
from ...transport.streams import CONNECTION_ERRORS
from ..protocol.signal import Signal

if TYPE_CHECKING:
    from .follower_progress import Follower
    from .leadership import Leadership

log = logging.getLogger("quorate.node")


class Catchups:
    """The catch-up replays of one leadership."""

    def __init__(self, leadership: Leadership) -> None:
        self.durable = Signal()
        self._leadership = leadership
        self._wanted: dict[int, CatchupPosition] = {}
        self._running: dict[int, trio.CancelScope] = {}
        self._asked = Signal()

    def start(self, follower: Follower, message: CatchupPosition) -> None:
        """Start a replay for a follower, unless one is running (Aeron: onCatchupPosition)."""
        if follower.member_id not in self._running:
            self._wanted[follower.member_id] = message
            self._asked.notify()

    def stop(self, member: int) -> None:
        """Stop the replay for a follower, if there is one."""
        self._wanted.pop(member, None)
        scope = self._running.pop(member, None)
        if scope is not None:
            scope.cancel()

    def stop_where_joined(self, follower: Follower) -> None:
        """End a catch-up once it has met the live log; repeated as long as the follower asks.

        Where its live log began stands still; Aeron compares with the end, which a leader moves on.
        """
        if follower.join_position is not None and follower.match >= follower.join_position:
            member, leadership = follower.member_id, self._leadership
            self.stop(member)
            leadership.links.send(member, StopCatchup(leadership.term, member))

    async def run(self) -> Never:
        """Start what is asked for; until cancelled."""
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
            raise  # nobody has it: never skipped, and never sent, the member stops
        except* (*CONNECTION_ERRORS, StorageError) as group:
            log.info("catch-up of member %d ended: %r", member, group.exceptions[0])
        finally:
            if self._running.get(member) is scope:
                del self._running[member]

    async def _send_log(self, message: CatchupPosition) -> None:
        """Send the durable log from the asked position on, and wait for more."""
        leadership = self._leadership
        links, store = leadership.links, leadership.store
        position = message.log_position
        stream = await links.open_stream(
            parse_address_untrusted(message.catchup_endpoint),
            purpose=StreamPurpose.CATCHUP,
            log_session_id=leadership.session_id,
            join_position=position,
        )
        async with stream:
            while True:
                batches = await leadership.repair.read(position)
                await stream.send_many(LogBatch(leadership.term, 0, batch) for batch in batches)
                position += sum(map(len, batches))
                if position >= store.append_position:
                    await self.durable.wait()
