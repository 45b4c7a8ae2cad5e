"""SCAN returns what is there throughout, RANDOMKEY something, KEYS everything that matches."""

from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.keyvalue.commands import random_key, walk
from quorate.keyvalue.commands.glob import literal_prefix, matcher
from quorate.keyvalue.protocol.resp import parse_replies_untrusted
from quorate.keyvalue.state.store import KeyStore
from tests.support.service_world import Fed, open_service, running


@pytest.fixture
def fed(tmp_path: Path) -> Generator[Fed]:
    service = open_service(tmp_path)
    yield Fed(service)
    service.close()


def scan(fed: Fed, cursor: bytes, *options: str) -> tuple[bytes, list[bytes]]:
    (reply,) = parse_replies_untrusted(fed.query(["SCAN", cursor.decode(), *options]))
    assert isinstance(reply, list)
    place, keys = reply
    assert isinstance(place, bytes)
    assert isinstance(keys, list)
    return place, [key for key in keys if isinstance(key, bytes)]


def scan_all(fed: Fed, *options: str, between: Callable[[], object] = int) -> list[bytes]:
    found: list[bytes] = []
    cursor = b""
    while cursor != b"0":
        cursor, keys = scan(fed, cursor or b"0", *options)
        found += keys
        between()
    return found


def test_scan_returns_every_key_once_when_nothing_changes(fed: Fed) -> None:
    fed.apply(*(f"SET key:{i} x" for i in range(95)))
    found = scan_all(fed)
    assert sorted(found) == sorted(b"key:%d" % i for i in range(95))


def test_scan_returns_what_is_there_throughout_whatever_changes(fed: Fed) -> None:
    fed.apply(*(f"SET stays:{i} x" for i in range(100)), *(f"SET goes:{i} x" for i in range(100)))
    state = iter(range(1000))

    def change() -> None:
        i = next(state)
        fed.apply(f"DEL goes:{99 - i}", f"SET comes:{i} x", f"SET zzz:{i} x", f"SET stays:{i} y")

    found = scan_all(fed, "COUNT", "7", between=change)
    assert {b"stays:%d" % i for i in range(100)} <= set(found)


def test_a_cursor_stands_for_the_same_place_on_every_member(tmp_path: Path) -> None:
    first, second = Fed(open_service(tmp_path / "1")), Fed(open_service(tmp_path / "2"))
    for fed in (first, second):
        fed.apply(*(f"SET {i} x" for i in range(50)))
    cursor, _ = scan(first, b"0")
    assert scan(second, b"0")[0] == cursor
    assert scan(first, cursor) == scan(second, cursor)
    first.service.close()
    second.service.close()


def test_a_cursor_that_is_not_known_begins_anew(fed: Fed) -> None:
    fed.apply(*(f"SET {i} x" for i in range(50)))
    assert scan(fed, b"12345") == scan(fed, b"0")


def test_cursors_are_bounded(fed: Fed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "MAX_CURSORS", 3)
    fed.apply(*(f"SET {i:02} x" for i in range(50)))
    cursors = [b"0"]
    for _ in range(5):
        cursors.append(scan(fed, cursors[-1], "COUNT", "5")[0])
    assert scan(fed, cursors[5], "COUNT", "5")[1][0] == b"25"
    assert scan(fed, cursors[1], "COUNT", "5")[1][0] == b"00"


def test_expired_keys_are_not_seen(fed: Fed) -> None:
    fed.apply("SET a 1 PX 10", "SET b 1")
    fed.now += 10
    fed.apply("SET c 1")
    for found in (scan_all(fed), scan_all(fed, "MATCH", "?")):
        assert found == [b"b", b"c"]
    assert fed.query("KEYS *") == b"*2\r\n$1\r\nb\r\n$1\r\nc\r\n"


