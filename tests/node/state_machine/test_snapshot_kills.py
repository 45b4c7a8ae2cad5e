"""kill -9 at every step of a snapshot: taking, pruning, sending, fetching and installing it.

Two enumerations. In real processes the process is killed before and after each call that changes
the disk (a commit of LMDB, a part of a file, fsync, rename, unlink). In simulated clusters a member
is killed before each of its steps, whatever it is doing there. After each kill the member starts
again, and nothing may be missing. Both write down what they have killed at, and it must be all that
there is to a snapshot.
"""

from __future__ import annotations

import os
import random
import signal
import traceback
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio

from quorate.keyvalue.protocol import resp
from quorate.keyvalue.service import KeyValueService
from quorate.node import Command, MemberConfig, NodeConfig, Timeouts, open_member
from quorate.node.config.config import SnapshotPolicy
from quorate.node.configurations import Configurations
from quorate.node.membership import founding
from quorate.node.readers import serving
from quorate.node.state_machine.applier import Applier
from quorate.node.state_machine.snapshots import Snapshots
from quorate.simulation.ledger import equal, open_ledgers
from quorate.storage import SnapshotReader, SnapshotWriter, Store, ThreadExecutor, Transfer, Write
from quorate.storage.lmdb.environment import Environment
from quorate.storage.snapshots.file import check_snapshot
from quorate.storage.tables.disk import TablesDisk
from quorate.storage.writing.executor import nothing
from quorate.transport.testing import MemoryNetwork
from tests.node.state_machine.test_snapshots import PRUNING, load, pruned, set_policy, snapshot

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable
    from pathlib import Path

    from trio.testing import MockClock

    from quorate.node import Member
    from quorate.node.readers.pace import SharedRate
    from quorate.simulation import World
    from quorate.simulation.ledger import Ledger
    from quorate.simulation.machines.host import Host
    from quorate.storage import BatchHeader, Entry
    from quorate.transport import FrameStream

KEYS = 200
MOST_STEPS = 400


def config(folder: Path) -> NodeConfig:
    return NodeConfig(
        cluster="kills",
        member_id=0,
        directory=folder,
        members=(MemberConfig(0, "h0", 7000, 6000),),
        snapshot=SnapshotPolicy(keep=1, margin_bytes=0),
    )


@asynccontextmanager
async def alone(folder: Path) -> AsyncGenerator[tuple[Member, KeyValueService], None]:
    """A cluster of one, with real disks and threads."""
    rng = random.Random(1)
    service = KeyValueService.open(folder / "tables", cluster="kills", member_id=0)
    try:
        async with open_member(
            config(folder),
            service,
            rng=rng,
            clock_ms=lambda: 1_000_000,
            network=MemoryNetwork(rng).host("h0"),
        ) as member:
            yield member, service
    finally:
        service.close()


async def write(member: Member, value: int) -> None:
    """Set all keys to a number."""
    body = b"".join(resp.encode_command((b"SET", b"key-%d" % i, value)) for i in range(KEYS))
    await member.command(body)


def read(service: KeyValueService) -> list[bytes]:
    """All values."""
    return [service.query(resp.encode_command((b"GET", b"key-%d" % i)), 0) for i in range(KEYS)]


# --- real processes -------------------------------------------------------------------------------


@pytest.fixture
def uncalled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new cluster of one begins at once: it need not listen for members that know more."""

    def at_once(_timeouts: Timeouts) -> float:
        return 0.0

    monkeypatch.setattr(founding, "callers_seconds", at_once)


def die_at(step: int, steps: Path) -> Callable[[], None]:
    """Wrap all that changes the disk: the process kills itself at the given step.

    The names of the steps up to there go into a file.
    """
    left = step

    def tick(name: str) -> None:
        nonlocal left
        left -= 1
        with steps.open("a") as file:
            file.write(f"{name}\n")
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def ticking(owner: object, name: str, called: str) -> None:
        real = getattr(owner, name)

        def call(*arguments: object, **named: object) -> object:
            tick(f"before {called}")
            result = real(*arguments, **named)
            tick(f"after {called}")
            return result

        setattr(owner, name, call)

    def arm() -> None:
        for name in ("fsync", "rename", "unlink"):
            ticking(os, name, name)
        ticking(SnapshotWriter, "step", "a piece")
        ticking(Transfer, "write", "a part")
        ticking(Environment, "write", "log")
        ticking(TablesDisk, "_transact", "tables")

    return arm


def in_order(steps: Path, *wanted: str) -> bool:
    """Whether each of these comes behind the one before, among what was stepped through."""
    names = iter(steps.read_text().splitlines())
    return all(any(name == f"before {each}" for name in names) for each in wanted)


def in_child(work: Callable[[], Awaitable[None]]) -> int:
    """Run it in a child process; return how it ended."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            trio.run(work)
            status = 0
        except BaseException:  # noqa: BLE001 - the child's own end
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


