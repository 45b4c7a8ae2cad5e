"""What was compiled does as its specification says, whatever bytes it is given."""

import gc
import re
import sys
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quorate.errors import WireError
from quorate.keyvalue.native.plain import NATIVE, apply_sets, split_untrusted
from quorate.keyvalue.protocol.parser import CommandParser, ParserLimits, WholeCommands
from quorate.keyvalue.state.limits import MAX_ARGUMENTS
from quorate.storage import HEADER_BYTES, Entry, EntryKind
from quorate.storage.tables.memtable import Record
from tests.support.client_port_world import command
from tests.support.plain_world import (
    COMMAND,
    KEPT,
    MUCH,
    OK,
    STRING,
    TRANSACTION,
    Outcome,
    batch_of,
    outcome,
)

pytestmark = pytest.mark.skipif(not NATIVE, reason="keyvalue/native/plain.c was not compiled")

MOST_COMMANDS = 1024

# --- taking commands apart

ARRAY_HEAD = re.compile(rb"\*([1-9][0-9]{0,8})\r\n").match
BULK_HEAD = re.compile(rb"\$(0|[1-9][0-9]{0,8})\r\n").match


def plain_commands(data: bytes, most: int) -> tuple[list[list[bytes]], int]:
    """The specification of `split_untrusted`."""
    commands: list[list[bytes]] = []
    end = 0
    while (head := ARRAY_HEAD(data, end)) and int(head[1]) <= most:
        arguments: list[bytes] = []
        at = head.end()
        while len(arguments) < int(head[1]):
            bulk = BULK_HEAD(data, at)
            if bulk is None or not data.startswith(b"\r\n", bulk.end() + int(bulk[1])):
                return commands, end
            at = bulk.end() + int(bulk[1]) + 2
            arguments.append(data[bulk.end() : at - 2])
        commands.append(arguments)
        end = at
    return commands, end


PIECES = (
    b"*1\r\n *2\r\n *0\r\n *01\r\n *-1\r\n *999999999\r\n *1000000000\r\n *4294967297\r\n "
    b"*99999999999999999999\r\n * *\r\n *1\n *1\r *+1\r\n $0\r\n\r\n $1\r\na\r\n $01\r\na\r\n "
    b"$-1\r\n $1\r\nab\r\n $3\r\nfoo $999999999\r\n $1000000000\r\n $18446744073709551615\r\n $ "
    b":1\r\n +a\r\n *1\r\n*1\r\n$1\r\na\r\n PING\r\n \r\n \n \0"
).split(b" ")
piece = st.one_of(st.sampled_from(PIECES), st.binary(max_size=6))
value = st.one_of(st.binary(max_size=12), st.sampled_from([b"\r\n", b"*1\r\n$1\r\na\r\n", b"$1"]))
words = st.lists(value, min_size=1, max_size=5)
stream = st.lists(st.one_of(piece, words.map(lambda one: command(*one))), max_size=10).map(b"".join)


@given(stream, st.integers(0, 4))
def test_plain_commands_are_taken_from_the_beginning_of_any_bytes(data: bytes, most: int) -> None:
    for limit in (most, MAX_ARGUMENTS):
        assert split_untrusted(data, limit) == plain_commands(data, limit)


@given(st.lists(words, min_size=1, max_size=4), st.data())
def test_commands_are_taken_apart_as_they_are_damaged(
    commands: list[list[bytes]], draw: st.DataObject
) -> None:
    data = b"".join(command(*one) for one in commands)
    assert split_untrusted(data, MAX_ARGUMENTS) == (commands, len(data))
    at = draw.draw(st.integers(0, len(data) - 1))
    for other in b"\r\n*$0129-+x\0\xff":
        damaged = data[:at] + bytes([other]) + data[at + 1 :]
        assert split_untrusted(damaged, 5) == plain_commands(damaged, 5)
    for damaged in (data[:at] + data[at + 1 :], data[:at] + b"0" + data[at:], data[at:]):
        assert split_untrusted(damaged, 5) == plain_commands(damaged, 5)


def test_nothing_is_read_beyond_the_end() -> None:
    """Had it read on it would have found the rest of a command, which lies just there."""
    data = command("SET", "key", b"\r\nvalue\r\n") + command("GET", "") + command("DEL", "a" * 120)
    for end in range(len(data) + 1):
        taken = split_untrusted(data[:end], MAX_ARGUMENTS)
        assert taken == plain_commands(data[:end], MAX_ARGUMENTS)
        assert taken[1] <= end


