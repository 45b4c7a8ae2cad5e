"""The store from Python: methods over anything that takes commands and queries."""

import enum
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from quorate.errors import (
    ConfigurationError,
    KeyValueError,
    OversizedRequestError,
    RequestError,
)
from quorate.keyvalue import service
from quorate.keyvalue.commands import positions
from quorate.keyvalue.programs.client import KeyValue
from quorate.keyvalue.programs.records import Record
from quorate.keyvalue.programs.watch import LocalWatches
from quorate.keyvalue.state.changes import RecentChanges
from quorate.node.requests.request import UNSTAMPED, Stamp
from tests.support.lone_member import LoneMember
from tests.support.service_world import Fed, open_service


class Refusing:
    """An endpoint that takes nothing."""

    async def command(self, payload: bytes, flags: int = 0, stamp: Stamp = UNSTAMPED) -> bytes:
        return b"-ERR no\r\n"

    async def query(self, payload: bytes, flags: int = 0) -> bytes:
        return b"-ERR no\r\n"


@pytest.fixture
def member(tmp_path: Path) -> Generator[LoneMember]:
    opened = open_service(tmp_path)
    yield LoneMember(Fed(opened))
    opened.close()


async def test_values_are_set_and_found(member: LoneMember) -> None:
    store = KeyValue(member)
    assert await store.get("a") is None
    assert await store.set("a", "grün")
    assert await store.get(b"a") == "grün".encode()
    values: dict[str, bytes | str] = {"b": b"\xff", "c": ""}
    await store.mset(values)
    assert await store.mget("b", b"c", "d") == [b"\xff", b"", None]
    assert await store.delete("a", "b", "nosuch") == 2


@pytest.mark.parametrize("key", [b"", b"k\r\n", "grün", "x" * 5000])
@pytest.mark.parametrize("value", [b"", b"\0\xff", "ß"])
async def test_a_plain_set_is_encoded_as_any_command_is(
    member: LoneMember, key: bytes | str, value: bytes | str
) -> None:
    store = KeyValue(member)
    assert await store.set(key, value)
    plain = member.payloads.pop()
    assert await store.execute("SET", key, value) == b"OK"
    assert plain == member.payloads.pop()
    assert await store.get(key) == (value if isinstance(value, bytes) else value.encode())


async def test_a_plain_set_that_is_refused_raises() -> None:
    with pytest.raises(KeyValueError, match=r"^ERR no$"):
        await KeyValue(Refusing()).set("a", "1")


async def test_conditions_decide(member: LoneMember) -> None:
    store = KeyValue(member)
    assert not await store.set("a", "1", xx=True)
    assert await store.set("a", "1", nx=True)
    assert not await store.set("a", "2", nx=True)
    assert await store.set("a", "3", xx=True)
    assert await store.get("a") == b"3"


async def test_keys_expire_with_the_time_of_the_log(member: LoneMember) -> None:
    store = KeyValue(member)
    await store.set("a", "1", ex=10)
    await store.set("b", "1", px=500)
    await store.set("c", "1")
    assert [await store.ttl_ms(key) for key in "abcd"] == [10_000, 500, -1, -2]
    assert await store.expire("c", 0.25)
    assert not await store.expire("d", 1)
    member.fed.pass_time(400)
    assert await store.mget("a", "b", "c") == [b"1", b"1", None]


async def test_counting(member: LoneMember) -> None:
    store = KeyValue(member)
    assert [await store.increment("n"), await store.increment("n", -3)] == [1, -2]


async def test_errors_are_raised_in_the_words_of_redis(member: LoneMember) -> None:
    store = KeyValue(member)
    await store.set("a", "text")
    with pytest.raises(
        KeyValueError, match=r"^ERR value is not an integer or out of range$"
    ) as caught:
        await store.increment("a")
    assert caught.value.code == "ERR"
    assert isinstance(caught.value, RequestError)
    for line in ("NOSUCH", "GET", "PING", "CLIENT ID"):
        with pytest.raises(KeyValueError):
            await store.execute(*line.split())


