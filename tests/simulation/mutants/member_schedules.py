"""Schedules of changes of the members: for each rule of them, the events in which it matters."""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING

import attrs
import trio

from quorate.errors import RequestError
from quorate.node.config.config import SnapshotPolicy
from quorate.simulation.world import TIMEOUTS
from quorate.storage import VotingRight
from quorate.storage.log.founding import force
from quorate.transport import AppendPosition, LogBatch, Scout
from tests.simulation.hazards.schedules import PATIENT, begin, rest
from tests.simulation.members import add, decided_by, joint, order, removed

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorate.simulation import Ledger, World
    from quorate.transport import Message

    Rule = Callable[[int, int, Message], bool]

LEASE = 6.0  # seconds
LEASED = attrs.evolve(PATIENT, leader_lease=LEASE)
PRUNING = SnapshotPolicy(keep=1, margin_bytes=0)


async def members_come_and_go(stage: World[Ledger]) -> None:
    """A member joins, another one leaves, and all are started anew."""
    leader = await begin(stage)
    await add(stage)
    await decided_by(stage, 0, 1, 2, 3)
    leaves, *stay = stage.others(leader)
    await order(stage, f"remove {leaves}")
    await removed(stage, leaves)
    await decided_by(stage, leader, *stay)
    await stage.kill(*stage.present)
    await stage.start()
    await rest(stage)


async def a_change_is_undone(stage: World[Ledger]) -> None:
    """A leader that is cut off has a joint configuration that nobody else has."""
    old = await begin(stage)
    joins = await add(stage, "role=standby")
    await rest(stage)
    stage.isolate(old)
    with contextlib.suppress(RequestError), trio.move_on_after(0.2):
        await order(stage, f"remove {stage.others(old, joins)[0]}", at=old)
    assert stage.hosts[old].running.state.membership.joint
    await stage.until(lambda: any(i != old for i in stage.leaders()))
    assert await stage.attempt(next(i for i in stage.leaders() if i != old), b"x")
    stage.mend()
    await rest(stage)


async def a_leader_changes_before_its_term_is_open(stage: World[Ledger]) -> None:
    """No report reaches a new leader once its term has begun, and an operator gives it an order."""
    old = await begin(stage)
    standby = await add(stage, "role=standby")
    await rest(stage)
    await stage.kill(old)
    deaf: list[int] = []

    def look(_member: int) -> None:
        deaf[:] = stage.leaders()

    stage.after_every_event(look)
    undo = stage.messages.drop(lambda _s, r, m: r in deaf and isinstance(m, AppendPosition))
    new = await stage.leader()
    with contextlib.suppress(RequestError), trio.move_on_after(0.2):
        await order(stage, f"move {standby} client_port=6001", at=new)
    undo()
    await stage.start(old)
    await rest(stage)


async def only_a_stranger_can_lead(stage: World[Ledger]) -> None:
    """A member was down while another one was added, and its vote is needed to elect that one."""
    leader = await begin(stage)
    absent, voter = stage.others(leader)
    await stage.kill(absent)
    joiner = await add(stage)
    await decided_by(stage, 0, 1, 2, 3)
    await stage.kill(leader)
    stage.messages.drop(lambda s, _r, m: s in {absent, voter} and isinstance(m, Scout))
    await stage.start(absent)
    assert await stage.leader(within=10) == joiner
    await stage.start(leader)
    await rest(stage)


async def a_removed_leader_is_alone_with_one(stage: World[Ledger]) -> None:
    """A leader is removed; only one other member of four gets the final configuration."""
    leader = await begin(stage)
    _, *unreached = stage.others(leader)
    undo: list[Callable[[], None]] = []

    def look(i: int) -> None:
        state = stage.hosts[i].running.state if stage.hosts[i].member else None
        if i == leader and state is not None and state.membership.version == 2 and not undo:
            undo.append(
                stage.messages.drop(
                    lambda s, r, m: s == leader and r in unreached and isinstance(m, LogBatch)
                )
            )

    stage.after_every_event(look)
    with contextlib.suppress(RequestError), trio.move_on_after(1.0):
        await order(stage, f"remove {leader}", at=leader)
    for each in undo:
        each()
    await removed(stage, leader)
    await rest(stage)


async def a_new_store_has_the_only_copy(stage: World[Ledger]) -> None:
    """A voter is lost and comes back with another store; the third voter is cut off."""
    leader = await begin(stage)
    away, lost = stage.others(leader)
    await add(stage, "role=standby")  # from now on all voters are named with their stores
    await rest(stage)
    await stage.wipe(lost)
    await stage.start(lost)
    await stage.until(lambda: stage.hosts[lost].running.state.votes)  # it has claimed its seat
    stage.isolate(away)
    await stage.attempt(leader, b"x", within=1.0)
    stage.mend()
    await rest(stage)


async def _two_join(stage: World[Ledger], leader: int) -> tuple[list[int], list[int]]:
    """Two members get a vote at once; the joint configuration reaches only the new ones.

    The old ones are cut off from the leader and from the new ones then.

    Returns:
        The old members, and the new ones.
    """
    old = stage.others(leader)
    new = [await add(stage, "role=standby") for _ in range(2)]
    await rest(stage)
    stage.messages.drop(
        lambda s, r, m: (
            s == leader
            and r in old
            and isinstance(m, LogBatch)
            and stage.hosts[leader].running.state.membership.joint
        )
    )
    for each in new:
        await order(stage, f"promote {each}", at=leader)
    # Both are silent for a while, and are heard again, and steady, at the same moments.
    silent = stage.messages.drop(lambda s, _r, m: s in new and isinstance(m, AppendPosition))
    await trio.sleep(1.5 * TIMEOUTS.leader_heartbeat_timeout)
    silent()
    await joint(stage, leader)
    for each in old:
        for other in (leader, *new):
            stage.network.cut(stage.name(each), stage.name(other))
    return old, new


