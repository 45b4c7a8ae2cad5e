"""Slots move whatever is lost, late, repeated or dead: with one owner, and no lost write."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Final

import pytest
import trio

from quorate.keyvalue.slots.cluster_map import META
from quorate.keyvalue.slots.hashing import key_slot
from quorate.keyvalue.slots.ranges import ALL_SLOTS, parse_slots_untrusted
from quorate.partitions.director import Director
from quorate.partitions.wishes import plan_move, request_moves
from tests.support.partitions_world import FATES, Fate, Link, World, error_of, opened

KEYS: Final = [b"key-%d" % at for at in range(40)]
SLOTS: Final = parse_slots_untrusted("0-8191")


class Counters:
    """Adds to keys, wherever they are; knows how often each was added to."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sums = dict.fromkeys(KEYS, 0)
        self._last = dict.fromkeys(KEYS, 0)
        self.longest_wait_s = 0.0

    async def run(self, rng: Random) -> None:
        """Add until cancelled."""
        while True:
            await self.add(rng.choice(KEYS))
            await trio.sleep(rng.uniform(0, 0.02))

    async def add(self, key: bytes) -> None:
        began = trio.current_time()
        while not self._tried(key):  # noqa: ASYNC110 - what it waits for is in the service
            await trio.sleep(0.001)
        self.longest_wait_s = max(self.longest_wait_s, trio.current_time() - began)

    def _tried(self, key: bytes) -> bool:
        for number in sorted(range(len(self.world.partitions)), key=self._last[key].__ne__):
            reply = self.world.groups[number].run((b"INCR", key))
            if reply.startswith(b":"):
                self._last[key] = number
                self.sums[key] += 1
                assert reply == b":%d\r\n" % self.sums[key]
                return True
        return False

    def check(self) -> None:
        """See that each key is in one group, with all that was added."""
        for key, total in self.sums.items():
            replies = [group.run((b"GET", key)) for group in self.world.partitions]
            there = [reply for reply in replies if not error_of(reply)]
            assert there == [b"$%d\r\n%d\r\n" % (len(str(total)), total)]


@asynccontextmanager
async def loaded(tmp_path: Path, seed: int = 0) -> AsyncGenerator[tuple[World, Counters]]:
    """Two founded partitions, and a client that adds to keys of both."""
    async with opened(tmp_path) as world:
        for number, each in enumerate(world.map().partitions):
            world.apply(number, (b"QUORATE.SLOTS", b"FOUND", each.founded.encode()))
        counters = Counters(world)
        for key in KEYS:
            await counters.add(key)
        world.nursery.start_soon(counters.run, Random(seed))
        yield world, counters
        counters.check()


async def direct(world: World) -> None:
    """Run directors, one after the other: the next one begins when one is dead."""
    for seed in range(100):
        link = Link(world)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Director(link, Random(seed)).run)
            await link.died.wait()
            nursery.cancel_scope.cancel()


async def moved(world: World, slots: int, target: int) -> None:
    """Ask for a move of slots, and wait until it is done."""
    group = Link(world).group(META)
    await request_moves(group, plan_move(world.map(), slots, target))
    await until_done(world)
    assert not world.owned(1 - target) & slots
    assert world.owned(target) & slots == slots


async def until_done(world: World) -> None:
    """Wait until nothing is moving."""
    with trio.fail_after(300):
        while world.map().moves:  # noqa: ASYNC110 - what it waits for is in the service
            await trio.sleep(0.1)
    assert world.check_owners() == ALL_SLOTS


def states(world: World, partition: int) -> bytes:
    """Return which of the words frozen, importing and stale hold for a partition."""
    ownership = world.groups[partition].service.ownership
    assert ownership is not None
    facts = ownership.facts()
    return b" ".join(word.encode() for word in ("frozen", "importing", "stale") if facts[word])


async def test_slots_move_under_load_and_back(tmp_path: Path, autojump_clock: object) -> None:
    async with loaded(tmp_path) as (world, counters):
        world.nursery.start_soon(direct, world)
        await moved(world, SLOTS, 1)
        assert world.owned(0) == 0
        await moved(world, SLOTS, 0)
        await moved(world, 1 << key_slot(KEYS[0]), 1 - (key_slot(KEYS[0]) < 8192) ^ 1)
        assert counters.longest_wait_s < 0.1


@pytest.mark.parametrize("fate", FATES)
async def test_any_request_may_fail(tmp_path: Path, autojump_clock: object, fate: str) -> None:
    """The move is done once for each of its requests, in which that one fails."""
    number = 0
    async with loaded(tmp_path) as (world, _counters):
        world.nursery.start_soon(direct, world)
        await trio.sleep(1)
        target = 1
        while True:
            first = len(world.words)
            failed = False

            def decide(call: int, _words: tuple[bytes, ...]) -> Fate:
                nonlocal failed
                if call == first + number:  # noqa: B023
                    failed = True
                    return fate
                return None

            world.fate = decide
            await moved(world, SLOTS, target)
            if not failed:
                break
            number, target = number + 1, 1 - target
        assert number > 10
