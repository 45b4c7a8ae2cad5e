"""Whatever numbers a message has, the member that hears it goes on and serves."""

from __future__ import annotations

import tempfile
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args, get_origin

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from quorate.node import State
from quorate.node.protocol.untrusted import TERM_STEP
from quorate.storage import decode_header_untrusted
from quorate.storage.log import batch as batches
from quorate.transport import (
    AppendFlags,
    CanvassPosition,
    Challenge,
    ChallengeResponse,
    CommitPosition,
    FoundingStore,
    Hello,
    HelloReply,
    LogBatch,
    LogSubscribe,
    Message,
    NewLeadershipTerm,
    RequestVote,
    StaleLeader,
    TermSpan,
    Vote,
    VoteReason,
)
from quorate.transport import fields as f
from quorate.transport.wire import MESSAGE_TYPES
from tests.support.logged import events
from tests.support.peers import ME, SESSION, batch, log
from tests.support.script import Script, open_script, scripted

if TYPE_CHECKING:
    from tests.support.peers import Peer

FAR = f.MAX_TERM
GREETINGS = {Hello, HelloReply, Challenge, ChallengeResponse}
KINDS = [kind for kind in MESSAGE_TYPES.values() if kind not in GREETINGS]
LOG = log((0, 96), (1, 192), (1, 288), commit=0)
NEAR = st.sampled_from([-1, 0, 1, 2, 3, 95, 96, 192, 193, 288, 384])
SPANS = st.lists(
    st.builds(
        TermSpan,
        NEAR | st.sampled_from([TERM_STEP, FAR]),
        NEAR | st.just(f.MAX_POSITION),
        NEAR | st.just(f.MAX_POSITION),
    ),
    max_size=5,
).map(tuple)


def bounds_of(kind: object) -> tuple[int, int]:
    """Give the least and the largest integer that a field of this annotation may have."""
    integer = cast("f.Integer", get_args(kind)[1])
    least = {"q": -(1 << 63), "i": -(1 << 31)}.get(integer.format, 0)
    most = {"q": (1 << 63) - 1, "i": (1 << 31) - 1, "Q": (1 << 64) - 1}.get(integer.format, 255)
    return integer.bounds or (least, most)


def values_of(name: str, kind: object) -> st.SearchStrategy[object]:
    """Draw what a field may hold: mostly what it would, and what is at its bounds."""
    if name in {"leader_member_id", "follower_member_id", "candidate_member_id", "member_id"}:
        return st.sampled_from([0, 1, 2])
    if name == "log_session_id":
        return st.just(SESSION)
    if get_origin(kind) is Annotated:
        least, most = bounds_of(kind)
        near = NEAR.filter(lambda value: least <= value <= most)
        return near | st.sampled_from([least, least + 1, TERM_STEP % (most + 1), most - 1, most])
    if kind == tuple[TermSpan, ...]:
        return SPANS
    if kind == tuple[FoundingStore, ...]:
        return st.just((FoundingStore(1, 7),))
    if kind is bytes:
        bad = batch(1, 288, 384)
        return st.sampled_from([b"", b"transfer 99999999999999999999", bad, batch(2, 288, 384)])
    if kind is str:
        return st.sampled_from(["", "h1:99999", "h1:0", "h1:7000", "["])
    if kind is bool:
        return st.booleans()
    assert isinstance(kind, type)
    assert issubclass(kind, Enum)
    return st.sampled_from(list(kind))


def instances(cls: type[Message]) -> st.SearchStrategy[Message]:
    drawn = {field.name: values_of(field.name, field.type) for field in attrs.fields(cls)}
    return st.fixed_dictionaries(drawn).map(lambda values: cls(**values))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


MESSAGES = st.one_of([instances(kind) for kind in KINDS])


async def help_along(s: Script, peer: Peer) -> None:
    """Vote for the member, and follow it."""
    term, end, seen = -1, 0, len(peer.heard)
    while True:
        if peer.links.connected(ME):
            if term < 0:
                peer.canvass()
            for each in peer.heard[seen:]:
                match each.message:
                    case RequestVote(candidate_term_id=asked):
                        term = -1
                        peer.vote(asked)
                    case NewLeadershipTerm() as told:
                        term, end = told.leadership_term_id, told.log_position
                        peer.say(LogSubscribe(term, told.log_session_id, peer.member_id))
                        peer.append_position(term, end, AppendFlags.READY)
                    case LogBatch(batch=data):
                        end = decode_header_untrusted(data).end
                        peer.append_position(term, end, AppendFlags.READY)
                    case CommitPosition(confirm_id=number):
                        peer.append_position(term, end, AppendFlags.READY, confirm=number)
                    case CanvassPosition():
                        term = -1
                    case _:
                        pass
            seen = len(peer.heard)
        await trio.sleep(0.01)


async def serves(s: Script) -> None:
    """Wait until the member leads the peers, and takes a command."""
    async with trio.open_nursery() as nursery:
        for peer in s.peers.values():
            nursery.start_soon(help_along, s, peer)
        with trio.fail_after(60):
            while True:
                with trio.move_on_after(5) as scope:
                    await s.until(lambda: s.member.topology.is_leader)
                    await s.member.command(b"x")
                if not scope.cancelled_caught:
                    break
        nursery.cancel_scope.cancel()