async def test_any_command_can_be_executed_and_reads_leave_no_trace(member: LoneMember) -> None:
    store = KeyValue(member)
    assert await store.execute("SET", "a", 5) == b"OK"
    assert await store.execute("INCRBYFLOAT", "a", 0.5) == b"5.5"
    assert len(member.payloads) == 2
    assert await store.execute("TTL", "a") == -1
    assert await store.execute("KEYS", "*") == [b"a"]
    assert await store.execute("OBJECT", "ENCODING", "a") == b"embstr"
    assert len(member.payloads) == 2


async def test_many_keys_are_read_and_set(member: LoneMember) -> None:
    store = KeyValue(member)
    await store.set_many({f"k{i}": str(i) for i in range(2500)})
    assert len(member.payloads) == 1
    found = await store.get_many([*(f"k{i}" for i in range(2499, -1, -1)), "nosuch"])
    assert list(found.items())[:2] == [(b"k2499", b"2499"), (b"k2498", b"2498")]
    assert len(found) == 2500
    assert len(member.queries) == 3
    await store.set_many({})
    assert await store.get_many([]) == {}
    assert len(member.payloads) == 1


async def test_records_have_revision_and_expiry(member: LoneMember) -> None:
    store = KeyValue(member)
    assert await store.compare_and_set("a", None, "1", px=500) == 1
    first, none = await store.records(["a", "b"])
    assert first == Record(b"1", 1, member.fed.now + 500)
    assert none is None
    await store.set("a", "2")
    (second,) = await store.records([b"a"])
    assert second is not None
    assert second.revision > 1
    assert second.expires_at_ms == 0


