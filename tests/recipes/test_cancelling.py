"""Every call is cancelled at each of its awaits in turn; nothing that it has taken stays behind."""

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from random import Random
from typing import Any, Final

import anyio
import anyio.lowlevel
import pytest

from quorate.keyvalue.programs.client import KeyValue
from quorate.recipes import (
    Barrier,
    Lease,
    Party,
    Queue,
    cached,
    election,
    lock,
    rw_lock,
    semaphore,
)
from tests.support.played import played
from tests.support.recipes_world import PolledWatch, World

BUSY_S: Final = 0.2
MOST_AWAITS: Final = 200

Block = AbstractAsyncContextManager[object]


class Stepped:
    """A call that is cancelled at one of its awaits.

    Args:
        call: the call.
        at: the number of the await, from 0 on.
        scope: is cancelled.
        late: cancel when the await has ended, and not before it begins.
    """

    def __init__(
        self, call: Coroutine[Any, Any, None], at: int, scope: anyio.CancelScope, *, late: bool
    ) -> None:
        self._call, self._at, self._scope, self._late = call, at, scope, late

    def __await__(self) -> Generator[Any, Any, None]:
        steps = self._call.__await__()
        resume: Callable[[Any], Any] = steps.send
        value: Any = None
        count = 0
        while True:
            try:
                wanted = resume(value)
            except StopIteration:
                return
            if count == self._at and not self._late:
                self._scope.cancel()
            try:
                value = yield wanted
                resume = steps.send
            except BaseException as error:  # noqa: BLE001 - the call gets it
                value, resume = error, steps.throw
            if count == self._at and self._late:
                self._scope.cancel()
            count += 1


def a_lock(kv: KeyValue) -> Block:
    return lock(kv, "a", ttl_s=3, rng=Random(1))


def an_election(kv: KeyValue) -> Block:
    return election(kv, "a", ttl_s=3, rng=Random(1)).lead()


def a_reader(kv: KeyValue) -> Block:
    return rw_lock(kv, "a", ttl_s=3, rng=Random(1)).reading()


def a_writer(kv: KeyValue) -> Block:
    return rw_lock(kv, "a", ttl_s=3, rng=Random(1)).writing()


def a_permit(kv: KeyValue) -> Block:
    return semaphore(kv, "a", 1, ttl_s=3, rng=Random(1))


def a_member(kv: KeyValue) -> Block:
    return Party(kv, "a", ttl_s=3, rng=Random(1)).join()


def an_item(kv: KeyValue) -> Block:
    return Queue(kv, "a", ttl_s=3, rng=Random(1)).take()


def a_copy(kv: KeyValue) -> Block:
    return cached(kv, "quorate:")


@asynccontextmanager
async def a_lease(kv: KeyValue) -> AsyncGenerator[None]:
    lease = Lease(kv, b"quorate:lease", ttl_s=3, rng=Random(1))
    async with lease.releasing():
        if await lease.acquire():
            async with lease.held():
                yield
        else:
            yield


@asynccontextmanager
async def a_way_through(kv: KeyValue) -> AsyncGenerator[None]:
    await Barrier(kv, "a", 2, ttl_s=3, rng=Random(1)).wait()
    yield


async def enter(block: Block, done: list[int], at: int) -> None:
    async with block:
        await anyio.lowlevel.checkpoint()
        done.append(at)


async def others_first(world: World, block: Callable[[KeyValue], Block]) -> None:
    """Have the thing for a moment, so that the call must wait."""
    kv = world.store()
    if block is a_way_through:
        await anyio.sleep(BUSY_S)
        with anyio.move_on_after(BUSY_S):
            await Barrier(kv, "a", 2, ttl_s=3, rng=Random(2)).wait()
    elif block is an_item:
        await anyio.sleep(BUSY_S)
        await Queue(kv, "a", ttl_s=3).put("x")
    else:
        async with block(kv):
            await anyio.sleep(BUSY_S)


def left(world: World) -> list[bytes]:
    """Return the keys that hold somebody up."""
    kept = b":through:", b":tail", b":head", b":item:"
    keys = world.keys()
    return [key for key in keys if not any(word in key for word in kept)]


async def call_cancelled(
    world: World, block: Callable[[KeyValue], Block], at: int, *, late: bool, waits: bool
) -> bool:
    """Cancel a call at an await; return whether it has ended before that one."""
    done: list[int] = []
    found: list[bytes] = []
    scope = anyio.CancelScope()
    world.fed.apply("FLUSHALL")
    if block is an_item and not waits:
        await Queue(world.store(), "a", ttl_s=3).put("x")
    async with anyio.create_task_group() as group:
        if waits:
            group.start_soon(others_first, world, block)
            await anyio.sleep(BUSY_S / 2)
        with scope:
            await Stepped(enter(block(world.store()), done, at), at, scope, late=late)
            scope.cancel()
        found = [] if waits else left(world)
    found = found or left(world)
    assert not found, f"await {at}, late={late}: {found}"
    if block is an_item and not done:
        item = b"quorate:queue:{a}:item:1"
        assert world.keys().count(item), f"await {at}, late={late}: no item"
    return not scope.cancelled_caught


BLOCKS: Final = (
    a_lock,
    an_election,
    a_reader,
    a_writer,
    a_permit,
    a_member,
    an_item,
    a_copy,
    a_lease,
    a_way_through,
)


CALLS: Final = [
    pytest.param(block, waits, id=f"{block.__name__}-{'waits' if waits else 'free'}")
    for block in BLOCKS
    for waits in (False, True)
    if waits or block is not a_way_through  # which is free for nobody alone
]


@pytest.mark.parametrize(("block", "waits"), CALLS)
@played()
async def test_a_call_that_is_cancelled_at_any_await_leaves_nothing(
    world: World,
    block: Callable[[KeyValue], Block],
    waits: bool,  # noqa: FBT001 - a parameter
) -> None:
    world.watch_class = PolledWatch  # it is closed like one over a connection, by an await
    for late in False, True:
        for at in range(MOST_AWAITS):
            if await call_cancelled(world, block, at, late=late, waits=waits):
                break
        else:
            raise AssertionError("it never ends")