async def two_get_a_vote_at_once(stage: World[Ledger]) -> None:
    """Two members join three; the old ones are cut off when the change begins."""
    leader = await begin(stage)
    _, new = await _two_join(stage, leader)
    assert len(stage.hosts[leader].running.state.membership.voters) == 5, new
    await stage.attempt(leader, b"x", within=2.0)
    stage.mend()
    await trio.sleep(1.0)
    await rest(stage)


async def a_leader_with_a_lease_changes_the_voters(stage: World[Ledger]) -> None:
    """The same, with leases: the old members elect another leader among themselves."""
    leader = await begin(stage, LEASED)
    stage.set_timeouts(leader, TIMEOUTS)  # the lease was given, and a promotion waits for timeouts
    old, _ = await _two_join(stage, leader)
    stage.set_timeouts(leader, LEASED)
    for each in old:
        stage.set_timeouts(each, TIMEOUTS)
        stage.network.break_links(stage.name(leader), stage.name(each))
    await stage.until(lambda: any(i in old for i in stage.leaders()), within=60)
    stage.mend()
    await trio.sleep(1.0)
    await rest(stage)


async def a_snapshot_is_taken_before_a_change(stage: World[Ledger]) -> None:
    """A change of the members comes into the log right behind where a snapshot is taken."""
    for host in stage.hosts.values():
        host.config = attrs.evolve(host.config, snapshot=PRUNING)
    leader = await begin(stage)
    standby = await add(stage, "role=standby")
    late = await add(stage, "role=standby", start=False)
    await rest(stage)
    assert await stage.attempt(leader, b"." * 8192)
    hold = stage.messages.hold(lambda _s, r, m: r == leader and isinstance(m, AppendPosition))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.hosts[leader].running.control, "snapshot")
        await trio.sleep(0.02)
        with contextlib.suppress(RequestError), trio.move_on_after(0.02):
            await order(stage, f"remove {standby}", at=leader)
        hold()
        while stage.messages.held:
            stage.messages.deliver(stage.messages.held.pop(0))
    await removed(stage, standby)
    await stage.until(lambda: stage.hosts[leader].running.store.start_position > 0)
    await stage.start(late)
    await rest(stage)


async def a_quorum_is_forced(stage: World[Ledger]) -> None:
    """A cluster begins anew with the log of one member, which has configurations of lost stores.

    It has the members of their files. Those of the log would need the lost stores for a quorum, and
    call one member removed. Then it grows, by a member whose log begins with all that.
    """
    kept = await begin(stage)
    back, removed_one = stage.others(kept)
    files = {i: stage.hosts[i].config for i in (back, removed_one)}
    joiner = await add(stage)
    await decided_by(stage, kept, back, removed_one, joiner)
    await order(stage, f"remove {removed_one}")
    await removed(stage, removed_one)
    await rest(stage)
    await stage.kill(*stage.running())
    stage.replace_disk(joiner)
    shutil.rmtree(stage.hosts.pop(joiner).config.directory)
    force(stage.hosts[kept].config.directory / "log", instance_id=99, timestamp_ms=0)
    for i, config in files.items():
        host = stage.hosts[i]
        stage.replace_disk(i)
        shutil.rmtree(config.directory)
        host.make_store(100 + i, VotingRight.NEW)
        host.config, host.retired = config, False
    await stage.start()
    await rest(stage)
    assert await add(stage, start=False) == joiner  # ids begin anew, too
    stage.hosts[joiner].starts = 10  # by which it draws another store than the lost one
    await stage.start(joiner)
    await decided_by(stage, kept, back, removed_one, joiner)
    await order(stage, f"demote {back}")
    await decided_by(stage, kept, removed_one, joiner)
    await rest(stage)


async def the_first_change_knows_few_stores(stage: World[Ledger]) -> None:
    """The first configuration is to name stores of which the leader knows three of five.

    The cluster is as old as the first version, which noted no founders. Two members are away when
    the leader is elected, and one of the three dies just before an operator changes a seat. Without
    it the three that are left, of the four that run in the end, would not be enough.
    """
    for i, host in stage.hosts.items():
        shutil.rmtree(host.config.directory)
        host.make_store(100 + i, VotingRight.VOTER)
    old = await begin(stage)
    leader, dies, *away = stage.others(old)
    await stage.kill(*away)
    await stage.hosts[old].running.control(f"transfer {leader}")
    await stage.until(lambda: stage.leaders() == [leader])
    assert await stage.attempt(leader, b"x")
    links = stage.hosts[leader].running.links
    await stage.kill(dies)
    await stage.until(lambda: not links.connected(dies), within=0.2)
    with contextlib.suppress(RequestError), trio.move_on_after(0.2):
        await order(stage, f"move {dies} client_port=6001", at=leader)
    await stage.start(*away)
    await rest(stage)
    await stage.start(dies)
    await rest(stage)
    await order(stage, f"move {dies} client_port=6001")
    await decided_by(stage, *range(5))
