"""What a leader does about members by itself: spares, joiners that wait, and its own departure."""

from __future__ import annotations

import itertools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from quorate.node.leader.leadership import Leadership
from quorate.node.leader.members import promotion
from quorate.node.protocol.membership import MemberRole
from quorate.simulation.ledger import Ledger, equal, open_ledgers
from quorate.simulation.world import TIMEOUTS
from quorate.transport import AppendPosition, TimeoutNow
from tests.support.changing import add, complete, order, seat, voters, waits
from tests.support.settled import settled

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from trio.testing import MockClock

    from quorate.simulation.world import World

TIMEOUT = TIMEOUTS.leader_heartbeat_timeout
PATIENCE = 20 * TIMEOUT

# --- spares ---------------------------------------------------------------------------------------


def wanted(world: World[Ledger], *members: int) -> None:
    """Have members replace voters by spares once they lead; before they are started."""
    for i in members:
        config = world.hosts[i].config
        timeouts = attrs.evolve(config.timeouts, replace_after=PATIENCE)
        world.hosts[i].config = attrs.evolve(config, timeouts=timeouts)


@asynccontextmanager
async def with_spare(directory: Path) -> AsyncGenerator[World[Ledger]]:
    """Three voters, and member 3, a spare that has claimed its seat."""
    async with open_ledgers(directory) as world:
        wanted(world, 0, 1, 2)
        await world.start()
        await world.settled()
        spare = await add(world, "role=spare", start=False)
        world.create(spare)
        wanted(world, spare)
        await world.start(spare)
        await world.until(lambda: seat(world, spare).instance != 0)
        await complete(world)
        yield world