async def take(folder: Path, arm: Callable[[], None]) -> None:
    """Write and take snapshots, so that older ones and the log before them go."""
    async with alone(folder) as (member, _):
        for value in range(1, 3):
            await write(member, value)
            if value == 2:
                arm()
            await member.control("snapshot")
        await member.snapshots.clean()
        await write(member, 3)


async def look(folder: Path, least: int) -> None:
    """Start once more, and see that nothing is missing and nothing is left over."""
    async with alone(folder) as (member, service):
        await member.query(resp.encode_command((b"GET", b"key-0")))
        # The log may ask for the snapshot again that was not finished.
        await member.snapshots.quiet()
        await member.snapshots.clean()
        values = read(service)
        assert len(set(values)) == 1
        assert int(values[0].splitlines()[1]) >= least
        rows = member.store.snapshots
        for row in rows:
            assert check_snapshot(folder / "snapshots" / row.name).head.row == row
        names = {path.name for path in (folder / "snapshots").iterdir()}
        assert {name for name in names if not name.endswith(".part")} == {row.name for row in rows}
        assert member.store.start_position <= (rows[0].position if rows else 0)


@pytest.mark.usefixtures("uncalled")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_killed_at_each_step_of_taking_and_pruning_has_lost_nothing(
    tmp_path: Path,
) -> None:
    kills = 0
    for step in range(MOST_STEPS):
        folder = tmp_path / str(step)
        steps = tmp_path / f"steps-{step}"
        ended = in_child(partial(take, folder, die_at(step, steps)))
        assert in_child(partial(look, folder, 2)) == 0, f"step {step}"
        if ended == 0:
            # the file, its row; the row of the older one, its file; the log before that
            writing = ("tables", "a piece", "a piece", "fsync", "rename", "fsync", "log")
            assert in_order(steps, *writing, "log", "unlink", "fsync", "log")
            break
        assert ended == -signal.SIGKILL
        kills += 1
    else:
        pytest.fail("it does not come to an end")
    assert kills > 15


async def no_action(_entry: Entry, _header: BatchHeader) -> None:
    """Do nothing about actions; there are none."""


async def install(folder: Path, source: Path, arm: Callable[[], None]) -> None:
    """Fetch the snapshot of another store, and begin anew with it."""
    service = KeyValueService.open(folder / "tables", cluster="kills", member_id=0)
    store = Store.open(folder / "log", cluster="kills", member_id=0, rng=random.Random(2))
    applier = Applier(store, service)
    lane = ThreadExecutor[Write](lambda _: None, delivered=nothing)
    configurations = Configurations(config(folder), store)
    snapshots = Snapshots(config(folder), store, applier, lane, configurations=configurations)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        await nursery.start(snapshots.run)
        await nursery.start(service.run)
        nursery.start_soon(applier.run, no_action)
        (path,) = (source / "snapshots").iterdir()
        service.apply(Command(resp.encode_command((b"SET", b"old", 1)), 0, 0, 0, 0, 0, 0, 1))
        service.advance(32, 1)
        arm()
        with SnapshotReader(path) as reader:
            offset = max(snapshots.folder.arriving()[2], reader.end)
            transfer = snapshots.folder.transfer(reader.head, reader.head_part, offset)
            while part := reader.next_part():
                if reader.end > offset:
                    transfer.write(part)
            transfer.finish()
            await snapshots.install(reader.head)
        nursery.cancel_scope.cancel()
    service.close()
    store.close()


async def look_at_installed(folder: Path) -> None:
    """Start once more: either nothing has happened, or all of it."""
    async with alone(folder) as (member, service):
        await member.query(resp.encode_command((b"GET", b"key-0")))
        values = set(read(service))
        if member.store.start_position:
            assert [len(value) > 5 for value in values] == [True]
            assert len(member.store.snapshots) == 1
            assert service.query(resp.encode_command((b"GET", b"old")), 0) == b"$-1\r\n"
        else:
            assert values == {b"$-1\r\n"}


@pytest.mark.usefixtures("uncalled")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_killed_at_each_step_of_installing_has_all_of_it_or_nothing(
    tmp_path: Path,
) -> None:
    source = tmp_path / "source"
    assert in_child(partial(take, source, nothing)) == 0
    kills = 0
    for step in range(MOST_STEPS):
        folder = tmp_path / str(step)
        steps = tmp_path / f"steps-{step}"
        ended = in_child(partial(install, folder, source, die_at(step, steps)))
        assert in_child(partial(look_at_installed, folder)) == 0, f"step {step}"
        if ended == 0:
            # what comes, its name; the log begins anew, and then the tables
            coming = ("a part", "a part", "fsync", "rename", "fsync", "log")
            assert in_order(steps, *coming, "tables", "tables", "tables")
            break
        assert ended == -signal.SIGKILL
        kills += 1
    else:
        pytest.fail("it does not come to an end")
    assert kills > 7


