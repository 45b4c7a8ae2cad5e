"""Power cuts: whatever left a member before its power went is still true when it comes back.

A script takes the member through votes, a term of its own, or the joining of a leader, and its
power is cut at one of its writes: just before, or when the write is durable and nobody was told.
Then it starts again on its disk, and its disk must hold what its messages had promised.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio

from quorate.node import State
from quorate.storage import NodeState
from quorate.transport import (
    AppendFlags,
    AppendPosition,
    CanvassPosition,
    CatchupPosition,
    LogBatch,
    LogSubscribe,
    Message,
    NewLeadershipTerm,
    RequestVote,
    StopCatchup,
    TermSpan,
    Vote,
    VoteReason,
)
from tests.support.peers import ME, batch, log
from tests.support.script import Script, scripted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


# --- what a message promises ----------------------------------------------------------------------


def is_kept(s: Script, message: Message) -> bool:
    """Whether the member's disk holds what it had said; for one that never truncated."""
    state, end = s.store.node_state, s.store.append_position
    match message:
        case Vote(vote=True, candidate_term_id=term, candidate_member_id=candidate):
            return voted(state, term, candidate)
        case Vote(voter_candidate_term_id=term):
            return state.candidate_term >= term
        case RequestVote(candidate_term_id=term):
            return voted(state, term, ME)
        case NewLeadershipTerm(leadership_term_id=term):
            return voted(state, term, ME)
        case AppendPosition(leadership_term_id=term, log_position=position, flags=flags):
            recorded = AppendFlags.READY not in flags or term in [row.term for row in s.store.terms]
            return state.candidate_term >= term and end >= position and recorded
        case CanvassPosition(log_leadership_term_id=term, log_position=position):
            return (s.store.log_term, end) >= (term, position)
        case _:
            return True


def voted(state: NodeState, term: int, candidate: int) -> bool:
    return state == NodeState(term, candidate) or state.candidate_term > term


# --- what it does meanwhile -----------------------------------------------------------------------


async def votes(s: Script) -> None:
    """Vote twice, and refuse a candidate that is behind."""
    s.peers[1].request_vote(3, 0, 960)
    await s.peers[1].hears(Vote)
    s.peers[2].request_vote(4, -1, 0)
    await s.peers[2].hears(Vote)
    s.peers[2].request_vote(5, 0, 960)
    await s.peers[2].hears(Vote)


async def leads(s: Script) -> None:
    """Lose a ballot, win the next one, and lead."""
    await s.stand()
    await s.enters(State.CANVASS)
    term = await s.win()
    for peer in s.peers.values():
        peer.append_position(term, s.store.append_position, AppendFlags.READY)
    await s.enters(State.CLOSED)
    await s.until(lambda: s.store.append_position > 192)
    await s.peers[1].hears(NewLeadershipTerm)


async def joins(s: Script) -> None:
    """Replicate the rest of a term, catch up, and record the live log."""
    leader, spans = s.peers[1], (TermSpan(0, 0, 288), TermSpan(1, 288, -1))
    leader.lead(1, 0, *spans, position=480, commit=288)
    await (await leader.replay()).send(1, batch(0, 192, 288))
    await leader.hears(CanvassPosition, lambda m: m.log_position == 288)
    leader.lead(1, 0, *spans, position=480, commit=288)
    await leader.hears(CatchupPosition)
    stream = await leader.open_catchup(288)
    await leader.hears(LogSubscribe)
    leader.join(1, 480)
    await stream.send(LogBatch(1, 0, batch(1, 288, 384)))
    await leader.hears(AppendPosition, lambda m: m.log_position == 384)
    await stream.send(LogBatch(1, 0, batch(1, 384, 480)))
    await leader.hears(AppendPosition, lambda m: m.log_position == 480)
    leader.say(StopCatchup(1, ME))
    await leader.hears(AppendPosition, lambda m: AppendFlags.READY in m.flags)
    leader.live(batch(1, 480, 576))
    await leader.hears(AppendPosition, lambda m: m.log_position == 576)


async def follows(s: Script) -> None:
    """Follow a leader at once, whose first batch comes together with its answer."""
    leader = s.peers[1]
    leader.lead(1, 0, TermSpan(0, 0, 192), TermSpan(1, 192, -1))
    await leader.hears(LogSubscribe)
    leader.join(1, 192)
    leader.live(batch(1, 192, 288))
    await leader.hears(AppendPosition, lambda m: m.log_position == 288)


