"""The worked examples of the protocol's documentation, message by message and field by field.

Where quorate says more than Aeron Cluster the messages are longer, and a comment says so. A message
that is repeated until something changes is compared once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.node import State, Transition
from quorate.simulation.ledger import open_ledgers
from quorate.simulation.machines.clock import EPOCH_MS
from quorate.transport import (
    PROTOCOL_VERSION,
    AppendFlags,
    AppendPosition,
    CanvassPosition,
    CatchupPosition,
    CommitPosition,
    LogBatch,
    LogSubscribe,
    Message,
    NewLeadershipTerm,
    ReplayRequest,
    RequestVote,
    StopCatchup,
    TermSpan,
    Vote,
    VoteReason,
)
from tests.support.peers import ME, SESSION, Peer, log, untimed
from tests.support.script import Script, open_script

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

    from quorate.simulation import Ledger, World

NONE, CATCHUP, READY = AppendFlags.NONE, AppendFlags.CATCHUP, AppendFlags.READY

A, B, C, D = 1312, 2848, 4064, 6880


def spoken(peer: Peer) -> list[Message]:
    """What a peer heard, without immediate repetitions."""
    return merged([each.message for each in peer.heard])


def merged(messages: list[Message]) -> list[Message]:
    messages = [untimed(each) for each in messages]
    pairs = zip(messages, [None, *messages], strict=False)
    return [message for message, before in pairs if message != before]


def canvass(log_term: int, position: int, term: int) -> CanvassPosition:
    return CanvassPosition(log_term, position, term, ME, PROTOCOL_VERSION)


def report(position: int, flags: AppendFlags = NONE) -> AppendPosition:
    return AppendPosition(2, position, ME, flags, 0)


# --- a member that lacks two terms and a part of the third ----------------------------------------

# the leader's log, in the batches in which the example's positions appear
LEADERS = log((0, A), (0, B), (1, C), (2, 5280), (2, 6496), (2, 6592), (2, 6656), (2, D))
TERMS = (TermSpan(0, 0, B), TermSpan(1, B, C), TermSpan(2, C, -1))


def new_term(
    log_term: int, following: tuple[int, int, int], position: int, spans: tuple[TermSpan, ...]
) -> NewLeadershipTerm:
    """What member 1, which leads the last of the spans, answers to a canvasser."""
    return NewLeadershipTerm(
        log_leadership_term_id=log_term,
        next_leadership_term_id=following[0],
        next_term_base_log_position=following[1],
        next_log_position=following[2],
        leadership_term_id=spans[-1].term,
        term_base_log_position=spans[-1].base,
        log_position=position,
        leader_recording_id=0,
        timestamp=EPOCH_MS,
        leader_member_id=1,
        log_session_id=SESSION,
        app_version=1,
        is_startup=False,
        commit_position=position,
        replication_position=position,
        terms=spans,  # the leader's whole table: Aeron tells only the next term
    )


async def test_the_example_of_two_missed_terms_and_a_catch_up(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    del autojump_clock
    async with open_script(tmp_path, batches=LEADERS[:1]) as s:
        leader, silent = s.peers[1], s.peers[2]
        assert (s.terms, s.store.append_position) == ([(0, 0, None)], A)
        await join_as_in_the_example(s, leader)
        assert spoken(leader) == [
            canvass(0, A, 0),
            # replicating term 0; Aeron tells the first position only once it has grown
            report(A),
            report(B),
            canvass(0, B, 2),
            # replicating term 1
            report(B),
            report(C),
            canvass(1, C, 2),
            # applied; the rest of term 2 is to be caught up
            report(C),
            CatchupPosition(2, C, ME, "h0:7000"),
            report(C),
            report(C, CATCHUP),
            # so near the end the live log is joined at once, by a message of its own
            LogSubscribe(2, SESSION, ME),
            report(5280, CATCHUP),
            report(D, CATCHUP),
            # Aeron: flags 0
            report(D, READY),
        ]
        assert spoken(silent) == [canvass(0, A, 0), canvass(0, B, 2), canvass(1, C, 2)]
        assert [state.name for state in s.path] == [
            "CANVASS",
            "FOLLOWER_LOG_REPLICATION",
            "CANVASS",
            "FOLLOWER_LOG_REPLICATION",
            "CANVASS",
            "FOLLOWER_REPLAY",
            "FOLLOWER_CATCHUP_INIT",
            "FOLLOWER_CATCHUP_AWAIT",
            "FOLLOWER_CATCHUP",
            "FOLLOWER_LOG_INIT",
            "FOLLOWER_READY",
            "CLOSED",
        ]
        assert s.terms == [(0, 0, B), (1, B, C), (2, C, None)]
        assert s.store.node_state.candidate_term == 2
        assert await s.store.read(0) == LEADERS


async def join_as_in_the_example(s: Script, leader: Peer) -> None:
    """Say what the leader says in the example."""
    await leader.hears(CanvassPosition)
    leader.say(new_term(0, (1, B, C), 6496, TERMS))
    replay = await leader.replay()
    assert replay.request == ReplayRequest(A, B)
    await replay.send(2, LEADERS[1])
    await leader.hears(CanvassPosition)
    assert s.terms == [(0, 0, B)]

    leader.say(new_term(0, (1, B, C), 6592, TERMS))
    replay = await leader.replay()
    assert replay.request == ReplayRequest(B, C)
    await replay.send(2, LEADERS[2])
    await leader.hears(CanvassPosition)
    assert s.terms == [(0, 0, B), (1, B, C)]

    leader.say(new_term(1, (2, C, -1), 6656, TERMS))
    request = await leader.hears(CatchupPosition)
    assert s.member.status().applied_position == C
    stream = await leader.open_catchup(request.log_position)
    await stream.send(LogBatch(2, 0, LEADERS[3]))
    await leader.hears(AppendPosition, lambda m: m.log_position == 5280)
    assert s.terms[-1] == (2, C, None)  # with the term's first entry, not when it is committed
    leader.say(CommitPosition(2, D, 1, 0))
    leader.join(2, D)
    for batch in LEADERS[4:]:
        await stream.send(LogBatch(2, 0, batch))
    await leader.hears(AppendPosition, lambda m: m.log_position == D)
    leader.say(StopCatchup(2, ME))
    await leader.hears(AppendPosition, lambda m: READY in m.flags)
    leader.heard = [h for h in leader.heard if not is_between(h.message)]
    assert s.state is State.CLOSED


def is_between(message: Message) -> bool:
    """Whether it reports a position that depends on how the disk grouped its writes."""
    return isinstance(message, AppendPosition) and 5280 < message.log_position < D


async def test_the_example_of_four_terms(tmp_path: Path, autojump_clock: MockClock) -> None:
    del autojump_clock
    batches = log((0, A), (0, B), (1, C), (2, 5280), (3, 6496), (3, 6592))
    spans = (TermSpan(0, 0, B), TermSpan(1, B, C), TermSpan(2, C, 5280), TermSpan(3, 5280, -1))
    rounds = [
        # log term, what follows it, the leader's position, and the batch that is missing
        (0, (1, B, C), 6496, batches[1]),
        (0, (1, B, C), 6496, batches[2]),
        (1, (2, C, 5280), 6496, batches[3]),
    ]
    async with open_script(tmp_path, batches=batches[:1]) as s:
        leader = s.peers[1]
        for log_term, following, position, missing in rounds:
            assert (await leader.hears(CanvassPosition)).log_leadership_term_id == log_term
            leader.say(new_term(log_term, following, position, spans))
            await (await leader.replay()).send(3, missing)
        assert await leader.hears(CanvassPosition) == canvass(2, 5280, 3)
        leader.say(new_term(2, (3, 5280, -1), 6592, spans))
        assert await leader.hears(CatchupPosition) == CatchupPosition(3, 5280, ME, "h0:7000")
        assert s.path.count(State.FOLLOWER_LOG_REPLICATION) == 3
        assert s.terms == [(0, 0, B), (1, B, C), (2, C, 5280)]


# --- the first election ---------------------------------------------------------------------------


def tap(world: World[Ledger]) -> list[tuple[int, int, Message]]:
    """Record every message between the members: sender, receiver, message."""
    heard: list[tuple[int, int, Message]] = []

    def listen(receiver: int) -> None:
        member = world.hosts[receiver].running
        deliver = member.on_message

        def on_message(sender: int, message: Message) -> None:
            heard.append((sender, receiver, message))
            deliver(sender, message)

        setattr(member, "on_message", on_message)  # noqa: B010 - a spy on this one member

    for receiver in world.hosts:
        listen(receiver)
    return heard


async def test_the_example_of_the_first_election(tmp_path: Path, autojump_clock: MockClock) -> None:
    del autojump_clock
    async with open_ledgers(tmp_path) as world:
        await world.start()
        heard = tap(world)
        leader = await world.settled()
        others = [i for i in world.hosts if i != leader]

        def said(sender: int, receiver: int, kind: type[Message]) -> list[Message]:
            return merged(
                [m for s, r, m in heard if (s, r) == (sender, receiver) and type(m) is kind]
            )

        for i in world.hosts:
            for j in world.hosts:
                if i != j:
                    assert said(i, j, CanvassPosition) == [
                        CanvassPosition(-1, 0, -1, i, PROTOCOL_VERSION)
                    ]
        for i in others:
            assert said(leader, i, RequestVote) == [RequestVote(-1, 0, 0, leader, PROTOCOL_VERSION)]
            vote = Vote(0, -1, 0, leader, i, True, 0, VoteReason.GRANTED)
            assert said(i, leader, Vote) == [vote]
            assert said(i, leader, AppendPosition)[:2] == [
                AppendPosition(0, 0, i, NONE, 0),
                AppendPosition(0, 0, i, READY, 0),
            ]
            first = said(leader, i, NewLeadershipTerm)[0]
            assert isinstance(first, NewLeadershipTerm)
            session, timestamp = first.log_session_id, first.timestamp
            assert first == NewLeadershipTerm(
                -1, 0, 0, -1, 0, 0, 0, 0, timestamp, leader, session, 1, True, 0, 0,
                (TermSpan(0, 0, -1),),
            )  # fmt: skip
        expect_the_usual_paths(world, leader, others)


def expect_the_usual_paths(world: World[Ledger], leader: int, others: list[int]) -> None:
    def steps(member: int) -> list[str]:
        mine: list[Transition] = [t for t in world.transitions if t.member_id == member]
        return [t.after.name for t in mine if t.after not in {State.CANVASS, State.NOMINATE}]

    assert steps(leader) == [
        "CANDIDATE_BALLOT",
        "LEADER_LOG_REPLICATION",
        "LEADER_REPLAY",
        "LEADER_INIT",
        "LEADER_READY",
        "CLOSED",
    ]
    for i in others:
        assert steps(i) == [
            "FOLLOWER_BALLOT",
            "FOLLOWER_REPLAY",
            "FOLLOWER_LOG_INIT",
            "FOLLOWER_LOG_AWAIT",
            "FOLLOWER_READY",
            "CLOSED",
        ]


async def test_the_example_of_an_election_after_a_restart(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    del autojump_clock
    async with open_script(tmp_path, batches=LEADERS[:2]) as s:
        peer = s.peers[1]
        assert await s.win() == 1
        assert await peer.hears(RequestVote) == RequestVote(0, B, 1, ME, PROTOCOL_VERSION)
        first = await peer.hears(NewLeadershipTerm)
        assert first == NewLeadershipTerm(
            log_leadership_term_id=0,
            next_leadership_term_id=1,
            next_term_base_log_position=B,
            next_log_position=-1,
            leadership_term_id=1,
            term_base_log_position=B,
            log_position=B,
            leader_recording_id=0,
            timestamp=first.timestamp,
            leader_member_id=ME,
            log_session_id=first.log_session_id,
            app_version=1,
            is_startup=True,
            commit_position=0,
            replication_position=0,
            terms=(TermSpan(0, 0, B), TermSpan(1, B, -1)),
        )
        peer.append_position(1, B)
        await s.enters(State.LEADER_READY)
        ready = await peer.hears(NewLeadershipTerm, lambda m: m.log_leadership_term_id == 1)
        # Aeron repeats its own term as the next one; here nothing follows it
        assert (ready.next_leadership_term_id, ready.next_term_base_log_position) == (-1, -1)
        assert (ready.leadership_term_id, ready.term_base_log_position) == (1, B)
        assert (ready.log_position, ready.next_log_position) == (B, -1)
        assert (ready.is_startup, ready.log_session_id) == (True, first.log_session_id)
        # known to be on a quorum, and yet not committed before the term is
        assert (ready.replication_position, ready.commit_position) == (B, 0)


# --- interim empty terms --------------------------------------------------------------------------


async def test_the_example_of_interim_empty_terms(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    # Aeron's example lets term 9 begin behind the end of term 8; here a term begins where the one
    # before it ends, so term 9 covers [0, 128) and terms 1 to 8 are empty at 0
    del autojump_clock
    spans = (*(TermSpan(t, 0, 0) for t in range(9)), TermSpan(9, 0, 128), TermSpan(10, 128, -1))
    async with open_script(tmp_path, opened=[0]) as s:
        leader = s.peers[1]
        leader.request_vote(10, 9, 128)
        assert (await leader.hears(Vote)).vote
        await s.enters(State.FOLLOWER_BALLOT)
        leader.lead(10, 9, *spans)
        await s.enters(State.CANVASS)
        for log_term in range(8):
            leader.lead(10, log_term, *spans)
            await s.enters(State.FOLLOWER_LOG_REPLICATION)
            await s.enters(State.CANVASS)
            assert await canvass_of(leader, log_term + 1) == canvass(log_term + 1, 0, 10)
        leader.lead(10, 8, *spans)
        assert (await leader.replay()).request == ReplayRequest(0, 128)
        reason = s.transitions[-1].reason
        assert reason == "member 1 leads term 10; term 9 to be replicated to 128"
        assert s.terms == [*((t, 0, 0) for t in range(9))]


async def canvass_of(peer: Peer, log_term: int) -> CanvassPosition:
    return await peer.hears(CanvassPosition, lambda m: m.log_leadership_term_id == log_term)
