"""A suspended cluster takes no commands, whoever leads and whoever restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from quorate.errors import RefusedError, RequestError
from quorate.node.config.partition import PartitionSettings
from quorate.node.leader.operator import positions_of
from quorate.node.requests.request import Request, RequestKind
from quorate.simulation.ledger import equal, open_ledgers
from tests.node.state_machine.test_snapshots import PRUNING, pruned, set_policy, snapshot

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

    from quorate.simulation import Ledger, World


async def refused(world: World[Ledger], at: int) -> None:
    with pytest.raises(RefusedError, match="suspended by an operator; nothing was done"):
        await world.command(at, b"refused")


async def test_commands_are_refused_and_queries_answered_until_it_is_resumed(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        await world.command(leader, b"a")
        words = await world.hosts[world.others(leader)[0]].running.control("suspend")
        assert words.startswith("suspended at ")
        assert positions_of(words) == [world.hosts[leader].running.applier.applied_position]
        for i in world.hosts:
            await refused(world, i)
            assert await world.hosts[i].running.query(b"") == b"1"
        with pytest.raises(RefusedError, match="suspended already"):
            await world.hosts[leader].running.control("suspend")
        assert (await world.hosts[leader].running.control("resume")).startswith("resumed at ")
        await world.command(leader, b"b")
        await equal(world, [b"a", b"b"])
        with pytest.raises(RefusedError, match="not suspended"):
            await world.hosts[leader].running.control("resume")
        with pytest.raises(RefusedError, match="takes no arguments"):
            await world.hosts[leader].running.control("suspend for long")


async def test_what_a_client_asks_upon_a_refusal_is_refused_too(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    results: list[bytes | RequestError] = []
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = world.hosts[await world.settled()].running
        await leader.control("suspend")

        def asks_on(result: bytes | RequestError) -> None:
            results.append(result)
            if len(results) < 4:
                leader.submit(Request(RequestKind.COMMAND, b"more", 0, asks_on))

        leader.submit_all([Request(RequestKind.COMMAND, b"first", 0, asks_on)])
        await world.until(lambda: len(results) == 4)
        await trio.sleep(1)
        assert [type(result) for result in results] == [RefusedError] * 4
        assert await leader.query(b"") == b"0"


def in_partition(world: World[Ledger]) -> None:
    for host in world.hosts.values():
        partition = PartitionSettings(0, str(host.config.directory.parent))
        host.config = attrs.evolve(host.config, partition=partition)


@pytest.mark.parametrize("through", ["the leader", "a follower"])
async def test_with_partitions_commands_wait_for_the_end_of_a_backups_moment(
    tmp_path: Path, autojump_clock: MockClock, through: str
) -> None:
    async with open_ledgers(tmp_path) as world:
        in_partition(world)
        await world.start()
        leader = await world.settled()
        at = leader if through == "the leader" else world.others(leader)[0]
        await world.hosts[leader].running.control("suspend")
        async with trio.open_nursery() as nursery:
            for command in (b"a", b"b"):
                nursery.start_soon(world.command, at, command)
                await trio.sleep(0.1)
            assert await world.hosts[at].running.query(b"") == b"0"
            began = trio.current_time()
            await world.hosts[leader].running.control("resume")
        assert trio.current_time() - began < 0.1
        await equal(world, [b"a", b"b"])


async def test_with_partitions_a_command_that_waits_goes_to_the_next_leader(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path) as world:
        in_partition(world)
        await world.start()
        leader = await world.settled()
        successor = world.others(leader)[0]
        await world.hosts[leader].running.control("suspend")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.command, leader, b"a")
            await trio.sleep(0.1)
            await world.hosts[leader].running.control(f"transfer {successor}")
            assert await world.settled() == successor
            await world.hosts[leader].running.control("resume")
        await equal(world, [b"a"])


async def test_with_partitions_a_command_is_refused_when_it_has_waited_long_enough(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path) as world:
        in_partition(world)
        await world.start()
        leader = world.hosts[await world.settled()].running
        await leader.control("suspend")
        began = trio.current_time()
        with pytest.raises(RefusedError, match=r"nothing was done, .* quorate control resume"):
            await leader.command(b"a")
        assert 4 <= trio.current_time() - began < 5
        await leader.control("resume")
        await equal(world, [])


async def test_it_outlives_leaders_restarts_and_snapshots(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path) as world:
        set_policy(world, PRUNING)
        await world.start()
        leader = await world.settled()
        late = world.others(leader)[0]
        await world.kill(late)
        await pruned(world, leader)
        await world.hosts[leader].running.control("suspend")
        for _ in range(3):
            await snapshot(world, leader)
        await world.wipe(late)
        await world.start(late)
        await world.settled()
        assert world.hosts[late].running.store.start_position > 0
        await world.until(lambda: world.hosts[late].running.status().standing == "member")
        await world.kill(leader)
        leader = await world.settled()
        await refused(world, leader)
        await world.kill(*world.running())
        await world.start()
        leader = await world.settled()
        for i in world.hosts:
            assert world.hosts[i].running.status().suspended
            await refused(world, i)
        await world.hosts[leader].running.control("resume")
        await world.until(
            lambda: not any(host.running.status().suspended for host in world.hosts.values())
        )
        await world.command(leader, b"again")
        await equal(world)
