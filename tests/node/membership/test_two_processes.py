"""Two processes with the id of one member: one of them ends, and an operator is warned."""

from __future__ import annotations

from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from quorate.errors import LostStoreError, leaves
from quorate.node.protocol.quorum import VoterId
from quorate.simulation.ledger import Ledger
from quorate.simulation.machines.disk import Disk
from quorate.simulation.machines.host import Host
from quorate.storage import VotingRight
from tests.support.changing import CHANGE_SECONDS, complete, grow, seat, voters
from tests.support.founding import new_cluster

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from trio.testing import MockClock

    from quorate.simulation import World


@attrs.define(eq=False)
class Twin:
    """A second process with a member's id, on a machine of its own.

    Args:
        host: the machine.
        failure: what ended it.
    """

    host: Host[Ledger]
    failure: BaseException | None = None

    async def run(self, host: Host[Ledger]) -> None:
        """Run it until it ends."""
        try:
            await host.run(lambda _member: None)
        except Exception as failure:  # noqa: BLE001 - the test looks at it
            self.failure = failure

    @property
    def instance(self) -> int:
        """Its store."""
        return self.host.running.store.identity.instance_id


@asynccontextmanager
async def twin_of(world: World[Ledger], member: int) -> AsyncGenerator[Twin]:
    """Start a second process with a member's id, an empty directory and the file of a joiner."""
    own = world.hosts[member]
    members = tuple(
        attrs.evolve(each, host="twin") if each.member_id == member else each
        for each in own.config.members
    )
    directory = own.config.directory.with_name("twin")
    config = attrs.evolve(
        own.config,
        members=members,
        directory=directory,
        join=True,
        member_listen_host="twin",
        client_listen_host="twin",
    )
    disk = Disk(Random(1), 0.0005, 0.0)
    twin = Twin(Host(config, world.network, Ledger, "twin", own.pauses, disk))
    async with trio.open_nursery() as nursery:
        await twin.host.start(nursery, twin.run)
        assert twin.failure is None, repr(twin.failure)
        yield twin
        if not twin.host.stopped:
            twin.host.kill()


def lost(failure: BaseException) -> bool:
    """Say whether a member has ended because its seat is another store's."""
    (one,) = leaves(failure)
    return isinstance(one, LostStoreError) and "its seat belongs to the store" in str(one)


@pytest.mark.parametrize("promoted", [True, False], ids=["promoted", "only claimed"])
@pytest.mark.parametrize("founder", [True, False], ids=["of a founder", "of one that joined"])
async def test_a_store_that_was_there_before_another_one_keeps_its_seat_or_ends(
    tmp_path: Path,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    *,
    founder: bool,
    promoted: bool,
) -> None:
    async with new_cluster(tmp_path) as world:
        await world.start()
        (joined,) = await grow(world, 1)
        leader = await world.leader()
        member = next(i for i in (0, 1, 2) if i != leader) if founder else joined
        first = world.hosts[member].running.store.identity.instance_id
        await world.kill(member)
        async with twin_of(world, member) as twin:
            second = twin.instance
            if promoted:
                await world.until(lambda: VoterId(member, second) in world.membership.voters)
                await complete(world)
            else:
                await world.until(lambda: seat(world, member).instance == second, every=0.0001)
            await world.start(member)
            await trio.sleep(CHANGE_SECONDS)
            # Each takes the links from the other one, so nobody gets on; nor does the log grow.
            assert world.membership.version <= 8
            assert await world.attempt(await world.leader(), b"one")
        if promoted:
            await world.until(lambda: world.hosts[member].stopped, within=CHANGE_SECONDS)
            assert lost(world.failures[member])
            assert seat(world, member).instance == second
        else:
            await world.until(lambda: seat(world, member).instance == first, within=CHANGE_SECONDS)
            assert VoterId(member, first) in (await complete(world)).voters
        assert f"two processes say that they are member {member}" in caplog.text


async def test_two_processes_of_one_member_do_not_change_the_members(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with new_cluster(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        member = world.others(leader)[0]
        async with twin_of(world, member):
            await trio.sleep(100.0)
            assert world.membership.version < 10
            assert await world.attempt(await world.leader(), b"one")
        warnings = [each for each in caplog.messages if "two processes say" in each]
        # Each of two members, at the beginning and after a minute; and an election perhaps.
        assert 2 <= len(warnings) <= 6


async def test_an_old_disk_that_is_put_back_ends_its_member(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with new_cluster(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        member, other = world.others(leader)
        await world.kill(member)
        host = world.hosts[member]
        old = host.config.directory
        host.config = attrs.evolve(host.config, directory=old.with_name("new disk"))
        host.make_store(77, VotingRight.RECOVERING)
        await world.start(member)
        await world.until(lambda: VoterId(member, 77) in world.membership.voters)
        await complete(world)
        version = world.membership.version
        assert await world.attempt(leader, b"one")
        await world.kill(member)
        host.config = attrs.evolve(host.config, directory=old)
        for _ in range(2):
            await world.start(member)
            await world.until(lambda: host.stopped, within=CHANGE_SECONDS)
            assert lost(world.failures[member])
        assert world.membership.version == version
        assert {*voters(world)} == {leader, member, other}


async def test_an_old_disk_takes_its_seat_back_from_a_store_that_was_not_promoted(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with new_cluster(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        member, other = world.others(leader)
        first = world.hosts[member].running.store.identity.instance_id
        await world.kill(member)
        host = world.hosts[member]
        old = host.config.directory
        host.config = attrs.evolve(host.config, directory=old.with_name("new disk"))
        host.make_store(77, VotingRight.RECOVERING)
        await world.start(member)
        await world.until(lambda: world.membership.version == 1, every=0.0001)
        assert seat(world, member).instance == 77
        await world.kill(member)
        host.config = attrs.evolve(host.config, directory=old)
        await world.start(member)
        await world.until(lambda: seat(world, member).instance == first, within=CHANGE_SECONDS)
        version = (await complete(world)).version
        await world.kill(other)
        assert await world.attempt(leader, b"one")
        assert not world.failures
        await world.start(other)
        # The other one does not claim it again, although it had it, and may vote.
        await world.kill(member)
        host.config = attrs.evolve(host.config, directory=old.with_name("new disk"))
        await world.start(member)
        await world.until(lambda: host.stopped, within=CHANGE_SECONDS)
        assert lost(world.failures[member])
        assert world.membership.version == version
