"""A program's watch: it reads the changes of one member after another, without a gap.

That is what a client's watch over a connection does, without the connection: it keeps its place,
and goes to another member when this one is gone, stands still or is cut off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import trio

from ...errors import WatchLostError
from ...keyvalue.programs.watch import Watch
from ...keyvalue.protocol import resp
from ..store import Store

if TYPE_CHECKING:
    from ...keyvalue.state.changes import Change, RecentChanges
    from ...node import Service
    from ..watching.watched import Watched
    from .programs import Program

LOOK_TIMEOUTS: Final = 0.5
"""A member that has nothing new for so long is left, in heartbeat timeouts: it may be cut off from
the cluster."""
_POSITION: Final = resp.encode_command(["QUORATE.POSITION"])


class ProgramWatch(Watch):
    """A watch of a client process.

    Args:
        program: whose it is.
        prefix: of the keys.
        after: the position after which it begins; -1 for the present.
    """

    def __init__(self, program: Program, prefix: bytes, after: int) -> None:
        super().__init__(prefix, after)
        self._program = program
        self._fetched = after
        self._at = -1
        self._lost: dict[int, int] = {}

    async def _begin(self) -> None:
        if self.position < 0:
            reply = await self._program.endpoint.query(_POSITION)
            (found,) = resp.parse_replies_untrusted(reply)
            assert isinstance(found, int)
            self.position = self._fetched = found

    async def _fetch(self) -> list[Change]:
        recent = await self._recent()
        if recent is None:
            return []
        if self._fetched < recent.start:
            self._leave(recent)
            return []
        self._lost.clear()
        if self._fetched < recent.position:
            found, self._fetched = recent.after(self._fetched, self.prefix)
            if found:
                return found
            self.position = self._fetched
            return []
        look = LOOK_TIMEOUTS * self._program.unit
        if not await recent.moved.wait(trio.current_time() + look):
            self._at = -1
        return []

    async def _recent(self) -> RecentChanges | None:
        """Return the changes at the present member, or at another one; None if there is none."""
        program = self._program
        setting, rng = program.world.setting, program.rng
        await program.reaches()
        if self._at < 0:
            self._at = rng.choice(program.world.present)
        await trio.sleep(setting.latency * rng.random())
        host = program.world.hosts[self._at]
        with trio.move_on_after(LOOK_TIMEOUTS * program.unit):
            await host.awake()
            if host.member is not None:
                service = cast("Watched[Service]", host.service).service
                if isinstance(service, Store):
                    return service.changes
            await trio.sleep_forever()
        self._at = -1
        return None

    def _leave(self, recent: RecentChanges) -> None:
        """Try another member; if none has the changes, there is a gap."""
        self._lost[self._at] = recent.start
        left = [i for i in self._program.world.present if i not in self._lost]
        if not left:
            oldest = min(self._lost.values())
            self._lost.clear()
            raise WatchLostError(
                f"after = {self._fetched}: the changes after position {oldest} are kept",
                after=self._fetched,
                oldest=oldest,
            )
        self._at = self._program.rng.choice(left)

    async def aclose(self) -> None:
        """See `Watch`."""
        self._next.clear()
