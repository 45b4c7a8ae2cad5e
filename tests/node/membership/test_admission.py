"""Whose store may vote: a cluster is founded by all, and a wiped disk is no empty new member."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from quorate.errors import LostStoreError, RefusedError, leaves
from quorate.node import State
from quorate.node.leader.leadership import Leadership
from quorate.node.protocol.ballots import VoterView, consider
from quorate.node.protocol.membership import decode_membership_untrusted
from quorate.simulation.ledger import Ledger, equal
from quorate.storage import (
    LogEnd,
    NodeState,
    VotingRight,
)
from quorate.transport import AppendPosition, RequestVote, Scout, ScoutReply, Vote, VoteReason
from tests.support.founding import begun_cluster, new_cluster
from tests.support.script import open_script

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

    from quorate.simulation.world import World
    from quorate.transport import Message

PATIENCE = 10.0


def admissions(world: World[Ledger], i: int) -> list[int]:
    """Give the members whose stores have claimed their seats, by the log of a member."""
    rows = world.hosts[i].running.store.recorded.memberships
    found = (decode_membership_untrusted(row.payload) for row in rows)
    return [seat.member_id for each in found if each and not each.joint for seat in each.joining]


def standing(world: World[Ledger], i: int) -> str:
    return world.hosts[i].running.status().standing


# --- a new cluster --------------------------------------------------------------------------------


async def test_a_new_cluster_begins_once_all_its_members_are_there(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with new_cluster(tmp_path) as world:
        await world.start(0, 1)
        await trio.sleep(PATIENCE)
        assert world.hosts[0].state is State.INIT
        status = world.hosts[0].running.status()
        assert (status.standing, status.not_heard) == ("fresh", (2,))
        await world.start(2)
        assert await world.attempt(await world.settled(), b"one")
        stores = [world.hosts[i].running.store for i in range(3)]
        founders = tuple((i, stores[i].identity.instance_id) for i in range(3))
        assert all(each.voting_status.founders == founders for each in stores)


@pytest.mark.parametrize("members", [3, 5])
async def test_members_that_wait_for_a_founder_repeat_themselves_at_intervals(
    tmp_path: Path, autojump_clock: MockClock, members: int
) -> None:
    del autojump_clock
    heard: list[Message] = []

    def listen(_sender: int, _receiver: int, message: Message) -> bool:
        heard.append(message)
        return False

    async with new_cluster(tmp_path, members) as world:
        world.messages.drop(listen)
        await world.start(*range(members - 1))
        await trio.sleep(1.0)
        heard.clear()
        await trio.sleep(1.0)
        pairs = (members - 1) * (members - 2)
        assert 0 < len(heard) <= 3 * pairs
        await world.start(members - 1)
        await world.settled()


async def test_a_member_that_dies_while_the_cluster_is_founded_is_founded_by_the_others(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with new_cluster(tmp_path) as world:
        world.hosts[2].disk.latency = 1.0
        await world.start()
        await world.until(lambda: standing(world, 0) == standing(world, 1) == "member")
        assert standing(world, 2) == "fresh"
        await world.kill(2)
        assert await world.attempt(await world.leader(), b"one")
        await world.start(2)
        await world.settled()
        assert standing(world, 2) == "member"
        assert admissions(world, 2) == []


async def test_the_only_member_of_a_cluster_founds_it(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with new_cluster(tmp_path, members=1) as world:
        await world.start()
        assert await world.attempt(await world.leader(), b"one")


@pytest.mark.parametrize("others", [1, 2], ids=["one other runs", "all others run"])
async def test_an_empty_directory_is_refused_where_the_cluster_has_a_history(
    tmp_path: Path, autojump_clock: MockClock, others: int
) -> None:
    async with begun_cluster(tmp_path) as (world, leader):
        assert await world.attempt(leader, b"one")
        wiped, other = world.others(leader)
        await world.wipe(wiped)
        empty = attrs.evolve(world.hosts[wiped].config, directory=tmp_path / "a new disk")
        world.hosts[wiped].config = empty
        if others == 1:
            await world.kill(other)
        await world.start(wiped)
        await world.until(lambda: world.hosts[wiped].stopped)
        (failure,) = leaves(world.failures[wiped])
        assert isinstance(failure, LostStoreError)
        assert "quorate recover" in str(failure)


async def test_an_empty_directory_waits_while_nobody_answers(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with new_cluster(tmp_path) as world:
        await world.start(0)
        await trio.sleep(PATIENCE)
        assert world.hosts[0].state is State.INIT
        assert not world.failures


# --- a lost store ---------------------------------------------------------------------------------


async def test_a_wiped_member_is_admitted_by_the_log_and_counts_then(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with begun_cluster(tmp_path) as (world, leader):
        assert await world.attempt(leader, b"one")
        wiped, other = world.others(leader)
        await world.wipe(wiped)
        await world.start(wiped)
        await world.until(lambda: standing(world, wiped) == "member")
        assert admissions(world, leader) == [wiped]
        await equal(world, [b"one"])
        await world.kill(other)
        assert await world.attempt(leader, b"two", within=PATIENCE)


async def test_a_wiped_member_is_not_admitted_without_a_quorum_of_others(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with begun_cluster(tmp_path) as (world, leader):
        wiped, other = world.others(leader)
        await world.kill(other)
        await world.wipe(wiped)
        await world.start(wiped)
        assert not await world.attempt(leader, b"one", within=PATIENCE)
        assert standing(world, wiped) == "recovering"
        assert world.leaders() == []
        await world.start(other)
        await world.until(lambda: standing(world, wiped) == "member")
        assert await world.attempt(await world.settled(), b"two")


async def test_a_member_that_dies_before_it_knows_of_its_admission_is_admitted_again(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with begun_cluster(tmp_path) as (world, leader):
        wiped, _ = world.others(leader)
        await world.wipe(wiped)
        await world.start(wiped)
        await world.until(lambda: admissions(world, leader) == [wiped], every=0.0001)
        await world.kill(wiped)
        await world.start(wiped)
        assert standing(world, wiped) == "recovering"
        await world.until(lambda: standing(world, wiped) == "member")
        assert set(admissions(world, leader)) == {wiped}


async def test_a_store_on_a_slow_disk_takes_its_vote_once(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """It applies its claim, and would repeat it while its vote is on the way to the disk."""
    async with begun_cluster(tmp_path) as (world, leader):
        wiped, other = world.others(leader)
        await world.wipe(wiped)
        await world.start(wiped)
        await world.until(lambda: admissions(world, wiped) == [wiped], every=0.0001)
        world.hosts[wiped].disk.latency = 1.5
        await world.until(lambda: standing(world, wiped) == "member")
        assert not world.failures
        world.hosts[wiped].disk.latency = 0.0
        await world.kill(other)
        assert await world.attempt(await world.leader(), b"one", within=PATIENCE)


async def test_a_member_that_is_removed_while_it_takes_its_vote_stays_removed(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with begun_cluster(tmp_path) as (world, leader):
        wiped, _ = world.others(leader)
        await world.wipe(wiped)
        await world.start(wiped)
        store = world.hosts[wiped].running.store
        world.hosts[wiped].disk.latency = 1.0
        await world.until(
            lambda: store.submitted.voting_status.kind is VotingRight.VOTER, every=0.0001
        )
        assert standing(world, wiped) == "recovering"
        world.hosts[wiped].running.on_removed(leader, "a test")
        await world.until(lambda: world.hosts[wiped].stopped)
        assert not world.failures
        assert store.voting_status.kind is VotingRight.REMOVED


async def test_a_member_that_installs_a_snapshot_is_admitted_behind_it(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with begun_cluster(tmp_path) as (world, leader):
        wiped, _ = world.others(leader)
        await world.wipe(wiped)
        assert await world.attempt(leader, b"one")
        await world.hosts[leader].running.control("snapshot")
        await world.hosts[leader].running.control("snapshot")
        await world.hosts[leader].running.snapshots.clean()
        await world.start(wiped)
        await world.until(lambda: standing(world, wiped) == "member")
        await equal(world, [b"one"])


async def test_leadership_is_not_handed_to_a_store_without_a_vote(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with begun_cluster(tmp_path) as (world, leader):
        wiped, other = world.others(leader)
        await world.kill(other)
        await world.wipe(wiped)
        await world.start(wiped)
        member = world.hosts[leader].running

        def heard() -> bool:
            role = member.state.role
            return isinstance(role, Leadership) and not role.followers[wiped].votes

        await world.until(heard)
        with pytest.raises(RefusedError, match="is not admitted yet"):
            await member.control(f"transfer {wiped} even-if-behind")


# --- what such a member says ----------------------------------------------------------------------


async def test_a_store_without_a_vote_gives_none_and_reports_so(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_script(tmp_path, standing=VotingRight.RECOVERING) as s:
        candidate = s.peers[1]
        for peer in s.peers.values():
            peer.canvass()
        candidate.say(Scout(1, -1, 0, 1, 7))
        reply = await candidate.hears(ScoutReply)
        assert reply.reason is VoteReason.NO_VOTE
        candidate.say(RequestVote(-1, 0, 1, 1))
        vote = await candidate.hears(Vote)
        assert (vote.vote, vote.reason) == (False, VoteReason.NO_VOTE)
        assert s.store.node_state == NodeState()
        leader = await s.follow(1, 1)
        report = await leader.hears(AppendPosition)
        assert report.flags & report.flags.NO_VOTE
        assert State.NOMINATE not in s.path


def test_a_log_that_is_behind_gets_no_vote_across_an_admission() -> None:
    behind = RequestVote(3, 96, 5, 1, even_if_behind=True)
    promised = NodeState(4, -1)
    for admission, terms, granted in (
        (LogEnd(3, 96), [2, 3], True),
        (LogEnd(2, 64), [2, 3], True),
        (LogEnd(3, 192), [2, 3], False),
        # the leader of term 3 may have had another log than the one with the entry of term 2
        (LogEnd(2, 64), [2, 4], False),
    ):
        voter = VoterView(LogEnd(4, 288), promised, admission=admission, terms=terms)
        decision = consider(behind, voter, in_ballot=True, leader_alive=False)
        assert decision.vote is granted
