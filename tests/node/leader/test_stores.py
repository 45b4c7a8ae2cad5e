"""Which store of a member counts: what one store has reported is not held by another one."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from quorate.node.leader.leadership import Leadership
from quorate.node.protocol.quorum import Quorums, VoterId
from quorate.transport import AppendFlags
from tests.support.script import Script, scripted

if TYPE_CHECKING:
    from quorate.node.leader.follower_progress import Follower

THERE, LOST = 2001, 7
"""Stores of member 1: the one that its scripted link names, and another one."""


def follower(s: Script, member: int) -> Follower:
    """What the member, which leads, knows of a peer."""
    return cast("Leadership", s.member.state.role).followers[member]


@scripted()
async def test_a_member_counts_as_the_voter_that_its_link_names(s: Script) -> None:
    state = s.member.state
    assert state.instances == {0: 0, 1: THERE, 2: 2002}
    assert state.voter(1) == VoterId(1)  # the first configuration names no stores
    state.use_voters(Quorums.of([VoterId(0), VoterId(1, THERE), VoterId(2, LOST)]))
    assert state.voter(1) == VoterId(1, THERE)
    assert state.voter(2) not in state.quorums.voters
    # the votes of 1 and 2 were asked for by name; only that of 1 is worth anything
    assert state.quorums.agree({state.own, state.voter(1)})
    assert not state.quorums.agree({state.own, state.voter(2)})


@scripted()
async def test_what_a_follower_has_reported_is_forgotten_with_its_store(s: Script) -> None:
    term = await s.lead()
    peer, known = s.peers[1], follower(s, 1)
    await s.until(lambda: known.ready and known.heard_at > 0)
    peer.append_position(term, s.store.append_position, AppendFlags.READY, confirm=1)
    await s.until(lambda: known.match == s.store.append_position)
    role, before = s.member.state.role, known.pulse
    s.member.on_hello(1, peer.hello(instance=LOST))
    assert (known.match, known.confirm_id, known.ready, known.live) == (0, 0, False, False)
    assert known.pulse is not before
    assert known.heard_at < 0
    assert s.member.state.role is role
    # the same store again, on a new link, has lost nothing
    peer.append_position(term, s.store.append_position, AppendFlags.READY)
    await s.until(lambda: known.ready)
    s.member.on_hello(1, peer.hello(instance=LOST))
    assert known.ready


@scripted()
async def test_another_store_does_not_help_to_commit_with_what_the_first_one_had(
    s: Script,
) -> None:
    term = await s.lead()
    await s.until(lambda: s.store.append_position > 0)
    end = s.store.append_position
    assert s.member.applier.commit_position == 0
    s.member.state.use_voters(Quorums.of([VoterId(0), VoterId(1, THERE)]))
    s.member.on_hello(1, s.peers[1].hello(instance=LOST))
    s.peers[1].append_position(term, end, AppendFlags.READY)
    await s.until(lambda: follower(s, 1).match == end)
    assert s.member.applier.commit_position == 0
    s.member.on_hello(1, s.peers[1].hello(instance=THERE))
    s.peers[1].append_position(term, end, AppendFlags.READY)
    await s.until(lambda: s.member.applier.commit_position == end)
