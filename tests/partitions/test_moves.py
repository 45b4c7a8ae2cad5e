"""Slots move whatever is lost, late, repeated or dead: with one owner, and no lost write."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

import msgspec
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from quorate.errors import KeyValueError
from quorate.keyvalue.slots.cluster_map import MAP_KEY, META, ClusterMap, Move, encode_map
from quorate.keyvalue.slots.hashing import key_slot
from quorate.keyvalue.slots.ranges import ALL_SLOTS, parse_slots_untrusted, slots_of, text_of
from quorate.partitions.balance import first_map, split
from quorate.partitions.director import OTHERS_S, Director
from quorate.partitions.metadata import change
from quorate.partitions.move import copy_slots, settle
from quorate.partitions.wishes import abort_move, claim, plan_move, request_moves
from tests.support.partitions_world import (
    FATES,
    Fate,
    Link,
    PartitionGroup,
    World,
    error_of,
    machines,
    opened,
)

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
            await trio.sleep(0.002)
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


def found(world: World) -> None:
    """Found all partitions, as a director does."""
    for number, each in enumerate(world.map().partitions):
        world.apply(number, (b"QUORATE.SLOTS", b"FOUND", each.founded.encode()))


@asynccontextmanager
async def loaded(tmp_path: Path, seed: int = 0) -> AsyncGenerator[tuple[World, Counters]]:
    """Two founded partitions, and a client that adds to keys of both."""
    async with opened(tmp_path) as world:
        found(world)
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


async def request(world: World, slots: int, target: int) -> None:
    """Ask for a move of slots."""
    await request_moves(Link(world).group(META), plan_move(world.map(), slots, target))


async def moved(world: World, slots: int, target: int) -> None:
    """Have slots moved."""
    await request(world, slots, target)
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
    async with loaded(tmp_path) as (world, _counters):
        world.nursery.start_soon(direct, world)
        await trio.sleep(1)
        failed = True
        number = 0
        while failed:
            await request(world, SLOTS, 1 - number % 2)
            failed, number = await fails_at(world, world.calls + number, fate), number + 1
            assert world.owned(number % 2) & SLOTS == SLOTS
        assert number > 10


async def fails_at(world: World, call: int, fate: str) -> bool:
    """Wait until nothing is moving, and have one request fail until then; return whether it did."""
    failed = False

    def decide(number: int, _words: tuple[bytes, ...]) -> Fate:
        nonlocal failed
        if number != call:
            return None
        failed = True
        return fate

    world.fate = decide
    await until_done(world)
    return failed


@settings(max_examples=10, deadline=None)
@given(data=st.data(), seed=st.integers(0, 1000))
def test_many_requests_may_fail(data: st.DataObject, seed: int) -> None:
    async def scenario() -> None:
        fates = data.draw(st.dictionaries(st.integers(0, 60), st.sampled_from(FATES), max_size=12))
        with TemporaryDirectory() as folder:
            async with loaded(Path(folder), seed) as (world, _counters):
                world.nursery.start_soon(direct, world)
                await request(world, SLOTS, 1)
                start = world.calls
                world.fate = lambda number, _words: fates.get(number - start)
                await until_done(world)
                assert world.owned(1) == ALL_SLOTS

    trio.run(scenario, clock=MockClock(autojump_threshold=0))


async def test_a_move_that_is_aborted_leaves_its_slots(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with loaded(tmp_path) as (world, _counters):
        world.nursery.start_soon(direct, world)
        world.fate = lambda _number, words: "refused" if words[1] == b"ROWS" else None
        await request(world, SLOTS, 1)
        with trio.fail_after(10):
            while b"importing" not in states(world, 1):  # noqa: ASYNC110 - it is in the service
                await trio.sleep(0.001)
        (move,) = world.map().moves
        await abort_move(Link(world).group(META), move.move)
        await until_done(world)
        assert world.owned(0) == SLOTS


async def test_a_source_waits_for_the_decision_of_a_target_without_a_leader(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with loaded(tmp_path) as (world, _counters):
        world.nursery.start_soon(direct, world)

        def decide(_number: int, words: tuple[bytes, ...]) -> Fate:
            if words[1] == b"OWN":
                world.groups[1].answers = False
            return None

        world.fate = decide
        await request(world, SLOTS, 1)
        await trio.sleep(5)
        assert states(world, 0) == b"frozen"
        world.fate = lambda _number, _words: None
        world.groups[1].answers = True
        with trio.fail_after(3):
            while states(world, 0) == b"frozen":  # noqa: ASYNC110 - it is in the service
                await trio.sleep(0.01)
        await until_done(world)
        assert world.owned(1) == ALL_SLOTS


async def test_slots_move_between_groups_that_always_answer_slowly(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with loaded(tmp_path) as (world, counters):
        world.latency_s = 0.08
        world.nursery.start_soon(direct, world)
        await moved(world, SLOTS, 1)
        assert counters.longest_wait_s < 1
        world.latency_s = 0.3
        await request(world, SLOTS, 0)
        await trio.sleep(60)
        assert world.owned(1) == ALL_SLOTS


@pytest.mark.parametrize("owns", [False, True])
async def test_a_move_that_its_target_has_forgotten_is_settled(
    tmp_path: Path, autojump_clock: object, *, owns: bool
) -> None:
    """More moves have ended there since than it remembers."""
    async with opened(tmp_path) as world:
        found(world)
        move = Move(2, "0-99", 0, 1, attempts=1)
        run(world, 0, "FREEZE 2 0-99 1")
        run(world, 1, "IMPORT 2 0-99")
        run(world, 1, "OWN 2 5000000 1 1" if owns else "DROP 2")
        for number in range(3, 300):
            run(world, 1, f"DROP {number}")
        assert error_of(run(world, 1, "DROP 2")) == "ENDED"
        assert await settle(Link(world), move) == owns
        assert states(world, 0) == (b"frozen" if owns else b"")


async def test_another_error_of_the_target_thaws_nothing(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with opened(tmp_path) as world:
        found(world)
        run(world, 0, "FREEZE 2 0-99 1")
        move = Move(2, "0-99", 0, META, attempts=1)  # a group without slots
        with pytest.raises(KeyValueError, match="no partitions"):
            await settle(Link(world), move)
        assert states(world, 0) == b"frozen"


def run(world: World, partition: int, words: str) -> bytes:
    """Run a form of QUORATE.SLOTS."""
    return world.apply(partition, (b"QUORATE.SLOTS", *words.encode().split()))


async def test_a_claim_without_an_answer_is_none(tmp_path: Path, autojump_clock: object) -> None:
    """Two runs may have written the same bytes, and must not both copy under that number."""
    async with opened(tmp_path) as world:
        await request(world, SLOTS, 1)
        (wish,) = world.map().moves
        start = world.calls
        world.fate = lambda number, _words: "unheard" if number == start + 1 else None
        group = Link(world).group(META)
        assert await claim(group, wish) is None
        (move,) = world.map().moves
        assert move.move == wish.move + 1
        claimed = await claim(group, move)
        assert claimed is not None
        assert world.map().moves == (claimed,)
        assert claimed.attempts == 2


@pytest.mark.parametrize("seed", range(4))
async def test_two_directors_at_once_do_no_harm(
    tmp_path: Path, autojump_clock: object, seed: int
) -> None:
    async with loaded(tmp_path, seed) as (world, _counters):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(direct, world)
            await trio.sleep(0.05 * seed)
            nursery.start_soon(Director(Link(world), Random(seed)).run)
            for at in range(6):
                await request(world, SLOTS if at % 2 else ALL_SLOTS & ~SLOTS, seed % 2)
                await trio.sleep(1)
            nursery.cancel_scope.cancel()
        world.nursery.start_soon(direct, world)
        await until_done(world)


async def test_two_directors_for_a_while_do_not_end_what_the_other_has_just_begun(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with loaded(tmp_path, 1) as (world, _counters):
        world.latency_s = 0.05  # the move takes longer than any pause of a director
        async with trio.open_nursery() as nursery:
            for seed in (1, 2):
                nursery.start_soon(Director(Link(world), Random(seed)).run)
            await trio.sleep(3)
            await request(world, SLOTS, 1)
            with trio.fail_after(OTHERS_S):
                while world.map().moves:
                    assert world.map().moves[0].attempts <= 1
                    await trio.sleep(0.1)
            nursery.cancel_scope.cancel()
        assert not world.owned(0)


async def test_a_new_cluster_is_founded_and_split_under_load(
    tmp_path: Path, autojump_clock: object
) -> None:
    first = first_map("orders", machines(3), 2, 3)
    async with opened(tmp_path, 4, first=first) as world:
        world.nursery.start_soon(direct, world)
        await trio.sleep(1)
        assert world.check_owners() == ALL_SLOTS
        counters = Counters(world)
        for key in KEYS:
            await counters.add(key)
        world.nursery.start_soon(counters.run, Random(7))
        await change(Link(world).group(META), split)
        await until_done(world)
        owned = [text_of(world.owned(number)) for number in range(4)]
        assert owned == ["0-4095", "8192-12287", "4096-8191", "12288-16383"]
        counters.check()
        assert counters.longest_wait_s < 0.1
        freezes = [number for number, words in world.words if words[1] == b"FREEZE"]
        assert sorted(freezes) == [0, 1]


async def test_a_target_without_a_leader_holds_up_no_other_move_of_its_source(
    tmp_path: Path, autojump_clock: object
) -> None:
    first = first_map("orders", machines(3), 3, 3)
    async with opened(tmp_path, 3, first=first) as world:
        world.groups[2].answers = False
        for slots, target in (("0-9", 2), ("10-19", 1)):
            await request(world, parse_slots_untrusted(slots), target)
        world.nursery.start_soon(direct, world)
        with trio.fail_after(60):
            while len(world.map().moves) > 1:  # noqa: ASYNC110 - what it waits for is in the service
                await trio.sleep(0.1)
        (left,) = world.map().moves
        assert left.target == 2
        world.groups[2].answers = True
        await until_done(world)


async def test_moves_that_fail_each_time_are_given_up(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with opened(tmp_path) as world:
        found(world)
        world.nursery.start_soon(direct, world)
        world.fate = lambda _number, words: "refused" if words[1] == b"OWN" else None
        await request(world, SLOTS, 1)
        with trio.fail_after(3600):
            while world.map().moves:  # noqa: ASYNC110 - it is in the service
                await trio.sleep(1)
        assert world.owned(0) == SLOTS
        assert states(world, 0) == b""


async def test_a_move_that_the_map_does_not_know_is_ended(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with opened(tmp_path) as world:
        found(world)
        for words in ("FREEZE 1000 0-99 1", "FREEZE 1001 200-299 1"):
            world.apply(0, (b"QUORATE.SLOTS", *words.encode().split()))
        for words in ("IMPORT 1001 200-299", "OWN 1001 5000000 1 1", "IMPORT 1002 100-199"):
            world.apply(1, (b"QUORATE.SLOTS", *words.encode().split()))
        world.nursery.start_soon(direct, world)
        await trio.sleep(20)
        assert states(world, 0) == states(world, 1) == b""
        assert world.check_owners() == ALL_SLOTS


@pytest.mark.parametrize("founded", [False, True])
async def test_a_partition_that_has_begun_anew_gets_no_slots_of_others(
    tmp_path: Path, autojump_clock: object, *, founded: bool
) -> None:
    """The map knows that slots have moved away; and, later, that it was founded."""
    async with opened(tmp_path) as world:
        found(world)
        world.nursery.start_soon(direct, world)
        await moved(world, parse_slots_untrusted("0-99"), 1)
        if founded:
            await change(Link(world).group(META), with_members)
        world.groups[0].service.close()
        world.groups[0] = PartitionGroup(tmp_path / "anew", partition=True, position=5)
        await trio.sleep(30)
        wanted = 0 if founded else parse_slots_untrusted("100-8191")
        assert world.groups[0].slots_in(1, 2) == wanted
        await request(world, 1 << 200, 1)
        await trio.sleep(30)
        assert bool(world.map().moves) == founded, "nothing moves from a partition without slots"
        world.check_owners()


def with_members(now: ClusterMap) -> ClusterMap:
    """Return a map that knows of all partitions that they are founded."""
    partitions = tuple(msgspec.structs.replace(each, members=(0, 1)) for each in now.partitions)
    return msgspec.structs.replace(now, partitions=partitions)


async def test_a_map_that_is_older_than_the_groups_is_corrected(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with opened(tmp_path) as world:
        found(world)
        old = encode_map(world.map())
        world.nursery.start_soon(direct, world)
        for number in range(3):
            await moved(world, 1 << number, 1)
        epoch = world.map().epoch
        world.groups[META].run((b"SET", MAP_KEY, old))
        await trio.sleep(30)
        assert world.map().epoch > epoch, "else machines go on by their newer map"
        assert world.owned(1) == parse_slots_untrusted("0-2,8192-16383")
        epoch = world.map().epoch
        await trio.sleep(60)
        assert world.map().epoch == epoch, "once"


async def test_a_move_of_an_older_map_that_was_done_since_does_not_keep_the_map_wrong(
    tmp_path: Path, autojump_clock: object
) -> None:
    """Else it is given up after 20 attempts, a quarter of an hour later."""
    async with opened(tmp_path) as world:
        found(world)
        await request(world, SLOTS, 1)
        old = encode_map(world.map())
        world.nursery.start_soon(direct, world)
        await until_done(world)
        world.groups[META].run((b"SET", MAP_KEY, old))
        await trio.sleep(30)
        assert not world.map().moves
        assert not world.owned(0) & SLOTS, "the map is right again"


async def test_numbers_of_moves_do_not_come_again_after_an_older_map(
    tmp_path: Path, autojump_clock: object
) -> None:
    """Else groups answer for the earlier move: all would seem done, and nothing has moved."""
    async with opened(tmp_path) as world:
        found(world)
        old = world.map()
        for number in range(2, 6):
            run(world, 0, f"FREEZE {number} {number} 1")
            run(world, 1, f"IMPORT {number} {number}")
            run(world, 1, f"OWN {number} 5000000 1 1")
            run(world, 0, f"RELEASE {number} 1 0")
        world.groups[META].run((b"SET", MAP_KEY, encode_map(old)))
        await request(world, parse_slots_untrusted("200-299"), 1)
        world.nursery.start_soon(direct, world)
        await trio.sleep(30)
        assert not world.map().moves
        assert world.owned(1) == parse_slots_untrusted("2-5,200-299,8192-16383")


async def test_a_map_without_the_target_of_a_frozen_move_thaws_nothing(
    tmp_path: Path, autojump_clock: object
) -> None:
    """The map is older than a split: its new partition may own the slots."""
    first = first_map("orders", machines(3), 2, 3)
    async with opened(tmp_path, 4, first=first) as world:
        found(world)
        run(world, 2, "FOUND ")
        run(world, 2, "IMPORT 7 0-99")
        run(world, 0, "FREEZE 7 0-99 2")
        run(world, 2, "OWN 7 5000000 1 1")
        world.nursery.start_soon(direct, world)
        await trio.sleep(30)
        assert states(world, 0) == b"frozen"
        await change(Link(world).group(META), split)
        await trio.sleep(30)
        assert b"frozen" not in states(world, 0)
        world.check_owners()


@pytest.mark.parametrize("ahead_ms", [-5000, 5000])
async def test_slots_do_not_move_between_groups_with_other_times(
    tmp_path: Path, autojump_clock: object, ahead_ms: int
) -> None:
    async with opened(tmp_path) as world:
        found(world)
        world.groups[0].ahead_ms = ahead_ms
        world.nursery.start_soon(direct, world)
        await request(world, SLOTS, 1)
        await trio.sleep(10)
        assert not [words for _, words in world.words if words[1] in (b"IMPORT", b"FREEZE")]
        world.groups[0].ahead_ms = world.groups[1].ahead_ms = max(ahead_ms, 0)
        await until_done(world)
        assert world.owned(1) == ALL_SLOTS


async def test_long_values_and_long_entries_move_in_short_requests(
    tmp_path: Path, autojump_clock: object
) -> None:
    """A value may be as long as a request, and an entry may change many of them."""
    async with opened(tmp_path) as world:
        found(world)
        values = {key: bytes((at,)) * ((900 << 10) + at) for at, key in enumerate(KEYS[:6])}
        slots = slots_of((key_slot(key), key_slot(key)) for key in values) & SLOTS
        for key, value in values.items():
            world.groups[key_slot(key) > 8191].run((b"SET", key, value))
        here = [key for key in values if slots >> key_slot(key) & 1]

        def decide(_number: int, words: tuple[bytes, ...]) -> Fate:
            if words[1] == b"CHUNK" and words[3] == b"1":  # longer values while rows are copied
                for key in here:
                    values[key] += b"x" * (300 << 10)
                    world.groups[0].run((b"SET", key, values[key]))
            return "twice" if words[1] == b"CHUNK" else None

        world.fate = decide
        assert await copy_slots(Link(world), Move(2, text_of(slots), 0, 1)) == len(here) > 1
        for key in here:
            reply = world.groups[1].run((b"GET", key))
            assert reply == b"$%d\r\n%b\r\n" % (len(values[key]), values[key])
        longest = max(sum(map(len, words)) for _, words in world.words)
        assert longest < 300 << 10
