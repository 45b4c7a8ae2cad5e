"""The simulated disk: what a power cut leaves, errors, stalls, and rot."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
import trio

from quorate.errors import DamagedRecordError, StorageError, StoreFullError
from quorate.simulation import run
from quorate.simulation.machines.disk import PAGE_BYTES, Disk, Fate, rot, torn
from tests.simulation.test_disk_contract import append, open_store

if TYPE_CHECKING:
    from pathlib import Path

    from quorate.storage import Store


async def cut_amidst_a_write(directory: Path, fate: Fate, seed: int) -> tuple[list[bytes], int]:
    """Record some batches, and cut the power while more are on their way; give the log after it."""
    disk = Disk(Random(seed), latency=0.01)
    store = open_store(directory, disk.lane)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        for _ in range(3 + seed % 5):
            append(store)
            await store.settled()
        known = store.append_position
        for _ in range(5):
            append(store, lambda: pytest.fail("reported"))
        await trio.sleep(0.005)
        append(store, lambda: pytest.fail("reported"))  # gathers for the next group
        disk.cut_power(fate)
        nursery.cancel_scope.cancel()
    store.close()
    disk.settle()
    again = open_store(directory, disk.lane)
    found = list(again.scan(0))
    again.close()
    return found, known


@pytest.mark.parametrize(
    ("fate", "kept"), [(Fate.LOST, 0), (Fate.WRITTEN, 5), (Fate.TORN, 0)], ids=str
)
def test_a_power_cut_leaves_all_of_a_write_or_nothing(
    tmp_path: Path, fate: Fate, kept: int
) -> None:
    for seed in range(12):
        found, known = run(cut_amidst_a_write, tmp_path / f"{seed}", fate, seed, seed=seed)
        assert len(found) == 3 + seed % 5 + kept
        assert sum(map(len, found)) >= known


def test_a_torn_file_has_the_old_headers_and_pages_of_both() -> None:
    before = bytes(4 * PAGE_BYTES)
    after = b"\1" * (6 * PAGE_BYTES)
    made = [torn(before, after, Random(seed)) for seed in range(50)]
    assert all(each[: 2 * PAGE_BYTES] == before[: 2 * PAGE_BYTES] for each in made)
    assert {len(each) for each in made} == {len(before), len(after)}
    assert len({bytes(each[::PAGE_BYTES]) for each in made}) > 10


async def failing(directory: Path, *, after: bool) -> int:
    """Have a write fail; give how many batches there are after a restart."""
    disk = Disk(Random(0))
    store = open_store(directory, disk.lane)
    with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            append(store)
            await store.settled()
            disk.errors.append((StorageError("input/output error"), after))
            append(store, lambda: pytest.fail("reported"))
            await trio.sleep_forever()
    assert "input/output error" in repr(caught.value)
    store.close()
    again = open_store(directory, disk.lane)
    count = len(list(again.scan(0)))
    again.close()
    return count


def test_a_failed_write_is_there_or_not_and_never_reported(tmp_path: Path) -> None:
    assert run(lambda: failing(tmp_path / "0", after=False), seed=0) == 1
    assert run(lambda: failing(tmp_path / "1", after=True), seed=0) == 2


async def test_a_full_disk_takes_nothing_until_it_has_room(
    tmp_path: Path, autojump_clock: object
) -> None:
    disk = Disk(Random(0))
    disk.full = StoreFullError("no space left on device")
    store = open_store(tmp_path, disk.lane)
    with pytest.raises(ExceptionGroup):  # noqa: PT012
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            append(store)
    store.close()
    disk.mend()
    again = open_store(tmp_path, disk.lane)
    async with trio.open_nursery() as nursery:
        await nursery.start(again.run)
        append(again)
        await again.settled()
        nursery.cancel_scope.cancel()
    again.close()


async def test_a_stalled_disk_goes_on_when_the_stall_is_over(
    tmp_path: Path, autojump_clock: object
) -> None:
    disk = Disk(Random(0), latency=0.5)
    store = open_store(tmp_path, disk.lane)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        disk.stall(7.0)
        append(store)
        await store.settled()
        assert trio.current_time() == pytest.approx(7.0)
        append(store)
        await store.settled()
        assert trio.current_time() == pytest.approx(7.5)
        nursery.cancel_scope.cancel()
    store.close()


async def test_rot_is_found_where_it_is_read(tmp_path: Path, autojump_clock: object) -> None:
    disk = Disk(Random(0))
    store: Store = open_store(tmp_path, disk.lane)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        batches = [append(store) for _ in range(4)]
        await store.settled()
        assert rot(tmp_path, batches[1], Random(0)) >= 1
        assert await store.read(0, end=len(batches[0])) == batches[:1]
        with pytest.raises(DamagedRecordError):
            await store.read(len(batches[0]))
        nursery.cancel_scope.cancel()
    store.close()
