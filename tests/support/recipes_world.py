"""A store for recipes, in virtual time, on trio or on asyncio.

`World` is a log that is applied at once. Its time is that of the run, and may jump. Each program
has a `Link` of its own, on which requests may be lost, late, or never answered.
"""

import asyncio
import selectors
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.abc
import anyio.lowlevel
import trio
from trio.testing import MockClock

from quorate.errors import NoLeaderError, UnknownOutcomeError, WatchLostError
from quorate.keyvalue.programs.client import KeyValue
from quorate.keyvalue.programs.watch import LocalWatch, LocalWatches, Watch
from quorate.keyvalue.service import KeyValueService
from quorate.keyvalue.state.changes import Change
from quorate.node.requests.request import UNSTAMPED, Stamp
from quorate.node.state_machine.service import Command
from tests.support.service_world import START_MS, Fed, open_service

BACKENDS: Final = ("trio", "asyncio")
LATENCY_S: Final = 0.01
LATE_S: Final = 3.0
TICK_S: Final = 0.05

Scenario = Callable[["World"], Coroutine[Any, Any, None]]
Run = Callable[[Scenario], None]
Fate = str | None
"""None: the request is done and answered. ``refused``: it is not done, and says so. ``lost``: it is
not done, ``unheard``: it is done, ``late``: it is done 3 s later; all three are unknown at once.
``mute`` is done, ``stuck`` is not; these are never answered."""


class PolledWatch(Watch):
    """A watch that looks from time to time; the real one waits on trio alone."""

    def __init__(self, source: LocalWatches, prefix: bytes, after: int) -> None:
        super().__init__(prefix, after)
        self._recent = source.recent

    async def _begin(self) -> None:
        await anyio.lowlevel.checkpoint()
        if self.position < 0:
            self.position = self._recent.position

    async def _fetch(self) -> list[Change]:
        await anyio.sleep(LATENCY_S)
        start = self._recent.start
        if self.position < start:
            raise WatchLostError("lost", after=self.position, oldest=start)
        found, self.position = self._recent.page(self.position, self.prefix)
        return list(found)

    async def aclose(self) -> None:
        await anyio.lowlevel.checkpoint()


class DeafWatch(PolledWatch):
    """A watch that was lost without an error."""

    async def _fetch(self) -> list[Change]:
        await anyio.sleep_forever()
        raise AssertionError


class World:
    """A store, its clock, and the programs that use it.

    Attributes:
        fed: the service and its log.
        ahead_s: how far log time is ahead of the programs' clocks.
        later: runs what is done after its sender has given up.
        watch_class: of watches.
    """

    def __init__(
        self, service: KeyValueService, later: anyio.abc.TaskGroup, *, polled: bool
    ) -> None:
        self.fed = Fed(service)
        self.later = later
        self.ahead_s = 0.0
        self.watch_class: type[PolledWatch | LocalWatch] = PolledWatch if polled else LocalWatch
        self._start = anyio.current_time()

    def apply(self, payload: bytes, flags: int = 0, stamp: Stamp = UNSTAMPED) -> bytes:
        """Apply a command, now."""
        self.tick()
        fed = self.fed
        return fed.replay(Command(payload, flags, *stamp, 1, fed.position, 0, fed.now))

    def tick(self) -> None:
        """Let log time follow the clock."""
        seconds = anyio.current_time() - self._start + self.ahead_s
        now = max(self.fed.now, START_MS + round(seconds * 1000))
        self.fed.pass_time(now - self.fed.now)

    async def run(self) -> None:
        """Let log time advance until cancelled."""
        while True:
            await anyio.sleep(TICK_S)
            self.tick()

    def watch(self, prefix: bytes, after: int) -> Watch:
        """See `WatchSource`."""
        return self.watch_class(LocalWatches(self.fed.service.changes), prefix, after)

    def link(self) -> "Link":
        """Return a connection to the store."""
        return Link(self)

    def store(self) -> KeyValue:
        """Return a store of its own connection."""
        return self.link().kv

    def keys(self) -> list[bytes]:
        """Return the keys that exist."""
        reply = self.fed.query("KEYS *")
        return sorted(reply.split(b"\r\n")[2::2])


class Link:
    """A program's connection: an endpoint with faults.

    Attributes:
        kv: the store.
        fate: called with each payload; decides what becomes of it.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.fate: Callable[[bytes], Fate] = lambda _payload: None
        self.kv = KeyValue(self, watches=world)
        self.commands: list[bytes] = []

    async def command(self, payload: bytes, flags: int = 0, stamp: Stamp = UNSTAMPED) -> bytes:
        self.commands.append(payload)
        fate = self.fate(payload)
        await anyio.sleep(LATENCY_S)
        if fate in {"refused", "lost", "late", "stuck"}:
            if fate == "late":
                self.world.later.start_soon(self._apply_late, payload, flags, stamp)
            return await _unanswered(fate)
        reply = self.world.apply(payload, flags, stamp)
        await anyio.sleep(LATENCY_S)
        return reply if fate is None else await _unanswered(fate)

    async def _apply_late(self, payload: bytes, flags: int, stamp: Stamp) -> None:
        await anyio.sleep(LATE_S)
        self.world.apply(payload, flags, stamp)

    async def query(self, payload: bytes, flags: int = 0) -> bytes:
        fate = self.fate(payload)
        await anyio.sleep(LATENCY_S)
        if fate is not None:
            return await _unanswered(fate)
        self.world.tick()
        reply = self.world.fed.service.query(payload, flags)
        await anyio.sleep(LATENCY_S)
        return reply


async def _unanswered(fate: str) -> bytes:
    if fate == "refused":
        raise NoLeaderError("not done")
    if fate in {"mute", "stuck"}:
        await anyio.sleep_forever()
    raise UnknownOutcomeError(fate)


@asynccontextmanager
async def opened(directory: Path, *, polled: bool) -> AsyncGenerator[World]:
    """A world whose log time advances, for the length of the block."""
    service = open_service(directory)
    try:
        async with anyio.create_task_group() as group:
            world = World(service, group, polled=polled)
            group.start_soon(world.run)
            yield world
            group.cancel_scope.cancel()
    finally:
        service.close()


class JumpingSelector(selectors.SelectSelector):
    """Never waits: the time jumps instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "all tasks wait for ever"
        self.now += max(timeout, 0)
        return super().select(0)


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop of asyncio in virtual time."""

    def __init__(self) -> None:
        self._jumping = JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def play(backend: str, directory: Path, scenario: Scenario) -> None:
    """Run a scenario in a world of its own, for 1,000 s of virtual time at most."""

    async def run() -> None:
        with anyio.fail_after(1000):
            async with opened(directory, polled=backend == "asyncio") as world:
                await scenario(world)

    if backend == "trio":
        trio.run(run, clock=MockClock(autojump_threshold=0))
    else:
        with asyncio.Runner(loop_factory=JumpingLoop) as runner:
            runner.run(run())
