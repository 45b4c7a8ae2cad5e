"""A service that applies many SETs at one go is one that applies them one by one, to the byte."""

import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from quorate.keyvalue.native.plain import NATIVE
from quorate.keyvalue.protocol import resp
from quorate.keyvalue.state import service as service_module
from quorate.keyvalue.state.service import (
    AT_ONCE_BYTES,
    IN_PARTS,
    RESP3,
    TRANSACTION,
    KeyValueService,
)
from quorate.node.requests.request import Request, RequestKind
from quorate.node.state_machine import applier as applier_module
from quorate.node.state_machine.applier import Applier, PendingBatch
from quorate.storage import BatchHeader, Entry, EntryKind, encode_batch
from tests.support.service_world import START_MS, encode, open_service, running

pytestmark = pytest.mark.skipif(not NATIVE, reason="keyvalue/native/plain.c was not compiled")

COMMAND = EntryKind.COMMAND
BATCH_BYTES = 1 << 20
SESSION = 1
"""What the first entry of all opens."""

KEYS = [b"", b"a", b"b", b"\xff\0", b"k" * 479, b"k" * 480, b"key" * 300]
key = st.sampled_from(KEYS)
value = st.one_of(
    st.sampled_from([b"", b"1", b"41", b"x" * 511, b"\r\n$1\r\n", b"long" * 5000]),
    st.binary(max_size=20),
)
spelling = st.sampled_from([b"SET", b"set", b"Set", b"sEt"])
plain = st.one_of(
    st.tuples(spelling, key, value),
    st.tuples(spelling, key, value),
    st.tuples(st.sampled_from([b"MSET", b"mset"]), key, value, key, value),
)
other = st.one_of(
    st.tuples(spelling, key, value, st.sampled_from([b"NX", b"XX", b"GET", b"KEEPTTL", b"no"])),
    st.tuples(spelling, key, value, st.just(b"PX"), st.sampled_from([b"1", b"50", b"1000", b"0"])),
    st.tuples(spelling, key, value, st.just(b"EX"), st.sampled_from([b"1", b"100"])),
    st.tuples(st.just(b"DEL"), key, key),
    st.tuples(st.just(b"INCR"), key),
    st.tuples(st.just(b"APPEND"), key, value),
    st.tuples(st.just(b"GET"), key),
    st.tuples(st.just(b"MSET"), key, value, key),
    st.tuples(st.just(b"MSETNX"), key, value, key, value),
    st.tuples(st.just(b"PEXPIRE"), key, st.sampled_from([b"0", b"1", b"50"])),
    st.tuples(st.just(b"PERSIST"), key),
    st.tuples(st.just(b"RENAME"), key, key),
    st.sampled_from([(b"FLUSHALL",), (b"DBSIZE",), (b"SET", b"a"), (b"SETS", b"a", b"1"), (b"",)]),
)
pipeline = st.one_of(
    st.lists(plain, min_size=1, max_size=4),
    st.lists(plain | other, min_size=1, max_size=4),
).map(lambda lines: encode(*lines))
damaged = st.one_of(
    st.tuples(pipeline, st.integers(1, 12)).map(lambda drawn: drawn[0][: -drawn[1]]),
    st.tuples(
        pipeline,
        st.sampled_from([b"*0\r\n", b"*", b"\r\n", b"SET a 1\r\n", b":1\r\n", b"*1\r\n:1\r\n"]),
    ).map(b"".join),
    st.sampled_from(
        [
            b"",
            b"*0\r\n",
            b"*03\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\n1\r\n",
            b"*3\r\n+SET\r\n$1\r\na\r\n$1\r\n1\r\n",
            b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n:1\r\n",
            b"*3\r\n$3\r\nSET\r\n$01\r\na\r\n$1\r\n1\r\n",
            b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$-1\r\n",
        ]
    ),
)
simple = st.builds(Entry, st.just(COMMAND), plain.map(encode))
entry = st.one_of(
    simple,
    simple,
    st.builds(
        Entry,
        st.sampled_from([COMMAND] * 5 + [EntryKind.TIMER]),
        pipeline | damaged,
        st.sampled_from([0, 0, RESP3, TRANSACTION, TRANSACTION | RESP3, IN_PARTS]),
        st.sampled_from([0, 0, 0, SESSION, 77]),
        st.integers(0, 5),
    ),
)
batch = st.tuples(
    st.lists(entry, max_size=8),
    st.sampled_from([0, 1, 60, 2000]),  # milliseconds that pass before
    st.booleans(),  # whether there is a flush behind it
)