@pytest.mark.parametrize("count", [1, 2, MAX_ARGUMENTS])
def test_a_command_has_at_most_so_many_arguments(count: int) -> None:
    data = command(*[b""] * count)
    assert split_untrusted(data, count) == ([[b""] * count], len(data))
    assert split_untrusted(data, count - 1) == ([], 0)
    assert split_untrusted(command("PING") + data, count - 1)[1] == (14 if count > 1 else 0)


def test_what_a_header_claims_is_not_allocated() -> None:
    tracemalloc.start()
    try:
        for claim in (b"*999999999\r\n", b"*999999999\r\n$999999999\r\n", b"*1\r\n$999999999\r\n"):
            assert split_untrusted(claim * 3, sys.maxsize) == ([], 0)
        assert tracemalloc.get_traced_memory()[1] < 10_000
    finally:
        tracemalloc.stop()


WRONG: list[tuple[Any, tuple[Any, ...], type[Exception]]] = [
    (split_untrusted, (), TypeError),
    (split_untrusted, (b"",), TypeError),
    (split_untrusted, (b"", 1, 1), TypeError),
    (split_untrusted, (bytearray(), 1), TypeError),
    (split_untrusted, ("", 1), TypeError),
    (split_untrusted, (b"", "1"), TypeError),
    (split_untrusted, (b"", 2**70), OverflowError),
    (apply_sets, (), TypeError),
    (apply_sets, ((), 0, COMMAND, 0, 1, STRING, 1, OK, {}, [], {}), TypeError),
    (apply_sets, (bytearray(), 0, COMMAND, 0, 1, STRING, 1, OK, {}, [], {}), TypeError),
    (apply_sets, ([], "0", COMMAND, 0, 1, STRING, 1, OK, {}, [], {}), TypeError),
    (apply_sets, ([], -1, COMMAND, 0, 1, STRING, 1, OK, {}, [], {}), ValueError),
    (apply_sets, (b"", -1, COMMAND, 0, 1, STRING, 1, OK, {}, [], {}), ValueError),
    (apply_sets, ([], 0, COMMAND, 0, 2**63, STRING, 1, OK, {}, [], {}), OverflowError),
    (apply_sets, ([], 0, COMMAND, 0, 1, STRING, 1, "", {}, [], {}), TypeError),
    (apply_sets, ([], 0, COMMAND, 0, 1, STRING, 1, OK, [], [], {}), TypeError),
    (apply_sets, ([], 0, COMMAND, 0, 1, STRING, 1, OK, {}, (), {}), TypeError),
    (apply_sets, ([], 0, COMMAND, 0, 1, STRING, 1, OK, {}, [], None), TypeError),
    (apply_sets, ([b"*"], 0, COMMAND, 0, 1, STRING, 1, OK, {}, [], {}), AttributeError),
    (apply_sets, (batch_of([Entry(COMMAND)]), 0, None, 0, 1, STRING, 1, OK, {}, [], {}), TypeError),
]


@pytest.mark.parametrize(("function", "arguments", "error"), WRONG)
def test_wrong_arguments_are_refused(
    function: Callable[..., object], arguments: tuple[object, ...], error: type[Exception]
) -> None:
    with pytest.raises(error):
        function(*arguments)


# --- the guard, which has it in front


def guarded(native: bool, chunks: list[bytes]) -> list[object]:  # noqa: FBT001
    """What comes out of a connection's parser after each chunk; nothing after a failure."""
    parser = CommandParser(WholeCommands(native=native), ParserLimits())
    out: list[object] = []
    for chunk in chunks:
        out += [parser.take_untrusted(chunk), parser.waiting_bytes, str(parser.failure)]
        if parser.failure is not None:
            break
    return out


@given(stream, st.lists(st.integers(0, 200), max_size=5))
@example(command("SET", "a", "*123456789\r\n") * 3, [50])
@example(command("PING") + b"*0\r\n" + command("PING") + b"PING\r\n*1\r\n$4\r\nPIN", [])
def test_a_connection_gives_the_same_with_and_without(data: bytes, places: list[int]) -> None:
    """There is no difference by design: what is not plain goes the slow way in both cases."""
    ends = sorted({min(place, len(data)) for place in places} | {0, len(data)})
    chunks = [data[ends[n] : ends[n + 1]] for n in range(len(ends) - 1)]
    with_it = guarded(True, chunks)
    without = guarded(False, chunks)
    assert with_it == without


