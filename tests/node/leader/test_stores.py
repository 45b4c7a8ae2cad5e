"""Which store of a member counts: what one store has reported is not held by another one."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import attrs
import pytest

from quorate.node import State
from quorate.node.leader.catchup_sender import CatchupSender
from quorate.node.leader.leadership import Leadership
from quorate.node.protocol.quorum import Quorums, VoterId
from quorate.transport import AppendFlags, Vote, VoteReason
from tests.support.script import Script, scripted

if TYPE_CHECKING:
    from quorate.node.leader.follower_progress import Follower

MINE, THERE, LOST = 5, 2001, 7
"""Our store, that which the link of member 1 names, and one that no link names."""


def follower(s: Script, member: int) -> Follower:
    """What the member, which leads, knows of a peer."""
    return cast("Leadership", s.member.state.role).followers[member]


NAMED = Quorums.of([VoterId(0, MINE), VoterId(1, THERE), VoterId(2, LOST)])
"""Member 2 speaks with another store than the one that has the vote."""


def use_named(s: Script) -> None:
    """Have the member decide by `NAMED`."""
    state = s.member.state
    (voters,) = NAMED.sets
    state.membership = attrs.evolve(state.membership, voters=tuple(sorted(voters)))
    state.use_voters(NAMED)


@scripted()
async def test_a_member_counts_as_the_voter_that_its_link_names(s: Script) -> None:
    state = s.member.state
    assert state.names == {0: VoterId(0), 1: VoterId(1), 2: VoterId(2)}
    state.use_store(0, MINE)
    use_named(s)
    assert state.names == {0: VoterId(0, MINE), 1: VoterId(1, THERE), 2: VoterId(2)}
    assert state.quorums.agree({state.own, state.names[1]})
    assert not state.quorums.agree({state.own, state.names[2]})
    assert state.use_store(2, LOST)
    assert not state.use_store(2, LOST)
    assert state.quorums.agree({state.own, state.names[2]})


@scripted()
async def test_stores_are_named_all_or_none(s: Script) -> None:
    with pytest.raises(AssertionError, match="some stores are named, and some are not"):
        s.member.state.use_voters(Quorums.of([VoterId(0)], [VoterId(0, MINE)]))


@scripted()
async def test_a_vote_counts_for_the_store_that_gave_it(s: Script) -> None:
    s.member.state.use_store(0, MINE)
    use_named(s)
    term = await s.stand()
    s.peers[2].vote(term)
    await s.enters(State.CANVASS)
    assert s.path[-1] is State.CANVASS
    assert "lost" in s.transitions[-1].reason
    term = await s.stand()
    s.peers[1].vote(term)
    await s.enters(State.LEADER_LOG_REPLICATION)


@scripted()
async def test_a_repeated_vote_is_given_to_the_same_store_only(s: Script) -> None:
    candidate = s.peers[1]
    candidate.canvass()
    candidate.request_vote(1)
    assert (await candidate.hears(Vote)).vote
    candidate.request_vote(1)
    assert (await candidate.hears(Vote)).vote
    s.member.state.use_store(1, LOST)
    candidate.request_vote(1)
    vote = await candidate.hears(Vote)
    assert (vote.vote, vote.reason) == (False, VoteReason.ALREADY_VOTED)
    s.member.state.use_store(1, THERE)
    candidate.request_vote(1)
    assert (await candidate.hears(Vote)).vote


@scripted()
async def test_a_pre_vote_counts_for_the_store_that_gave_it(s: Script) -> None:
    s.member.state.use_store(0, MINE)
    use_named(s)
    s.peers[1].supports = VoteReason.LEADER_ALIVE
    await s.nominate()
    await s.enters(State.CANVASS)
    assert "no quorum would vote for us" in s.transitions[-1].reason
    assert s.store.node_state.candidate_term == -1


@scripted()
async def test_what_a_follower_has_reported_is_forgotten_with_its_store(s: Script) -> None:
    term = await s.lead()
    peer, known = s.peers[1], follower(s, 1)
    await s.until(lambda: s.store.append_position > 0)
    peer.append_position(term, s.store.append_position, AppendFlags.READY, confirm=1)
    await s.until(lambda: known.confirm_id == 1)
    assert known.match == s.store.append_position
    s.member.on_hello(1, peer.hello(instance=LOST))
    assert (known.match, known.confirm_id, known.ready, known.live) == (0, 0, False, False)
    assert known.heard_at < 0
    # the same store again, on a new link, has lost nothing
    peer.append_position(term, s.store.append_position, AppendFlags.READY, confirm=1)
    await s.until(lambda: known.confirm_id == 1)
    s.member.on_hello(1, peer.hello(instance=LOST))
    assert known.ready
    assert known.confirm_id == 1


@scripted()
async def test_the_catch_up_of_a_store_ends_when_the_member_speaks_with_another(
    s: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    await s.lead()
    stopped = list[int]()

    def stop(sender: CatchupSender, member: int) -> None:
        del sender
        stopped.append(member)

    monkeypatch.setattr(CatchupSender, "stop", stop)
    s.member.on_hello(1, s.peers[1].hello(instance=LOST))
    s.member.on_hello(1, s.peers[1].hello(instance=LOST))
    assert stopped == [1]


@scripted()
async def test_a_position_counts_for_the_store_that_reported_it(s: Script) -> None:
    term = await s.lead()
    await s.until(lambda: s.store.append_position > 0)
    end = s.store.append_position
    assert s.member.applier.commit_position == 0
    s.member.state.use_store(0, MINE)
    use_named(s)
    s.peers[2].append_position(term, end, AppendFlags.READY)
    await s.until(lambda: follower(s, 2).match == end)
    assert s.member.applier.commit_position == 0
    # no new hello is needed for those whose stores are named
    s.peers[1].append_position(term, end, AppendFlags.READY)
    await s.until(lambda: s.member.applier.commit_position == end)
