"""Watches of keys that move between partitions."""

import random
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from quorate.errors import KeyValueError, WatchLostError
from quorate.keyvalue.programs.watch import LocalWatch
from quorate.keyvalue.slots.hashing import key_slot
from quorate.keyvalue.slots.history import wrong_moves
from quorate.keyvalue.state.changes import Change, ChangeKind
from tests.support.move_world import Follower, Moves, moving_world

SLOT = key_slot(b"a")
KEYS = [f"{{a}}k{at}" for at in range(6)]


def move(moves: Moves, target: int) -> None:
    moves.end(SLOT, target, moves.begin(SLOT, target, KEYS))


def write(moves: Moves, rng: random.Random) -> None:
    """Change some keys of the slot at its owner, and let time pass at all partitions."""
    kept = moves.sides[moves.owner_of(SLOT)].kept
    key = rng.choice(KEYS)
    words = rng.choice([f"SET {key} {rng.randrange(100)}", f"DEL {key}", f"INCR {key}", ""])
    for side in moves.sides:
        side.kept.now = max(each.kept.now for each in moves.sides)
    kept.batch(words or f"SET {key} 7 PX {rng.randrange(1, 400)}", ms=rng.choice([1, 100]))
    if rng.random() < 0.3:
        rng.choice(moves.sides).kept.batch("QUORATE.POSITION")


def merged(moves: Moves, directory: Path) -> list[Change]:
    """Return the changes of the slot's keys in all logs, in the order of their revisions."""
    changes = [
        change
        for at, side in enumerate(moves.sides)
        for change in side.replayed(directory / f"again-{at}")
        if change.key.startswith(b"{a}")
    ]
    return sorted(changes, key=lambda change: change.position)


@pytest.mark.parametrize("seed", range(4))
async def test_a_watch_returns_each_change_once_over_several_moves(
    seed: int, tmp_path: Path, autojump_clock: MockClock
) -> None:
    rng = random.Random(seed)
    async with moving_world(tmp_path, "a") as moves, trio.open_nursery() as nursery:
        # The log of either side may be the longer one.
        for _ in range(rng.choice([0, 200])):
            moves.sides[1].kept.batch("QUORATE.POSITION")
        fast, lazy = Follower(moves, b"{a}"), Follower(moves, b"{a}")
        nursery.start_soon(fast.read_until, 1 << 40)
        for round_ in range(8):
            for _ in range(rng.randrange(12)):
                write(moves, rng)
                await trio.sleep(rng.choice([0, 0.02]))
            target = 1 - moves.owner_of(SLOT)
            number = moves.begin(SLOT, target, KEYS)
            for _ in range(rng.randrange(6)):
                moves.sides[1 - target].kept.batch("QUORATE.POSITION", ms=50)
                await trio.sleep(rng.choice([0, 0.02]))
            end = moves.frozen_at(SLOT)
            lazy.at = 1 - target  # a watch that misses two moves is lost
            if round_ % 4 == 1:
                await lazy.read_until(end)
            if round_ % 3 == 2:
                moves.sides[1 - target].forget()
            moves.end(SLOT, target, number)
            await lazy.read_until(end)  # from what the old owner still has
            await trio.sleep(rng.choice([0, 1]))
        write(moves, rng)
        moves.sides[moves.owner_of(SLOT)].kept.batch(f"SET {KEYS[0]} last")
        expected = merged(moves, tmp_path)
        logs = [side.slots_log(at) for at, side in enumerate(moves.sides)]
        assert wrong_moves(logs) == []
        owned = moves.sides[moves.owner_of(SLOT)].ownership
        assert logs[moves.owner_of(SLOT)].served[0][:2] == (1 << SLOT, owned.epoch_of(SLOT))
        last = expected[-1].position
        await lazy.read_until(last)
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    assert fast.found == expected
    assert lazy.found == expected
    assert fast.hops >= 8


