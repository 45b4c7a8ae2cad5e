"""The clients of a simulated cluster: they write and read through random members.

Every command is unique. A write is acknowledged (it must be there for ever, once), refused (it must
never be there) or unknown (either will do). A read must see every write that was acknowledged
before it was asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from ..errors import NoLeaderError, UnknownOutcomeError
from .invariants import ViolationError

if TYPE_CHECKING:
    import random

    from .ledger import Ledger
    from .world import World

WRITERS: Final = 4
PATIENCE: Final = (0.2, 1.0, 6.0)
READ_PAUSE: Final = 0.02


class Clients:
    """The clients of one cluster.

    Args:
        world: the cluster.
        rng: what they do and where.

    Attributes:
        writes: how many commands were sent.
        reads: how many reads were answered.
    """

    def __init__(self, world: World[Ledger], rng: random.Random) -> None:
        self.writes = 0
        self.reads = 0
        self._world = world
        self._rng = rng
        self._ids = tuple(world.hosts)
        self._highest_reply = 0

    async def run(self) -> None:
        """Write and read until cancelled."""
        async with trio.open_nursery() as nursery:
            for _ in range(WRITERS):
                nursery.start_soon(self._writer)
            nursery.start_soon(self._reader)

    async def _writer(self) -> None:
        while True:
            self.writes += 1
            await self._write(self._rng.choice(self._ids), b"%d" % self.writes)
            await trio.sleep(self._rng.choice((0.0, 0.0, 0.01, 0.05)))

    async def _write(self, at: int, payload: bytes) -> None:
        world, host = self._world, self._world.hosts[at]
        if host.member is None:
            await trio.sleep(0.01)
            return
        try:
            with trio.move_on_after(self._rng.choice(PATIENCE)):
                reply = int(await host.member.command(payload))
                world.trace.tell("acknowledged", at, payload, reply)
                world.acked.append(payload)
                self._highest_reply = max(self._highest_reply, reply)
        except UnknownOutcomeError:
            pass
        except NoLeaderError:
            world.refused.append(payload)

    async def _reader(self) -> None:
        while True:
            await trio.sleep(READ_PAUSE)
            at = self._rng.choice(self._ids)
            host = self._world.hosts[at]
            if host.member is None:
                continue
            least = self._highest_reply
            try:
                with trio.move_on_after(1.0):
                    found = int(await host.member.query(b""))
                    self._world.trace.tell("read", at, found)
                    self._check(found, least)
            except NoLeaderError:
                pass

    def _check(self, found: int, least: int) -> None:
        self.reads += 1
        if found < least:
            raise ViolationError(f"a read saw {found} commands, {least} were acknowledged")
        self._highest_reply = max(self._highest_reply, found)