def test_a_pattern_is_looked_for_where_it_can_be(fed: Fed) -> None:
    names = ["a", "b", "b:", "b:1", "b:2", "b:\xff", "b;", "c", "b" * 600, "b" * 600 + "1"]
    for name in names:
        fed.apply(["SET", name.encode("latin1"), "x"])
    for pattern in ("b:*", "b*", "b:?", "b", "", "b" * 600 + "*", "*", "bb*", "\0*", "c*", "d*"):
        expected = [
            name.encode("latin1")
            for name in names
            if matcher(pattern.encode())(name.encode("latin1"))
        ]
        assert sorted(scan_all(fed, "MATCH", pattern, "COUNT", "2")) == sorted(expected), pattern
        (keys,) = parse_replies_untrusted(fed.query(["KEYS", pattern]))
        assert isinstance(keys, list)
        assert len(keys) == len(expected)


def test_keys_is_refused_beyond_a_bound_and_names_scan(
    fed: Fed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walk, "MAX_WALKED_KEYS", 2048)
    fed.apply(*(f"SET a:{i:04} x" for i in range(1500)), *(f"SET b:{i} x" for i in range(1500)))
    assert fed.query("KEYS *").endswith(b"use SCAN\r\n")
    assert fed.query("KEYS *5").endswith(b"use SCAN\r\n")
    assert fed.query("KEYS b:14*").startswith(b"*111\r\n")
    assert fed.query("KEYS a:00*").startswith(b"*100\r\n")
    assert len(scan_all(fed, "COUNT", "1000")) == 3000


def test_the_walks_of_one_request_are_bounded_together(
    fed: Fed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walk, "MAX_WALKED_KEYS", 2048)
    fed.apply(*(f"SET {i} x" for i in range(100)))
    replies = fed.query(*["KEYS 1*"] * 5, *["SCAN 0"] * 2, "RANDOMKEY", "STRLEN 1")
    assert replies.count(b"use SCAN") == 6
    assert replies.endswith(b"use SCAN\r\n:1\r\n")
    replies = fed.query(*["SCAN 0"] * 1000, flags=2)
    assert 100 < replies.count(b"-ERR") < 900, "to begin costs something, too"