# --- applying and answering, without anything around


def set_all(
    *payloads: bytes, room: int = MUCH, expiring: dict[bytes, int] | None = None
) -> Outcome:
    """Apply payloads, which come to the same as a list and as a batch."""
    entries = [Entry(COMMAND, payload) for payload in payloads]
    found = outcome(entries, room, expiring)
    assert outcome(batch_of(entries), room, expiring) == found
    return found


def test_records_and_counts() -> None:
    done, records, fresh = set_all(
        command("SET", "held", "longer"),
        command("sEt", "gone", "") + command("set", "new", "1") + command("SET", "new", "23"),
        command("GET", "new"),
        command("SET", "never", "1"),
    )
    assert done == ([OK, OK * 3], 1, 2, len("longer") - len("old") + len("new") + len("23"), [])
    assert fresh == [b"new"]
    assert records == {
        b"held": (b"longer", 0, 100, STRING),
        b"gone": (b"", 0, 101, STRING),
        b"new": (b"23", 0, 101, STRING),
    }


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        command("SET", "a"),
        command("SET", "a", "1", "NX"),
        *(command(name, "a", "1") for name in ("SETX", "XET", "SXT", "SEX", "\x13ET", "S\x05T")),
        command("GET", "a"),
        command("SET", "a", "1") + command("DEL", "a"),
        command("SET", "a", "1") + b"*0\r\n",
        command("SET", "a", "1")[:-1],
        command("SET", "a", "1") + b"\n",
        b"SET a 1\r\n",
        command("SET", "due", "1") + command("GET", "due"),
        command("SET", "a", "1") * (MOST_COMMANDS + 1),
        *(command("MSET", *["a"] * n) for n in (0, 1, 3, 2 * MOST_COMMANDS + 2)),
    ],
)
def test_what_is_not_plain_changes_nothing(payload: bytes) -> None:
    assert set_all(payload, expiring={b"due": 5}) == (([], 0, 0, 0, []), KEPT, [])


def test_keys_with_a_deadline_are_set_and_named_in_their_order() -> None:
    expiring = {b"held": 5, b"gone": 6, b"disk": 7, b"other": 8}
    payloads = [
        command("SET", "a", "1") + command("SET", "gone", "1") + command("SET", "gone", "2"),
        command("SET", "disk", "1"),
        command("SET", "held", "1") + command("SET", "gone", "3"),
    ]
    done, *state = set_all(*payloads, expiring=expiring)
    assert done[4] == [b"gone", b"gone", b"disk", b"held", b"gone"]
    assert len(expiring) == 4
    without, *same = set_all(*payloads)
    assert (done[:4], state) == (without[:4], same)
    assert without[4] == []


def test_entries_of_other_kinds_sessions_and_flags_are_not_plain() -> None:
    payload = command("SET", "a", "1")
    for entry, plain in (
        (Entry(COMMAND, payload, 1, 0, 7), True),
        (Entry(COMMAND, payload, 4), True),
        (Entry(COMMAND, payload, TRANSACTION), False),
        (Entry(COMMAND, payload, TRANSACTION | 4), False),
        (Entry(COMMAND, payload, 0, 2**64 - 1, 1), False),
        (Entry(EntryKind.TIMER, payload), False),
    ):
        for entries in ([entry], batch_of([entry])):
            done, _, fresh = outcome(entries)
            assert (done[0], fresh) == (([OK], [b"a"]) if plain else ([], []))


@given(
    st.lists(
        st.builds(
            Entry,
            st.sampled_from([COMMAND, COMMAND, COMMAND, EntryKind.TIMER]),
            st.lists(st.sampled_from([command("SET", "a", "1"), command("SET", "gone", "")])).map(
                b"".join
            ),
            st.sampled_from([0, 0, 1, TRANSACTION, 255]),
            st.sampled_from([0, 0, 1, 2**56, 2**64 - 1]),
            st.integers(0, 2**64 - 1),
        ),
        max_size=6,
    ),
    st.integers(0, 7),
    st.sampled_from([{}, {b"gone": 9}, {b"a": 1, b"gone": 9}]),
    st.data(),
)
def test_a_batch_comes_to_what_its_entries_do(
    entries: list[Entry], start: int, expiring: dict[bytes, int], draw: st.DataObject
) -> None:
    batch = batch_of(entries)
    assert outcome(batch, MUCH, expiring, start) == outcome(entries, MUCH, expiring, start)
    # it was checked before it came here, but no bytes may lead out of it
    place = draw.draw(st.integers(0, len(batch) - 1))
    for byte in b"\0\1\x7f\xff":
        outcome(batch[:place] + bytes([byte]) + batch[place + 1 :], start=start)
        outcome(batch[:HEADER_BYTES] + bytes([byte]) * place, start=start)
    outcome(batch[:place], start=start)


