"""Members come and go in a simulated cluster, and what storms have found about that."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from quorate.errors import UnknownOutcomeError
from quorate.node.leader.members.changes import Changes
from quorate.node.membership.admission import become_voter
from quorate.node.protocol.membership import Membership, Seat
from quorate.simulation import Observer
from quorate.simulation.ledger import equal, open_ledgers
from quorate.storage import Identity, VotingRight, VotingStatus, make_store
from quorate.transport import AppendPosition
from tests.simulation.hazards.schedules import begin
from tests.simulation.members import add, cluster, decided_by, joint, order, removed
from tests.simulation.mutants.member_schedules import PRUNING
from tests.support.storage_world import open_store, running

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_member_joins_and_gets_a_vote(tmp_path: Path, autojump_clock: object) -> None:
    async with cluster(tmp_path) as world:
        assert await world.attempt(await world.leader(), b"before")
        assert await add(world) == 3
        await decided_by(world, 0, 1, 2, 3)
        assert await world.attempt(3, b"after")
        await equal(world, [b"before", b"after"])


async def test_a_removed_leader_hands_over_and_ends(tmp_path: Path, autojump_clock: object) -> None:
    async with cluster(tmp_path) as world:
        old = await world.leader()
        await order(world, f"remove {old}")
        await removed(world, old)
        assert await world.leader() != old
        await decided_by(world, *world.others(old))
        await world.start(old)  # months later
        await world.until(lambda: world.hosts[old].stopped)


async def test_a_leader_that_leaves_has_time_to_send_its_clients_on(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with cluster(tmp_path) as world:
        old = await world.leader()
        patience = world.hosts[old].running.state.timeouts.leader_heartbeat_timeout
        async with trio.open_nursery() as nursery:
            nursery.start_soon(order, world, f"remove {old}")
            await world.until(lambda: world.leaders() not in ([], [old]))
            since = trio.current_time()
            await removed(world, old)
        assert trio.current_time() >= since + patience


async def test_all_members_are_replaced_at_once(tmp_path: Path, autojump_clock: object) -> None:
    """A leader that is to be replaced hands over, but not to one that would do the same."""
    async with cluster(tmp_path) as world:
        assert await world.attempt(await world.leader(), b"before")
        for i in range(3):
            await add(world, f"replaces={i}")
        await decided_by(world, 3, 4, 5)
        await removed(world, 0, 1, 2)
        assert await world.attempt(await world.leader(), b"after")
        await equal(world, [b"before", b"after"])


async def test_a_member_follows_a_leader_that_it_knows_as_a_standby(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with cluster(tmp_path, standbys=1) as world:
        leader = await world.leader()
        (late, _, standby) = world.others(leader)
        await world.kill(late)
        await order(world, f"promote {standby}")
        await decided_by(world, 0, 1, 2, 3)
        await world.hosts[leader].running.control(f"transfer {standby}")
        await world.until(lambda: world.leaders() == [standby])
        await world.start(late)
        assert await world.settled() == standby
        await equal(world)


async def test_a_store_takes_its_vote_once_although_two_tasks_see_the_claim(
    tmp_path: Path, autojump_clock: object
) -> None:
    make_store(tmp_path, Identity("testing", 1, 7), VotingStatus(VotingRight.RECOVERING))
    seat = Seat(1, "h1", 7000, 6000, instance=7)
    applied = Membership((seat,), (seat.name,), version=1, next_id=2)
    taken: list[bool] = []

    async def take() -> None:
        taken.append(await become_voter(store, applied))

    async with running(open_store(tmp_path)) as store:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(take)
            nursery.start_soon(take)
        assert store.voting_status.kind is VotingRight.VOTER
    assert sorted(taken) == [False, True]


async def test_an_order_that_was_begun_is_not_said_to_be_undone(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with cluster(tmp_path, members=5) as world:
        leader = await world.leader()
        (leaving, *_) = world.others(leader)
        undo = world.messages.drop(lambda _s, _r, m: isinstance(m, AppendPosition))
        with pytest.raises(UnknownOutcomeError, match="begun"):
            await order(world, f"remove {leaving}", at=leader)
        undo()
        await removed(world, leaving)  # it was done


async def test_a_leader_without_a_successor_is_replaced(
    tmp_path: Path, autojump_clock: object
) -> None:
    """The other voter is a witness, so only the one that replaces the leader could lead."""
    async with cluster(tmp_path, members=1) as world:
        witness = await add(world, "role=witness even")
        await decided_by(world, 0, witness)
        successor = await add(world, "replaces=0")
        await decided_by(world, witness, successor)
        await removed(world, 0)
        assert await world.leader() == successor


async def test_a_snapshot_that_was_taken_in_a_change_is_installed_by_a_joiner(
    tmp_path: Path, autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, held = Changes.append, [True]

    def late(self: Changes, after: Membership, principal: int = 0) -> None:
        if after.joint or not (held and self._state.membership.joint):  # pyright: ignore[reportPrivateUsage]
            append(self, after, principal)

    monkeypatch.setattr(Changes, "append", late)
    observer = Observer([0, 1, 2])
    async with open_ledgers(tmp_path, observer=observer) as world:
        for host in world.hosts.values():
            host.config = attrs.evolve(host.config, snapshot=PRUNING)
        leader = await begin(world)
        late_one = await add(world, "role=standby", start=False)
        await add(world)
        await joint(world, leader)
        assert await world.attempt(leader, b"." * 8192)
        await world.hosts[leader].running.control("snapshot")
        await world.until(lambda: world.hosts[leader].running.store.start_position > 0)
        await world.start(late_one)
        await world.until(lambda: world.hosts[late_one].running.store.start_position > 0)
        assert world.hosts[late_one].running.state.membership.joint
        held.clear()
        await decided_by(world, 0, 1, 2, 4)
        await equal(world)
