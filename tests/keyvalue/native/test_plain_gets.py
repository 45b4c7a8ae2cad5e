"""GETs that are answered by what was compiled."""

import gc
import sys
from contextlib import suppress
from typing import Any

import pytest

from quorate.keyvalue.native.plain import NATIVE, answer_gets
from quorate.storage.tables.memtable import Record
from tests.support.client_port_world import command

pytestmark = pytest.mark.skipif(not NATIVE, reason="keyvalue/native/plain.c was not compiled")

MOST_COMMANDS = 1000
MUCH = 1 << 30
NULL = b"_\r\n"
DUE: Record = (b"value", 9, 1, 1)


def nowhere(_key: bytes) -> None:
    return None


WRONG: list[tuple[tuple[Any, ...], type[Exception]]] = [
    ((b"", 1, NULL, 9, {}), TypeError),
    ((b"", 1, NULL, 9, {}, nowhere, 1), TypeError),
    (("", 1, NULL, 9, {}, nowhere), TypeError),
    ((b"", "1", NULL, 9, {}, nowhere), TypeError),
    ((b"", 2**70, NULL, 9, {}, nowhere), OverflowError),
    ((b"", 1, None, 9, {}, nowhere), TypeError),
    ((b"", 1, NULL, 9, [], nowhere), TypeError),
    ((command("GET", "a"), 1, NULL, 9, {}, None), TypeError),
]


@pytest.mark.parametrize(("arguments", "expected"), WRONG)
def test_wrong_arguments_are_refused(arguments: tuple[Any, ...], expected: type[Exception]) -> None:
    with pytest.raises(expected):
        answer_gets(*arguments)


@pytest.mark.parametrize("length", [0, 9, 10, 99, 100, 65_535, 1_000_000])
def test_values_of_any_length_are_answered(length: int) -> None:
    data = bytes(n & 255 for n in range(length))
    records: dict[bytes, Record | None] = {b"": (data, 0, 1, 1)}
    reply = b"$%d\r\n%b\r\n" % (length, data)
    for above, below in ((records, nowhere), ({}, records.get)):
        assert answer_gets(command("GET", ""), 0, NULL, 9, above, below) == reply
        assert answer_gets(command("gEt", "") * 3, MUCH, NULL, 9, above, below) == reply * 3
        room = 2 * (length + 24)
        assert answer_gets(command("GET", "") * 2, room, NULL, 9, above, below) == reply * 2
        assert answer_gets(command("GET", "") * 2, room - 1, NULL, 9, above, below) is None


def test_keys_that_expire_are_there_until_then() -> None:
    records: dict[bytes, Record | None] = {b"due": DUE}
    for above, below in ((records, nowhere), ({}, records.get)):
        for now, reply in ((8, b"$5\r\nvalue\r\n"), (9, NULL), (10, NULL)):
            assert answer_gets(command("GET", "due"), MUCH, NULL, now, above, below) == reply


def test_the_most_commands_of_a_payload() -> None:
    asked = b"".join(command("GET", str(n)) for n in range(MOST_COMMANDS))
    values: dict[bytes, Record | None] = {
        b"%d" % n: (b"v", 0, 1, 1) for n in range(0, MOST_COMMANDS, 2)
    }
    reply = (b"$1\r\nv\r\n" + NULL) * (MOST_COMMANDS // 2)
    for above, below in ((values, nowhere), ({}, values.get)):
        assert answer_gets(asked, MUCH, NULL, 9, above, below) == reply
        assert answer_gets(asked + command("GET", "0"), MUCH, NULL, 9, above, below) is None


@pytest.mark.parametrize("name", ["XET", "GXT", "GEX", "GETX", "SET"])
def test_nothing_is_looked_up_for_what_is_not_answered(name: str) -> None:
    get = command("GET", "a")
    for payload in (b"", get[:-1], get + command(name, "a"), get + command("PING"), get + b"GET a"):
        assert answer_gets(payload, MUCH, NULL, 9, {}, failing) is None


def test_only_what_the_memtable_does_not_know_is_asked_for_below() -> None:
    records: dict[bytes, Record | None] = {b"here": (bytes([1]) * 5000, 0, 1, 1), b"deleted": None}
    asked: list[bytes] = []
    others: list[bytes] = []

    def below(key: bytes) -> Record:
        asked.append(key)
        records.clear()
        others.extend(bytes([n]) * 5000 for n in range(2, 20))  # where the first one was
        return (others[0], 0, 1, 1)

    payload = command("GET", "here") + command("GET", "deleted") + command("GET", "below")
    reply = b"$5000\r\n%b\r\n" % (b"\1" * 5000) + NULL + b"$5000\r\n%b\r\n" % (b"\2" * 5000)
    assert answer_gets(payload, MUCH, NULL, 9, records, below) == reply
    assert asked == [b"below"]


def test_no_more_is_read_than_the_reply_has_room_for() -> None:
    asked: list[bytes] = []

    def below(key: bytes) -> Record:
        asked.append(key)
        return (b"x" * 100, 0, 1, 1)

    payload = b"".join(command("GET", str(n)) for n in range(9))
    assert answer_gets(payload, 300, NULL, 9, {}, below) is None
    assert asked == [b"0", b"1", b"2"]


def failing(key: bytes) -> Record:
    raise LookupError(key)


def test_what_fails_below_is_told() -> None:
    payload = command("GET", "a") + command("GET", "b") + command("GET", "c")
    with pytest.raises(LookupError) as caught:
        answer_gets(payload, MUCH, NULL, 9, {b"a": (b"1", 0, 1, 1)}, failing)
    assert caught.value.args == (b"b",)


def test_what_is_no_record_is_left_to_others() -> None:
    for wrong in (1, (b"1", 0, 1), ("1", 0, 1, 1)):
        below: Any = {b"a": wrong}.get
        assert answer_gets(command("GET", "a"), MUCH, NULL, 9, {}, below) is None
    below = {b"a": (b"1", "soon", 1, 1)}.get
    with pytest.raises(TypeError, match="not supported between"):
        answer_gets(command("GET", "a"), MUCH, NULL, 9, {}, below)


def test_nothing_is_leaked() -> None:
    below: dict[bytes, Any] = {
        b"below": (b"y" * 1000, 0, 1, 1),
        b"due": DUE,
        b"no record": (b"z" * 1000, 0),
        b"wrong": (b"1", "soon", 1, 1),
    }
    record: Record = (b"x" * 100, 0, 1, 1)
    above: dict[bytes, Record | None] = {b"above": record, b"gone": None}

    def all_ways() -> None:
        for name in (*below, b"gone", b"absent"):
            payload = command("GET", "above") * 2 + command("GET", name)
            for room, get in ((MUCH, below.get), (1000, below.get), (100, below.get), (1, failing)):
                with suppress(TypeError, LookupError):
                    answer_gets(payload, room, NULL, 9, above, get)

    def left_after(rounds: int) -> tuple[int, list[int]]:
        for _ in range(rounds):
            all_ways()
        gc.collect()
        counted: list[Any] = [*below.values(), record, record[0], below[b"below"][0]]
        return sys.getallocatedblocks(), [*map(sys.getrefcount, counted)]

    left_after(200)
    before, after = left_after(200), left_after(2000)
    assert after[0] < before[0] + 100
    assert after[1] == before[1]