def test_the_most_commands_of_a_payload() -> None:
    many = b"".join(command("SET", str(n), "v") for n in range(MOST_COMMANDS))
    done, _, fresh = set_all(many)
    assert (done[0], len(fresh)) == ([OK * MOST_COMMANDS], MOST_COMMANDS)


def test_entries_are_applied_until_there_is_no_room_and_one_at_least() -> None:
    one = command("SET", "a", "x" * 1000)
    many = command("MSET", *(str(n) for n in range(2 * MOST_COMMANDS)))  # each key counts as 100
    for payload, each in ((one, len(one) + 256), (many, 100 * MOST_COMMANDS)):
        for room, expected in ((1, 1), (each, 1), (each + 1, 2), (3 * each, 3), (0, 0), (-1, 0)):
            assert len(set_all(*[payload] * 9, room=room)[0][0]) == expected


# --- memory


def references(records: dict[bytes, Record | None], key: bytes) -> list[int]:
    """How often a key, its record and all in that are referred to."""
    record = records[key]
    assert record is not None
    return [sys.getrefcount(one) for one in (key, record, record[0])]


def test_references_are_as_many_as_if_python_had_made_all() -> None:
    _, native, new = set_all(command("SET", "new", "a value of its own") * 2)
    key, text = b"n%b" % b"ew", b"a value %b" % b"of its own"
    made: dict[bytes, Record | None] = {key: (text, 0, int("100"), STRING)}
    fresh = [key]
    del key, text
    assert not gc.is_tracked(native[b"new"])
    assert references(native, new[0]) == references(made, fresh[0])
    gc.collect()
    assert native[b"new"] == made[b"new"]
    del native, made
    assert sys.getrefcount(new[0]) == sys.getrefcount(fresh[0])


def test_nothing_is_leaked() -> None:
    records: dict[bytes, Record | None] = {}
    entries = [
        Entry(COMMAND, command("SET", "a", "x" * 100) + command("SET", "b", "")),
        Entry(COMMAND, command("SET", "a", "1") + command("SET", "b", "1")),
    ]
    batch = batch_of(entries)
    wrongs: list[Any] = [[None], [Entry(COMMAND, b"", cast("int", "flags"))]]

    def all_ways() -> None:
        for at in (0, 1):
            for form in (entries, batch):
                apply_sets(form, at, COMMAND, 2, 2**40, STRING, MUCH, OK, records, [], {b"b": 9})
        for payload in (command("GET", "a") * 2, command("GET", "a") + command("GET", "due"), b"*"):
            split_untrusted(payload, 5)
        split_untrusted(entries[0].payload[:-1], 5)
        for wrong in wrongs:
            with suppress(AttributeError, TypeError):
                apply_sets(wrong, 0, COMMAND, 2, 1, STRING, MUCH, OK, records, [], {})

    def blocks_after(rounds: int) -> int:
        for _ in range(rounds):
            all_ways()
        gc.collect()
        return sys.getallocatedblocks()

    def payload_references() -> list[int]:
        return [sys.getrefcount(one) for one in (*(e.payload for e in entries), batch, OK)]

    before = blocks_after(200), payload_references()
    after = blocks_after(2000), payload_references()
    assert after[0] < before[0] + 100
    assert after[1] == before[1]


def test_a_payload_is_taken_apart_as_hiredis_does(monkeypatch: pytest.MonkeyPatch) -> None:
    from quorate.keyvalue.protocol import resp  # noqa: PLC0415 - what is patched in it

    parser = resp.CommandParser()

    def parsed(payload: bytes) -> object:
        try:
            return parser.parse_untrusted(payload)
        except WireError:
            return WireError

    def nothing_plain(_data: bytes, _most: int) -> tuple[list[list[bytes]], int]:
        return [], 0

    @given(stream)
    def same(payload: bytes) -> None:
        native = parsed(payload)
        with monkeypatch.context() as patch:
            patch.setattr(resp, "split_untrusted", nothing_plain)
            assert parsed(payload) == native

    same()
