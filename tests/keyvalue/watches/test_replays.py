"""Watches of changes that are no longer in memory."""

import random
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from quorate.errors import PrunedError, RefusedError, StoreFullError, WatchLostError
from quorate.keyvalue.programs.watch import REST_SECONDS, LocalWatch, LocalWatches
from quorate.keyvalue.state import changes as changes_module
from quorate.keyvalue.state.changes import Change, ChangeKind
from quorate.keyvalue.watches.replays import ALONE_SECONDS, Replays
from quorate.node.readers.history import AppliedBatch
from tests.support.service_world import open_service
from tests.support.watch_world import WatchWorld, gathered, some_batches, watch_world


def values(changes: list[Change]) -> list[bytes | None]:
    return [change.value for change in changes]


async def test_a_watch_resumes_at_any_position_from_snapshots_and_the_log(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    rng = random.Random(1)
    async with watch_world(tmp_path) as world:
        kept = world.kept
        for _ in range(4):
            some_batches(kept, rng, 15)
            await kept.snapshot()
        some_batches(kept, rng, 5)
        expected = kept.service.changes.after(0, b"")
        world.forget()
        some_batches(kept, rng, 5)
        expected += kept.service.changes.after(expected[-1].position, b"")
        for after in rng.sample(range(kept.position), 8):
            later = [change for change in expected if change.position > after]
            assert await world.all_after(after) == later
        only = [change for change in expected if change.key == b"k3" or not change.key]
        found = await world.all_after(0, b"k3")
        assert [one[:4] for one in found] == [one[:4] for one in only]
        assert len({*kept.begun}) >= 4
        assert not world.directory.exists()


async def test_a_watch_goes_on_with_what_comes_during_its_replay(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with watch_world(tmp_path) as world:
        for _ in range(30):
            world.kept.batch("INCR n")
        world.forget()
        async with world.watches.watch(b"n", 0) as watch:
            found = [await anext(watch) for _ in range(10)]
            for _ in range(30):
                world.kept.batch("INCR n")
            found += await gathered(watch, world.kept.position)
        assert values(found) == [b"%d" % i for i in range(1, 61)]
        assert world.replays.count == 1


async def test_one_replay_serves_all_watches_that_wait(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    rng = random.Random(2)
    async with watch_world(tmp_path) as world, trio.open_nursery() as nursery:
        some_batches(world.kept, rng, 100)
        expected = world.kept.service.changes.after(0, b"")
        world.forget()
        places = [0, *rng.sample(range(world.kept.position), 9)]
        found: dict[int, list[Change]] = {}

        async def watch(after: int) -> None:
            found[after] = await world.all_after(after)

        for after in places:
            nursery.start_soon(watch, after)
        with trio.fail_after(100):
            while len(found) < len(places):  # noqa: ASYNC110 - virtual time
                await trio.sleep(0.01)
        for after in places:
            assert found[after] == [change for change in expected if change.position > after]
        assert (world.replays.count, world.replays.waiting) == (1, 0)


async def test_a_watch_whose_page_is_unread_does_not_hold_up_others(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with watch_world(tmp_path) as world, trio.open_nursery() as nursery:
        for _ in range(60):
            world.kept.batch("INCR n")
        world.forget()
        lazy = [world.watches.watch(b"", 0) for _ in range(30)]
        first: list[Change] = []

        async def begin(watch: LocalWatch) -> None:
            first.append(await anext(watch))

        for watch in lazy:
            nursery.start_soon(begin, watch)
            await trio.sleep(0.1)
        began = trio.current_time()
        assert len(await world.all_after(0)) == 60
        assert trio.current_time() - began < 5
        for watch in lazy:  # they were set aside, and go on
            found = [first[0], *await gathered(watch, world.kept.position)]
            assert values(found) == [b"%d" % i for i in range(1, 61)]
        assert world.watches.lost_count == 0


async def test_a_log_that_is_pruned_amid_a_replay_does_not_end_the_watch(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with watch_world(tmp_path) as world:
        kept = world.kept
        for _ in range(60):
            kept.batch("INCR n")
        world.forget()
        batches, calls = kept.batches, 0

        async def pruned(position: int) -> list[AppliedBatch]:
            nonlocal calls
            calls += 1
            if calls in troubles:
                raise PrunedError("pruned meanwhile")
            return await batches(position)

        kept.batches = pruned  # type: ignore[method-assign]
        troubles = range(3, 4)
        assert len(await world.all_after(0)) == 60
        troubles = range(1000)
        with pytest.raises(WatchLostError, match="was deleted, again and again") as lost:
            await anext(world.watches.watch(b"", 0))
        assert lost.value.oldest == 0


async def test_a_bug_in_a_replay_ends_its_watches_and_nothing_else(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with watch_world(tmp_path) as world:
        world.kept.batch("SET a 1")
        world.forget()
        world.kept.trouble = ValueError("a bug")
        with pytest.raises(WatchLostError, match="internal error") as lost:
            await anext(world.watches.watch(b"", 0))
        assert lost.value.after == 0
        world.kept.trouble = None
        assert values(await world.all_after(0)) == [b"1"]


async def test_a_batch_that_memory_does_not_keep_whole_is_replayed_entry_by_entry(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes_module, "KEPT_CHANGE_BYTES", 5000)
    async with watch_world(tmp_path) as world:
        kept = world.kept
        kept.batch(f"SET k {'x' * 1000}")
        watch = world.watches.watch(b"", 0)
        assert len(await gathered(watch, kept.position)) == 1
        before = kept.position
        kept.batch(*([f"APPEND k {i % 10}", "APPEND k y"] for i in range(50)))
        assert before < kept.service.changes.start < kept.position
        found = await gathered(watch, kept.position)
        assert [len(change.value or b"") for change in found] == [*range(1002, 1102, 2)]
        assert not any(change.more for change in found)


async def test_a_position_of_before_the_oldest_snapshot_is_lost(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with watch_world(tmp_path) as world:
        world.kept.batch("SET a 1")
        await world.kept.snapshot()
        oldest = world.kept.position
        world.kept.batch("SET a 2")
        world.kept.prune(oldest)
        world.forget()
        watch = world.watches.watch(b"", oldest - 1)
        with pytest.raises(WatchLostError, match=f"after = {oldest - 1}: the changes") as lost:
            await anext(watch)
        assert (lost.value.after, lost.value.oldest) == (oldest - 1, oldest)
        assert values(await world.all_after(oldest)) == [b"2"]
        assert world.watches.lost_count == 1


async def test_a_log_that_is_pruned_during_a_replay_is_read_from_a_newer_snapshot_or_lost(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with watch_world(tmp_path) as world:
        kept = world.kept
        places: list[int] = []
        for _ in range(40):
            kept.batch("INCR n")
            places.append(kept.position)
            if len(places) in {10, 20}:
                await kept.snapshot()
        world.forget()
        async with world.watches.watch(b"", places[0]) as behind:
            async with world.watches.watch(b"", places[25]) as ahead:
                kept.prune(places[19])
                found = await gathered(ahead, kept.position)
            assert values(found) == [b"%d" % i for i in range(27, 41)]
            with pytest.raises(WatchLostError) as lost:
                await anext(behind)
            assert lost.value.oldest == places[19]


async def test_without_room_on_the_disk_there_is_no_replay(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with watch_world(tmp_path) as world:
        world.kept.batch("SET a 1")
        world.forget()
        world.kept.trouble = StoreFullError("7 bytes are free")
        with pytest.raises(WatchLostError, match="7 bytes are free") as lost:
            await anext(world.watches.watch(b"", 0))
        assert (lost.value.after, lost.value.oldest) == (0, 0)
        world.kept.trouble = None
        assert values(await world.all_after(lost.value.after)) == [b"1"]


async def test_a_replay_that_nobody_reads_ends_and_the_watch_goes_on_later(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with watch_world(tmp_path) as world:
        for _ in range(60):
            world.kept.batch("INCR n")
        world.forget()
        async with world.watches.watch(b"", 0) as watch:
            found = [await anext(watch)]
            await trio.sleep(ALONE_SECONDS + 1)
            assert world.replays.waiting == 0
            found += await gathered(watch, world.kept.position)
        assert values(found) == [b"%d" % i for i in range(1, 61)]
        assert world.replays.count == 2


async def test_a_slow_watch_is_lost_if_it_falls_behind_again_soon(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with watch_world(tmp_path) as world:
        watch = world.watches.watch(b"", 0)
        for fall in range(3):
            for _ in range(10):
                world.kept.batch("INCR n")
            world.forget()
            if fall < 2:
                assert len(await gathered(watch, world.kept.position)) == 10
                await trio.sleep(0 if fall else REST_SECONDS)
        assert world.replays.count == 2
        with pytest.raises(WatchLostError, match="faster than it is read") as lost:
            await anext(watch)
        assert len(await world.all_after(lost.value.after)) == 10


async def test_a_watch_that_is_closed_ends_its_replay(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with watch_world(tmp_path) as world:
        for _ in range(60):
            world.kept.batch("INCR n")
        world.forget()
        async with world.watches.watch(b"", 0) as watch:
            await anext(watch)
            assert (world.replays.waiting, len(world.watches.watches)) == (1, 1)
        with pytest.raises(StopAsyncIteration):
            await anext(watch)
        await trio.sleep(1)
        assert (world.replays.waiting, len(world.watches.watches)) == (0, 0)
        assert not world.directory.exists()
        assert len(await world.all_after(0)) == 60


async def test_what_a_crash_has_left_of_a_replay_is_removed(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    (tmp_path / "replay").mkdir()
    (tmp_path / "replay" / "data.mdb").write_bytes(b"torn")
    async with watch_world(tmp_path) as world:
        assert not world.directory.exists()


# --- watches in memory


async def asleep(world: WatchWorld, *prefixes: bytes) -> list[LocalWatch]:
    return [world.watches.watch(prefix, world.kept.position) for prefix in prefixes]


async def test_a_watch_that_sleeps_goes_along_with_the_log(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with watch_world(tmp_path) as world, trio.open_nursery() as nursery:
        (watch,) = await asleep(world, b"a/")
        found: list[Change] = []

        async def read() -> None:
            async for change in watch:
                found.append(change)  # noqa: PERF401 - this never ends

        nursery.start_soon(read)
        await trio.sleep(1)
        for _ in range(5):
            world.kept.batch("SET b 1")
        before = world.kept.position
        assert watch.position == before
        world.kept.batch("SET a/1 1")
        assert watch.position == before  # woken, and not there yet
        await trio.sleep(1)
        assert [change.key for change in found] == [b"a/1"]
        assert watch.position == world.kept.position
        world.forget()
        nursery.cancel_scope.cancel()


async def test_a_cancelled_wait_loses_nothing(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with watch_world(tmp_path) as world:
        (watch,) = await asleep(world, b"")
        found: list[Change] = []
        for i in range(20):
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(trio.lowlevel.checkpoint)
                    if i % 2:
                        nursery.start_soon(_later, world, scope)
                    else:
                        world.kept.batch("INCR n")
                        scope.deadline = trio.current_time() + 1
                    found.append(await anext(watch))
        found += await gathered(watch, world.kept.position)
        assert values(found) == [b"%d" % i for i in range(1, 21)]


async def _later(world: WatchWorld, scope: trio.CancelScope) -> None:
    """Cancel a wait in the very turn in which it is woken."""
    await trio.sleep(0.1)
    world.kept.batch("INCR n")
    scope.cancel()


async def test_a_position_beyond_the_log_is_refused(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with watch_world(tmp_path) as world:
        world.kept.batch("SET a 1")
        with pytest.raises(RefusedError, match=f"the log ends at {world.kept.position}"):
            await anext(world.watches.watch(b"", world.kept.position + 1))


async def test_a_watch_of_the_present_begins_where_a_linearizable_read_is(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The member follows, and is behind the leader that is asked."""

    class Leader:
        async def query(self, payload: bytes, flags: int = 0) -> bytes:
            await trio.sleep(0.1)
            assert b"QUORATE.POSITION" in payload
            return b":%d\r\n" % behind

    async with watch_world(tmp_path) as world, trio.open_nursery() as nursery:
        world.kept.batch("SET a 1")
        behind = world.kept.position + 96
        source = type(world.watches)(world.kept.service.changes, world.replays, Leader())
        watch = source.watch(b"", -1)
        nursery.start_soon(watch.__aenter__)
        await trio.sleep(1)
        world.kept.batch("SET a 2")
        world.kept.batch("SET a 3")
        assert world.kept.position >= behind
        await trio.sleep(1)
        assert behind <= watch.position
        assert (await anext(watch)).kind is ChangeKind.SET
        nursery.cancel_scope.cancel()


async def test_a_thousand_watches_that_sleep_are_not_looked_at(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with watch_world(tmp_path) as world, trio.open_nursery() as nursery:
        for watch in await asleep(world, *(b"%04d/" % i for i in range(1000))):
            nursery.start_soon(anext, watch)
        await trio.sleep(1)
        world.kept.batch("SET 0007/x 1", "SET other 1")
        # One watch, and the flushing of the tables.
        assert trio.lowlevel.current_statistics().tasks_runnable == 2
        nursery.cancel_scope.cancel()


async def test_a_watch_of_a_member_that_has_stopped_does_not_wait_for_a_replay(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with watch_world(tmp_path) as world:
        for _ in range(60):
            world.kept.batch("INCR n")
        world.forget()
        recent = world.kept.service.changes
        replays = Replays(world.kept, recent, tmp_path / "own", open_service)
        under_way, waits, later = (LocalWatches(recent, replays).watch(b"", 0) for _ in range(3))
        async with trio.open_nursery() as nursery:
            await nursery.start(replays.run)
            await anext(under_way)
            with trio.move_on_after(1):
                await anext(waits)
            nursery.cancel_scope.cancel()
        for watch in (under_way, waits, later):
            with pytest.raises(WatchLostError, match="its member has stopped"):  # noqa: PT012
                while True:
                    await anext(watch)