async def test_values_too_long_for_one_reply_are_read_in_smaller_pieces(
    member: LoneMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MAX_REPLY_BYTES", 10_000)
    monkeypatch.setattr(positions, "MAX_REPLY_BYTES", 10_000)
    store = KeyValue(member)
    values = {b"k%d" % i: b"x" * 3000 for i in range(20)}
    await store.set_many(values)
    assert await store.get_many(values) == values
    records = await store.records(values)
    assert [record and record.value for record in records] == list(values.values())
    await store.set("long", "x" * 20_000)
    with pytest.raises(KeyValueError, match="bytes"):
        await store.records(["k1", "long"])


async def test_too_many_keys_at_once_are_refused(member: LoneMember) -> None:
    store = KeyValue(member)
    with pytest.raises(OversizedRequestError, match=r"^40000 keys to set at once: expected 32767"):
        await store.set_many({f"k{i}": "" for i in range(40_000)})
    assert not member.payloads
    for read in (store.get_many, store.records):
        with pytest.raises(TypeError, match=r"^keys = 'abc': expected several keys, found one"):
            await read("abc")


async def test_scanning_iterates_over_items(member: LoneMember) -> None:
    store = KeyValue(member)
    values = {b"user:%d" % i: b"%d" % i for i in range(2500)}
    await store.set_many(values)
    await store.set("other", "x")
    assert dict([item async for item in store.scan_items("user:*")]) == values
    assert [item async for item in store.scan_items("nosuch")] == []


async def test_scanning_iterates_over_all_that_match(member: LoneMember) -> None:
    store = KeyValue(member)
    await store.mset({f"user:{i}": "x" for i in range(2500)} | {"other": "x"})
    assert {key async for key in store.scan("user:*")} == {b"user:%d" % i for i in range(2500)}
    assert b"other" in [key async for key in store.scan()]


Call = Callable[[KeyValue, Any], Awaitable[object]]

KEYS: dict[str, Call] = {
    "set": lambda kv, wrong: kv.set(wrong, "v"),
    "set px": lambda kv, wrong: kv.set(wrong, "v", px=1),
    "get": lambda kv, wrong: kv.get(wrong),
    "increment": lambda kv, wrong: kv.increment(wrong),
    "expire": lambda kv, wrong: kv.expire(wrong, 1),
    "ttl_ms": lambda kv, wrong: kv.ttl_ms(wrong),
    "mset": lambda kv, wrong: kv.mset({wrong: "v"}),
}
CALLS: dict[str, tuple[str, Call]] = {
    **{f"key of {name}": ("key", call) for name, call in KEYS.items()},
    "value of set": ("value", lambda kv, wrong: kv.set("k", wrong)),
    "value of set nx": ("value", lambda kv, wrong: kv.set("k", wrong, nx=True)),
    "value of mset": (r"values\['k'\]", lambda kv, wrong: kv.mset({"a": "b", "k": wrong})),
    "key of delete": (r"keys\[1\]", lambda kv, wrong: kv.delete("a", wrong)),
    "key of mget": (r"keys\[1\]", lambda kv, wrong: kv.mget("a", wrong)),
    "argument of execute": ("argument 2", lambda kv, wrong: kv.execute("GET", wrong)),
    "name of execute": ("argument 1", lambda kv, wrong: kv.execute(wrong)),
    "match of scan": ("match", lambda kv, wrong: anext(kv.scan(wrong))),
}


@pytest.mark.parametrize("wrong", [None, True, ("a",), b"a".__class__, memoryview(b"a"), object()])
@pytest.mark.parametrize("call", CALLS)
async def test_what_is_no_word_is_refused(member: LoneMember, call: str, wrong: object) -> None:
    name, made = CALLS[call]
    words = rf"^{name} = .*: expected bytes, str, int or float, found {type(wrong).__name__}$"
    with pytest.raises(TypeError, match=words):
        await made(KeyValue(member), wrong)
    assert member.payloads == []


NUMBERS: dict[str, Call] = {
    "ex": lambda kv, wrong: kv.set("k", "v", ex=wrong),
    "px": lambda kv, wrong: kv.set("k", "v", px=wrong),
    "by": lambda kv, wrong: kv.increment("k", wrong),
    "seconds": lambda kv, wrong: kv.expire("k", wrong),
    "values": lambda kv, wrong: kv.mset(wrong),
}


@pytest.mark.parametrize("wrong", [True, "5", [("a", "b")]])
@pytest.mark.parametrize("name", NUMBERS)
async def test_what_is_no_number_is_refused(member: LoneMember, name: str, wrong: object) -> None:
    found = type(wrong).__name__
    with pytest.raises(TypeError, match=rf"^{name} = .*: expected an? [\w ]+, found {found}$"):
        await NUMBERS[name](KeyValue(member), wrong)
    assert member.payloads == []


class Level(enum.IntEnum):
    HIGH = 3


class Real(float):
    def __repr__(self) -> str:
        return "Real()"


@pytest.mark.parametrize(
    ("value", "stored"), [(5, b"5"), (1.5, b"1.5"), (Level.HIGH, b"3"), (Real(0.5), b"0.5")]
)
async def test_numbers_are_set_in_decimal(member: LoneMember, value: float, stored: bytes) -> None:
    store = KeyValue(member)
    await store.execute("SET", "k", value)
    assert await store.get("k") == stored


async def test_a_secret_does_not_get_into_the_log(member: LoneMember) -> None:
    store = KeyValue(member)
    for word in (">hunter2", "<hunter2"):
        with pytest.raises(KeyValueError, match="must be hashed here") as caught:
            await store.execute("ACL", "SETUSER", "bob", "on", word)
        assert "hunter2" not in str(caught.value)
    assert not member.payloads
    for word in ("hunter2", "#hunter2", "+hunter2"):  # a sign was forgotten, or is wrong
        with pytest.raises(KeyValueError, match="Error in ACL SETUSER modifier"):
            await store.execute("ACL", "SETUSER", "bob", "on", word)
    assert await store.execute("ACL", "SETUSER", "bob", "on", "#" + "a" * 64) == b"OK"
    assert await store.execute("ACL", "USERS") == [b"bob", b"default"]


async def test_a_call_without_a_command_is_refused(member: LoneMember) -> None:
    with pytest.raises(TypeError, match=r"^execute\(\): expected a command, such as execute"):
        await KeyValue(member).execute()


@pytest.mark.parametrize("after", [-1, -2, -(2**70)])
def test_a_watch_after_a_negative_position_is_refused(member: LoneMember, after: int) -> None:
    watches = LocalWatches(RecentChanges(100))
    with pytest.raises(ConfigurationError, match=rf"^after = {after}: .* or None for the changes"):
        KeyValue(member, watches=watches).watch(after=after)