SCRIPTS: dict[str, tuple[Callable[[Script], Awaitable[None]], int]] = {
    "votes": (votes, 3),
    "leads": (leads, 4),
    "joins": (joins, 6),
    "follows": (follows, 2),
}
"""What the member does, and how many writes that takes."""

CUTS = [
    pytest.param(name, number, before, id=f"{name}-{'before' if before else 'after'}-{number}")
    for name, (_, count) in SCRIPTS.items()
    for number in range(count)
    for before in (True, False)
]


@scripted(batches=log((0, 96), (0, 192), commit=96))
@pytest.mark.parametrize("name", SCRIPTS)
async def test_the_scripts_write_as_often_as_they_are_cut(s: Script, name: str) -> None:
    body, count = SCRIPTS[name]
    await body(s)
    assert s.disk.writes == count


@scripted(batches=log((0, 96), (0, 192), commit=96))
@pytest.mark.parametrize(("name", "number", "before"), CUTS)
async def test_what_a_member_has_said_outlives_a_power_cut(
    s: Script,
    name: str,
    number: int,
    before: bool,  # noqa: FBT001 - before the write, or after it
) -> None:
    body, _ = SCRIPTS[name]
    await until_cut(s, body, number, before=before)
    said = [each.message for peer in s.peers.values() for each in peer.heard]
    await s.start()
    assert [message for message in said if not is_kept(s, message)] == []


async def until_cut(
    s: Script, body: Callable[[Script], Awaitable[None]], number: int, *, before: bool
) -> None:
    """Run a script until the member's power is cut at a write."""

    def cut(at: int) -> None:
        if at == number:
            s.pull_plug()

    if before:
        s.disk.before_write = cut
    else:
        s.disk.after_write = cut
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(body, s)
            await s.power_is_off()
            nursery.cancel_scope.cancel()


# --- the vote, in particular ----------------------------------------------------------------------


async def ask(s: Script, candidate: int) -> Vote:
    s.peers[candidate].request_vote(3)
    return await s.peers[candidate].hears(Vote)


@scripted()
async def test_a_vote_that_was_durable_binds_although_nobody_heard_of_it(s: Script) -> None:
    await until_cut(s, partial(_ask_in_vain, 1), 0, before=False)
    assert s.peers[1].messages(Vote) == []
    await s.start()
    refused = await ask(s, 2)
    assert (refused.vote, refused.reason) == (False, VoteReason.ALREADY_VOTED)
    # Nor is it given again: which store of the candidate had it is not durable.
    refused = await ask(s, 1)
    assert (refused.vote, refused.reason) == (False, VoteReason.ALREADY_VOTED)


@scripted()
async def test_a_vote_that_was_not_durable_was_never_given(s: Script) -> None:
    await until_cut(s, partial(_ask_in_vain, 1), 0, before=True)
    assert s.peers[1].messages(Vote) == []
    await s.start()
    assert (await ask(s, 2)).vote
    assert not (await ask(s, 1)).vote


async def _ask_in_vain(candidate: int, s: Script) -> None:
    await ask(s, candidate)


@scripted()
async def test_a_candidate_does_not_vote_for_another_in_the_term_that_it_stood_in(
    s: Script,
) -> None:
    term = await s.stand()
    await s.restart()
    s.peers[1].request_vote(term)
    refused = await s.peers[1].hears(Vote)
    assert (refused.vote, refused.reason) == (False, VoteReason.ALREADY_VOTED)
    assert await s.stand() == term + 1


@scripted(batches=log((0, 96), (0, 192)))
async def test_a_truncation_is_repeated_when_the_power_went_before_it_was_durable(
    s: Script,
) -> None:
    spans = (TermSpan(0, 0, 96), TermSpan(1, 96, -1))

    async def truncate(s: Script) -> None:
        s.peers[1].lead(1, 0, *spans)
        await s.enters(State.INIT)

    # the first write is the promise of the new term, the second one the truncation
    await until_cut(s, truncate, 1, before=True)
    await s.start()
    assert (s.store.append_position, s.store.node_state.candidate_term) == (192, 1)
    await truncate(s)
    assert s.store.append_position == 96
    await s.follow(1, 1, *spans, log_term=0)
