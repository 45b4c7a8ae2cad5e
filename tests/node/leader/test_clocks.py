"""The present that clients are told, and clocks that are wrong for a moment or for ever."""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, cast

import pytest
import trio

from quorate.node import Timeouts
from quorate.node.clocks import JUMP_SECONDS, MAX_MS, MAX_SKEW_MS, Clocks
from quorate.node.protocol.quorum import Quorums, VoterId
from quorate.node.state import MemberState
from quorate.simulation import Setting, open_world
from quorate.simulation.machines.clock import EPOCH_MS, Clock
from quorate.simulation.store import Store, stores
from quorate.storage import decode_header_untrusted
from tests.support.logged import events

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from trio.testing import MockClock

    from quorate.simulation import World

PATIENT = Timeouts(20.0, 10.0, 2.0, 5.0, 0.5)  # whose hours take little time to simulate
TEN_YEARS_MS = 10 * 365 * 86_400_000
OK, ONE, TWO_GONE = b"+OK\r\n", b":1\r\n", b":-2\r\n"


@asynccontextmanager
async def open_stores(folder: Path, members: int = 3) -> AsyncGenerator[World[Store], None]:
    async with open_world(
        folder, stores(Random(1)), Setting(members=members, timeouts=PATIENT)
    ) as world:
        await world.start()
        await world.settled()
        yield world


def command(*words: object) -> bytes:
    parts = [str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts)


def true_ms() -> int:
    return EPOCH_MS + int(trio.current_time() * 1000)


def last_ms(world: World[Store], at: int) -> int:
    """The time of the last batch of a log."""
    return world.hosts[at].running.store.last_timestamp_ms


# --- the present ----------------------------------------------------------------------------------


