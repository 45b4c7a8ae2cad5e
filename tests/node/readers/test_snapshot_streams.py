"""Snapshots on their way: links that break, members that lie, and files that go away meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from quorate.errors import StorageError
from quorate.simulation.ledger import equal, open_ledgers
from quorate.storage import SnapshotFolder, verify
from quorate.transport import (
    ReplayRequest,
    SnapshotOffer,
    SnapshotPart,
    SnapshotRequest,
    StreamPurpose,
)
from tests.node.state_machine.test_snapshots import PRUNING, load, pruned, set_policy, snapshot

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

    from quorate.simulation import Ledger, World
    from quorate.transport import FrameStream


async def open_stream(world: World[Ledger], source: int, target: int) -> FrameStream:
    links = world.hosts[source].running.links
    return await links.open_stream(target, purpose=StreamPurpose.SNAPSHOT)


async def parts(stream: FrameStream, offer: SnapshotOffer) -> list[bytes]:
    found: list[bytes] = []
    offset = offer.offset
    while offset < offer.file_bytes:
        message = await stream.receive()
        assert isinstance(message, SnapshotPart)
        assert message.offset == offset
        offset += len(message.part)
        found.append(message.part)
    return found


async def test_a_transfer_goes_on_from_any_border_and_begins_anew_from_elsewhere(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        await load(world, leader, 350, b"a")
        position = await snapshot(world, leader)
        newest = world.hosts[leader].running.snapshots.newest
        assert newest is not None
        one = world.others(leader)[0]

        async def ask(offset: int, *, term: int = newest.term) -> tuple[int, list[bytes]]:
            async with await open_stream(world, one, leader) as stream:
                await stream.send(SnapshotRequest(position, term, offset))
                offer = await stream.receive()
                assert isinstance(offer, SnapshotOffer)
                return offer.offset, await parts(stream, offer)

        start, every = await ask(0)
        assert len(every) == 5
        border = start + len(every[0])
        assert await ask(border) == (border, every[1:])
        for offset, term in ((border - 1, newest.term), (1, newest.term), (border, 77)):
            assert await ask(offset, term=term) == (start, every)
        assert await ask(start + sum(map(len, every))) == (start + sum(map(len, every)), [])


async def test_the_file_may_go_while_it_is_sent(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        await load(world, leader, 350, b"a")
        await snapshot(world, leader)
        snapshots = world.hosts[leader].running.snapshots
        assert snapshots.newest is not None
        async with await open_stream(world, world.others(leader)[0], leader) as stream:
            snapshots.folder.path_of(snapshots.newest).unlink()
            await stream.send(SnapshotRequest(-1, -1, 0))
            assert await stream.receive() is None
        assert await world.settled() == leader


@pytest.mark.parametrize("request_", [SnapshotRequest(-1, -1, 0), ReplayRequest(0, 32)])
async def test_who_has_none_says_so_and_who_asks_for_something_else_is_cut_off(
    tmp_path: Path, autojump_clock: MockClock, request_: SnapshotRequest | ReplayRequest
) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        async with await open_stream(world, world.others(leader)[0], leader) as stream:
            await stream.send(request_)
            offer = await stream.receive()
        if isinstance(request_, SnapshotRequest):
            assert offer == SnapshotOffer(0, 0, b"")
        else:
            assert offer is None


async def test_a_link_that_breaks_again_and_again_only_delays_the_transfer(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path) as world:
        set_policy(world, PRUNING)
        await world.start()
        leader = await world.settled()
        late, other = world.others(leader)
        await load(world, leader, 500, b"a")
        await world.kill(late)
        await pruned(world, leader)
        begun: list[int] = []
        arriving = SnapshotFolder.arriving

        def noted(folder: SnapshotFolder) -> tuple[int, int, int]:
            found = arriving(folder)
            begun.append(found[2])
            return found

        setattr(SnapshotFolder, "arriving", noted)  # noqa: B010 - put back below
        try:
            async with trio.open_nursery() as nursery:

                async def breaking() -> None:
                    while True:
                        await trio.sleep(0.0021)
                        for one in (leader, other):
                            world.network.break_links(f"h{late}", f"h{one}")
                            await trio.sleep(0.05)

                nursery.start_soon(breaking)
                await world.start(late)
                await trio.sleep(8.0)
                nursery.cancel_scope.cancel()
        finally:
            setattr(SnapshotFolder, "arriving", arriving)  # noqa: B010
        await world.settled()
        await equal(world)
        assert begun
        folder = world.hosts[late].config.directory
        await world.kill(late)
        assert verify(folder / "log").ok


async def test_a_damaged_snapshot_is_not_sent_and_another_member_is_asked(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path) as world:
        set_policy(world, PRUNING)
        await world.start()
        leader = await world.settled()
        late, liar = world.others(leader)
        await world.kill(late)
        await pruned(world, leader)
        snapshots = world.hosts[liar].running.snapshots
        row = snapshots.newest
        assert row is not None
        path = snapshots.folder.path_of(row)
        good = path.read_bytes()
        path.write_bytes(good.replace(b'"cluster":"simulated"', b'"cluster":"stimulate"'))
        with pytest.raises(StorageError):
            snapshots.folder.check(row)
        await world.start(late)
        await world.settled()
        await equal(world)
        store = world.hosts[late].running.store
        assert store.snapshots[0].position == store.start_position