# --- simulated clusters ---------------------------------------------------------------------------


def doing(member: Member | None) -> str:
    """What a member does about snapshots."""
    if member is None:
        return ""
    snapshots = member.snapshots
    if getattr(snapshots, "_cleaning").locked():  # noqa: B009 - it is not to be seen from outside
        return "pruning"
    return snapshots.activity.partition(" ")[0]


@pytest.mark.parametrize("who", [pytest.param("leader", marks=pytest.mark.slow), "follower"])
async def test_a_member_killed_at_each_of_its_steps_while_it_takes_one_comes_back(
    tmp_path: Path, autojump_clock: MockClock, who: str
) -> None:
    async with open_ledgers(tmp_path) as world:
        set_policy(world, PRUNING)
        await world.start()
        leader = await world.settled()
        await load(world, leader, 250, b"a")
        done: set[str] = set()
        for step in range(MOST_STEPS):
            leader = await world.settled()
            victim = leader if who == "leader" else world.others(leader)[0]
            via = world.others(victim)[0]
            await load(world, via, 2, b"s%d" % step)
            before = world.hosts[via].running.store.snapshots
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(snapshot_or_not, world.hosts[via].running))
                host = world.hosts[victim]

                def die(host: Host[Ledger] = host) -> None:
                    done.add(doing(host.member))
                    host.kill()

                host.crash_after(step, die)
                await trio.sleep(0.3)
                world.hosts[victim].disarm()
                nursery.cancel_scope.cancel()
            await world.hosts[via].running.snapshots.idle()
            if world.hosts[victim].member is not None and not world.hosts[victim].ending:
                assert world.hosts[via].running.store.snapshots != before
                break
            await world.hosts[victim].gone()
            await world.start(victim)
        else:
            pytest.fail("it does not come to an end")
        await world.settled()
        await equal(world)
        assert done >= {"taking", "pruning"}


def watch_senders(monkeypatch: pytest.MonkeyPatch) -> set[Snapshots]:
    """Give who sends a snapshot, at any time."""
    sending: set[Snapshots] = set()
    serve = serving.serve_snapshot

    async def watched(
        snapshots: Snapshots, stream: FrameStream, pace: SharedRate | None = None
    ) -> None:
        sending.add(snapshots)
        try:
            await serve(snapshots, stream, pace)
        finally:
            sending.discard(snapshots)

    monkeypatch.setattr(serving, "serve_snapshot", watched)
    return sending


def is_counted(world: World[Ledger], i: int) -> bool:
    state = world.hosts[i].running.state  # not its status, which is made from everything
    return state.votes and state.own in state.quorums.voters


def has_one(world: World[Ledger], i: int) -> bool:
    """Whether a member has installed a snapshot, and is at rest."""
    member = world.hosts[i].member
    return member is not None and bool(member.store.start_position) and not doing(member)


async def snapshot_or_not(member: Member) -> None:
    try:
        await member.control("snapshot")
    except Exception:  # noqa: BLE001 - the leader may die
        return


@pytest.mark.parametrize("who", ["receiver", pytest.param("sender", marks=pytest.mark.slow)])
async def test_a_member_killed_at_each_of_its_steps_while_one_is_sent_or_installed_comes_back(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    sending = watch_senders(monkeypatch)
    async with open_ledgers(tmp_path) as world:
        set_policy(world, PRUNING)
        await world.start()
        leader = await world.settled()
        await pruned(world, leader)
        behind = 0
        done: set[str] = set()
        for step in range(0, MOST_STEPS, 3):
            leader = await world.settled()
            late, sender = world.others(leader)
            await equal(world)
            await world.wipe(late)
            victim = late if who == "receiver" else sender
            await world.start(late)
            host, over = world.hosts[victim], list[bool]()

            def die(host: Host[Ledger] = host, late: int = late, over: list[bool] = over) -> None:
                over.append(has_one(world, late))
                sends = host.member is not None and host.member.snapshots in sending
                done.add("sending" if sends else doing(host.member))
                host.kill()

            host.crash_after(step, die)
            # What comes behind the installation has nothing to do with it.
            with trio.move_on_after(1.0):
                await world.until(partial(has_one, world, late))
            await trio.sleep(0.05)
            world.hosts[victim].disarm()
            died = world.hosts[victim].member is None or world.hosts[victim].ending
            if died:
                await world.hosts[victim].gone()
                await world.start(victim)
            await world.settled()
            await equal(world)
            assert world.hosts[late].running.store.start_position > 0
            # Its new store counts: else the next wipe would be one too many.
            await world.until(partial(is_counted, world, late))
            # A member that was killed behind the installation was killed at nothing of a snapshot.
            behind = 0 if died and over != [True] else behind + 1
            if behind == 3:
                break
        else:
            pytest.fail("it does not come to an end")
        await snapshot(world, world.leaders()[0])
        assert done >= ({"fetching", "installing"} if who == "receiver" else {"sending"})