async def bring_into(s: Script, state: str) -> None:
    if state == "leading":
        await s.lead()
    elif state == "following":
        await s.follow(
            1, 2, TermSpan(0, 0, 96), TermSpan(1, 96, 288), TermSpan(2, 288, -1), log_term=1
        )


@pytest.mark.parametrize("state", ["canvassing", "following", "leading"])
@settings(deadline=None, max_examples=15)
@given(messages=st.lists(st.tuples(st.sampled_from([1, 2]), MESSAGES), min_size=1, max_size=10))
def test_no_number_ends_a_member(state: str, messages: list[tuple[int, Message]]) -> None:
    async def check() -> None:
        with tempfile.TemporaryDirectory() as directory:
            async with open_script(Path(directory), batches=LOG) as s:
                await bring_into(s, state)
                for sender, message in messages:
                    if s.peers[sender].links.connected(ME):
                        s.peers[sender].say(message)
                    await trio.sleep(0.02)
                await serves(s)

    trio.run(check, clock=MockClock(autojump_threshold=0))


@scripted(batches=LOG)
async def test_a_jump_of_the_term_costs_one_row(s: Script) -> None:
    s.peers[1].say(StaleLeader(1_000_000, 1))
    await serves(s)
    assert [term for term, _, _ in s.terms][:2] == [0, 1]
    assert 1_000_000 < s.terms[2][0] < 1_000_100
    assert len(s.terms) == 3


@pytest.mark.parametrize(
    "forged",
    [
        StaleLeader(FAR, 1),
        CommitPosition(FAR, 0, 1, 0),
        CanvassPosition(FAR, 0, FAR, 1),
        RequestVote(1, 288, FAR, 1),
        RequestVote(FAR, 288, FAR, 1),
        Vote(3, 1, 288, ME, 1, True, FAR, VoteReason.TERM),
    ],
    ids=repr,
)
async def test_a_term_far_above_all_others_is_not_promised(
    forged: Message, tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    del autojump_clock
    async with open_script(tmp_path, batches=LOG) as s:
        s.peers[1].say(forged)
        await serves(s)
        assert s.store.node_state.candidate_term < 1000
        assert s.terms[2][0] < 1000
    (refused,) = events(caplog, "term_refused")[:1]
    assert (refused["sender"], refused["type"]) == (1, type(forged).__name__)


@scripted(batches=LOG)
async def test_a_leader_that_is_really_so_far_ahead_is_followed_in_the_end(s: Script) -> None:
    term = 20 * TERM_STEP
    spans = TermSpan(0, 0, 96), TermSpan(1, 96, 288), TermSpan(term, 288, -1)
    with trio.fail_after(5):
        while s.path[-1] is not State.FOLLOWER_LOG_AWAIT:
            s.peers[1].lead(term, 1, *spans)
            await trio.sleep(0.05)
    s.peers[1].join(term, 288)
    await s.enters(State.CLOSED)
    assert s.terms[2:] == [(term, 288, None)]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"term_base_log_position": 96}, "its term begins at 96, inside of our log"),
        ({"term_base_log_position": 384, "next_log_position": 384}, "2 is to be replicated"),
        (
            {
                "term_base_log_position": 384,
                "next_leadership_term_id": 1,
                "next_log_position": 384,
                "leadership_term_id": 4,
            },
            "term 1 is to be replicated between 1 and 4",
        ),
        (
            {
                "term_base_log_position": 384,
                "next_term_base_log_position": 96,
                "next_log_position": 384,
                "leadership_term_id": 4,
            },
            "the next term has 96 to 384, our log ends at 288",
        ),
        ({"terms": (TermSpan(0, 0, 96), TermSpan(1, 96, 200), TermSpan(2, 200, -1))}, "a batch"),
    ],
)
async def test_a_leader_that_contradicts_itself_or_our_log_is_not_followed(
    changed: dict[str, object],
    words: str,
    tmp_path: Path,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    del autojump_clock
    spans = TermSpan(0, 0, 96), TermSpan(1, 96, 288), TermSpan(2, 288, -1)
    async with open_script(tmp_path, batches=LOG) as s:
        peer = s.peers[1]
        peer.say(attrs.evolve(peer.new_term(2, 1, *spans), **changed))  # type: ignore[arg-type]
        await trio.sleep(0.01)
        assert [each["sender"] for each in events(caplog, "leader_refused")][:1] == [1]
        assert words in caplog.text
        assert s.store.node_state.candidate_term == 1
        await s.follow(2, 3, *spans[:2], TermSpan(3, 288, -1), log_term=1)


@scripted(batches=LOG)
@pytest.mark.parametrize(
    "bad",
    [
        batch(1, 288, 384),  # of an older term
        batch(2, 288, 384, commit=1 << 40),
        batch(1 << 62, 288, 384),
    ],
    ids=["older", "commits what there is not", "newer"],
)
async def test_a_batch_that_no_leader_of_the_term_writes_is_not_recorded(
    s: Script, bad: bytes
) -> None:
    await bring_into(s, "following")
    s.peers[1].say(LogBatch(2, 0, bad))
    await s.enters(State.INIT)
    assert s.store.append_position == 288


def test_both_rooms_have_the_same_bounds() -> None:
    assert batches.MAX_NUMBER == f.MAX_TERM == f.MAX_POSITION
    assert batches.MAX_TIMESTAMP_MS == f.MAX_TIMESTAMP_MS
