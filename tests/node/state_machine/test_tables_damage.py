"""Damaged tables are thrown away, and rebuilt: from the log, a snapshot, or another member's."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import attrs
import lmdb
import pytest
import trio

from quorate.errors import DamagedTablesError, StorageError, leaves
from quorate.keyvalue.protocol.resp import encode_command
from quorate.keyvalue.service import KeyValueService
from quorate.node.config.config import SnapshotPolicy
from quorate.node.requests.request import QUERY, Request
from quorate.node.requests.router import Requests
from quorate.simulation import Observer, Setting, World, open_world
from quorate.simulation.ledger import equal as ledgers_equal
from quorate.simulation.ledger import open_ledgers
from tests.support.damage import filled

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from trio.testing import MockClock

    from quorate.simulation.machines.host import Place

KEYS = 40
LARGE = b"x" * 2000
PRUNING = SnapshotPolicy(keep=1, margin_bytes=0)


def make(place: Place) -> KeyValueService:
    return KeyValueService.open(
        place.directory, cluster=place.cluster, member_id=place.member_id, executor=place.executor
    )


def open_stores(
    directory: Path, members: int = 3, *, contain: bool = False
) -> AbstractAsyncContextManager[World[KeyValueService]]:
    observer = Observer(list(range(members)))
    setting = Setting(members=members, contain=contain)
    return open_world(directory, make, setting, observer=observer)


async def write(world: World[KeyValueService], at: int, count: int = KEYS) -> None:
    """Count up in some keys, and fill them."""
    for i in range(count):
        key = b"key:%d" % (i % KEYS)
        await world.command(at, encode_command((b"APPEND", key, LARGE)))
        await world.command(at, encode_command((b"INCR", b"count")))


def held(service: KeyValueService) -> list[bytes]:
    asked = [(b"STRLEN", b"key:%d" % i) for i in range(KEYS)] + [(b"GET", b"count")]
    return [service.query(encode_command(words), 0) for words in asked]


async def equal(world: World[KeyValueService]) -> None:
    """Wait until all hold the same, which is all that there is."""

    def same() -> bool:
        members = [host.running for host in world.hosts.values() if host.member]
        ends = {member.applier.applied_position for member in members}
        return len(ends) == 1 and ends == {max(member.store.append_position for member in members)}

    await world.until(same)
    hosts = [host for host in world.hosts.values() if host.member]
    assert all(held(host.service) == held(hosts[0].service) for host in hosts)


async def back(world: World[KeyValueService], victim: int) -> None:
    """Start a member, and wait until it holds what the others do."""
    await world.start(victim)
    await world.settled()
    await equal(world)


def break_meta(folder: Path) -> None:
    with lmdb.open(str(folder), max_dbs=8) as raw:
        table = raw.open_db(b"meta", create=False)
        with raw.begin(write=True) as txn:
            row = txn.get(b"applied", db=table)
            assert row is not None
            txn.put(b"applied", bytes([row[0] ^ 1, *row[1:]]), db=table)


def break_headers(folder: Path) -> None:
    path = folder / "data.mdb"
    path.write_bytes(bytes(8192) + path.read_bytes()[8192:])


def break_length(folder: Path) -> None:
    path = folder / "data.mdb"
    path.write_bytes(path.read_bytes()[: 3 * 4096])


def break_record(folder: Path, key: bytes = b"key:1") -> None:
    with lmdb.open(str(folder), max_dbs=8) as raw:
        table = raw.open_db(b"records", create=False)
        with raw.begin(write=True) as txn:
            row = txn.get(key, db=table)
            assert row is not None
            txn.put(key, row[:-1] + b"?", db=table)


async def stopped_with_tables(world: World[KeyValueService]) -> tuple[int, Path]:
    """Run, and stop a follower whose tables are on its disk; give it, and their folder."""
    await world.start()
    leader = await world.settled()
    await write(world, leader)
    await equal(world)
    victim = world.others(leader)[0]
    await world.hosts[victim].service.flush()
    await world.kill(victim)
    return victim, world.hosts[victim].config.directory / "service"


@pytest.mark.parametrize("spoil", [break_meta, break_headers, break_length])
async def test_tables_that_cannot_be_opened_are_made_anew_from_the_log(
    tmp_path: Path,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    spoil: Callable[[Path], None],
) -> None:
    async with open_stores(tmp_path) as world:
        victim, folder = await stopped_with_tables(world)
        spoil(folder)
        await back(world, victim)
        assert "they are thrown away, and rebuilt" in caplog.text
        assert not folder.with_name("service.damaged").exists()


async def test_a_damaged_record_that_is_met_ends_the_member_and_the_next_start_mends_it(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_stores(tmp_path, contain=True) as world:
        victim, folder = await stopped_with_tables(world)
        break_record(folder)
        await world.start(victim)
        leader = await world.settled()
        await world.command(leader, encode_command((b"APPEND", b"key:1", b"more")))
        await world.until(lambda: victim in world.failures)
        assert any(isinstance(one, DamagedTablesError) for one in leaves(world.failures[victim]))
        await back(world, victim)


@pytest.mark.parametrize("way", ["stale_query", "query", "submit", "submit_all"])
async def test_a_damaged_record_that_a_reader_meets_ends_the_member_and_is_mended(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """The client port would only close the connection of the reader."""
    async with open_stores(tmp_path, contain=True) as world:
        victim, folder = await stopped_with_tables(world)
        break_record(folder)
        await world.start(victim)
        await world.settled()
        member, asked = world.hosts[victim].running, encode_command((b"GET", b"key:1"))
        if way == "stale_query":
            with pytest.raises(DamagedTablesError):
                member.stale_query(asked, 0)
        else:  # as on a leader whose lease holds

            def answered(_requests: object, _request: object) -> None:
                member.applier.service.query(asked, 0)

            monkeypatch.setattr(
                Requests, "submit_all" if way == "submit_all" else "submit", answered
            )
            request = Request(QUERY, asked, 0, lambda _reply: None)
            if way == "query":
                with pytest.raises(DamagedTablesError):
                    await member.query(asked)
            else:
                with pytest.raises(DamagedTablesError):
                    getattr(member, way)(request if way == "submit" else [request])
            monkeypatch.undo()
        assert "its tables are damaged, and it begins anew" in member.status().damage
        await world.until(lambda: victim in world.failures)
        assert any(isinstance(one, DamagedTablesError) for one in leaves(world.failures[victim]))
        await back(world, victim)
        assert not world.hosts[victim].running.status().damage


async def test_status_says_that_tables_are_made_anew(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_stores(tmp_path) as world:
        victim, folder = await stopped_with_tables(world)
        break_meta(folder)
        await world.start(victim)
        damage = world.hosts[victim].running.status().damage
        assert damage.startswith("its tables were damaged, and are made anew from the log: 0 of ")
        await world.settled()
        await equal(world)
        assert not world.hosts[victim].running.status().damage


async def test_a_damaged_record_gets_into_no_snapshot(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_stores(tmp_path, contain=True) as world:
        victim, folder = await stopped_with_tables(world)
        break_record(folder)
        await world.start(victim)
        leader = await world.settled()
        await world.hosts[leader].running.control("snapshot")
        await world.until(lambda: victim in world.failures)
        await back(world, victim)
        assert len(world.hosts[leader].running.store.snapshots) == 1


async def pruned(world: World[KeyValueService]) -> tuple[int, Path]:
    """Have all begin their log at a snapshot, and stop a follower, as `stopped_with_tables`."""
    for host in world.hosts.values():
        host.config = attrs.evolve(host.config, snapshot=PRUNING)
    victim, folder = await stopped_with_tables(world)
    await world.start(victim)
    leader = await world.settled()
    await world.hosts[leader].running.control("snapshot")
    await world.until(
        lambda: all(host.running.store.start_position > 0 for host in world.hosts.values())
    )
    await write(world, leader, 5)
    await equal(world)
    await world.kill(victim)
    return victim, folder


async def test_with_a_pruned_log_they_are_made_anew_from_the_own_snapshot(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_stores(tmp_path) as world:
        victim, folder = await pruned(world)
        break_meta(folder)
        await back(world, victim)


@pytest.mark.parametrize("behind", [False, True], ids=["of its log", "ahead of its log"])
async def test_without_a_whole_snapshot_another_members_is_fetched(
    tmp_path: Path, autojump_clock: MockClock, *, behind: bool
) -> None:
    async with open_stores(tmp_path) as world:
        victim, folder = await pruned(world)
        break_meta(folder)
        (path,) = (world.hosts[victim].config.directory / "snapshots").iterdir()
        path.write_bytes(path.read_bytes()[:-1] + b"?")
        leader = await world.leader()
        if behind:
            await write(world, leader, 5)
            await world.hosts[leader].running.control("snapshot")
        await write(world, leader, 5)
        await back(world, victim)
        store = world.hosts[victim].running.store
        assert store.snapshots == world.hosts[leader].running.store.snapshots


async def test_it_waits_for_one_and_stands_for_nothing_meanwhile(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_stores(tmp_path) as world:
        victim, folder = await pruned(world)
        await world.kill(*world.hosts)
        break_meta(folder)
        for path in (world.hosts[victim].config.directory / "snapshots").iterdir():
            path.unlink()
        one, other = world.others(victim)
        await world.start(victim)
        await trio.sleep(30.0)
        status = world.hosts[victim].running.status()
        assert status.state == "INIT"
        assert status.damage.startswith("its tables are gone, and it waits")
        assert caplog.text.count("it waits for another member's") == 3
        await world.start(one)  # the two are a quorum
        await world.until(lambda: len(world.leaders()) == 1)
        await world.start(other)
        await world.settled()
        await equal(world)


async def test_a_member_alone_without_a_whole_snapshot_stops(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_stores(tmp_path, 1, contain=True) as world:
        world.hosts[0].config = attrs.evolve(world.hosts[0].config, snapshot=PRUNING)
        await world.start()
        await world.settled()
        await write(world, 0)
        await world.hosts[0].running.control("snapshot")
        await world.until(lambda: world.hosts[0].running.store.start_position > 0)
        await world.kill(0)
        directory = world.hosts[0].config.directory
        break_meta(directory / "service")
        (path,) = (directory / "snapshots").iterdir()
        path.unlink()
        await world.start(0)
        assert any(
            isinstance(one, StorageError) and "no intact snapshot" in str(one)
            for one in leaves(world.failures[0])
        )


async def test_a_member_killed_at_any_step_of_that_has_all_in_the_end(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Its service is kept nowhere, so it needs a snapshot at every start."""
    async with open_ledgers(tmp_path) as world:
        for host in world.hosts.values():
            host.config = attrs.evolve(host.config, snapshot=PRUNING)
        leader = await filled(world, 20)
        await world.hosts[leader].running.control("snapshot")
        await world.until(
            lambda: all(host.running.store.start_position > 0 for host in world.hosts.values())
        )
        victim = world.others(leader)[0]
        host, done = world.hosts[victim], set[bool]()

        def die() -> None:
            done.add(host.member is not None and host.member.applier.wanting)
            host.kill()

        for step in range(0, 1000, 4):
            await world.kill(victim)
            shutil.rmtree(host.config.directory / "snapshots")
            await world.start(victim)
            host.crash_after(step, die)
            await trio.sleep(1.0)
            host.disarm()
            if host.member is not None and not host.ending:
                break
            await host.gone()
            await world.start(victim)
            await world.settled()
            assert host.service.payloads == world.hosts[leader].service.payloads
        await world.settled()
        await ledgers_equal(world)
        assert done == {False, True}
