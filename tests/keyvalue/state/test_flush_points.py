"""When a member moves its memtable to the disk is its own affair: nothing that it says shows it.

Members are fed the same log, with transactions that come near the work that one may cost, and flush
at different places. Their replies are equal, their tables, and what each transaction had left to
spend: a member that charged by what it has in memory would refuse what another one does.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias
from unittest import mock

import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from quorate.keyvalue import service as service_module
from quorate.keyvalue.protocol.payload import RESP3, TRANSACTION
from tests.support.service_world import Fed, encode, open_service, running

WORK = 100_000
"""What a request may cost here: so much that a transaction of some twenty commands meets it."""

KEYS = ["", "a", "b", "c", "d", "key" * 300]
key = st.sampled_from(KEYS)
value = st.sampled_from(["1", "41", "text", "x" * 5000])

line = st.one_of(
    st.tuples(st.just("SET"), key, value),
    st.tuples(st.just("SET"), key, value, st.just("PX"), st.sampled_from(["1", "50", "1000"])),
    st.tuples(st.just("SET"), key, value, st.just("NX"), st.just("GET")),
    st.tuples(st.just("GET"), key),
    st.tuples(st.just("MGET"), key, key, key),
    st.tuples(st.just("MSETNX"), key, value, key, value),
    st.tuples(st.just("DEL"), key, key),
    st.tuples(st.just("INCR"), key),
    st.tuples(st.just("APPEND"), key, value),
    st.tuples(st.just("STRLEN"), key),
    st.tuples(st.just("PEXPIRE"), key, st.sampled_from(["0", "1", "50"])),
    st.tuples(st.just("PERSIST"), key),
    st.tuples(st.just("RENAME"), key, key),
    st.tuples(st.just("COPY"), key, key, st.just("REPLACE")),
    st.tuples(st.just("EXISTS"), key, key),
    st.tuples(st.just("TYPE"), key),
    st.tuples(st.just("PTTL"), key),
    st.sampled_from([("DBSIZE",), ("RANDOMKEY",), ("KEYS", "*"), ("SCAN", "0"), ("FLUSHALL",)]),
)
entry = st.tuples(
    st.lists(line, min_size=1, max_size=3) | st.lists(line, min_size=15, max_size=40),
    st.sampled_from([0, TRANSACTION, TRANSACTION | RESP3]),
    st.sampled_from([0, 1, 60]),  # milliseconds that pass before
    st.tuples(st.booleans(), st.booleans()),  # which member flushes behind it
)


Entry: TypeAlias = tuple[Sequence[tuple[str, ...]], int, int, tuple[bool, bool]]


@mock.patch.object(service_module, "MAX_WORK", WORK)
async def feed(directory: Path, entries: Sequence[Entry]) -> int:
    """Feed all members with a log; return how many entries left nothing to spend."""
    exhausted = 0
    async with (
        running(open_service(directory / "never")) as never,
        running(open_service(directory / "one")) as one,
        running(open_service(directory / "other")) as other,
    ):
        members = (never, one, other)
        for lines, flags, passes, flushes in entries:
            for member in members:
                member.now += passes
            replies = {member.apply(*lines, flags=flags) for member in members}
            assert len(replies) == 1
            assert len({left(member) for member in members}) == 1
            exhausted += left(never) <= 0
            if flushes[0]:
                await one.service.flush()
            if flushes[1]:
                await other.service.flush()
        assert len({held(member) for member in members}) == 1
    return exhausted


def left(member: Fed) -> int:
    return member.service._store.left  # pyright: ignore[reportPrivateUsage]


def held(member: Fed) -> bytes:
    """Everything that there is: keys, values, expiries and revisions."""
    questions = [("WATCH", *KEYS), ("MGET", *KEYS), *(("PTTL", key) for key in KEYS)]
    return member.service.query(encode(*questions, "DBSIZE", "KEYS *"), 0)


@settings(max_examples=25)
@given(st.lists(entry, max_size=12))
def test_flush_points_show_in_nothing(entries: list[Entry]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        clock = trio.testing.MockClock(autojump_threshold=0)
        trio.run(feed, Path(directory), entries, clock=clock)


async def test_transactions_here_do_meet_the_end_of_their_work(tmp_path: Path) -> None:
    large = [("SET", "a", "x" * 5000), *[("APPEND", "a", "x" * 5000)] * 40]
    assert await feed(tmp_path, [(large, TRANSACTION, 0, (True, False))]) == 1
