"""A new cluster that begins without named members, at an operator's word; they join later."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from quorate.errors import LostStoreError, RefusedError, leaves
from quorate.node import State
from quorate.simulation.ledger import Ledger, equal
from quorate.storage.log.founding import force
from tests.support.founding import new_cluster

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

    from quorate.simulation.world import World

PATIENCE = 1.0


def standing(world: World[Ledger], i: int) -> str:
    return world.hosts[i].running.status().standing


async def word(world: World[Ledger], i: int, *without: int) -> str:
    return await world.hosts[i].running.control(f"found {' '.join(map(str, without))}")


async def test_two_of_three_begin_at_one_word_and_the_third_is_admitted_later(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "quorate.node"):
        async with new_cluster(tmp_path) as world:
            await world.start(0, 1)
            await trio.sleep(PATIENCE)
            assert "quorate control found --without 2 --connect h0:6000" in caplog.text
            assert await word(world, 0, 2) == "the cluster begins without member 2"
            leader = await world.leader()
            assert await world.attempt(leader, b"one")
            assert standing(world, 0) == standing(world, 1) == "member"
            await world.start(2)
            await world.until(lambda: standing(world, 2) == "member")
            await equal(world, [b"one"])
            await world.kill(1 - leader)
            assert await world.attempt(await world.leader(), b"two")


async def test_a_member_with_tls_alone_names_the_port_that_it_has(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "quorate.node"):
        async with new_cluster(tmp_path) as world:
            await world.start(0)
            state = world.hosts[0].running.state
            ports = (attrs.evolve(m, client_port=0, tls_port=6443) for m in state.config.members)
            state.config = attrs.evolve(state.config, members=tuple(ports))
            await world.start(1)
            await trio.sleep(PATIENCE)
            assert "quorate control found --without 2 --connect h0:6443" in caplog.text


async def test_the_word_before_the_others_are_there_waits_for_a_quorum(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with new_cluster(tmp_path, members=5) as world:
        await world.start(0)
        said = await word(world, 0, 3, 4)
        assert said == "the cluster begins without member 3, 4, once member 1, 2 is there"
        await world.start(1)
        await trio.sleep(PATIENCE)
        assert world.hosts[0].state is State.INIT
        await world.start(2)
        assert await world.attempt(await world.leader(), b"one")


async def test_a_named_member_that_is_there_after_all_is_admitted_at_once(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with new_cluster(tmp_path) as world:
        await world.start(0)
        await word(world, 0, 2)
        await world.start(1, 2)
        await world.until(lambda: standing(world, 2) == "member")
        founders = {world.hosts[i].running.store.voting_status.founders for i in range(3)}
        assert len(founders) == 1
        assert [standing(world, i) for i in range(3)] == ["member"] * 3


@pytest.mark.parametrize(
    ("words", "members"),
    [("found", 3), ("found 0", 3), ("found 1 2", 3), ("found 9", 3), ("found x", 3)],
)
async def test_a_word_that_leaves_no_quorum_or_names_nobody_is_refused(
    tmp_path: Path, autojump_clock: MockClock, words: str, members: int
) -> None:
    async with new_cluster(tmp_path, members=members) as world:
        await world.start(0)
        with pytest.raises(RefusedError, match="at most 1 of the other voters 1, 2"):
            await world.hosts[0].running.control(words)


async def test_a_founded_cluster_refuses_the_word(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with new_cluster(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        with pytest.raises(RefusedError, match="founded already"):
            await word(world, leader, 2)


async def test_a_member_that_only_others_have_heard_of_may_be_named(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with new_cluster(tmp_path) as world:
        world.network.cut("h0", "h2")
        await world.start()
        await trio.sleep(PATIENCE)
        assert world.leaders() == []
        await word(world, 0, 2)
        await world.until(lambda: standing(world, 0) == standing(world, 1) == "member")
        assert await world.attempt(await world.leader(), b"one")


async def test_contrary_words_never_make_two_clusters(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with new_cluster(tmp_path) as world:
        world.network.cut("h0", "h2")
        await world.start(0, 2)
        for i, without in ((0, 2), (2, 0)):
            assert "once member 1 is there" in await word(world, i, without)
        await world.start(1)
        leader = await world.leader()
        assert await world.attempt(leader, b"one")
        world.network.heal("h0", "h2")
        await trio.sleep(PATIENCE)
        leaders = [t for t in world.transitions if t.after is State.LEADER_READY]
        assert len({t.term for t in leaders}) == len(leaders)
        assert await world.attempt(await world.leader(), b"one")


async def test_a_left_out_member_with_a_log_is_refused(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with new_cluster(tmp_path) as world:
        await world.start()
        assert await world.attempt(await world.settled(), b"only member 2 keeps this")
        await equal(world, [b"only member 2 keeps this"])
        await world.kill(0, 1, 2)
        for i in (0, 1):
            shutil.rmtree(world.hosts[i].config.directory)
        force(world.hosts[2].config.directory / "log", instance_id=77, timestamp_ms=5)
        await world.start(0, 1)
        await word(world, 0, 2)
        await world.leader()
        await world.start(2)
        await world.until(lambda: world.hosts[2].stopped)
        (failure,) = leaves(world.failures[2])
        assert isinstance(failure, LostStoreError)
