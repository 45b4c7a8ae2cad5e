"""The leader compacts what is old, or too much."""

from __future__ import annotations

import attrs
import pytest
import trio

from quorate.etcd.backend import upkeep
from quorate.etcd.backend.upkeep import Upkeep
from tests.support.etcd_world import EtcdWorld, in_world

KEPT_S = 100.0
YOUNG_S = 10.0
LOOK_S = 1.0
KEPT_BYTES = 64_000


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make an hour 100 seconds, 5 minutes 10, 64 MiB 64,000 bytes, and 1 GiB 128,000."""
    monkeypatch.setattr(upkeep, "YOUNG_S", YOUNG_S)
    monkeypatch.setattr(upkeep, "MAX_BYTES", 2 * KEPT_BYTES)
    monkeypatch.setattr(upkeep, "KEPT_S", KEPT_S)
    monkeypatch.setattr(upkeep, "LOOK_S", LOOK_S)
    monkeypatch.setattr(upkeep, "KEPT_BYTES", KEPT_BYTES)
    monkeypatch.setattr(upkeep, "_MARK_BYTES", KEPT_BYTES // 16)


@in_world
async def test_history_older_than_an_hour_is_compacted(world: EtcdWorld) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Upkeep(world.member, world.member.state).run)
        for _ in range(12):
            await world.put(b"a")
            await trio.sleep(KEPT_S / 10)
        compacted = world.member.state.compacted
        # Ten tenths of an hour ago there were two or three revisions.
        assert 2 <= compacted <= 4
        await trio.sleep(2 * KEPT_S)
        assert world.member.state.compacted == world.member.state.revision
        assert await world.get(b"a") == b""
        nursery.cancel_scope.cancel()


@in_world
async def test_much_history_is_compacted_sooner(world: EtcdWorld) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Upkeep(world.member, world.member.state).run)
        count = KEPT_BYTES // 1000 + 20
        for _ in range(count):
            await world.put(b"a", b"x" * 1000)
        await trio.sleep(YOUNG_S - LOOK_S)
        # What was written just now stays for watchers that are a little behind.
        assert world.member.state.compacted == 0
        await trio.sleep(3 * LOOK_S)
        left = world.member.state.revision - world.member.state.compacted
        assert KEPT_BYTES <= left * 1000 <= 1.2 * KEPT_BYTES
        nursery.cancel_scope.cancel()


@in_world
async def test_very_much_history_is_compacted_however_young(world: EtcdWorld) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Upkeep(world.member, world.member.state).run)
        for _ in range(2 * KEPT_BYTES // 1000 + 20):
            await world.put(b"a", b"x" * 1000)
        await trio.sleep(2 * LOOK_S)
        left = world.member.state.revision - world.member.state.compacted
        assert 2 * KEPT_BYTES <= left * 1000 <= 2.2 * KEPT_BYTES
        nursery.cancel_scope.cancel()


@in_world
async def test_a_keyspace_that_nobody_uses_writes_nothing(world: EtcdWorld) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Upkeep(world.member, world.member.state).run)
        await trio.sleep(KEPT_S + 2 * LOOK_S)
        assert world.member.commands == []
        nursery.cancel_scope.cancel()


@in_world
async def test_a_follower_compacts_nothing(world: EtcdWorld) -> None:
    topology = attrs.evolve(world.member.topology, is_leader=False)
    world.member.topology = topology
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Upkeep(world.member, world.member.state).run)
        for _ in range(3):
            await world.put(b"a")
            await trio.sleep(KEPT_S)
        assert world.member.state.compacted == 0
        # But it knows what is old once it leads.
        world.member.topology = attrs.evolve(topology, is_leader=True)
        await trio.sleep(2 * LOOK_S)
        assert world.member.state.compacted == 4
        nursery.cancel_scope.cancel()


@in_world
async def test_no_leader_is_no_reason_to_stop(world: EtcdWorld) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Upkeep(world.member, world.member.state).run)
        await world.put(b"a")
        world.member.lose_leader()
        await trio.sleep(KEPT_S + 2 * LOOK_S)
        world.member.error = None
        await trio.sleep(2 * LOOK_S)
        assert world.member.state.compacted == 2
        nursery.cancel_scope.cancel()