@attrs.define
class Log:
    """A service behind the part of a member that feeds it."""

    service: KeyValueService
    at_once: bool
    whole: bool = False
    """Whether batches come as bytes, as to a follower."""
    now: int = START_MS
    calls: int = 0
    applier: Applier = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        store: Any = mock.Mock(last_commit_position=0)
        self.applier = Applier(store, self.service)
        if not self.at_once:
            self.applier._apply_many = applier_module._none_at_once  # pyright: ignore[reportPrivateUsage]

    def feed(self, entries: list[Entry]) -> list[bytes]:
        """Commit a batch and return the replies."""
        replies: list[bytes] = []

        def done(reply: object) -> None:
            assert isinstance(reply, bytes)
            replies.append(reply)

        requests = [Request(RequestKind.COMMAND, one.payload, one.flags, done) for one in entries]
        position = self.applier.applied_position
        header = BatchHeader(1, position, BATCH_BYTES, len(entries), self.now, position)
        if self.whole:
            self.applier.offer(PendingBatch(header, batch_of(entries), [], requests))
        else:
            self.applier.offer(PendingBatch(header, None, entries, requests))
        self.applier.commit(header.end)
        assert self.applier.applied_position == header.end
        return replies


def batch_of(entries: list[Entry]) -> bytes:
    return encode_batch(entries, term=1, position=0, timestamp_ms=0, commit_position=0)


def held(service: KeyValueService) -> dict[str, object]:
    """Everything that a service holds, but for where."""
    tables, store = service._tables, service._store  # pyright: ignore[reportPrivateUsage]
    layer, newest = tables._layer, dict(tables.newest)  # pyright: ignore[reportPrivateUsage]
    changes = tables.deadlines._changes  # pyright: ignore[reportPrivateUsage]
    return {
        "fresh": list(layer.fresh),
        "present": layer.present,
        "memtable": tables.memtable_bytes,
        "newest": newest,
        "order": list(newest),
        "deadlines": list(tables.deadlines.by_key.items()),
        "changes": list(changes.items()),
        "next": service.next_deadline_ms(),
        "time": (store.now, store.revision),
        "count": len(tables),
        "notes": dict(tables.notes.rows),
        "records": tables.scan(None, 1000),
        "pages": tables.page(b"", 3),
    }


async def compare(directory: Path, batches: list[tuple[list[Entry], int, bool]]) -> None:
    async with (
        running(open_service(directory / "many")) as many,
        running(open_service(directory / "whole")) as whole,
        running(open_service(directory / "single")) as single,
    ):
        first = Log(many.service, at_once=True)
        others = [
            Log(whole.service, at_once=True, whole=True),
            Log(single.service, at_once=False, whole=True),
        ]
        opening = Entry(COMMAND, encode("QUORATE.SESSION OPEN"))
        for entries, passes, flushes in [([opening], 0, False), *batches]:
            first.now += passes
            replies, state = first.feed(entries), held(many.service)
            if flushes:
                await many.service.flush()
            for log in others:
                log.now += passes
                assert log.feed(entries) == replies
                assert held(log.service) == state
                if flushes:
                    await log.service.flush()
                    assert held(log.service) == held(many.service)