async def test_a_watch_that_was_away_for_two_moves_is_lost_and_hears_where_to_resume(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with moving_world(tmp_path, "a") as moves:
        first = moves.sides[0]
        first.kept.batch(f"SET {KEYS[0]} 1")
        place = first.position
        move(moves, 1)
        moves.sides[1].kept.batch(f"SET {KEYS[0]} 2")
        move(moves, 0)
        first.kept.batch(f"SET {KEYS[0]} 3")
        since = first.ownership.since_of(SLOT)
        with pytest.raises(WatchLostError, match="in another partition then") as lost:
            await anext(first.watches.watch(b"{a}", place))
        assert (lost.value.after, lost.value.oldest) == (place, since)
        follower = Follower(moves, b"{a}", 0, lost.value.oldest)
        await follower.read_until(first.position)
        assert [change.value for change in follower.found] == [b"3"]


async def test_a_new_owner_does_not_return_what_happened_to_its_other_slots_before(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with moving_world(tmp_path, "a") as moves:
        old, new = moves.sides
        for _ in range(50):
            new.kept.batch("QUORATE.POSITION")
        new.kept.batch("FLUSHALL")  # at a revision far above all of the slot
        new.kept.batch("QUORATE.POSITION")
        old.kept.batch(f"SET {KEYS[0]} 1")
        move(moves, 1)
        new.kept.batch(f"SET {KEYS[0]} 2")
        new.kept.batch("FLUSHALL")
        follower = Follower(moves, b"{a}")
        await follower.read_until(new.position)
        kinds = [change.kind for change in follower.found]
        assert kinds == [ChangeKind.SET, ChangeKind.SET, ChangeKind.FLUSHED]


async def test_a_watch_stands_still_while_its_slot_is_frozen_and_goes_on_if_it_thaws(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with moving_world(tmp_path, "a") as moves, trio.open_nursery() as nursery:
        side = moves.sides[0]
        watch = side.watches.watch(b"{a}", -1)
        await nursery.start(reading, watch)
        number = moves.begin(SLOT, 1, KEYS)
        end = moves.frozen_at(SLOT)
        for _ in range(3):
            side.kept.batch("QUORATE.POSITION")
            await trio.sleep(1)
            assert watch.position == end < side.position
        async with side.watches.watch(b"{a}", -1) as later:
            assert later.position == end
        moves.sides[1].kept.batch(f"QUORATE.SLOTS DROP {number}")
        side.kept.batch(f"QUORATE.SLOTS THAW {number}")
        await trio.sleep(1)
        assert watch.position == side.position
        nursery.cancel_scope.cancel()


async def test_the_place_of_a_watch_that_has_not_heard_of_moves_is_in_its_own_tenure(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with moving_world(tmp_path, "a") as moves, trio.open_nursery() as nursery:
        side = moves.sides[0]
        watch = side.watches.watch(b"{a}", 0)
        await nursery.start(reading, watch)
        await trio.sleep(1)
        number = moves.begin(SLOT, 1, KEYS)
        end = moves.frozen_at(SLOT)
        side.kept.batch("QUORATE.POSITION")
        moves.end(SLOT, 1, number)
        move(moves, 0)
        assert watch.position <= end < side.position
        nursery.cancel_scope.cancel()


async def test_a_replay_begins_early_enough_although_the_revisions_are_above_the_log(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with moving_world(tmp_path, "a") as moves:
        old, new = moves.sides
        for _ in range(100):
            old.kept.batch("QUORATE.POSITION")
        move(moves, 1)
        place = new.position
        assert place - new.ownership.shift <= new.kept.position < place
        for value in (1, 2, 3):
            new.kept.batch(f"SET {KEYS[0]} {value}")
            await new.kept.snapshot()
        new.kept.batch(f"SET {KEYS[0]} 4")
        new.kept.batch("QUORATE.POSITION")
        new.forget()
        follower = Follower(moves, b"{a}", 1, place)
        await follower.read_until(new.position)
        assert [change.value for change in follower.found] == [b"1", b"2", b"3", b"4"]
        assert new.replays.count == 1
        new.kept.prune(new.kept.snapshots[1].position)
        new.forget()
        with pytest.raises(WatchLostError, match="are kept"):
            await anext(new.watches.watch(b"{a}", place))


async def test_a_watch_of_several_slots_returns_what_its_partition_has(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with moving_world(tmp_path, "a") as moves:
        old, new = moves.sides
        new.kept.batch("QUORATE.POSITION")
        old.kept.batch(f"SET {KEYS[0]} 1")
        move(moves, 1)  # the rows that come are no changes
        new.kept.batch(f"SET {KEYS[0]} 2")
        old.kept.batch("QUORATE.SLOTS PURGE 10000")
        for side, value in ((old, b"1"), (new, b"2")):
            for _ in range(2):  # from memory, and by a replay
                async with side.watches.watch(b"", 0) as watch:
                    found = [await anext(watch)]
                    with trio.move_on_after(1):
                        found.append(await anext(watch))
                assert [change.value for change in found] == [value]
                side.forget()


async def test_nobody_watches_a_slot_that_was_never_here(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with moving_world(tmp_path, "a") as moves:
        for after in (-1, 0, 1 << 30):
            with pytest.raises(KeyValueError, match=f"MOVED {SLOT} elsewhere"):
                await anext(moves.sides[1].watches.watch(b"{a}", after))


async def reading(watch: LocalWatch, *, task_status: trio.TaskStatus[None]) -> None:
    async with watch:
        task_status.started()
        async for _ in watch:
            pass
