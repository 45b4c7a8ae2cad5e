"""Client processes: each has a connection of its own, stands still, is cut off, and dies.

A program is a task and its descendants. :class:`~..machines.tasks.Pauses` holds them all back, as
it does with a member's, so a paused program sees all its timers expire at once. A program that dies
sends nothing more; what it has sent may still arrive.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeVar

import trio

from ...errors import NoLeaderError, RequestError
from ...keyvalue.programs.client import KeyValue
from ...keyvalue.programs.session import SessionKeyValue
from ...keyvalue.retry import Retry
from ...node.requests.request import UNSTAMPED
from ..door import Door
from .watches import ProgramWatch

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from ...node import Member, Service
    from ...node.requests.request import Stamp
    from ..machines.tasks import Pauses
    from ..world import World

T = TypeVar("T")

SESSION_S: Final = 60.0
PATIENCE_TIMEOUTS: Final = 6.0
"""How long a program sends a request again, in heartbeat timeouts. Longer: a program spends the
storm with one request. Shorter: it meets errors that a real client waits for to pass."""


class Line(Door):
    """A program's access to the cluster: a door that can be shut.

    Args:
        door: of the client whose program it is; its generator and its counts are used.
        program: whose line it is.
    """

    def __init__(self, door: Door, program: Program) -> None:
        super().__init__(door.client, door.world, door.rng, door.tell, door.serials)
        self.counts = door.counts
        self._program = program

    async def at_member(self, at: int, ask: Callable[[Member], Awaitable[T]]) -> T:
        """See `Door`; nothing arrives while the program is cut off, or dead."""
        await self._program.reaches()
        if self._program.dead:
            raise NoLeaderError("this process is dead")
        reply = await super().at_member(at, ask)
        await self._program.reaches()
        return reply


class ProgramEndpoint:
    """What a program's store sends its requests to: reads are sent again until answered.

    Writes are sent again if certainly nothing happened. A session does more.
    """

    def __init__(self, line: Line, patience_s: float) -> None:
        self._line = line
        self._patience_s = patience_s

    async def command(self, payload: bytes, flags: int = 0, stamp: Stamp = UNSTAMPED) -> bytes:
        """See `Endpoint`."""
        if stamp != UNSTAMPED:
            return await self._line.command(payload, flags, stamp=stamp)
        return await self._again(lambda: self._line.command(payload, flags), NoLeaderError)

    async def query(self, payload: bytes, flags: int = 0) -> bytes:
        """See `Endpoint`."""
        return await self._again(lambda: self._line.query(payload, flags), RequestError)

    async def _again(self, send: Callable[[], Awaitable[bytes]], kind: type[RequestError]) -> bytes:
        retry = Retry(trio.current_time, trio.current_time() + self._patience_s)
        while True:
            try:
                return await send()
            except kind:
                if (pause := retry.pause_s()) is None:
                    raise
            await trio.sleep(pause)


class Program:
    """One life of a client process.

    Args:
        number: of the life; no other has it.
        door: of the client.
        pauses: of the world.
        network: runs what carries its bytes; it goes on while the program stands still.

    Attributes:
        resumed: when it went on after standing still, in seconds of the world; -1 for never.
        dead: it was killed.
        world: the cluster.
        endpoint: its access to the cluster.
        rng: of the client.
        unit: a heartbeat timeout, in seconds.
    """

    def __init__(self, number: int, door: Door, pauses: Pauses, network: trio.Nursery) -> None:
        self.number = number
        self.network = network
        self.resumed = -1.0
        self.dead = False
        self.world: World[Service] = door.world
        self.rng = door.rng
        self.unit = door.world.setting.timeouts.leader_heartbeat_timeout
        self.endpoint = ProgramEndpoint(Line(door, self), PATIENCE_TIMEOUTS * self.unit)
        self._pauses = pauses
        self._root: trio.lowlevel.Task | None = None
        self._scope = trio.CancelScope()
        self._mended = trio.Event()
        self._mended.set()

    async def run(self, main: Callable[[Program], Awaitable[None]]) -> None:
        """Run it to its end; a request that failed, or its death, is one."""
        self._root = trio.lowlevel.current_task()
        try:
            with self._scope:
                await main(self)
        finally:
            self._mended.set()
            self.resume()
            self._root = None

    @asynccontextmanager
    async def connect(self, *, once: bool) -> AsyncGenerator[KeyValue]:
        """Connect to the cluster: with exactly-once writes, or without."""
        if not once:
            yield KeyValue(self.endpoint, watches=self)
            return
        store = _Session(self)
        try:
            yield store
        finally:
            with trio.move_on_after(self.unit, shield=True):
                await store.close()

    def watch(self, prefix: bytes, after: int) -> ProgramWatch:
        """See `WatchSource`."""
        return ProgramWatch(self, prefix, after)

    async def reaches(self) -> None:
        """Wait until it is not cut off."""
        await self._mended.wait()

    def awake(self) -> float | None:
        """See `Life`."""
        now = trio.current_time()
        return None if self.dead or now <= self.resumed else now

    # --- what happens to it

    @property
    def running(self) -> bool:
        """Whether it has begun, and has not ended."""
        return self._root is not None

    def pause(self) -> None:
        """Have it stand still."""
        if self._root is not None:
            self._pauses.pause(self._root)

    def resume(self) -> None:
        """Have it go on; nothing if it does not stand still."""
        if self._root is not None and self._pauses.paused(self._root):
            self.resumed = trio.current_time()
            self._pauses.resume(self._root)

    def cut(self) -> None:
        """Have nothing of it arrive, and nothing arrive there."""
        if self._mended.is_set():
            self._mended = trio.Event()

    def mend(self) -> None:
        """Undo that."""
        self._mended.set()

    def die(self) -> None:
        """End it; nothing is given back."""
        self.dead = True
        self._scope.cancel()
        self.mend()
        self.resume()


class _Session(SessionKeyValue):
    """A program's store with exactly-once writes."""

    def __init__(self, program: Program) -> None:
        patience_s = PATIENCE_TIMEOUTS * program.unit
        super().__init__(
            program.endpoint, timeout_s=SESSION_S, patience_s=patience_s, watches=program
        )
