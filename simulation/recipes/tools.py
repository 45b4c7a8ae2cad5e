"""How programs use counters, queues, copies, parties and barriers; see `uses.py`."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import trio

from ...errors import RequestError
from ...recipes.barrier import Barrier
from ...recipes.cache import cached
from ...recipes.counter import Counter
from ...recipes.party import Party
from ...recipes.queue import Queue
from .copies import PREFIX, look
from .gates import PARTIES
from .holding import CARELESS, SLOWEST
from .stage import COUNTED, NUMBER

if TYPE_CHECKING:
    from ...keyvalue.programs.client import KeyValue
    from ...keyvalue.programs.transaction import Transaction
    from ...recipes.queue import Item
    from .blocks import Life
    from .stage import Stage

ADDITIONS: Final = 20
BESIDE: Final = 4
WAITING: Final = 10
COUNTER: Final = b"quorate:counter:{hits}:value"


async def use_counter(stage: Stage, program: Life, kv: KeyValue) -> None:
    """Add to the counter that all share."""
    counter = Counter(kv, "hits")
    for _ in range(program.rng.randint(1, ADDITIONS)):
        await stage.sums.add(COUNTER, counter.add())
        await trio.sleep(program.unit * 0.1 * program.rng.random())


async def use_batches(stage: Stage, program: Life, kv: KeyValue) -> None:
    """Add to several numbers at once, each of one task: these travel together."""

    async def add(number: int) -> None:
        key = b"sum:%d:%d" % (program.number, number)
        with suppress(RequestError):
            for _ in range(program.rng.randint(1, ADDITIONS)):
                await stage.sums.add(key, kv.increment(key))

    async with trio.open_nursery() as nursery:
        for number in range(BESIDE):
            nursery.start_soon(add, number)


async def put_jobs(stage: Stage, program: Life, kv: KeyValue) -> None:
    """Put some items."""
    queue = _queue(stage, program, kv)
    for _ in range(program.rng.randint(1, 4)):
        value = stage.jobs.new(program.rng.choice((b"plain", COUNTED)))
        await queue.put(value)
        stage.jobs.put.append(value)


async def take_job(stage: Stage, program: Life, kv: KeyValue) -> None:
    """Take an item and work on it; some of the work fails."""
    wait_s = stage.wait_s(program)
    async with _queue(stage, program, kv).take(wait_s=wait_s) as item:
        await _work(stage, program, kv, item)
    stage.blocks.left(item.lease.key, item.lease.token)


async def drain(stage: Stage, program: Life, kv: KeyValue) -> None:
    """Take all items that there are."""
    queue = _queue(stage, program, kv)
    with suppress(TimeoutError):
        while True:
            async with queue.take(wait_s=0) as item:
                await _work(stage, program, kv, item)
            stage.blocks.left(item.lease.key, item.lease.token)


async def _work(stage: Stage, program: Life, kv: KeyValue, item: Item) -> None:
    """Work on an item.

    Raises:
        TimeoutError: the work has failed.
    """
    rng, lease = program.rng, item.lease
    block = stage.blocks.enter(program, f"item {item.number}", lease.key, lease.token)
    stage.jobs.taken.append((item.value, block))
    while rng.random() < 0.5:
        await trio.sleep(program.unit * rng.random())
        block.mark()
    if rng.random() < 0.1 and not stage.patient:
        raise TimeoutError("the work takes too long")
    if item.value.startswith(COUNTED):

        async def body(transaction: Transaction) -> None:
            await item.remove_in(transaction)
            if not stage.patient:
                await trio.sleep(program.unit * SLOWEST * rng.random() ** 4)
            transaction.increment(NUMBER)

        with trio.CancelScope(shield=rng.random() < CARELESS):
            await kv.transact(body, rng=rng)
    block.ran = True


async def use_copy(stage: Stage, program: Life, kv: KeyValue) -> None:
    """Keep a copy of some keys, and change them."""
    rng = program.rng
    async with cached(kv, PREFIX) as copy:
        seen = stage.copies.new()
        for _ in range(ADDITIONS):
            if rng.random() < 0.3:
                key = PREFIX + b"%d" % rng.randrange(3)
                if rng.random() < 0.2:
                    await kv.delete(key)
                else:
                    await kv.set(key, stage.copies.value(), px=round(5000 * program.unit))
            await trio.sleep(program.unit * 0.2 * rng.random())
            look(copy, seen)


async def use_party(stage: Stage, program: Life, kv: KeyValue) -> None:
    """Be there, and look who else is."""
    terms = stage.terms(program)
    party = Party(kv, "crowd", ttl_s=terms["ttl_s"], rng=terms["rng"])
    async with party.join(terms["name"]) as lease:
        block = stage.blocks.enter(program, "party", lease.key, lease.token, most=0)
        while program.rng.random() < 0.7:
            await trio.sleep(program.unit * program.rng.random())
            block.mark()
            asked_at = program.awake()
            members = await party.members()
            if asked_at is not None:
                stage.gates.saw(asked_at, tuple(each.token for each in members))
        block.ran = True
    stage.blocks.left(lease.key, lease.token)


async def use_barrier(stage: Stage, program: Life, kv: KeyValue) -> None:
    """Wait for others, but not for ever: they may be elsewhere."""
    terms = stage.terms(program)
    # As with all leases of programs: the host and process would be others in the next run.
    name, ttl_s, rng = terms["name"], terms["ttl_s"], terms["rng"]
    barrier = Barrier(kv, "gate", PARTIES, ttl_s=ttl_s, waiter=name, rng=rng)
    came_at = program.awake()
    with suppress(TimeoutError):
        index = await barrier.wait(wait_s=program.unit * WAITING)
        went_at = program.awake()
        if came_at is not None and went_at is not None:
            stage.gates.passed(came_at, went_at, index)


def _queue(stage: Stage, program: Life, kv: KeyValue) -> Queue:
    terms = stage.terms(program)
    return Queue(kv, "jobs", ttl_s=terms["ttl_s"], worker=terms["name"], rng=terms["rng"])
