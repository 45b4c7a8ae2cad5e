"""Members come and go while the cluster runs: whole clusters, from the order to its end."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from quorate.errors import RefusedError, RequestError
from quorate.node.config.config import SnapshotPolicy, Timeouts
from quorate.node.leader.leadership import Leadership
from quorate.node.protocol.membership import MemberRole
from quorate.simulation.ledger import Ledger, equal, open_ledgers
from quorate.simulation.world import Setting, open_world
from quorate.storage import verify
from quorate.storage.log.founding import force
from quorate.transport import AppendPosition, TimeoutNow
from tests.support.changing import add, complete, gone, grow, is_standby, order, seat, voters, waits
from tests.support.founding import new_cluster
from tests.support.settled import settled

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

    from quorate.simulation.world import World
    from quorate.transport import Message


SLOW = Timeouts(
    startup_canvass=40.0,
    leader_heartbeat_timeout=10.0,
    leader_heartbeat_interval=1.0,
    election_timeout=5.0,
    canvass_interval=0.4,
)


async def write(world: World[Ledger], text: bytes) -> None:
    assert await world.attempt(await world.leader(), text, within=10.0)


# --- more members, and fewer ----------------------------------------------------------------------


async def test_a_cluster_grows_from_one_to_five_and_shrinks_to_three(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path, 1) as world:
        await world.start()
        await write(world, b"one")
        # Two at once: two voters would be worse than one.
        joiners = [await add(world), await add(world)]
        await world.until(lambda: voters(world) == [0, 1, 2])
        assert joiners == [1, 2]
        assert await grow(world, 2) == [3, 4]
        await write(world, b"five")
        await equal(world, [b"one", b"five"])
        leader = await world.leader()
        out = [i for i in voters(world) if i != leader][:2]
        for i in out:
            await order(world, f"remove {i}")
        await gone(world, *out)
        await write(world, b"three")
        assert len(voters(world)) == 3
        await equal(world, [b"one", b"five", b"three"])


async def test_a_change_is_a_joint_one_and_then_a_final_one(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        await world.settled()
        await grow(world, 1)
        rows = world.hosts[await world.leader()].running.store.recorded.memberships
        assert len(rows) == 4  # a seat, a claim, joint, final
        assert world.membership.version == 4


@settled
async def test_a_dead_voter_is_replaced(world: World[Ledger]) -> None:
    leader = await world.leader()
    dead = world.others(leader)[0]
    await world.kill(dead)
    new = await add(world, f"replaces={dead}")
    await world.until(lambda: dead not in world.membership.ids)
    now = await complete(world)
    assert new in voters(world)
    assert len(now.voters) == 3
    await write(world, b"one")
    # It comes back months later.
    await world.start(dead)
    await gone(world, dead)
    await world.settled()


@settled
async def test_the_leader_is_replaced_and_ends(world: World[Ledger]) -> None:
    leader = await world.leader()
    new = await add(world, f"replaces={leader}")
    await gone(world, leader)
    await complete(world)
    assert sorted(voters(world)) == sorted([*world.others(leader)])
    assert new in voters(world)
    await write(world, b"one")


@settled
async def test_the_leader_is_removed_and_ends(world: World[Ledger]) -> None:
    leader = await world.leader()
    answer = await order(world, f"remove {leader}", at=world.others(leader)[0])
    assert answer["done"] == f"member {leader} is removed"
    assert voters(world) == world.others(leader)
    await gone(world, leader)
    await write(world, b"one")
    # It does not run again, and the others do not mind.
    await world.start(leader)
    await world.until(lambda: world.hosts[leader].stopped)
    await write(world, b"two")


@settled
async def test_an_order_through_the_leader_that_it_removes_is_answered(
    world: World[Ledger],
) -> None:
    leader = await world.leader()
    answer = await order(world, f"remove {leader}", at=leader)
    assert answer["done"] == f"member {leader} is removed"
    await gone(world, leader)


@settled
async def test_a_voter_is_demoted_and_promoted(world: World[Ledger]) -> None:
    leader = await world.leader()
    member = world.others(leader)[0]
    await order(world, f"demote {member}")
    assert is_standby(world, member)
    await write(world, b"one")
    await equal(world, [b"one"])
    await order(world, f"promote {member}")
    await world.until(lambda: member in voters(world))
    await write(world, b"two")
    await equal(world, [b"one", b"two"])


@settled
async def test_a_standby_follows_the_next_leader_too(world: World[Ledger]) -> None:
    leader = await world.leader()
    member, other = world.others(leader)
    await order(world, f"demote {member}")
    await complete(world)
    await world.hosts[leader].running.control(f"transfer {other}")
    await world.until(lambda: world.leaders() == [other])
    await write(world, b"one")
    await equal(world, [b"one"])


@settled
async def test_the_leader_is_demoted(world: World[Ledger]) -> None:
    leader = await world.leader()
    await order(world, f"demote {leader}")
    await complete(world)
    assert is_standby(world, leader)
    await write(world, b"one")
    await equal(world, [b"one"])


@settled
async def test_a_member_moves(world: World[Ledger]) -> None:
    leader = await world.leader()
    member = world.others(leader)[0]
    await world.kill(member)
    world.readdress(member, 7100, world.membership)
    await order(world, f"move {member} member_port=7100")
    await world.start(member)
    await world.settled()
    await write(world, b"one")
    await equal(world, [b"one"])
    assert seat(world, member).member_port == 7100


@settled
async def test_the_leader_moves(world: World[Ledger]) -> None:
    leader = await world.leader()
    await order(world, f"move {leader} member_port=7100")
    await write(world, b"one")
    await world.kill(leader)
    world.readdress(leader, 7100, world.membership)
    await world.start(leader)
    await world.settled()
    await write(world, b"two")
    await equal(world, [b"one", b"two"])


async def test_a_member_that_moved_has_its_vote_before_the_log_has_its_address(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    # Slower than a dial is waited for while the member has another address.
    setting = Setting(timeouts=SLOW, latency=0.4)
    async with open_world(tmp_path, Ledger, setting) as world:
        await world.start()
        moved, other = world.others(await world.settled(within=200.0))
        membership = world.membership
        await world.kill(0, 1, 2)
        world.readdress(moved, 7100, membership)
        await world.start(moved, other)
        await world.until(lambda: world.leaders() != [], within=200.0)


@settled
async def test_a_wrong_address_costs_nothing(world: World[Ledger]) -> None:
    new = await add(world, start=False)
    await write(world, b"one")
    await world.kill(world.others(await world.leader())[0])
    await write(world, b"two")
    await waits(world, new, "not-claimed")
    assert voters(world) == [0, 1, 2]
    await order(world, f"remove {new}")
    assert world.membership.seat(new) is None


@settled
async def test_a_voter_that_an_uncommitted_entry_drops_keeps_its_links(
    world: World[Ledger],
) -> None:
    leader = await world.leader()
    out = world.others(leader)[0]
    state = world.hosts[leader].running.state

    def is_late(_sender: int, receiver: int, message: Message) -> bool:
        final = state.membership.version > 0 and not state.membership.joint
        return receiver == leader and isinstance(message, AppendPosition) and final

    world.messages.drop(is_late)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(unanswered, world, f"remove {out}")
        await world.until(lambda: state.membership.version == 2, every=0.0001)
        # The entry is lost with a leader that nobody hears any more; until then it counts.
        assert leader in world.leaders()
        world.network.break_links(world.name(out), world.name(leader))
        await trio.sleep(0.3)
        assert world.hosts[leader].running.links.connected(out)
        assert world.hosts[out].running.links.connected(leader)
        nursery.cancel_scope.cancel()


async def unanswered(world: World[Ledger], words: str) -> None:
    with pytest.raises(RequestError):
        await order(world, words)


@settled
async def test_members_are_listed_while_a_change_is_under_way(world: World[Ledger]) -> None:
    leader = await world.leader()
    new = await add(world)
    await world.until(lambda: seat(world, new).instance != 0)
    reconfiguration = getattr(world.hosts[leader].running.state.role, "_reconfiguration")  # noqa: B009
    late: list[str] = []

    def look(i: int) -> None:
        state = world.hosts[i].running.state if world.hosts[i].member else None
        if i == leader and state is not None and state.membership.joint:
            listed = json.loads(getattr(reconfiguration, "listed")())  # noqa: B009
            late.append(listed["members"][-1]["waits"])

    world.after_every_event(look)
    other = await add(world)
    await order(world, f"remove {world.others(leader)[0]}")
    await world.until(lambda: {new, other} <= {*voters(world)})
    assert late


# --- two voters -----------------------------------------------------------------------------------


async def test_one_voter_becomes_two_only_if_that_is_allowed(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path, 1) as world:
        await world.start()
        new = await add(world)
        await waits(world, new, "even")
        await trio.sleep(10.0)
        assert voters(world) == [0]
        await order(world, f"promote {new} even")
        await world.until(lambda: voters(world) == [0, new])
        await write(world, b"one")
        await equal(world, [b"one"])


async def test_two_voters_become_one(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_ledgers(tmp_path, 2) as world:
        await world.start()
        leader = await world.settled()
        await order(world, f"remove {leader}")
        await gone(world, leader)
        await write(world, b"one")
        (left,) = voters(world)
        with pytest.raises(RefusedError, match=r"^last-voter: "):
            await order(world, f"remove {left}")
        with pytest.raises(RefusedError, match=r"^last-voter: "):
            await order(world, f"demote {left}")


# --- stores ---------------------------------------------------------------------------------------


@settled
async def test_a_joiner_begins_with_a_snapshot(world: World[Ledger]) -> None:
    policy = SnapshotPolicy(keep=1, margin_bytes=0)
    for host in world.hosts.values():
        setattr(host.running.snapshots, "_config", attrs.evolve(host.config, snapshot=policy))  # noqa: B010
    leader = world.hosts[await world.leader()].running
    for i in range(20):
        await write(world, b"%d" % i)
    await leader.control("snapshot")
    for host in world.hosts.values():
        await host.running.snapshots.quiet()
        await host.running.snapshots.clean()
    assert leader.store.start_position > 0
    new = await add(world)
    await world.until(lambda: new in voters(world))
    assert world.hosts[new].running.store.start_position > 0
    await equal(world, [b"%d" % i for i in range(20)])


@settled
async def test_a_wiped_voter_claims_its_seat_and_votes_again(world: World[Ledger]) -> None:
    leader = await world.leader()
    wiped, other = world.others(leader)
    await world.kill(wiped)
    before = next(v for v in world.membership.voters if v.member_id == wiped)
    world.replace_disk(wiped)
    await world.start(wiped)
    await world.until(lambda: voters(world) == [0, 1, 2] and world.membership.version >= 3)
    after = next(v for v in (await complete(world)).voters if v.member_id == wiped)
    assert after != before
    await world.kill(other)
    await write(world, b"one")
    await equal(world, [b"one"])


@settled
async def test_a_standby_with_a_claimed_seat_is_promoted(world: World[Ledger]) -> None:
    new = await add(world, "role=standby")
    await world.until(lambda: seat(world, new).instance != 0)
    await complete(world)
    assert is_standby(world, new)
    await order(world, f"promote {new}")
    await world.until(lambda: new in voters(world))


@settled
async def test_a_joiner_with_an_old_list_finds_the_cluster(world: World[Ledger]) -> None:
    old = world.membership
    first = await grow(world, 2)
    # Of the old list only one member is left, which never leads.
    leader = await world.leader()
    if leader not in first:
        await world.hosts[leader].running.control(f"transfer {first[0]}")
        await world.until(lambda: world.leaders() == [first[0]])
    for i in (0, 1):
        await order(world, f"remove {i}")
    await gone(world, 0, 1)
    assert voters(world) == [2, *first]
    assert (await world.leader()) in first
    new = await add(world, start=False)
    listed = list(old.seats)
    joins = world.membership.seat(new)
    assert joins is not None
    stale = type(old)((*listed, joins), old.voters, next_id=new + 1)
    world.create(new, stale)
    await world.start(new)
    await world.until(lambda: new in voters(world))


@settled
async def test_a_seat_that_is_removed_before_its_member_starts(world: World[Ledger]) -> None:
    new = await add(world, start=False)
    world.create(new)
    await order(world, f"remove {new}")
    await complete(world)
    await world.start(new)
    await gone(world, new)


@settled
async def test_a_standby_that_runs_is_removed_and_ends(world: World[Ledger]) -> None:
    new = await add(world, "role=standby")
    await world.until(lambda: seat(world, new).instance != 0)
    await complete(world)
    assert (await order(world, f"remove {new}"))["version"] == 3
    await gone(world, new)
    await write(world, b"one")


@settled
async def test_two_members_are_replaced_at_once(world: World[Ledger]) -> None:
    leader = await world.leader()
    out = world.others(leader)
    new = [await add(world, f"replaces={i}") for i in out]
    await gone(world, *out)
    assert sorted((await complete(world)).ids) == sorted([leader, *new])
    await write(world, b"one")


@settled
async def test_a_joiner_that_loses_its_disk_claims_its_seat_again(world: World[Ledger]) -> None:
    new = await add(world, "role=standby")
    await world.until(lambda: seat(world, new).instance != 0)
    first = seat(world, new).instance
    await world.kill(new)
    world.replace_disk(new)
    await world.start(new)
    await world.until(lambda: seat(world, new).instance not in {0, first})
    await order(world, f"promote {new}")
    await world.until(lambda: new in voters(world))


@settled
async def test_a_cluster_that_stops_in_the_middle_of_a_change_ends_it(
    world: World[Ledger],
) -> None:
    leader = await world.leader()
    out = world.others(leader)[0]
    joint: list[int] = []

    def look(i: int) -> None:
        member = world.hosts[i].member
        if member is not None and member.state.membership.joint:
            joint.append(i)

    world.after_every_event(look)
    async with trio.open_nursery() as nursery:

        async def ask() -> None:
            with pytest.raises(RequestError):
                await order(world, f"remove {out}")

        nursery.start_soon(ask)
        await world.until(lambda: {*joint} >= {0, 1, 2} - {out}, every=0.0001)
        await world.kill(0, 1, 2)
        nursery.cancel_scope.cancel()
    assert all(host.stopped for host in world.hosts.values())
    await world.start()
    await world.until(lambda: world.membership.version > 0 and not world.membership.joint)
    assert voters(world) == [i for i in (0, 1, 2) if i != out]
    await gone(world, out)
    await write(world, b"one")


# --- members that join and lead -------------------------------------------------------------------


@settled
async def test_a_member_that_joins_may_stand(world: World[Ledger]) -> None:
    new = await add(world, "role=standby")
    await world.until(lambda: seat(world, new).instance != 0)
    await complete(world)
    member = world.hosts[new].running
    assert not member.election.may_stand
    await order(world, f"promote {new}")
    await world.until(lambda: member.configuration.seat(new) in member.configuration.joining)
    assert new not in voters(world)
    assert member.election.may_stand


@settled
async def test_a_member_that_joins_and_leads_hands_over(world: World[Ledger]) -> None:
    leader = await world.leader()
    new = await add(world, "role=standby")
    await world.until(lambda: seat(world, new).instance != 0)
    await complete(world)
    await order(world, f"promote {new}")
    await world.until(lambda: world.hosts[new].running.state.membership == world.membership)
    role = world.hosts[leader].running.state.role
    assert isinstance(role, Leadership)
    # A leader asks only voters. But in an election a joiner may be the one with the newest log.
    role.handover.successor = new
    mandate = TimeoutNow(role.term, leader, new, even_if_behind=False, by_operator=True)
    world.hosts[new].running.on_message(leader, mandate)
    await world.until(lambda: world.leaders() == [new])
    await order(world, "list")
    await world.until(lambda: new in voters(world))
    await write(world, b"one")
    await equal(world, [b"one"])


# --- another history ------------------------------------------------------------------------------


async def test_a_forced_quorum_forgets_the_configurations_before(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with new_cluster(tmp_path) as world:
        await world.start()
        await write(world, b"one")
        leader = await world.settled()
        new = await add(world, "role=standby")
        await world.until(lambda: seat(world, new).instance != 0)
        await equal(world, [b"one"])
        assert world.hosts[leader].running.state.membership.version == 2
        await world.kill(*world.running())
        for i in world.others(leader, new):
            directory = world.hosts[i].config.directory
            directory.rename(directory.with_name(f"old-{i}"))
        store = world.hosts[leader].config.directory / "log"
        force(store, instance_id=77, timestamp_ms=5)
        assert verify(store).ok
        world.replace_disk(new)  # its machine serves again
        del world.hosts[new]
        founders = [*world.hosts]
        await world.start(*founders)
        await write(world, b"two")
        assert {world.hosts[i].running.state.membership.version for i in founders} == {0}
        # The next change begins with the members of the new history.
        newer = await add(world, "role=standby")
        await equal(world, [b"one", b"two"])
        assert seat(world, newer).role is MemberRole.STANDBY
