"""Witnesses in virtual time: they vote and keep the log, have no tables, and hand over at once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from quorate.errors import ConfigurationError, RefusedError, leaves
from quorate.node import State
from quorate.node.config.config import SnapshotPolicy
from quorate.node.protocol.membership import MemberRole
from quorate.node.state_machine.service import kind_of
from quorate.node.state_machine.witness import LEAST_KEPT, WitnessService
from quorate.simulation import Observer
from quorate.simulation.ledger import Ledger, equal, open_ledgers
from quorate.storage import NO_STATE, SnapshotReader, verify
from quorate.storage.tools.recovery_plan import plan_recovery
from quorate.transport import SnapshotOffer, SnapshotRequest, StreamPurpose
from tests.node.state_machine.test_snapshots import PRUNING, load, set_policy
from tests.simulation.members import add

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from trio.testing import MockClock

    from quorate.simulation import World

W = 2


def watched(
    directory: Path, members: int = 3, witnesses: int = 1
) -> AbstractAsyncContextManager[World[Ledger]]:
    """Members, the last of them witnesses, with everything checked after every event."""
    observer = Observer([*range(members)])
    return open_ledgers(directory, members, witnesses=witnesses, observer=observer)


async def snapshot(world: World[Ledger], at: int) -> int:
    """Have one taken; give its position once all that run have it, or its head."""
    words = await world.hosts[at].running.control("snapshot")
    position = int(words.split()[2].rstrip(","))

    def done() -> bool:
        stores = [host.running.store for host in world.hosts.values() if host.member]
        return all(store.snapshots and store.snapshots[-1].position >= position for store in stores)

    await world.until(done)
    return position


async def offers(world: World[Ledger], member: int, *, to: int) -> object:
    """Give what a member answers to one that asks for its snapshot."""
    links = world.hosts[to].running.links
    async with await links.open_stream(member, purpose=StreamPurpose.SNAPSHOT) as stream:
        await stream.send(SnapshotRequest(-1, -1, 0))
        return await stream.receive()


async def pruned(world: World[Ledger], at: int, rounds: int = 4) -> None:
    """Write and take snapshots until the log is pruned."""
    for i in range(rounds):
        await load(world, at, 40, b"p%d" % i)
        await snapshot(world, at)
    await world.until(lambda: world.hosts[at].running.store.start_position > 0)


async def test_the_loss_of_any_one_of_three_is_survived(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with watched(tmp_path) as world:
        await world.start()
        await world.settled()
        count = 0
        for lost in (0, 1, W):
            await world.kill(lost)
            leader = await world.leader()
            assert leader != W
            for i in world.running():
                count += 1
                assert (
                    await world.command(i, b"without %d by way of %d" % (lost, i)) == b"%d" % count
                )
            await world.start(lost)
            await world.settled()
        await equal(world)
        assert len(world.hosts[0].service.payloads) == count
        assert not world.hosts[W].service.payloads
        assert "LEADER_INIT" not in world.path(W)  # members with the same log stand before it


async def test_a_witness_with_the_longest_log_hands_over(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with watched(tmp_path) as world:
        await world.start()
        old = await world.settled()
        (behind,) = world.others(old, W)
        world.isolate(behind)
        await load(world, old, 5, b"acknowledged")
        await world.kill(old, behind)
        world.mend()
        before = len(world.transitions)
        await world.start(behind)
        parked = await world.command(behind, b"while the witness leads")
        assert parked == b"6"
        assert "CLOSED" in world.path(W, since=before)
        assert "LEADER_INIT" in world.path(W, since=before)
        assert world.leaders() == [behind]
        ended = [t for t in world.transitions[before:] if t.member_id == W and "over" in t.reason]
        assert ended, "it ended because the other member took over"
        assert world.hosts[behind].running.applier.service.query(b"", 0) == b"6"
        await world.start(old)
        await world.settled()
        await equal(world)


async def test_a_witness_that_leads_takes_nothing_and_is_shown_to_nobody(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with watched(tmp_path) as world:
        await world.start()
        old = await world.settled()
        (behind,) = world.others(old, W)
        await world.kill(behind)
        await load(world, old, 5, b"a")
        await world.kill(old)
        seen: list[int | None] = []
        led = 0

        def look(_member: int) -> None:
            nonlocal led
            host = world.hosts[W]
            if host.member is not None and host.running.status().role == "leader":
                led += 1
                assert not host.running.topology.is_leader
                seen.extend(world.hosts[i].running.topology.leader_id for i in world.running())

        world.after_every_event(look)
        await world.start(behind)
        assert await world.command(W, b"by way of the witness") == b"6"
        assert led
        assert W not in seen


async def test_without_a_successor_it_leads_on_and_serves_nobody(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with watched(tmp_path) as world:
        set_policy(world, PRUNING)
        await world.start()
        old = await world.settled()
        (behind,) = world.others(old, W)
        await world.kill(behind)
        await pruned(world, old)
        want = [*world.hosts[old].service.payloads]
        await world.until(lambda: world.hosts[W].running.store.start_position > 0)
        await world.kill(old)
        await world.start(behind)
        # What it needs has nobody that runs.
        await trio.sleep(20.0)
        assert world.hosts[W].running.status().role == "leader"
        assert not world.leaders()
        assert not await world.attempt(behind, b"b", within=0.5)
        words = (
            f"member {W}, a witness, which has no snapshot; until another member with tables runs"
        )
        assert words in caplog.text
        assert f"Not reached: members [{old}]" in caplog.text
        await world.start(old)
        await world.settled()
        assert world.leaders() != [W]
        await equal(world)
        assert world.hosts[behind].service.payloads[: len(want)] == want


async def test_its_log_is_pruned_and_it_restarts(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with watched(tmp_path) as world:
        set_policy(world, SnapshotPolicy(keep=1, margin_bytes=0))
        await world.start()
        leader = await world.settled()
        await pruned(world, leader)
        host = world.hosts[W]
        rows = host.running.store.snapshots
        assert len(rows) == LEAST_KEPT
        await world.until(lambda: host.running.store.start_position == rows[0].position)
        folder = host.running.snapshots.folder
        assert sum(path.stat().st_size for path in folder.directory.iterdir()) < 4096
        with SnapshotReader(folder.path_of(rows[-1])) as reader:
            assert reader.head.service == NO_STATE
        await load(world, leader, 5, b"more")
        commit = world.hosts[leader].running.status().commit_position
        await world.until(lambda: host.running.status().commit_position == commit)
        await world.kill(W)
        assert verify(host.config.directory / "log").ok
        plan = plan_recovery(host.config.directory, witness=True)
        assert (plan.trouble, plan.load, plan.replay_from) == ("", None, plan.append_position)
        assert [(one.of_witness, one.damage) for one in plan.snapshots] == [(True, "")] * LEAST_KEPT
        await load(world, leader, 5, b"without it")
        await world.start(W)
        await world.settled()
        await load(world, leader, 1, b"with it")
        status = host.running.status()
        assert (status.role, status.snapshot_position, status.damage) == ("witness", -1, "")
        assert not host.service.payloads
        await world.kill(next(i for i in (0, 1) if i != leader))
        await load(world, leader, 5, b"it counts")


async def test_it_begins_anew_behind_a_pruned_log_with_a_head_alone(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with watched(tmp_path) as world:
        set_policy(world, PRUNING)
        await world.start()
        leader = await world.settled()
        await world.command(leader, b"a")
        await world.kill(W)
        await pruned(world, leader)
        await world.start(W)
        await world.settled()
        host = world.hosts[W]
        store = host.running.store
        await world.until(
            lambda: store.append_position == world.hosts[leader].running.store.append_position
        )
        assert store.start_position > 0
        assert [row.position for row in store.snapshots] == [store.start_position]
        assert host.running.snapshots.folder.path_of(store.snapshots[0]).stat().st_size < 2048
        assert host.running.status().applied_position == host.running.status().commit_position
        assert await offers(world, W, to=leader) == SnapshotOffer(0, 0, b"")
        await world.kill(next(i for i in (0, 1) if i != leader))
        await load(world, leader, 3, b"b")
        await world.kill(W)
        assert verify(host.config.directory / "log").ok
        await world.start(W)
        await load(world, leader, 3, b"c")


async def test_it_is_added_and_removed_at_runtime(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with watched(tmp_path, 2, 0) as world:
        set_policy(world, PRUNING)
        await world.start()
        leader = await world.settled()
        await pruned(world, leader)
        order = "member add host=w member_port=7000 client_port=6000 role=witness"
        with pytest.raises(RefusedError, match="0, since a witness only leads"):
            await world.hosts[leader].running.control(f"{order} priority=1")
        await world.hosts[leader].running.control(order)
        world.create(W)
        assert world.hosts[W].config.own.witness
        await world.start(W)
        await world.until(lambda: len(world.membership.voters) == 3)
        (other,) = world.others(leader, W)
        await world.kill(other)
        await load(world, leader, 3, b"a")
        await world.start(other)
        await world.settled()
        for words, why in {
            f"demote {W}": "role: member 2 is a witness, and has no tables",
            f"remove {other}": "",
        }.items():
            if why:
                with pytest.raises(RefusedError, match=why):
                    await world.hosts[leader].running.control(f"member {words}")
        listed = json.loads(await world.hosts[leader].running.control("member list"))
        assert [each["role"] for each in listed["members"]] == ["voter", "voter", "witness"]
        with pytest.raises(RefusedError, match="witness"):
            await world.hosts[leader].running.control(f"transfer {W}")
        await world.hosts[leader].running.control(f"member remove {W}")
        await world.until(lambda: world.hosts[W].retired)
        assert world.membership.seat(W) is None


async def test_witnesses_are_never_a_majority_of_their_own(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with watched(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        (other,) = world.others(leader, W)
        control = world.hosts[leader].running.control
        order = "member add host=w member_port=7000 client_port=6000 role=witness"
        with pytest.raises(RefusedError, match="role: 2 of 3 voters would be witnesses"):
            await control(f"{order} replaces={other}")
        await control(f"{order} replaces={W}")
        world.create(3)
        await world.start(3)
        await world.until(lambda: world.hosts[W].retired)
        (seat,) = [s for s in world.membership.seats if s.role is MemberRole.WITNESS]
        assert seat.member_id == 3
        await control(f"member remove {other}")
        with pytest.raises(RefusedError, match="role: 1 of 1 voters"):
            await control(f"member remove {leader}")


async def test_its_snapshots_are_never_loaded_by_a_member_with_tables(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with watched(tmp_path) as world:
        set_policy(world, PRUNING)
        await world.start()
        leader = await world.settled()
        await pruned(world, leader)
        await world.kill(W)
        host = world.hosts[W]
        members = tuple(attrs.evolve(each, witness=False) for each in host.config.members)
        host.config = attrs.evolve(host.config, members=members)
        await world.start(W)
        await world.settled()
        await world.until(
            lambda: host.service.payloads == world.hosts[leader].service.payloads, within=60
        )


async def test_a_voter_with_tables_does_not_start_as_a_witness(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path, 4, standbys=1, contain=True) as world:
        await world.start()
        leader = await world.settled()
        await world.hosts[leader].running.control("member promote 3")
        await world.until(lambda: len(world.membership.voters) == 4)
        member = world.others(leader)[0]
        await world.kill(member)
        host = world.hosts[member]
        host.config = attrs.evolve(
            host.config,
            members=tuple(
                attrs.evolve(each, witness=each.member_id == member) for each in host.config.members
            ),
        )
        await world.start(member)
        assert isinstance(world.failures[member], ConfigurationError)
        assert "witness = true, but by configuration version" in str(world.failures[member])


async def test_a_joiner_that_is_a_witness_by_its_file_alone_gets_no_vote(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path, 3, contain=True) as world:
        await world.start()
        await world.settled()
        joiner = await add(world, start=False)
        host = world.hosts[joiner]
        host.config = attrs.evolve(
            host.config,
            members=tuple(
                attrs.evolve(each, witness=each.member_id == joiner) for each in host.config.members
            ),
        )
        for _ in range(2):  # when it has the log, and when it is started again
            await world.start(joiner)
            await world.until(lambda: host.stopped, within=60)
            failure = world.failures.pop(joiner)
            (error,) = leaves(failure)
            assert isinstance(error, ConfigurationError)
            assert "witness = true, but by configuration version" in str(error)
        assert joiner not in {voter.member_id for voter in world.membership.voters}
        assert await world.attempt(await world.leader(), b"served")


async def test_a_stale_read_is_refused_and_others_are_named(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with watched(tmp_path) as world:
        await world.start()
        await world.settled()
        with pytest.raises(
            RefusedError, match="member 2 is a witness and has no data: ask h0:6000, h1:6000"
        ):
            world.hosts[W].running.stale_query(b"", 0)
        assert await world.command(W, b"a") == b"1"
        assert await world.hosts[W].running.query(b"") == b"1"


async def test_a_suspended_cluster_stays_so_when_the_witness_restarts(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with watched(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        await world.hosts[leader].running.control("suspend")
        await world.until(lambda: world.hosts[W].running.status().suspended)
        await world.kill(W)
        await world.start(W)
        await world.reached(W, State.CLOSED)
        assert world.hosts[W].running.status().suspended


def test_no_service_has_its_kind() -> None:
    service = WitnessService(NO_STATE)
    with pytest.raises(ConfigurationError, match="service: its kind is"):
        kind_of(service)
    with pytest.raises(RefusedError, match="no tables"):
        service.query(b"", 0)
