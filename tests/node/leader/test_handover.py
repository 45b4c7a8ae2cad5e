"""Handovers: one rule for the successor; none waits for an operator, none is asked by text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from quorate.errors import RefusedError, UnknownOutcomeError
from quorate.node.leader.leadership import Leadership
from quorate.node.leader.operator import Transfer, Verb, Wait, parse_untrusted
from quorate.node.upkeep.disk_space import IDLE_SECONDS
from quorate.simulation.ledger import equal, open_ledgers
from quorate.simulation.world import TIMEOUTS
from quorate.transport import AppendFlags, TimeoutNow
from tests.support.client_port_world import command
from tests.support.joined_world import open_port
from tests.support.script import Script, scripted

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

    from quorate.simulation import Ledger, World

MEMBERS = (0, 1, 2)
TIMEOUT = TIMEOUTS.leader_heartbeat_timeout
BEAT = TIMEOUTS.leader_heartbeat_interval
LONG = 10 * TIMEOUT
RESERVE = 64 << 20


# --- the operator's words -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "order"),
    [
        ("transfer 1", Transfer(1)),
        ("transfer 1 even-if-behind", Transfer(1, even_if_behind=True)),
        ("snapshot", Verb.SNAPSHOT),
        ("found 2", Verb.FOUND),
        ("wait 2 1500", Wait(2, 1.5)),
        ("wait 0 0", Wait(0, float("inf"))),
    ],
)
def test_words_are_parsed_once(words: str, order: object) -> None:
    assert parse_untrusted(words.encode(), MEMBERS) == order


@pytest.mark.parametrize(
    "words",
    [
        "transfer 1 disk-stalled",
        "transfer 1 DISK-STALLED",
        "transfer 1 by-priority",
        "transfer 1 even-if-behind disk-stalled",
        "transfer 1 even-if-behind even-if-behind",
        "transfer even-if-behind 1",
        "transfer -1",
        "transfer \u0661",
        "snapshot now",
        "wait 1",
        "wait 1 -1",
        "handover 1",
        " ",
    ],
)
def test_an_operator_cannot_ask_for_what_the_grammar_does_not_have(words: str) -> None:
    with pytest.raises(RefusedError):
        parse_untrusted(words.encode(), MEMBERS)


@pytest.mark.parametrize("option", ["DISK-STALLED", "BY-PRIORITY"])
@scripted()
async def test_a_client_cannot_use_what_the_members_own_parts_ask_for(
    s: Script, option: str
) -> None:
    term = await s.lead()
    role = s.member.state.role
    assert isinstance(role, Leadership)
    role.followers[1].live = True
    for peer in s.peers.values():
        peer.append_position(term, role.replication.end, AppendFlags.READY)
    with open_port(s.member) as port:
        client = port.connect()
        port.turn((client, command("QUORATE.CONTROL", "TRANSFER", "1", option)))
        await s.until(lambda: client.idle)
        refusal = f"-REFUSED transfer to '1 {option.lower()}': expected the id of a member"
        assert client.take().startswith(refusal.encode())
    assert role.accepting
    assert s.peers[1].messages(TimeoutNow) == []


@pytest.mark.parametrize("option", ["disk-stalled", "by-priority"])
async def test_nor_can_an_operator_whose_request_is_forwarded(
    tmp_path: Path, autojump_clock: MockClock, option: str
) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        target, other = world.others(leader)
        for at in (leader, other):
            with pytest.raises(RefusedError, match=f"transfer to '{target} {option}'"):
                await world.hosts[at].running.control(f"transfer {target} {option}")
        assert await world.settled() == leader


# --- the successor --------------------------------------------------------------------------------


async def prefer(world: World[Ledger], member: int) -> None:
    """Give a member the highest priority, in the configurations of all."""
    for host in world.hosts.values():
        members = [
            attrs.evolve(each, priority=int(each.member_id == member))
            for each in host.config.members
        ]
        host.config = attrs.evolve(host.config, members=members)


def role_of(world: World[Ledger], leader: int) -> Leadership:
    role = world.hosts[leader].running.state.role
    assert isinstance(role, Leadership)
    return role


@pytest.mark.parametrize("emergency", ["stall", "full"])
async def test_a_disk_hands_over_to_the_highest_priority(
    tmp_path: Path, autojump_clock: MockClock, emergency: str
) -> None:
    async with open_ledgers(tmp_path, 5) as world:
        await prefer(world, 3)
        await world.start()
        leader = await world.settled()
        if leader == 3:
            await world.hosts[leader].running.control("transfer 0")
            leader = await world.settled()
        await world.command(leader, b"x")
        await world.until(lambda: role_of(world, leader).handover.best_successor() == 3)
        if emergency == "stall":
            world.hosts[leader].disk.stall(LONG)
            assert not await world.attempt(leader, b"y", within=1.6 * TIMEOUT)
        else:
            world.hosts[leader].disk.room = RESERVE - 1
        await world.until(lambda: world.leaders() not in ([leader], []), within=LONG)
        assert world.leaders() == [3]


async def test_without_a_follower_that_has_everything_there_is_no_successor(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        await world.command(leader, b"x")
        role = role_of(world, leader)
        await world.until(lambda: role.handover.best_successor() is not None)
        for follower in role.followers.values():
            follower.live = False
        assert role.handover.best_successor() is None
        with pytest.raises(RefusedError, match="no follower has the whole log"):
            await role.handover.to_best(drain=True)
        assert role.accepting
        assert await world.settled() == leader


async def test_one_hand_over_at_a_time(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        role = role_of(world, leader)
        world.isolate(leader)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(refused, role)
            await trio.sleep(BEAT / 10)
            assert role.handover.under_way
            with pytest.raises(RefusedError, match="hands over or stops already"):
                await role.handover.to(world.others(leader)[0])
            nursery.cancel_scope.cancel()


async def refused(role: Leadership) -> None:
    with pytest.raises(RefusedError):
        await role.handover.to(next(iter(role.followers)))


# --- an emergency does not wait -----------------------------------------------------------------


async def never(_position: int) -> None:
    await trio.sleep_forever()


@pytest.mark.parametrize("emergency", ["stall", "full"])
async def test_an_emergency_does_not_wait_for_an_operators_snapshot(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, emergency: str
) -> None:
    """The snapshot waits for the leader's own disk, which may take any time."""
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        await world.command(leader, b"x")
        answers: list[BaseException] = []

        async def snapshot() -> None:
            try:
                await world.hosts[leader].running.control("snapshot")
            except UnknownOutcomeError as error:
                answers.append(error)

        transitions = len(world.transitions)
        async with trio.open_nursery() as nursery:
            began = trio.current_time()
            if emergency == "stall":
                world.hosts[leader].disk.stall(LONG)
            else:
                monkeypatch.setattr(world.hosts[leader].running.snapshots, "taken", never)
            nursery.start_soon(snapshot)
            await trio.sleep(BEAT / 10)
            if emergency == "full":
                world.hosts[leader].disk.room = RESERVE - 1
            await world.until(lambda: world.leaders() not in ([leader], []), within=LONG)
            took = trio.current_time() - began
        (new,) = world.leaders()
        assert took < (1.5 * TIMEOUT + 4 * BEAT if emergency == "stall" else IDLE_SECONDS + BEAT)
        reasons = [each.reason for each in world.transitions[transitions:]]
        assert f"member {new} takes over" in reasons
        (error,) = answers
        assert "the leadership has ended" in str(error)
        world.hosts[leader].disk.mend()
        world.hosts[leader].disk.room = 4 * RESERVE
        assert await world.attempt(await world.settled(), b"y")
        await equal(world)