def run_compare(batches: list[tuple[list[Entry], int, bool]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        clock = trio.testing.MockClock(autojump_threshold=0)
        trio.run(compare, Path(directory), batches, clock=clock)


@settings(max_examples=60)
@given(st.lists(batch, max_size=8))
def test_services_hold_the_same_however_they_are_fed(
    batches: list[tuple[list[Entry], int, bool]],
) -> None:
    run_compare(batches)


timed = st.builds(
    Entry,
    st.just(COMMAND),
    st.lists(
        st.tuples(st.just(b"SET"), key, value, st.just(b"PX"), st.sampled_from([b"50", b"100000"])),
        min_size=1,
        max_size=4,
    ).map(lambda lines: encode(*lines)),
)
joined = st.lists(plain, min_size=1, max_size=12).map(lambda ones: Entry(COMMAND, encode(*ones)))


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.lists(joined | timed, min_size=1, max_size=6),
            st.sampled_from([0, 1, 60]),
            st.booleans(),
        ),
        max_size=8,
    )
)
def test_keys_get_deadlines_and_lose_them_the_same(
    batches: list[tuple[list[Entry], int, bool]],
) -> None:
    run_compare(batches)


async def test_the_numbers_of_commands_and_bytes_make_no_difference(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Up to 1024 keys of a payload are taken together, and 64 KiB of entries at one go."""
    payloads = [
        *(encode(("MSET", *[f"{n % 1400}" for n in range(most)])) for most in (2046, 2048, 2050)),
        *(encode(*[("SET", f"{n % 700}", "v" * (n % 90)) for n in range(most)])
          for most in (1023, 1024, 1025)),
        encode(("SET", "large", "x" * 300_000)),
        *[encode(("SET", "a", "x" * 5000))] * 30,
        *[encode(("SET", f"{n}", "1")) for n in range(700)],
    ]  # fmt: skip
    entries = [Entry(COMMAND, payload) for payload in payloads]
    await compare(tmp_path, [(entries, 0, True), (entries, 1, True)])


def goes(service: KeyValueService, entries: list[Entry]) -> list[int]:
    """How many entries are applied in each go, until one can't be."""
    header = BatchHeader(1, 0, BATCH_BYTES, len(entries), START_MS, 0)
    counts: list[int] = []
    while replies := service.apply_many(entries, sum(counts), header):
        counts.append(len(replies))
    return counts


async def test_keys_with_a_deadline_are_set_at_one_go_and_last(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    entries = [
        Entry(COMMAND, encode(*[("SET", f"{n}", "new") for n in range(most)]))
        for most in (100, 1, 300)
    ]
    async with running(open_service(tmp_path)) as fed:
        for n in range(250):
            fed.apply(("SET", f"{n}", "old", "PX", "500"))
        await fed.service.flush()  # of half of them there is nothing in memory
        for n in range(100):
            fed.apply(("SET", f"{n}", "old", "PX", f"{500 + n}"))
        assert goes(fed.service, entries) == [3]
        assert fed.service.next_deadline_ms() is None
        fed.pass_time(5000)
        assert fed.query("DBSIZE") == b":300\r\n"
    async with running(open_service(tmp_path)) as fed:
        fed.pass_time(5000)
        assert fed.query("DBSIZE") == b":300\r\n"
        assert fed.query("GET 249", "TTL 0") == b"$3\r\nnew\r\n:-1\r\n"


async def test_a_go_ends_behind_the_entry_that_fills_it(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with running(open_service(tmp_path)) as fed:
        medium = Entry(COMMAND, encode(("SET", "a", "x" * 10_000)))
        each = len(medium.payload) + 256
        at_once = -(-AT_ONCE_BYTES // each)
        assert goes(fed.service, [medium] * (2 * at_once + 1)) == [at_once, at_once, 1]
        huge = Entry(COMMAND, encode(("SET", "a", "x" * 1_000_000)))
        assert goes(fed.service, [huge] * 2) == [1, 1]
        small = Entry(COMMAND, encode("SET a 1"))
        assert sum(few := goes(fed.service, [small] * 1000)) == 1000
        assert len(few) == -(-1000 // few[0])
        assert goes(fed.service, [small] * 3 + [Entry(COMMAND, encode("DEL a")), small]) == [3]
        for most, taken in ((1024, [1]), (1025, [])):
            assert goes(fed.service, [Entry(COMMAND, encode(*["SET a 1"] * most))]) == taken
            assert goes(fed.service, [Entry(COMMAND, encode(("MSET", *["a"] * 2 * most)))]) == taken
            mixed = encode("SET a 1", ("MSET", *["a"] * 2 * (most - 2)), "mSet a 1")
            assert goes(fed.service, [Entry(COMMAND, mixed)]) == taken


# --- queries

HELD = [b"", b"a", b"disk", b"both", b"gone", b"gone on disk", b"due", b"medium", b"large", b"no"]
NAMES = [*HELD, b"expired", b"k" * 479, b"k" * 480]
asked = st.sampled_from(NAMES)
get = st.tuples(st.sampled_from([b"GET", b"get", b"gEt"]), asked)
question = st.one_of(
    get,
    get,
    st.tuples(st.just(b"STRLEN"), asked),
    st.tuples(st.just(b"MGET"), asked, asked),
    st.tuples(st.just(b"WATCH"), asked),
    st.tuples(st.just(b"SET"), asked, st.just(b"1")),
    st.sampled_from([(b"GET",), (b"GET", b"a", b"a"), (b"PUT", b"a"), (b"DBSIZE",)]),
)
query = st.one_of(
    st.lists(get, min_size=1, max_size=8).map(lambda lines: encode(*lines)),
    st.lists(get | question, min_size=1, max_size=8).map(lambda lines: encode(*lines)),
    st.sampled_from([b"", b"GET a\r\n", encode("GET a")[:-1], b"*02\r\n$3\r\nGET\r\n$1\r\na\r\n"]),
)


def nothing_plain(_data: bytes, _most: int) -> tuple[list[list[bytes]], int]:
    return [], 0


def no_answer(*_arguments: object) -> None:
    return None


async def test_queries_are_answered_the_same_with_and_without(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with running(open_service(tmp_path)) as fed:
        fed.apply(*[("SET", name, b"old " + name) for name in NAMES if name != b"no"])
        fed.apply("SET expired 1 PX 5")
        await fed.service.flush()
        fed.apply(*[("SET", name, name) for name in HELD if name not in {b"no", b"disk"}])
        fed.apply(("DEL", "gone", "gone on disk"), ("SET", "due", "1", "PX", "50"))
        fed.apply(("SET", "medium", "m" * 5000), ("SET", "large", "l" * 66_000))

        @given(query, st.sampled_from([0, RESP3, TRANSACTION, IN_PARTS]))
        def same(payload: bytes, flags: int) -> None:
            native = fed.service.query(payload, flags)
            with (
                mock.patch.object(service_module, "answer_gets", no_answer),
                mock.patch.object(resp, "split_untrusted", nothing_plain),
            ):
                assert fed.service.query(payload, flags) == native

        same()
        await fed.service.flush()  # all of it is on disk
        same()
        fed.pass_time(60)  # what is due is still in the tables, or removed
        same()
        fed.apply("FLUSHALL", "SET a 1")
        same()


@pytest.mark.parametrize(("length", "plain"), [(65_536 - 48, True), (65_536 - 47, False)])
async def test_a_long_reply_is_not_plain(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, length: int, *, plain: bool
) -> None:
    async with running(open_service(tmp_path)) as fed:
        fed.apply(("SET", "a", "x" * length))
        with mock.patch.object(fed.service, "_answer", return_value=b"the other way"):
            reply, alone = fed.query("GET a", "GET b"), fed.query("GET a")
        assert (reply != b"the other way") == plain
        assert alone == fed.query("GET a") == resp.bulk(b"x" * length)
