"""Pushes the changes of keys to the clients that watch them (QUORATE.WATCH).

What one watch does is in :mod:`.pushed_watch`. Here watches begin, are counted, and report from
time to time that nothing has changed.

A silent member
    A member without a leader pushes nothing and would look idle. After :data:`SILENT_ROUNDS` it
    ends its watches and begins none, so that clients continue at another member.
"""

from collections.abc import Callable, Sequence
from typing import Final, Never

import trio

from ..clients.port_state import ClientConnection, PortState
from ..limits import MAX_CLIENT_WATCHES, MAX_WATCHES
from ..programs.watch import WatchSource
from ..protocol import resp
from .push_turns import PushTurns
from .pushed_watch import PushedWatch

__all__ = ["PROGRESS_SECONDS", "SILENT_ROUNDS", "WatchPushes"]

PROGRESS_SECONDS: Final = 5.0
"""How often each idle client hears up to where there was nothing. Shorter, and idle watches cost
more; longer, and a client that comes back has more to be told, and later notices a dead member."""

SILENT_ROUNDS: Final = 3
"""So many rounds of progress in a row without a leader end the watches. Fewer, and an ordinary
election makes all clients connect anew; more, and those of a cut-off member stand still longer."""

_IN_A_ROW: Final = 64  # pushes of progress, before other tasks run
_FOLLOWS: Final = "CLOSED"  # the election is over: it leads or follows
_NO_LEADER: Final = "CLUSTERDOWN this member has no leader: ask another member"


class WatchPushes:
    """The watches of all clients of a port.

    Args:
        source: makes watches of this member.
        state: of the port.
    """

    def __init__(self, source: WatchSource, state: PortState) -> None:
        self._source = source
        self._state = state
        self._running: set[PushedWatch] = set()
        self._nursery: trio.Nursery | None = None
        self._silent = 0
        self._turns = PushTurns()

    def __len__(self) -> int:
        return len(self._running)

    async def run(self) -> Never:
        """Serve watches until cancelled."""
        async with trio.open_nursery() as self._nursery:
            self._nursery.start_soon(self._turns.run)
            while True:
                await trio.sleep(PROGRESS_SECONDS)
                follows = self._state.gateway.status().state == _FOLLOWS
                self._silent = 0 if follows else self._silent + 1
                await self._tell_progress()
        raise AssertionError("the loop ends by cancellation only")

    def begin(
        self,
        connection: ClientConnection,
        arguments: Sequence[bytes],
        after: int,
        done: Callable[[bytes], None],
    ) -> None:
        """See `ChangeWatches`."""
        watches = connection.client.watches
        if self._silent >= SILENT_ROUNDS:
            done(resp.error(_NO_LEADER))
        elif self._nursery is None:
            done(resp.error("REFUSED this member is starting or stopping: ask another member"))
        elif len(watches) >= MAX_CLIENT_WATCHES:
            done(_too_many(len(watches), "this connection has", "end some with QUORATE.UNWATCH"))
        elif len(self) >= MAX_WATCHES:
            done(_too_many(len(self), "all clients of this member have", "use another member"))
        else:
            watch_id = watches.next_id()
            changes = self._source.watch(arguments[1], after)
            of = self._state, connection, arguments, watch_id
            watch = PushedWatch(*of, changes, turns=self._turns)
            watches.add(watch_id, watch)
            self._running.add(watch)
            self._nursery.start_soon(self._run, watch, done)

    async def _run(self, watch: PushedWatch, done: Callable[[bytes], None]) -> None:
        await watch.run(done)
        self._running.discard(watch)

    async def _tell_progress(self) -> None:
        # By connection and id: nothing depends on the order of a set.
        running = sorted(self._running, key=lambda each: each.place)
        for count, watch in enumerate(running, 1):
            if self._silent >= SILENT_ROUNDS:
                watch.end_because(_NO_LEADER)
            else:
                watch.check_again()
                watch.tell_progress()
            if not count % _IN_A_ROW:
                await trio.lowlevel.checkpoint()


def _too_many(count: int, holders: str, way_out: str) -> bytes:
    return resp.error(f"REFUSED {holders} {count} watches, which is as many as allowed: {way_out}")