def test_deleted_keys_are_walked_over_but_not_without_end(
    fed: Fed, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed.apply(*(f"SET a:{i:04} x" for i in range(3000)), "SET z x")
    fed.apply(*(f"DEL a:{i:04}" for i in range(3000)))
    assert fed.query("KEYS *") == b"*1\r\n$1\r\nz\r\n"
    assert fed.query("RANDOMKEY") == b"$1\r\nz\r\n"
    monkeypatch.setattr(walk, "MAX_WALKED_KEYS", 2048)
    for line in ("KEYS *", "RANDOMKEY"):
        assert fed.query(line).endswith(b"use SCAN\r\n")
    assert scan_all(fed, "COUNT", "1000") == [b"z"]


def test_a_nasty_pattern_makes_a_page_short(fed: Fed, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"{i:03}{'a' * 50}" for i in range(100)] + ["b" * 1000]
    fed.apply(*(_set(name) for name in names))
    pattern = "*" + "a?" * 10
    monkeypatch.setattr(walk, "_MAX_STEPS", 21 * 1000)
    pages = 0

    def count() -> None:
        nonlocal pages
        pages += 1

    found = scan_all(fed, "MATCH", pattern, "COUNT", "1000", between=count)
    assert sorted(found) == sorted(name.encode() for name in names[:-1])
    assert pages > 5
    monkeypatch.setattr(walk, "_MAX_STEPS", 21 * 999)
    assert fed.query("KEYS b*b?") == b"*1\r\n$1000\r\n" + b"b" * 1000 + b"\r\n"
    too_long = b"-ERR this pattern takes too long with a key that is here\r\n"
    assert fed.query("KEYS " + pattern) == too_long


def test_a_pattern_has_a_largest_length(fed: Fed) -> None:
    error = b"-ERR a pattern may have 1024 bytes\r\n"
    assert fed.query(["KEYS", "*" * 1025]) == error
    assert fed.query(["SCAN", "0", "MATCH", "*" * 1025]) == error
    assert fed.query(["KEYS", "*" * 1024]) == b"*0\r\n"


@pytest.mark.parametrize("walk_over", ["SCAN 0", "KEYS *", "RANDOMKEY"])
def test_no_walk_is_part_of_the_log(fed: Fed, walk_over: str) -> None:
    """What it costs depends on what this member has flushed, and what others may still do on it."""
    replies = fed.apply("SET a 1", walk_over, *["INCR a"] * 100, flags=2)
    assert replies.count(b"not allowed inside a transaction that writes") == 1
    assert replies.endswith(b":101\r\n")


def test_randomkey_is_some_key_and_not_always_the_same(fed: Fed) -> None:
    assert fed.query("RANDOMKEY") == b"$-1\r\n"
    fed.apply(*(f"SET user:{i:04} x" for i in range(1000)))
    found = {fed.query("RANDOMKEY") for _ in range(200)}
    assert len(found) > 100
    assert all(fed.query(f"EXISTS {reply.split()[1].decode()}") == b":1\r\n" for reply in found)
    fed.apply("FLUSHALL", "SET one 1", "SET gone 1 PX 1")
    fed.pass_time(1)
    assert {fed.query("RANDOMKEY") for _ in range(20)} == {b"$3\r\none\r\n"}


async def test_each_of_few_keys_is_as_likely_in_memory_and_on_disk(tmp_path: Path) -> None:
    async with running(open_service(tmp_path)) as fed:
        fed.apply(*(f"SET k{i} x" for i in range(0, 100, 2)), "SET gone x")
        await fed.service.flush()
        fed.apply(*(f"SET k{i} x" for i in range(1, 100, 2)), "DEL gone", "SET late x PX 1")
        fed.pass_time(1)
        counts = Counter(fed.query("RANDOMKEY") for _ in range(2000))
    assert len(counts) == 100
    assert all(5 <= count <= 45 for count in counts.values())


def _set(name: str | bytes) -> list[str | bytes]:
    return ["SET", name, "x"]


async def test_draws_know_how_likely_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mean of one over the probability is the number of keys, if each key can be drawn."""
    monkeypatch.setattr(random_key, "_LEAF_KEYS", 8)
    ends = [b"", b"a", b"a" * 600, b"k", b"k\0", b"k\xff"]
    names = [*ends, *(b"k%d" % i for i in range(194))]
    dice = random_key.Dice(b"")
    async with running(open_service(tmp_path)) as fed:
        fed.apply(*(_set(name) for name in names[::2]), "SET gone x")
        await fed.service.flush()
        fed.apply(*(_set(name) for name in names[1::2]), "DEL gone")
        store = KeyStore(fed.service._tables)  # pyright: ignore[reportPrivateUsage]
        drawn = [random_key.draw(store, dice, b"") for _ in range(1500)]
    found = [one for one in drawn if one is not None]
    assert {key for key, _ in found} <= {*names}
    assert {key for key, _ in found} >= {*ends}
    assert 120 < sum(weight for _, weight in found) / len(drawn) < 280


def test_the_empty_key_is_drawn_among_many(fed: Fed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "FEW_KEYS", 16)
    fed.apply(_set(""), *(f"SET x:{i} x" for i in range(20)))
    assert b"$0\r\n\r\n" in {fed.query("RANDOMKEY") for _ in range(400)}


def test_many_keys_are_answered_by_draws(fed: Fed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "FEW_KEYS", 16)
    fed.apply("SET u x", *(f"SET x:{i} x" for i in range(99)))
    counts = Counter(fed.query("RANDOMKEY") for _ in range(400))
    assert len(counts) > 80
    assert counts[b"$1\r\nu\r\n"] < 40
    fed.apply(*(f"DEL x:{i}" for i in range(50)))
    for _ in range(100):
        assert b"\r\nx:" + b"%d" % 49 not in fed.query("RANDOMKEY")


def test_every_byte_behind_a_prefix_is_found(fed: Fed) -> None:
    names = [b"p", *(b"p" + bytes((byte,)) for byte in range(256))]
    fed.apply(*(_set(name) for name in (*names, b"o\xff\xff", b"q")))
    store = KeyStore(fed.service._tables)  # pyright: ignore[reportPrivateUsage]
    for start in (0, 1, 2, 128, 255, 256):
        found, count = random_key.children(store, b"p", start)
        assert found == [names[(start + n) % 257] for n in range(16)]
        assert count == 257
    assert random_key.children(store, b"p\xff", 9) == ([b"p\xff"], 1)


async def test_a_walk_sees_memory_and_disk_as_one(tmp_path: Path) -> None:
    async with running(open_service(tmp_path)) as fed:
        fed.apply(*(f"SET {i} x" for i in range(0, 100, 2)))
        await fed.service.flush()
        fed.apply(*(f"SET {i} x" for i in range(1, 100, 2)), "DEL 4", "DEL 5")
        assert sorted(map(int, scan_all(fed, "COUNT", "3"))) == [
            i for i in range(100) if i not in (4, 5)
        ]
        assert fed.query("DBSIZE") == b":98\r\n"


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        (b"*", [b"", b"a", b"\n"], []),
        (b"**", [b"a", b"ab"], [b""]),
        (b"", [b""], [b"a"]),
        (b"h?llo", [b"hello", b"h\nllo"], [b"hllo", b"heello"]),
        (b"h[ae]llo", [b"hello", b"hallo"], [b"hillo"]),
        (b"h[^e]llo", [b"hallo"], [b"hello"]),
        (b"h[a-c]llo", [b"hbllo"], [b"hdllo"]),
        (b"h[c-a]llo", [b"hbllo"], [b"hdllo"]),
        (b"\\*a", [b"*a"], [b"xa"]),
        (b"a\\", [b"a\\"], [b"a"]),
        (b"[]", [], [b"", b"]"]),
        (b"[^]", [b"x"], [b""]),
        (b"[ab", [b"a", b"b"], [b"[", b"c"]),
        (b"[\\]]", [b"]"], [b"\\"]),
        (b"a*b*c", [b"abc", b"axbxbxc"], [b"acb", b"ab"]),
        (b"*ab*ab", [b"abab", b"abxab"], [b"ab", b"aab"]),
        (b"a.c", [b"a.c"], [b"abc"]),
    ],
)
def test_patterns(pattern: bytes, yes: list[bytes], no: list[bytes]) -> None:
    matches = matcher(pattern)
    assert [key for key in yes + no if matches(key)] == yes


def test_a_hostile_pattern_takes_no_time() -> None:
    assert not matcher(b"*a" * 50 + b"b")(b"a" * 10_000)


def plain_match(pattern: bytes, key: bytes) -> bool:
    """Match the plain way: every place that a star could end at."""
    if not pattern:
        return not key
    if pattern[:1] == b"*":
        return any(plain_match(pattern[1:], key[at:]) for at in range(len(key) + 1))
    return key[:1] != b"" and pattern[:1] in (b"?", key[:1]) and plain_match(pattern[1:], key[1:])


letters = st.sampled_from([b"a", b"b"])


@given(st.lists(letters | st.sampled_from([b"*", b"?"])), st.lists(letters, min_size=1))
def test_runs_match_as_if_every_place_had_been_tried(parts: list[bytes], key: list[bytes]) -> None:
    pattern, text = b"".join(parts), b"".join(key)
    assert matcher(pattern)(text) == plain_match(pattern, text)
    if matcher(pattern)(text):
        assert text.startswith(literal_prefix(pattern))
