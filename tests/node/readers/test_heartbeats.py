"""HeartbeatRequest: a standby asks its leader, and a monitor asks whoever leads."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import attrs
import trio
import trio.testing

from quorate.simulation.ledger import open_ledgers
from quorate.transport import (
    NULL_VALUE,
    PROTOCOL_VERSION,
    Address,
    BackupQuery,
    FrameStream,
    HeartbeatRequest,
    HeartbeatResponse,
    Hello,
    Message,
    StreamPurpose,
    open_stream,
)

if TYPE_CHECKING:
    from pathlib import Path

    from quorate.simulation import Ledger, World

    Clock = trio.testing.MockClock

STANDBY = 3


async def monitor(world: World[Ledger], member: int, purpose: StreamPurpose) -> FrameStream:
    hello = Hello("simulated", NULL_VALUE, PROTOCOL_VERSION, 0, purpose)
    return await open_stream(world.network.host("monitor"), Address(f"h{member}", 7000), hello)


async def test_a_standby_measures_how_long_its_leader_takes_to_answer(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    async with open_ledgers(tmp_path, 4, standbys=1) as world:
        await world.start()
        leader = await world.settled()
        await trio.sleep(2)
        for number, host in world.hosts.items():
            said = host.running.status()
            assert (said.leader_heard_ms >= 0) == (number == STANDBY)
        said = world.hosts[STANDBY].running.status()
        assert said.leader_heard_ms <= 150
        assert 0.5 < said.leader_round_trip_ms < 20
        # One direction works: what the standby sends is lost, and it hears its leader.
        world.network.cut(f"h{STANDBY}", f"h{leader}", both=False)
        await trio.sleep(1)
        said = world.hosts[STANDBY].running.status()
        assert said.leader_heard_ms > 500
        world.network.heal(f"h{STANDBY}", f"h{leader}", both=False)


async def test_a_leader_of_an_older_version_is_not_asked(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    async with open_ledgers(tmp_path, 4, standbys=1) as world:
        await world.start()
        leader = await world.settled()
        state = world.hosts[STANDBY].running.state
        assert state.versions[leader] == PROTOCOL_VERSION
        state.versions[leader] = 3 << 16
        await trio.sleep(1)
        assert world.hosts[STANDBY].running.status().leader_heard_ms > 500


async def test_a_monitor_is_answered_by_the_leader_alone(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        for member in world.hosts:
            async with await monitor(world, member, StreamPurpose.HEARTBEAT) as stream:
                for number in (5, 6) if member == leader else ():
                    await stream.send(HeartbeatRequest(number))
                    assert await stream.receive() == HeartbeatResponse(number)
                if member != leader:
                    assert await stream.receive() is None


@attrs.frozen
class OnlyHeartbeats:
    """Lets the principals that it knows ask for signs of life, and for nothing else."""

    known: str

    def allows(self, principal: str, message: type[Message]) -> bool:
        return principal == self.known and message is HeartbeatRequest


async def test_what_an_authoriser_does_not_allow_is_not_answered(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        member = world.hosts[leader].running

        async def answer(purpose: StreamPurpose, request: Message) -> Message | None:
            async with await monitor(world, leader, purpose) as stream:
                with suppress(trio.BrokenResourceError):  # it may be closed by now
                    await stream.send(request)
                    return await stream.receive()
            return None

        beat, backup = StreamPurpose.HEARTBEAT, StreamPurpose.BACKUP
        assert await answer(backup, BackupQuery()) is not None
        for known, allowed in (("a reader", True), ("somebody else", False)):
            member._server = attrs.evolve(member._server, authoriser=OnlyHeartbeats(known))
            assert (await answer(beat, HeartbeatRequest(1)) is not None) == allowed
            assert await answer(backup, BackupQuery()) is None


async def test_an_authoriser_judges_a_standby_too(tmp_path: Path, autojump_clock: Clock) -> None:
    async with open_ledgers(tmp_path, 4, standbys=1) as world:
        await world.start()
        leader = await world.settled()
        member, standby = world.hosts[leader].running, world.hosts[STANDBY].running
        for known, answered in (("nobody", False), (f"member {STANDBY}", True)):
            security = attrs.evolve(member.access.security, authoriser=OnlyHeartbeats(known))
            member.access = attrs.evolve(member.access, security=security)
            await trio.sleep(1)
            assert (standby.status().leader_heard_ms <= 150) == answered