async def test_an_idle_cluster_tells_the_present_on_every_member(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_stores(tmp_path) as world:
        leader = await world.leader()
        assert await world.command(leader, command("SET", "k", "v")) == OK
        await trio.sleep(300)
        for i, host in world.hosts.items():
            told = host.running.now_ms()
            assert abs(told - true_ms()) < 100
            when = told // 1000 + 10
            assert await world.command(i, command("EXPIREAT", "k", when)) == ONE
            ask = command("PEXPIRETIME", "k")
            assert await host.running.query(ask) == b":%d\r\n" % (when * 1000)


async def test_a_follower_tells_its_leaders_present_and_not_that_of_its_own_clock(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_stores(tmp_path) as world:
        leader = await world.leader()
        follower = world.others(leader)[0]
        world.hosts[follower].clock.jump(-4000)
        await trio.sleep(1)
        told = world.hosts[follower].running.now_ms()
        assert abs(told - world.hosts[leader].running.now_ms()) < 100
        assert world.hosts[follower].running.status().clock_skew_ms == pytest.approx(-4000, abs=100)


async def test_the_present_is_not_before_the_logs_time(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_stores(tmp_path, 1) as world:
        host = world.hosts[0]
        assert await world.command(0, command("SET", "k", "v")) == OK
        written = last_ms(world, 0)
        await world.kill(0)
        host.clock = Clock(offset_ms=-3_600_000)
        await world.start(0)
        assert host.running.now_ms() >= written
        await world.settled()
        assert host.running.now_ms() >= written
        before = host.running.now_ms()
        assert await world.command(0, command("SET", "k", "v")) == OK
        assert last_ms(world, 0) >= before


# --- clocks that are wrong ------------------------------------------------------------------------


async def expires_as_it_should(world: World[Store], at: int) -> None:
    """A key whose time is a minute away stays for a minute."""
    when = true_ms() + 60_000
    assert await world.command(at, command("SET", "k", "v")) == OK
    assert await world.command(at, command("PEXPIREAT", "k", when)) == ONE
    await trio.sleep(50)
    assert await world.hosts[at].running.query(command("PEXPIRETIME", "k")) == b":%d\r\n" % when
    await trio.sleep(20)
    assert await world.hosts[at].running.query(command("PEXPIRETIME", "k")) == TWO_GONE


@pytest.mark.parametrize("members", [1, 2, 3])
async def test_a_leader_whose_clock_is_years_ahead_for_a_moment_stamps_nothing_with_it(
    tmp_path: Path, autojump_clock: MockClock, members: int
) -> None:
    async with open_stores(tmp_path, members) as world:
        leader = await world.leader()
        clock = world.hosts[leader].clock
        await trio.sleep(1)
        clock.jump(TEN_YEARS_MS)
        for _ in range(10):
            assert await world.command(leader, command("SET", "k", "v")) == OK
            await trio.sleep(1)
        assert abs(last_ms(world, leader) - true_ms()) < MAX_SKEW_MS
        assert world.hosts[leader].running.status().clock_skew_ms > TEN_YEARS_MS - MAX_SKEW_MS
        clock.jump(-TEN_YEARS_MS)
        await expires_as_it_should(world, leader)
        assert world.leaders() == [leader]


async def test_a_member_that_starts_with_a_clock_years_ahead_leads_by_that_of_the_others(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(
        tmp_path, stores(Random(1)), Setting(members=3, timeouts=PATIENT)
    ) as world:
        world.hosts[0].clock = Clock(offset_ms=TEN_YEARS_MS)
        await world.start()
        leader = await world.settled()
        if leader != 0:
            await world.hosts[leader].running.control("transfer 0")
        await world.until(lambda: world.leaders() == [0])
        await trio.sleep(2 * JUMP_SECONDS)
        for batch in world.hosts[0].running.store.scan(0):
            assert abs(decode_header_untrusted(batch).timestamp_ms - true_ms()) < 200_000
        await expires_as_it_should(world, 0)


async def test_a_leader_whose_clock_is_far_behind_goes_by_that_of_the_others(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_stores(tmp_path) as world:
        leader = await world.leader()
        world.hosts[leader].clock.jump(-TEN_YEARS_MS)
        await trio.sleep(2 * JUMP_SECONDS)
        await expires_as_it_should(world, leader)


async def test_two_members_of_three_are_enough_to_find_out_a_wrong_clock(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_stores(tmp_path) as world:
        leader = await world.leader()
        await world.kill(world.others(leader)[0])
        world.hosts[leader].clock.jump(TEN_YEARS_MS)
        await trio.sleep(2 * JUMP_SECONDS)
        await expires_as_it_should(world, leader)


async def test_a_clock_that_all_members_share_may_be_wrong_for_a_moment(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_stores(tmp_path) as world:
        leader = await world.leader()
        for host in world.hosts.values():
            host.clock.jump(TEN_YEARS_MS)
        await trio.sleep(JUMP_SECONDS / 2)
        assert await world.command(leader, command("SET", "k", "v")) == OK
        for host in world.hosts.values():
            host.clock.jump(-TEN_YEARS_MS)
        await expires_as_it_should(world, leader)


async def test_a_clock_that_a_quorum_has_is_followed_when_it_has_lasted(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_stores(tmp_path) as world:
        leader = await world.leader()
        for host in world.hosts.values():
            host.clock.jump(3_600_000)  # as after a suspension of the machine that they share
        await trio.sleep(JUMP_SECONDS + 2 * PATIENT.leader_heartbeat_interval)
        assert await world.command(leader, command("SET", "k", "v")) == OK
        assert abs(last_ms(world, leader) - true_ms() - 3_600_000) < 1000


# --- the rule by itself ---------------------------------------------------------------------------


class Voters:
    """What the clocks want to know of a member; the first one is the member itself."""

    def __init__(self, *members: int) -> None:
        self.member_id = members[0]
        self.quorums = Quorums.of(map(VoterId, members))


class Wall:
    """A wall clock."""

    def __init__(self) -> None:
        self.wrong_ms = 0

    def __call__(self) -> int:
        return true_ms() + self.wrong_ms


async def test_what_no_clock_shows_is_not_believed(autojump_clock: MockClock) -> None:
    clocks = Clocks(Wall(), cast(MemberState, Voters(0, 1, 2)))
    for nonsense in (-1, -(2**63), MAX_MS + 1, 2**63 - 1):
        for member in (1, 2):
            clocks.heard(member, nonsense)
        clocks.heard_leader(nonsense)
    assert clocks.now_ms() == clocks.log_ms() == true_ms()
    for stranger in (7, 8):
        clocks.heard(stranger, 0)
    assert clocks.now_ms() == true_ms()


async def test_a_jump_is_reported_once_and_its_end_too(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    wall = Wall()
    clocks = Clocks(wall, cast(MemberState, Voters(0)))
    wall.wrong_ms = TEN_YEARS_MS
    with caplog.at_level(logging.WARNING):
        for _ in range(10):
            assert clocks.now_ms() == true_ms()
            await trio.sleep(1)
        wall.wrong_ms *= 2  # this one begins anew
        await trio.sleep(JUMP_SECONDS - 5)
        assert clocks.now_ms() == true_ms()
        wall.wrong_ms = 0
        assert clocks.now_ms() == true_ms()
    jumps = [(each["what"], round(each["seconds"])) for each in events(caplog, "clock_jump")]
    assert jumps == [("begins", 315360000), ("begins", 630720000), ("is over", 630720000)]


async def test_a_clock_that_runs_fast_and_is_read_seldom_is_still_followed(
    autojump_clock: MockClock,
) -> None:
    clocks = Clocks(
        lambda: EPOCH_MS + int(trio.current_time() * 1050), cast(MemberState, Voters(0))
    )
    for _ in range(20):
        await trio.sleep(90)
        assert clocks.own_ms() == EPOCH_MS + int(trio.current_time() * 1050)


async def test_the_clock_of_a_new_voter_is_known_at_once(autojump_clock: MockClock) -> None:
    wall, members = Wall(), Voters(0, 1)
    wall.wrong_ms = TEN_YEARS_MS
    clocks = Clocks(wall, cast(MemberState, members))
    for member in (1, 2):
        clocks.heard(member, true_ms())
    assert clocks.now_ms() == true_ms()
    members.quorums = Quorums.of(map(VoterId, (0, 1)), map(VoterId, (0, 2)))
    assert clocks.now_ms() == true_ms()


async def test_the_clock_of_a_voter_counts_while_its_store_is_lost(
    autojump_clock: MockClock,
) -> None:
    """Its next store has no vote yet, and without its clock the clocks of no quorum are known."""
    wall, members = Wall(), Voters(0, 1, 2, 3)
    wall.wrong_ms = 600_000
    members.quorums = Quorums.of([VoterId(i, 10 + i) for i in range(4)])
    clocks = Clocks(wall, cast(MemberState, members))
    for member in (1, 2):  # with whichever store each of them speaks
        clocks.heard(member, true_ms())
    assert clocks.now_ms() == true_ms()