async def test_a_spare_takes_the_place_of_a_voter_that_is_silent_for_too_long(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with with_spare(tmp_path) as world:
        leader = await world.leader()
        lost = world.others(leader, 3)[0]
        await world.kill(lost)
        await trio.sleep(PATIENCE - 2 * TIMEOUT)
        assert voters(world) == [0, 1, 2]
        await world.until(lambda: world.membership.seat(lost) is None)
        assert voters(world) == sorted([3, *world.others(lost, 3)])
        assert await world.attempt(await world.leader(), b"one")


async def test_a_member_that_nobody_ever_starts_keeps_no_spare_from_its_work(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with with_spare(tmp_path) as world:
        await add(world, start=False)
        leader = await world.leader()
        lost = world.others(leader, 3)[0]
        await world.kill(lost)
        await world.until(lambda: world.membership.seat(lost) is None)
        assert voters(world) == sorted([3, *world.others(lost, 3)])


async def test_a_spare_that_is_lost_itself_keeps_no_other_spare_from_its_work(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with with_spare(tmp_path) as world:
        second = await add(world, "role=spare")
        await world.until(lambda: seat(world, second).instance != 0)
        await complete(world)
        leader = await world.leader()
        lost = world.others(leader, 3, second)[0]
        await world.kill(lost)
        await world.until(lambda: seat(world, 3).role is MemberRole.VOTER)
        await world.kill(3)
        await world.until(lambda: world.membership.seat(lost) is None)
        assert voters(world) == sorted([second, *world.others(lost, 3, second)])
        # It does not become one more voter when it returns, but stands by for the next loss.
        assert seat(world, 3).role is MemberRole.SPARE
        await world.start(3)
        await trio.sleep(PATIENCE)
        assert 3 not in voters(world)
        await world.kill(second)
        await world.until(lambda: world.membership.seat(second) is None)
        assert 3 in voters(world)


async def test_a_replacement_that_was_never_started_waits_for_its_operator(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with with_spare(tmp_path) as world:
        leader = await world.leader()
        lost = world.others(leader, 3)[0]
        new = await add(world, f"replaces={lost}", start=False)
        await world.kill(lost)
        await trio.sleep(3 * PATIENCE)
        assert voters(world) == [0, 1, 2]
        world.create(new)
        await world.start(new)
        await world.until(lambda: new in voters(world))
        assert world.membership.seat(lost) is None
        assert seat(world, 3).role is MemberRole.SPARE


async def test_a_voter_that_returns_with_another_store_in_time_keeps_its_place(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with with_spare(tmp_path) as world:
        leader = await world.leader()
        lost = world.others(leader, 3)[0]
        await world.kill(lost)
        world.replace_disk(lost)
        await trio.sleep(PATIENCE - 2 * TIMEOUT)
        before = seat(world, lost).instance
        # It reports nothing while it fetches the log, which takes long.
        fetched = world.messages.drop(
            lambda sender, _r, what: sender == lost and isinstance(what, AppendPosition)
        )
        await world.start(lost)
        await trio.sleep(PATIENCE / 2)
        fetched()
        await world.until(lambda: seat(world, lost).instance != before)
        await world.until(lambda: seat(world, lost).name in world.membership.voters)
        await trio.sleep(2 * PATIENCE)
        assert voters(world) == [0, 1, 2]


# --- joiners --------------------------------------------------------------------------------------


async def test_witnesses_that_would_be_too_many_wait_for_members_with_tables(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path, 2) as world:
        await world.start()
        await world.settled()
        late = [await add(world, start=False) for _ in range(2)]
        witnesses = [await add(world, "role=witness") for _ in range(3)]
        # All three at once are too many, and so is the last one of them.
        await world.until(lambda: len(voters(world)) == 4)
        (last,) = {*witnesses} - {*voters(world)}
        await waits(world, last, "role")
        world.create(late[0])
        await world.start(late[0])
        await world.until(lambda: voters(world) == [0, 1, late[0], *witnesses])
        await equal(world)


# --- a leader that is to go -----------------------------------------------------------------------


async def joiner_leads(world: World[Ledger]) -> int:
    """Have a member that joins win an election, before it is a voter."""
    leader = await world.leader()
    new = await add(world, "role=standby")
    await world.until(lambda: seat(world, new).instance != 0)
    await complete(world)
    await order(world, f"promote {new}")
    await world.until(lambda: world.hosts[new].running.state.membership == world.membership)
    role = world.hosts[leader].running.state.role
    assert isinstance(role, Leadership)
    # In an election a joiner may be the one with the newest log.
    role.handover.successor = new
    mandate = TimeoutNow(role.term, leader, new, even_if_behind=False, by_operator=True)
    world.hosts[new].running.on_message(leader, mandate)
    await world.until(lambda: world.leaders() == [new])
    return new


@settled
async def test_a_leader_that_cannot_hand_over_tries_ever_more_rarely(
    world: World[Ledger],
) -> None:
    world.messages.drop(lambda sender, _r, what: sender == 3 and isinstance(what, TimeoutNow))
    new = await joiner_leads(world)
    role = world.hosts[new].running.state.role
    assert isinstance(role, Leadership)
    began: list[float] = []
    elected, under_way = trio.current_time(), False
    while len(began) < 5:
        await trio.sleep(TIMEOUT / 50)
        if role.handover.under_way and not under_way:
            began.append(trio.current_time())
        under_way = role.handover.under_way
        assert world.leaders() == [new]
    # Not before the others have followed well for a while.
    assert began[0] - elected > TIMEOUT
    gaps = [after - before for before, after in itertools.pairwise(began)]
    # Each try lasts a timeout, and the pause after it gets longer.
    assert all(after > 1.4 * before for before, after in itertools.pairwise(gaps)), gaps
    assert await world.attempt(new, b"one", within=10.0)


async def test_a_leader_that_nobody_follows_well_goes_on_taking_requests(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        await world.settled()
        new = await joiner_leads(world)
        role = world.hosts[new].running.state.role
        assert isinstance(role, Leadership)
        monkeypatch.setattr(promotion, "MAX_LAG_BYTES", -1)
        tried: list[float] = []

        def look(_: int) -> None:
            if role.handover.under_way:
                tried.append(trio.current_time())

        world.after_every_event(look)
        for i in range(20):
            assert await world.attempt(new, b"%d" % i)
            await trio.sleep(TIMEOUT / 2)
        assert not tried
        assert world.leaders() == [new]


@settled
async def test_a_leader_that_is_to_go_does_not_wait_for_room_on_other_disks(
    world: World[Ledger],
) -> None:
    new = await joiner_leads(world)
    role = world.hosts[new].running.state.role
    assert isinstance(role, Leadership)

    def look(_: int) -> None:
        for follower in role.followers.values():
            follower.has_room = False

    world.after_every_event(look)
    await world.until(lambda: world.leaders() not in ([new], []))
