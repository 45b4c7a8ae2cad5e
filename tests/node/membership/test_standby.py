"""Standbys in virtual time: they have everything, and decide nothing."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
import trio

from quorate.errors import RefusedError
from quorate.node.leader.follower_progress import Follower
from quorate.node.protocol.quorum import VoterId
from quorate.node.state import MemberState
from quorate.simulation import Observer, ViolationError
from quorate.simulation.ledger import equal, open_ledgers
from quorate.storage import VotingRight
from quorate.transport import RequestVote, Scout, SnapshotOffer, SnapshotRequest, StreamPurpose
from tests.node.readers.test_backup import backup_of
from tests.node.state_machine.test_snapshots import PRUNING, load, pruned, set_policy, snapshot

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from trio.testing import MockClock

    from quorate.simulation import Ledger, World

STANDBY = 3
PASSIVE = {
    "INIT",
    "CANVASS",
    "FOLLOWER_LOG_REPLICATION",
    "FOLLOWER_REPLAY",
    "FOLLOWER_CATCHUP_INIT",
    "FOLLOWER_CATCHUP_AWAIT",
    "FOLLOWER_CATCHUP",
    "FOLLOWER_LOG_INIT",
    "FOLLOWER_LOG_AWAIT",
    "FOLLOWER_READY",
    "CLOSED",
}


def watched(directory: Path) -> AbstractAsyncContextManager[World[Ledger]]:
    """Three members and a standby, with everything checked after every event."""
    observer = Observer([0, 1, 2, STANDBY], standbys=[STANDBY])
    return open_ledgers(directory, 4, standbys=1, observer=observer)


async def test_a_standby_has_everything_and_shows_as_what_it_is(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with watched(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        assert leader != STANDBY
        assert await world.command(STANDBY, b"by way of the standby") == b"1"
        await load(world, leader, 5, b"a")
        await equal(world)
        status = world.hosts[STANDBY].running.status()
        assert (status.role, status.standing, status.state) == ("standby", "standby", "CLOSED")
        assert world.hosts[STANDBY].running.stale_query(b"", 0) == b"6"
        (shown,) = [each for each in world.hosts[0].running.topology.members if each.standby]
        assert shown.member_id == STANDBY
        position = await snapshot(world, leader)
        assert world.hosts[STANDBY].running.store.snapshots[-1].position == position


async def test_it_counts_neither_for_commits_nor_for_a_leaders_quorum(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with watched(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        await load(world, leader, 3, b"a")
        await equal(world)
        commit = world.hosts[leader].running.status().commit_position
        voters = [i for i in world.others(leader) if i != STANDBY]
        for i in voters:
            world.network.cut(f"h{leader}", f"h{i}")
            world.network.cut(f"h{STANDBY}", f"h{i}")
        assert not await world.attempt(leader, b"with the standby alone", within=0.3)
        await trio.sleep(5.0)
        after = await world.leader()
        assert after in voters
        for i in (leader, STANDBY):
            assert world.hosts[i].running.status().commit_position == commit
        await world.command(after, b"b")
        world.mend()
        await world.settled()
        await equal(world)


async def test_it_neither_stands_nor_votes_nor_is_asked(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    asked: list[object] = []
    async with watched(tmp_path) as world:

        def look(_sender: int, to: int, message: object) -> bool:
            if to == STANDBY and isinstance(message, RequestVote | Scout):
                asked.append(message)
            return False

        world.messages.drop(look)
        await world.start()
        leader = await world.settled()
        await load(world, leader, 3, b"a")
        await world.kill(leader)
        leader = await world.leader()
        await load(world, leader, 3, b"b")
        one, other = [i for i in world.running() if i != STANDBY]
        await world.kill(one if one != leader else other)
        await trio.sleep(20.0)
        assert world.leaders() == []  # one member with a vote, of three, and a standby
        assert {*world.path(STANDBY)} <= PASSIVE
        assert world.hosts[STANDBY].running.store.node_state.voted_for == -1
        assert asked == []


async def test_it_is_not_missed(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with watched(tmp_path) as world:
        await world.start(0, 1, 2)
        leader = await world.settled()
        await load(world, leader, 3, b"a")
        await world.kill(next(i for i in (0, 1, 2) if i != leader))
        await load(world, leader, 3, b"b")
        await world.start(STANDBY)
        await equal(world)


async def test_the_leadership_is_not_handed_to_it(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with watched(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        for words in (f"transfer {STANDBY}", f"transfer {STANDBY} even-if-behind"):
            with pytest.raises(RefusedError, match="member 3 is a standby: it has no vote"):
                await world.hosts[leader].running.control(words)
        assert await world.settled() == leader


async def test_a_member_with_a_vote_installs_its_snapshot(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with watched(tmp_path) as world:
        set_policy(world, PRUNING)
        await world.start()
        leader = await world.settled()
        late = next(i for i in world.others(leader) if i != STANDBY)
        await load(world, leader, 10, b"a")
        await world.kill(late)
        await pruned(world, leader)
        served: list[int] = []
        member = world.hosts[STANDBY].running
        serve = member.on_stream

        async def on_stream(hello: object, stream: object) -> None:
            if getattr(hello, "purpose", None) is StreamPurpose.SNAPSHOT:
                served.append(getattr(hello, "member_id", -2))
            await serve(hello, stream)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

        setattr(member, "on_stream", on_stream)  # noqa: B010 - a method of its class
        await world.start(late)
        await world.settled()
        await equal(world)
        assert served == [late]


async def test_a_standby_that_follows_nobody_gives_its_snapshot_to_nobody(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with watched(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        await load(world, leader, 3, b"a")
        await snapshot(world, leader)
        for alone in (False, True):
            if alone:
                await world.kill(STANDBY, *(i for i in world.running() if i != leader))
                await world.start(STANDBY)  # it may be of any history, and there is no leader
                await trio.sleep(5.0)
            assert await offers(world, leader) is not alone


async def offers(world: World[Ledger], member: int) -> bool:
    """Say whether the standby sends its snapshot to a member."""
    links = world.hosts[member].running.links
    async with await links.open_stream(STANDBY, purpose=StreamPurpose.SNAPSHOT) as stream:
        with suppress(trio.BrokenResourceError):
            await stream.send(SnapshotRequest(-1, -1, 0))
            return isinstance(await stream.receive(), SnapshotOffer)
    return False


async def test_a_backup_comes_from_it(tmp_path: Path, autojump_clock: MockClock) -> None:
    said: list[str] = []
    async with watched(tmp_path / "cluster") as world:
        await world.start()
        leader = await world.settled()
        await load(world, leader, 3, b"a")
        await equal(world)  # the standby knows of the last commit too
        async with backup_of(world, tmp_path / "backup", said) as backup:
            await backup.run()
    assert said == [f"recording from member {STANDBY}"]


async def test_it_loses_nothing_with_its_disk_and_founds_nothing(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path, 4, standbys=1) as world:
        await world.start()
        leader = await world.settled()
        await load(world, leader, 3, b"a")
        await equal(world)
        await trio.sleep(2.0)  # the log falls idle, and its commit position is recorded once
        commit = world.hosts[leader].running.status().commit_position
        await world.wipe(STANDBY)
        await world.start(STANDBY)
        await equal(world)
        assert world.hosts[STANDBY].running.store.voting_status.kind is not VotingRight.VOTER
        await trio.sleep(2.0)  # nothing was appended to admit it
        assert world.hosts[leader].running.status().commit_position == commit
        founders = {member for member, _ in world.hosts[0].running.store.voting_status.founders}
        assert founders == {0, 1, 2}


async def test_a_leader_alone_with_standbys_serves_by_itself(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path, 3, standbys=2) as world:
        await world.start()
        assert await world.settled() == 0
        await load(world, 0, 3, b"a")
        await equal(world)
        await world.kill(1, 2)
        await load(world, 0, 3, b"b")
        await world.start(1, 2)
        await equal(world)
        await world.kill(0)
        await trio.sleep(20.0)
        assert world.leaders() == []


async def test_that_a_standby_is_counted_would_be_found(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def as_another(state: MemberState, member: int) -> VoterId:
        # the sets of voters do not have it, so it must also pass for one that they have
        return VoterId(state.voters[0] if member == STANDBY else member)

    monkeypatch.setattr(MemberState, "_name", as_another)
    monkeypatch.setattr(Follower, "votes", property(lambda _: True, lambda _self, _value: None))
    with pytest.raises(ViolationError, match=r"^CommitOnQuorum:"):
        await left_with_a_standby(tmp_path)


async def left_with_a_standby(directory: Path) -> None:
    """Have a leader write that has nobody but the standby."""
    async with watched(directory) as world:
        await world.start()
        leader = await world.settled()
        await load(world, leader, 3, b"a")
        for i in world.others(leader, STANDBY):
            world.isolate(i)
        await world.attempt(leader, b"with the standby alone")
