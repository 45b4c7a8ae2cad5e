"""Who is behind may win if the operator says so, and leads only with all that is committed."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
import trio

from quorate.errors import NoLeaderError, RefusedError, UnknownOutcomeError
from quorate.node import State
from quorate.node.election import leader_states
from quorate.node.election.adopt_voter_log import adopt_voter_log
from quorate.node.protocol.log_matching import spans_of
from quorate.simulation import Ledger, Observer, Setting, World, open_world
from quorate.simulation.ledger import equal, open_ledgers
from quorate.simulation.world import TIMEOUTS
from quorate.storage import LogEnd, NodeState, TermRow
from quorate.transport import (
    CommitPosition,
    NewLeadershipTerm,
    RequestVote,
    Scout,
    ScoutReply,
    StaleLeader,
    TermSpan,
    TimeoutNow,
    Vote,
    VoteReason,
)
from quorate.transport.testing.direction import Pace
from tests.support.peers import ME, log
from tests.support.script import Script, scripted

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

    from quorate.node.election.context import ElectionContext

PAYLOAD = b"." * 20_000


def test_a_voter_tells_the_terms_around_the_askers() -> None:
    rows = [TermRow(term, 96 * term, 96 * term + 96, 0) for term in range(199)]
    rows.append(TermRow(199, 96 * 199, None, 0))
    spans = spans_of(rows, 100, 96 * 199 + 32)
    assert [span.term for span in spans] == list(range(36, 200))
    assert spans[-1] == TermSpan(199, 96 * 199, 96 * 199 + 32)
    assert spans_of([], -1, 0) == ()


# --- one member, message by message ---------------------------------------------------------------


def vote(s: Script, member: int, *spans: TermSpan, granted: bool = True) -> Vote:
    """A vote of a member whose log has those terms."""
    term = s.store.node_state.candidate_term
    end = spans[-1] if spans else TermSpan(-1, 0, 0)
    reason = VoteReason.GRANTED if granted else VoteReason.ALREADY_VOTED
    return Vote(term, end.term, end.end, ME, member, granted, term, reason, spans)


async def take_over(s: Script) -> int:
    """Be about to follow member 1, the leader of term 3, which asks us to stand; return our term.

    Its log ends where ours does; nobody but us has told that.
    """
    end, last = s.store.append_position, s.store.log_term
    spans = [
        TermSpan(row.term, row.base, end if row.end is None else row.end) for row in s.store.terms
    ]
    spans += [TermSpan(term, end, end) for term in range(last + 1, 3)]
    s.peers[1].lead(3, last, *spans, TermSpan(3, end, -1))
    await s.enters(State.FOLLOWER_LOG_AWAIT)
    s.peers[1].say(TimeoutNow(3, 1, ME, even_if_behind=True))
    await s.enters(State.CANDIDATE_BALLOT)
    assert s.store.node_state == NodeState(4, ME)
    return 4


async def win_behind(s: Script, *spans: TermSpan) -> int:
    """Take over, and be voted for by member 1, whose log has those terms; return our term."""
    term = await take_over(s)
    s.peers[1].say(vote(s, 1, *spans))
    await s.enters(State.LEADER_LOG_REPLICATION)
    return term


@scripted(batches=log((0, 96)))
async def test_what_is_asked_says_that_it_may_be_behind(s: Script) -> None:
    await win_behind(s, TermSpan(0, 0, 96))
    for peer in s.peers.values():
        assert [scout.even_if_behind for scout in peer.messages(Scout)] == [True]
        assert await peer.hears(RequestVote) == RequestVote(
            0, 96, 4, ME, force=True, even_if_behind=True
        )
    assert (await s.peers[1].hears(NewLeadershipTerm)).term_base_log_position == 96


@scripted(batches=log((0, 96)))
async def test_the_longest_log_of_the_voters_is_fetched_before_the_term_begins(s: Script) -> None:
    term = await win_behind(s, TermSpan(0, 0, 192), TermSpan(1, 192, 192), TermSpan(2, 192, 384))
    replay = await s.peers[1].replay()
    assert (replay.request.position, replay.request.stop_position) == (96, 384)
    batches = log((0, 96), (0, 192), (2, 288), (2, 384))
    await replay.send(0, batches[1], batches[2])
    # Meanwhile the others are kept from electing another one, and nothing is said of a new term.
    s.peers[2].forget()
    assert (await s.peers[2].hears(CommitPosition)).leadership_term_id == term
    s.peers[2].say(Scout(term + 1, 0, 96, 2, 7))
    assert (await s.peers[2].hears(ScoutReply)).reason is VoteReason.BUSY
    assert s.peers[2].messages(NewLeadershipTerm) == []
    await replay.send(0, batches[3])
    told = await s.peers[2].hears(NewLeadershipTerm)
    assert (told.leadership_term_id, told.term_base_log_position) == (term, 384)
    assert told.terms[:-1] == (TermSpan(0, 0, 192), TermSpan(2, 192, 384))
    replay.end()


@scripted(batches=log((0, 96), (1, 192), (1, 288)))
async def test_what_the_longest_log_does_not_have_is_dropped_first(s: Script) -> None:
    await win_behind(s, TermSpan(0, 0, 96), TermSpan(1, 96, 192), TermSpan(2, 192, 480))
    replay = await s.peers[1].replay()
    assert (replay.request.position, replay.request.stop_position) == (192, 480)
    await replay.send(1, *log((0, 96), (1, 192), (2, 480))[2:])
    assert (await s.peers[1].hears(NewLeadershipTerm)).term_base_log_position == 480
    replay.end()


BAD = {
    "terms that do not ascend": (TermSpan(1, 0, 96), TermSpan(1, 96, 192)),
    "gap in the log": (TermSpan(0, 0, 96), TermSpan(1, 128, 192)),
    "ends before it begins": (TermSpan(0, 0, 96), TermSpan(1, 96, 64)),
    "another end": (TermSpan(0, 0, 96), TermSpan(1, 96, 256)),
    "none": (),
}


@scripted(batches=log((0, 96)))
@pytest.mark.parametrize("spans", BAD.values(), ids=BAD)
async def test_a_table_that_is_none_is_refused(s: Script, spans: tuple[TermSpan, ...]) -> None:
    await take_over(s)
    s.peers[1].say(Vote(4, 1, 192, ME, 1, True, 4, VoteReason.GRANTED, spans))
    await s.enters(State.LEADER_LOG_REPLICATION)
    ended = await s.enters(State.INIT)
    assert "WireError" in ended.reason
    assert s.store.append_position == 96
    assert s.peers[2].messages(NewLeadershipTerm) == []


@scripted(batches=log((0, 96)))
@pytest.mark.parametrize("fault", ["another log", "a newer term", "its end", "silence"])
async def test_a_replay_that_is_not_what_was_promised_is_the_end_of_it(
    s: Script, fault: str
) -> None:
    term = await win_behind(s, TermSpan(0, 0, 96), TermSpan(1, 96, 96), TermSpan(2, 96, 288))
    replay = await s.peers[1].replay()
    good = log((0, 96), (2, 192), (2, 288))
    match fault:
        case "another log":
            await replay.send(0, *log((0, 96), (1, 192))[1:])
        case "a newer term":
            await replay.send(term, good[1])
        case "its end":
            await replay.send(0, good[1])
            replay.end()
        case _:
            await replay.send(0, good[1])
    await s.enters(State.INIT, within=2 * TIMEOUTS.leader_heartbeat_timeout)
    assert s.peers[2].messages(NewLeadershipTerm) == []
    replay.end()


@scripted(batches=log((0, 96)))
async def test_whoever_lives_in_a_newer_term_ends_it(s: Script) -> None:
    term = await win_behind(s, TermSpan(0, 0, 192))
    await s.peers[1].replay()
    s.peers[2].say(StaleLeader(term + 1, 2))
    ended = await s.enters(State.INIT)
    assert "is in term" in ended.reason


@scripted(batches=log((0, 96)))
async def test_a_follower_votes_for_a_shorter_log_and_tells_its_own(s: Script) -> None:
    await s.follow(1, 0, log_term=0)
    s.peers[2].say(RequestVote(-1, 0, 1, 2, force=True, even_if_behind=True))
    given = await s.peers[2].hears(Vote)
    assert (given.vote, given.log_leadership_term_id, given.log_position) == (True, 0, 96)
    assert given.terms == (TermSpan(0, 0, 96),)
    assert s.store.node_state == NodeState(1, 2)


@scripted(batches=log((0, 96)))
async def test_without_the_leaders_word_nobody_votes_for_a_shorter_log(s: Script) -> None:
    await s.follow(1, 0, log_term=0)
    s.peers[2].say(RequestVote(-1, 0, 1, 2, even_if_behind=True))
    given = await s.peers[2].hears(Vote)
    assert (given.vote, given.reason) == (False, VoteReason.LEADER_ALIVE)


# --- whole clusters -------------------------------------------------------------------------------


async def leave_behind(world: World[Ledger]) -> tuple[int, int, int]:
    """Have one member fall behind, with a slow way to catch up; return leader, it, the third."""
    leader = await world.settled()
    behind, third = world.others(leader)
    world.isolate(behind)
    for i in range(100):
        assert await world.attempt(leader, b"%d %s" % (i, PAYLOAD))
    slow = Pace(0.0005, 0.0, 2_000_000)
    for other in (leader, third):
        world.network.set_pace(f"h{other}", f"h{behind}", slow, both=False)
        world.network.break_links(f"h{behind}", f"h{other}")
    world.mend()
    await world.until(lambda: world.hosts[leader].running.links.connected(behind))
    await world.until(lambda: world.hosts[behind].state in CATCHING_UP)
    return leader, behind, third


CATCHING_UP = {State.FOLLOWER_CATCHUP, State.FOLLOWER_LOG_REPLICATION}


async def test_a_member_that_is_behind_leads_with_everything_that_was_acknowledged(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader, behind, third = await leave_behind(world)
        member = world.hosts[leader].running
        with pytest.raises(RefusedError, match="does not follow"):
            await member.control(f"transfer {behind}")
        lacks = member.store.append_position - world.hosts[behind].running.store.append_position
        assert lacks > 500_000
        said = await member.control(f"transfer {behind} even-if-behind")
        assert said == f"member {behind} takes over"
        assert await world.settled() == behind
        assert await world.command(third, b"after") == b"101"
        await equal(world, [*world.acked, b"after"])
        terms = {t.term for t in world.transitions if t.after is State.LEADER_READY}
        assert len(terms) == 2  # no other election on the way


async def test_when_the_voter_with_the_longest_log_dies_meanwhile_another_election_is_held(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    adopted: list[Vote] = []
    adopt = adopt_voter_log

    async def noted(ctx: ElectionContext, term: int, ahead: Vote) -> None:
        adopted.append(ahead)
        await adopt(ctx, term, ahead)

    monkeypatch.setattr(leader_states, "adopt_voter_log", noted)
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader, behind, _ = await leave_behind(world)
        assert await world.hosts[leader].running.control(f"transfer {behind} even-if-behind")
        await world.reached(behind, State.LEADER_LOG_REPLICATION)
        await world.until(lambda: bool(adopted))
        source = adopted[0].follower_member_id
        await world.kill(source)
        (other,) = world.others(source, behind)
        assert await world.settled() == other  # it has all that was acknowledged
        await world.until(lambda: world.hosts[behind].service.payloads == world.acked)


@pytest.mark.parametrize("seed", range(6))
async def test_under_faults_nothing_acknowledged_is_lost(
    tmp_path: Path, autojump_clock: MockClock, seed: int
) -> None:
    """Every invariant is checked after every event; at the end all must agree."""
    rng = random.Random(seed)
    observer = Observer(list(range(3 + 2 * (seed % 2))))
    setting = Setting(members=len(observer.known.disks), seed=seed, contain=True)
    async with open_world(tmp_path, Ledger, setting, observer=observer) as world:
        await world.start()
        await world.settled()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write, world, random.Random(f"{seed}/writes"))
            for _ in range(6):
                await some_fault(world, rng)
                await hand_over(world, rng)
            nursery.cancel_scope.cancel()
        world.mend()
        for i in world.others(*world.running()):
            await world.start(i)
        await world.settled(within=60)
        leader = world.leaders()[0]
        with trio.fail_after(30):
            while not await world.attempt(leader, b"last"):
                pass
        await equal(world, within=60)
        assert set(world.acked) <= set(world.hosts[leader].service.payloads)
        assert not world.failures


async def write(world: World[Ledger], rng: random.Random) -> None:
    number = 0
    while True:
        number += 1
        at = rng.choice(list(world.hosts))
        await world.attempt(at, b"%d %s" % (number, PAYLOAD[: rng.randrange(5000)]), within=0.3)
        await trio.sleep(0.02)


async def some_fault(world: World[Ledger], rng: random.Random) -> None:
    """Cut off, slow down, kill or revive somebody."""
    victim = rng.choice(list(world.hosts))
    match rng.randrange(5):
        case 0:
            world.isolate(victim)
        case 1:
            world.mend()
        case 2 if len(world.running()) > len(world.hosts) // 2 + 1:
            await world.kill(victim)
        case 3:
            for other in world.others(victim):
                pace = Pace(0.0005, 0.05 * rng.random(), rng.choice((50_000, 5_000_000)))
                world.network.set_pace(f"h{other}", f"h{victim}", pace, both=False)
        case _:
            for other in world.others(*world.running()):
                await world.start(other)
    await trio.sleep(rng.random())


async def hand_over(world: World[Ledger], rng: random.Random) -> None:
    """Ask for a transfer, to whomever it may be; sometimes a member dies in the middle of it."""
    target, asked = rng.choice(list(world.hosts)), rng.choice(world.running())
    after = rng.choice((0.002, 0.01, 0.05, 1.0))
    with trio.move_on_after(after) as scope:
        try:
            await world.hosts[asked].running.control(f"transfer {target} even-if-behind")
        except (RefusedError, NoLeaderError, UnknownOutcomeError):
            await trio.sleep(0.05)
    if scope.cancelled_caught and after < 1 and len(world.running()) == len(world.hosts):
        await world.kill(rng.choice(list(world.hosts)))


def test_the_order_of_logs_is_that_of_ballots() -> None:
    assert LogEnd(2, 0) > LogEnd(1, 1000) > LogEnd(1, 999)
