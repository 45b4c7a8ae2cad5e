"""A key-value store of one process in virtual time: its log time follows trio's clock."""

import functools
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Concatenate, ParamSpec

import trio

from quorate.errors import NoLeaderError, UnknownOutcomeError
from quorate.keyvalue.programs.client import KeyValue
from quorate.keyvalue.programs.watch import LocalWatches
from quorate.node.requests.request import UNSTAMPED, Stamp
from quorate.node.state_machine.service import Command
from tests.support.service_world import START_MS, Fed, open_service

TICK_S = 0.5
LATENCY_S = 0.002
P = ParamSpec("P")
LONGEST_TEST_TICKS = 2000


class LoneStore:
    """An endpoint whose log is applied after the way of a message there, and one back.

    Attributes:
        fed: the service and its log.
        kv: a client of it.
        down: no leader is found.
        lost: that many replies to commands are lost.
        requests: how many it was sent.
    """

    def __init__(self, fed: Fed) -> None:
        self.fed = fed
        self.kv = KeyValue(self, watches=LocalWatches(fed.service.changes))
        self.down = False
        self.lost = 0
        self.requests = 0
        self._random = Random(1)
        self._began = trio.current_time()

    async def command(self, payload: bytes, flags: int = 0, stamp: Stamp = UNSTAMPED) -> bytes:
        await self._way()
        self._tick()
        fed = self.fed
        reply = fed.replay(Command(payload, flags, *stamp, 1, fed.position, 0, fed.now))
        if self.lost:
            self.lost -= 1
            raise UnknownOutcomeError("the reply is lost")
        await self._way()
        return reply

    async def query(self, payload: bytes, flags: int = 0) -> bytes:
        await self._way()
        reply = self.fed.service.query(payload, flags)
        await self._way()
        return reply

    async def _way(self) -> None:
        self.requests += 1
        if self.down:
            raise NoLeaderError("there is no leader")
        await trio.sleep(LATENCY_S * self._random.uniform(0.5, 1))

    def _tick(self) -> None:
        self.fed.now = START_MS + round((trio.current_time() - self._began) * 1000)

    async def run(self) -> None:
        """Move log time, as a leader does while keys have an expiry."""
        for _ in range(LONGEST_TEST_TICKS):
            await trio.sleep(TICK_S)
            self._tick()
            self.fed.pass_time(0)
        raise AssertionError("the test waits for ever")


@asynccontextmanager
async def lone_store(directory: Path) -> AsyncGenerator[LoneStore]:
    """Yield a new store; its log time runs until the block ends."""
    service = open_service(directory)
    try:
        async with trio.open_nursery() as nursery:
            store = LoneStore(Fed(service))
            nursery.start_soon(store.run)
            yield store
            nursery.cancel_scope.cancel()
    finally:
        service.close()


def on_lone_store(
    body: Callable[Concatenate[LoneStore, P], Awaitable[None]],
) -> Callable[..., Awaitable[None]]:
    """Make a test of a function that takes a new store; it runs in virtual time."""

    @functools.wraps(body)
    async def test(
        tmp_path: Path, autojump_clock: object, *args: P.args, **kwargs: P.kwargs
    ) -> None:
        async with lone_store(tmp_path) as store:
            await body(store, *args, **kwargs)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    fixtures = [inspect.Parameter(name, kind) for name in ("tmp_path", "autojump_clock")]
    of_its_own = list(inspect.signature(body).parameters.values())[1:]
    vars(test)["__signature__"] = inspect.Signature([*fixtures, *of_its_own])
    return test
