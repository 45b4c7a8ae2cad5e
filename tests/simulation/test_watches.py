"""Watches through deaths of leaders, snapshots and pruning: they return what the log says."""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, cast

import trio

from quorate.errors import WatchLostError
from quorate.keyvalue.programs.watch import LocalWatches, Watch
from quorate.keyvalue.service import KeyValueService
from quorate.keyvalue.state import changes as changes_module
from quorate.keyvalue.state import store as store_module
from quorate.keyvalue.watches.replays import REPLAYS, Replays
from quorate.node.config.config import SnapshotPolicy
from quorate.simulation import Setting, World, open_world
from quorate.simulation.machines.disk import Fate
from quorate.simulation.store import Store, stores
from quorate.storage.testing import InlineExecutor
from tests.support.service_world import encode, open_service, running

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from random import Random

    import pytest

    from quorate.keyvalue.state.changes import Change
    from quorate.node import Command, Member, Service
    from quorate.simulation.machines.host import Place

DEATHS = 20
RESTARTS = 10
OFTEN = SnapshotPolicy(keep=2, interval_bytes=64 << 10, interval_entries=100, margin_bytes=0)


class Record:
    """What the members apply, each batch once; to be applied once more at the end."""

    def __init__(self) -> None:
        self.batches: list[tuple[list[Command], int, int]] = []
        self._commands: dict[int, list[Command]] = {}

    def attending(self, make: Callable[[Place], Store]) -> Callable[[Place], Store]:
        """Have every store that is made show what it applies."""

        def made(place: Place) -> Store:
            store = make(place)
            apply, advance = store.apply, store.advance
            commands: list[Command] = []

            def applied(command: Command) -> bytes:
                commands.append(command)
                return apply(command)

            def advanced(position: int, timestamp_ms: int) -> None:
                if not self.batches or position > self.batches[-1][1]:
                    self.batches.append(([*commands], position, timestamp_ms))
                commands.clear()
                advance(position, timestamp_ms)

            setattr(store, "apply", applied)  # noqa: B010 - of this one store
            setattr(store, "advance", advanced)  # noqa: B010
            return store

        return made

    async def changes(self, directory: Path) -> list[Change]:
        """Return all changes of the log, by a service that was never restarted."""
        found: list[Change] = []
        async with running(open_service(directory)) as fed:
            before = 0
            for commands, position, timestamp_ms in self.batches:
                for command in commands:
                    fed.service.apply(command)
                fed.service.advance(position, timestamp_ms)
                found += fed.service.changes.after(before, b"")
                before = position
        return found


class Watcher:
    """A program that watches, at one member after the other; it dies and begins again.

    Attributes:
        found: all changes of whole entries, in the order in which it got them.
        place: where it resumes.
        lost: how often a member did not have what it needed.
        sources: the watches of the running members.
        replays: how many there were at all members.
    """

    def __init__(self) -> None:
        self.found: list[Change] = []
        self.place = 0
        self.lost = 0
        self.sources: dict[int, LocalWatches] = {}
        self._counted: list[Replays] = []

    @property
    def replays(self) -> int:
        return sum(replays.count for replays in self._counted)

    async def accompany(self, member: Member, service: Service) -> None:
        """Serve watches in a member's process."""
        i, recent = member.config.member_id, cast("Store", service).changes
        make = partial(
            KeyValueService.open, cluster="simulated", member_id=i, executor=InlineExecutor
        )
        replays = Replays(member.history, recent, member.config.directory / REPLAYS, make)
        self._counted.append(replays)
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(replays.run)
                self.sources[i] = LocalWatches(recent, replays, member)
        finally:
            self.sources.pop(i, None)

    async def live(self, world: World[Store], rng: Random) -> None:
        """Watch one member for a while."""
        i = rng.choice(world.present)
        source, ended = self.sources.get(i), world.hosts[i].ended
        if source is None:
            await trio.sleep(0.05)
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_after, ended, nursery.cancel_scope)
            try:
                async with source.watch(b"", self.place) as watch:
                    await self._read(watch)
            except WatchLostError:
                self.lost += 1
                await trio.sleep(0.05)
            nursery.cancel_scope.cancel()

    async def _read(self, watch: Watch) -> None:
        entry: list[Change] = []
        async for change in watch:
            entry.append(change)
            if not change.more:
                self.found += entry
                self.place = change.position
                entry = []


async def _cancel_after(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


async def write(world: World[Store], rng: Random) -> None:
    """Write again and again, through any member."""
    keys = [b"k%d" % i for i in range(20)]
    while True:
        key, other = rng.sample(keys, 2)
        lines = [
            (b"SET", key, b"%d" % rng.getrandbits(20)),
            (b"SET", key, b"1", b"PX", b"%d" % rng.choice((20, 100, 500))),
            (b"INCR", b"n"),
            (b"APPEND", b"long", b"0"),
            (b"MSET", key, b"1", other, b"2"),
            (b"DEL", key, other),
        ]
        commands = encode(*rng.choices(lines, (3, 9, 3, 1, 1, 1), k=rng.randrange(1, 7)))
        await world.attempt(rng.choice(world.present), commands, within=0.1)
        await trio.sleep(rng.random() * 0.03)


async def kill_leaders(world: World[Store], rng: Random) -> None:
    for _ in range(DEATHS):
        leader = await world.leader()
        await trio.sleep(rng.random())
        if rng.random() < 0.5:
            await world.kill(leader)
        else:
            await world.cut_power(leader, fate=rng.choice([*Fate]))
        await trio.sleep(rng.random())
        await world.start(leader)


async def watch_and_die(watcher: Watcher, world: World[Store], rng: Random) -> None:
    """Watch for ever, but die now and then, also in the middle of an entry."""
    deaths = [2.0 * rng.random() for _ in range(RESTARTS)]
    while True:
        with trio.move_on_after(deaths.pop() if deaths else float("inf")):
            while True:
                await watcher.live(world, rng)
        await trio.sleep(rng.random() * 2.0)


async def test_a_watch_returns_the_log_through_deaths_snapshots_and_pruning(
    tmp_path: Path, autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So little that most resumed watches need a replay, and that keys which are due pile up.
    monkeypatch.setattr(changes_module, "KEPT_CHANGES", 40)
    monkeypatch.setattr(store_module, "MAX_EXPIRED_PER_BATCH", 2)
    rng, record, watcher = random.Random(3), Record(), Watcher()
    setting = Setting(members=3, snapshot=OFTEN, seed=3)
    make = record.attending(stores(random.Random(3)))
    async with open_world(tmp_path / "world", make, setting) as world:
        world.accompany = watcher.accompany
        await world.start()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch_and_die, watcher, world, rng)
            async with trio.open_nursery() as writing:
                writing.start_soon(write, world, rng)
                await kill_leaders(world, rng)
                writing.cancel_scope.cancel()
            await world.settled()
            await trio.sleep(3.0)
            expected = await record.changes(tmp_path / "again")
            await world.until(lambda: watcher.place >= expected[-1].position)
            nursery.cancel_scope.cancel()
        assert min(host.running.store.start_position for host in world.hosts.values()) > 0
    assert watcher.found == expected
    assert watcher.replays > RESTARTS / 2
