"""The follower catches up: a replay of the leader's term that merges with the live log."""

from unittest import mock

from quorate.node import State
from quorate.node.follower.following import Following
from quorate.transport import (
    AppendPosition,
    CatchupPosition,
    LogBatch,
    LogSubscribe,
    StopCatchup,
    TermSpan,
)
from tests.support.peers import ME, batch, log
from tests.support.replays import replaying
from tests.support.script import Script, scripted

LOG = log((0, 96), (0, 192))


@scripted(batches=LOG)
async def test_a_late_member_catches_up_in_the_term_that_it_knows(s: Script) -> None:
    leader, stream = await replaying(s, joined=384, commit=288)
    leader.live(batch(0, 384, 480))  # while the catch-up is still on its way
    await stream.send(LogBatch(0, 0, batch(0, 192, 288)))
    await stream.send(LogBatch(0, 0, batch(0, 288, 384)))
    await leader.hears(AppendPosition, lambda m: m.log_position >= 384)
    leader.say(StopCatchup(0, ME))
    await s.enters(State.CLOSED)
    assert [state.name for state in s.path] == [
        "CANVASS",
        "FOLLOWER_REPLAY",
        "FOLLOWER_CATCHUP_INIT",
        "FOLLOWER_CATCHUP_AWAIT",
        "FOLLOWER_CATCHUP",
        "FOLLOWER_LOG_INIT",
        "FOLLOWER_READY",
        "CLOSED",
    ]
    await s.until(lambda: s.store.append_position == 480)
    assert [command.position for command in s.service.commands] == [0, 96, 192]


@scripted(batches=LOG)
async def test_a_follower_reports_before_it_applies(s: Script) -> None:
    """The leader, and through it all clients, wait for the report; for the rest nobody does."""
    leader = s.peers[1]
    leader.lead(0, 0, TermSpan(0, 0, -1), position=192, commit=192)
    await leader.hears(LogSubscribe)
    leader.join(0, 192)
    await s.enters(State.CLOSED)
    leader.live(batch(0, 192, 288))
    await s.until(lambda: s.store.append_position == 288 and len(s.service.commands) == 2)
    told: list[tuple[int, int]] = []
    report = Following.report

    def noted(following: Following) -> None:
        told.append((s.store.append_position, len(s.service.commands)))
        report(following)

    with mock.patch.object(Following, "report", noted):
        leader.live(batch(0, 288, 384, commit=288))
        await s.until(lambda: s.store.append_position == 384)
    assert told[-1] == (384, 2)
    assert len(s.service.commands) == 3


@scripted(batches=LOG)
async def test_a_second_catch_up_of_the_same_leader_takes_the_place_of_the_first(s: Script) -> None:
    leader, first = await replaying(s, joined=480, commit=288)
    await first.send(LogBatch(0, 0, batch(0, 192, 288)))
    await leader.hears(AppendPosition, lambda m: m.log_position >= 288)
    second = await leader.open_catchup(192)
    await second.send(LogBatch(0, 0, batch(0, 192, 288)))  # known already
    await second.send(LogBatch(0, 0, batch(0, 288, 480)))
    await leader.hears(AppendPosition, lambda m: m.log_position >= 480)
    assert await first.receive() is None
    assert s.service.patient
    leader.say(StopCatchup(0, ME))
    await s.enters(State.CLOSED)


@scripted(batches=LOG)
async def test_the_service_knows_as_long_as_a_catch_up_lasts(s: Script) -> None:
    leader = s.peers[1]
    leader.lead(0, 0, TermSpan(0, 0, -1), position=384, commit=288)
    request = await leader.hears(CatchupPosition)
    assert not s.service.patient
    stream = await leader.open_catchup(request.log_position)
    await leader.hears(LogSubscribe)
    leader.join(0, 384)
    await stream.send(LogBatch(0, 0, batch(0, 192, 288)))
    await leader.hears(AppendPosition, lambda m: m.log_position >= 288)
    assert s.service.patient
    await stream.send(LogBatch(0, 0, batch(0, 288, 384)))
    await leader.hears(AppendPosition, lambda m: m.log_position >= 384)
    leader.say(StopCatchup(0, ME))
    stream.close()
    await s.enters(State.CLOSED)
    assert not s.service.patient


@scripted(batches=LOG)
async def test_a_replay_that_begins_elsewhere_is_refused(s: Script) -> None:
    leader = s.peers[1]
    leader.lead(0, 0, TermSpan(0, 0, -1), position=384)
    await leader.hears(CatchupPosition)
    await leader.open_catchup(96)
    assert "was not asked for" in (await s.enters(State.INIT)).reason


@scripted(batches=LOG)
async def test_a_catch_up_of_another_log_session_is_refused(s: Script) -> None:
    leader = s.peers[1]
    leader.lead(0, 0, TermSpan(0, 0, -1), position=384)
    await leader.hears(CatchupPosition)
    stream = await leader.open_catchup(192, session=7)
    assert await stream.receive() is None
    assert s.state is State.FOLLOWER_CATCHUP_AWAIT
