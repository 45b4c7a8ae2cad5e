"""The entry that opens a term says why there was an election, and how long its winner took."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import attrs
import pytest
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from quorate.errors import WireError
from quorate.node import State
from quorate.node.leader.term_event import (
    MAX_EVENT_BYTES,
    MAX_REASON_CHARACTERS,
    ForcedQuorum,
    TermEvent,
    decode_term_event_untrusted,
    encode_term_event,
)
from quorate.simulation.ledger import open_ledgers
from quorate.storage import EntryKind, decode_entries_untrusted
from tests.support.script import Script, scripted

if TYPE_CHECKING:
    from pathlib import Path

    from quorate.node.member import Member

EVENT = TermEvent(2, 7, 4096, 1, "leader heartbeat timeout", 312, 2)


@scripted()
async def test_an_attempt_that_failed_is_part_of_the_election(s: Script) -> None:
    leader = await s.follow(1, 0)
    leader.commit(0)
    begun = await s.enters(State.INIT)
    assert begun.reason == "leader heartbeat timeout"
    await s.win()
    assert (await s.enters(State.INIT)).reason == "inactive follower quorum"
    await s.lead()
    opened = s.transitions[-1].at
    await s.until(lambda: s.store.append_position > 0)
    (event,) = events(s.member)
    assert event.reason == "leader heartbeat timeout"
    assert event.election_ms / 1000 == pytest.approx(opened - begun.at, abs=0.001)


def events(member: Member) -> list[TermEvent]:
    """What the entries of a member's log say that open its terms."""
    return [
        decode_term_event_untrusted(entry.payload)
        for batch in member.store.scan(0)
        for entry in decode_entries_untrusted(batch)
        if entry.kind is EntryKind.NEW_LEADERSHIP_TERM
    ]


async def test_every_log_says_why_a_term_began_and_how_long_the_election_took(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        first = await world.settled()
        await world.command(first, b"a")
        (opening,) = events(world.hosts[first].running)
        assert (opening.leader_member_id, opening.reason) == (first, "node started")
        await world.kill(first)
        killed = trio.current_time()
        second = await world.settled()
        waited = trio.current_time() - killed
        await world.command(second, b"b")
        third = next(at for at in world.hosts if at not in {first, second})
        found = events(world.hosts[second].running)
        assert events(world.hosts[third].running) == found
        last = found[-1]
        assert (last.leader_member_id, last.reason) == (second, "log disconnected from leader")
        assert last.ready_members == 2
        assert 0 < last.election_ms / 1000 <= waited


def test_what_can_not_be_printed_is_marked_in_the_longest_reason_too() -> None:
    longest = attrs.evolve(EVENT, reason="\ud800" * MAX_REASON_CHARACTERS)
    payload = encode_term_event(longest)
    assert len(payload) <= MAX_EVENT_BYTES
    assert decode_term_event_untrusted(payload).reason == "\ufffd" * MAX_REASON_CHARACTERS
    shown = decode_term_event_untrusted(encode_term_event(attrs.evolve(EVENT, reason="a\x1b[2Jb")))
    assert shown.reason == "a\ufffd[2Jb"


@given(st.integers(0, 2**31 - 1), st.integers(0, 2**53), st.booleans())
def test_what_was_encoded_comes_back(leader: int, election_ms: int, forced: bool) -> None:  # noqa: FBT001
    event = attrs.evolve(
        EVENT,
        leader_member_id=leader,
        election_ms=election_ms,
        forced=ForcedQuorum(5, "00ff") if forced else None,
    )
    assert decode_term_event_untrusted(encode_term_event(event)) == event


@pytest.mark.parametrize(
    "change",
    [
        {"reason": "x" * (MAX_REASON_CHARACTERS + 1)},
        {"reason": "x" * MAX_EVENT_BYTES},
        {"election_ms": -1},
        {"election_ms": 2**60},
        {"election_ms": float("inf")},
        {"leader_member_id": "nobody"},
        {"ready_members": None},
        {"forced": 5},
    ],
)
def test_an_entry_that_makes_no_sense_is_refused(change: dict[str, object]) -> None:
    plain = attrs.asdict(EVENT) | change
    with pytest.raises(WireError):
        decode_term_event_untrusted(json.dumps(plain).encode())


@given(st.binary(max_size=200))
def test_any_other_bytes_are_refused(payload: bytes) -> None:
    with pytest.raises(WireError):
        decode_term_event_untrusted(payload)


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(WireError):
        decode_term_event_untrusted(b"[" * MAX_EVENT_BYTES)
