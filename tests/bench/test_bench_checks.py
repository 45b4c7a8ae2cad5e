"""What the benches do to see that nothing is lost of what they wrote."""

import json
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import attrs
import hiredis
import pytest
import trio
from rich.console import Console

from bench.lib import harness
from bench.lib.acknowledged import Numbers, counted, numbered
from bench.lib.checking import (
    LostError,
    Stretch,
    check_state,
    check_stretch,
    compare_logs,
    read_sets,
    told,
)
from bench.lib.crowds import run_crowd
from bench.lib.measuring import Load
from bench.report import results
from bench.runs import anatomy
from quorate.keyvalue.protocol import resp
from quorate.node.config.config import MemberConfig, NodeConfig
from quorate.node.requests.status import MemberAddress
from quorate.storage import Entry, EntryKind, Store, encode_batch
from quorate.storage.testing import InlineExecutor

KEYS = [b"key:%012d" % number for number in range(4)]
VALUES = [b"a" * 8, b"b" * 8, b"c" * 8, b"d" * 8]
PAIRS = list(zip(KEYS, VALUES, strict=True))


def command(*words: bytes) -> Entry:
    return Entry(EntryKind.COMMAND, resp.pack(words))


def sets(pairs: Sequence[tuple[bytes, bytes]] = PAIRS) -> list[Entry]:
    return [command(b"SET", key, value) for key, value in pairs]


async def write(directory: Path, *batches: Sequence[Entry], dropped: int = 0) -> Stretch:
    """Write a log of some batches, and perhaps drop it up to a position."""
    store = Store.open(directory, cluster="c", member_id=0, rng=Random(0), executor=InlineExecutor)
    position = 0
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        for entries in batches:
            data = encode_batch(
                entries, term=0, position=position, timestamp_ms=0, commit_position=0
            )
            await store.append_durably(data)
            position += len(data)
        await store.drop_prefix(dropped)
        nursery.cancel_scope.cancel()
    store.close()
    return Stretch(0, position)


# The log ------------------------------------------------------------------------------------------


async def test_all_that_was_set_is_read(tmp_path: Path) -> None:
    opening = Entry(EntryKind.NEW_LEADERSHIP_TERM, b"who leads")
    pipeline = Entry(EntryKind.COMMAND, b"".join(entry.payload for entry in sets(PAIRS[:2])))
    both = command(b"MSET", KEYS[2], VALUES[2], KEYS[3], VALUES[3])
    stretch = await write(tmp_path, [opening], [pipeline, both])
    assert list(read_sets(tmp_path, stretch)) == PAIRS


async def test_what_clients_set_together_is_counted_by_its_sets(tmp_path: Path) -> None:
    joined = Entry(EntryKind.COMMAND, b"".join(entry.payload for entry in sets()))
    stretch = await write(tmp_path, [joined, *sets(PAIRS[:1])], [joined])
    assert counted(9, value_bytes=8, keys=4)(read_sets(tmp_path, stretch))[KEYS[0]] == told(
        VALUES[0]
    )
    with pytest.raises(LostError, match="3 writes were acknowledged, and the log has 9"):
        counted(3, value_bytes=8, keys=4)(read_sets(tmp_path, stretch))


async def test_a_command_that_no_bench_sends_is_told(tmp_path: Path) -> None:
    stretch = await write(tmp_path, [*sets(), command(b"DEL", KEYS[0])])
    with pytest.raises(LostError, match="b'DEL'"):
        list(read_sets(tmp_path, stretch))


async def test_a_log_that_lacks_the_end_is_told(tmp_path: Path) -> None:
    whole = await write(tmp_path / "whole", sets(), sets())
    behind = await write(tmp_path / "behind", sets())
    with pytest.raises(LostError, match=f"behind: the log ends at {behind.end}"):
        compare_logs([tmp_path / "whole", tmp_path / "behind"], whole)


async def test_a_log_that_lacks_the_beginning_is_told(tmp_path: Path) -> None:
    one = await write(tmp_path / "one", sets())
    stretch = await write(tmp_path / "pruned", sets(), sets(), dropped=one.end)
    with pytest.raises(LostError, match="position 0 is pruned"):
        list(read_sets(tmp_path / "pruned", stretch))


async def test_logs_that_differ_are_told(tmp_path: Path) -> None:
    other = [*PAIRS[:3], (KEYS[3], b"e" * 8)]
    stretch = await write(tmp_path / "one", sets(), sets())
    first = await write(tmp_path / "first", sets())
    await write(tmp_path / "two", sets(), sets())
    await write(tmp_path / "three", sets(), sets(other))
    compare_logs([tmp_path / "one", tmp_path / "two"], stretch)
    with pytest.raises(LostError, match=f"three differ at position {first.end} of the log"):
        compare_logs([tmp_path / "one", tmp_path / "two", tmp_path / "three"], stretch)


# What was acknowledged ----------------------------------------------------------------------------


def test_writes_are_counted() -> None:
    look = counted(5, value_bytes=8, keys=4)
    assert look([*PAIRS, (KEYS[0], VALUES[3])])[KEYS[0]] == told(VALUES[3])


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (PAIRS[:3], "4 writes were acknowledged, and the log has 3"),
        ([*PAIRS, PAIRS[0]], "4 writes were acknowledged, and the log has 5"),
        ([*PAIRS[:3], (KEYS[3], b"short")], "has 5 bytes in the log, expected 8"),
        ([*PAIRS[:3], (b"key:000000000004", VALUES[3])], "a key that was not sent"),
        ([*PAIRS[:3], (b"another", VALUES[3])], "a key that was not sent"),
    ],
)
def test_what_is_not_as_it_was_sent_is_told(found: list[tuple[bytes, bytes]], words: str) -> None:
    with pytest.raises(LostError, match=words):
        counted(4, value_bytes=8, keys=4)(found)


def numbers(*found: int, key: bytes = b"k") -> list[tuple[bytes, bytes]]:
    return [(key, b"%016d" % number) for number in found]


def test_numbers_are_looked_for() -> None:
    clients = {b"k": Numbers(sent=4, open={3}), b"other": Numbers(sent=1)}
    look = numbered(clients, 16)
    assert look([*numbers(1, 2, 4), *numbers(1, key=b"other")])[b"k"] == told(b"%016d" % 4)
    assert look([*numbers(1, 2, 4, 3), *numbers(1, key=b"other")])[b"k"] == told(b"%016d" % 3)
    assert [one.acknowledged for one in clients.values()] == [3, 1]
    with pytest.raises(LostError, match=r"not in the log: k number 2, other number 1$"):
        look(numbers(1, 4))


def test_few_of_many_numbers_are_named() -> None:
    with pytest.raises(LostError, match=r"k number 5 and 4 more$"):
        numbered({b"k": Numbers(sent=9)}, 16)([])


def test_numbers_that_were_looked_for_are_not_looked_for_again() -> None:
    clients = {b"k": Numbers(sent=4, open={2}, seen=3)}
    assert numbered(clients, 16)(numbers(2, 4))
    assert clients[b"k"].acknowledged == 1
    with pytest.raises(LostError, match="k number 4"):
        numbered(clients, 16)(numbers(2, 3))


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        ((b"k", b"%016d" % 5), "number 5; 4 was the last one sent"),
        ((b"k", b"%016d" % 0), "number 0; 4 was the last one sent"),
        ((b"k", b"%015d" % 1), "a value that was not sent"),
        ((b"k", b"x" * 16), "a value that was not sent"),
        ((b"another", b"%016d" % 1), "a key that was not sent"),
    ],
)
def test_a_number_that_nobody_sent_is_told(pair: tuple[bytes, bytes], words: str) -> None:
    with pytest.raises(LostError, match=words):
        numbered({b"k": Numbers(sent=4)}, 16)([*numbers(1, 2, 3, 4), pair])


async def test_a_crowd_tells_what_was_not_acknowledged() -> None:
    received: dict[bytes, list[int]] = {}

    async def serve(stream: trio.SocketStream) -> None:
        reader = hiredis.Reader()
        async for data in stream:
            reader.feed(bytes(data))
            while words := reader.gets():
                received.setdefault(words[1], []).append(number := int(words[2][:16]))
                await stream.send_all(resp.OK if number % 3 else resp.error("ERR not this one"))

    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        told = await run_crowd(listener.socket.getsockname()[1], 2, 0.2, name="c")
        nursery.cancel_scope.cancel()
    assert set(told.clients) == {b"c:0", b"c:1"}
    for key, client in told.clients.items():
        assert received[key] == list(range(1, client.sent + 1))
        assert client.open == {number for number in received[key] if number % 3 == 0}
    assert told.acknowledged == sum(one.acknowledged for one in told.clients.values()) > 0


# The state ----------------------------------------------------------------------------------------


@attrs.frozen
class Member:
    """One that is looked at."""

    member_id: int
    config: NodeConfig
    address: MemberAddress


@asynccontextmanager
async def answering(state: Mapping[bytes, bytes], member_id: int = 0) -> AsyncGenerator[Member]:
    """A member that answers READONLY and MGET."""

    async def serve(stream: trio.SocketStream) -> None:
        reader = hiredis.Reader()
        async for data in stream:
            reader.feed(bytes(data))
            while words := reader.gets():
                values = [state.get(key) for key in words[1:]]
                bulks = [resp.NULL[0] if one is None else resp.bulk(one) for one in values]
                await stream.send_all(resp.array(bulks) if words[0] == b"MGET" else resp.OK)

    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    config = NodeConfig("c", 0, Path(), (MemberConfig(0, "127.0.0.1", 1, port),))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        yield Member(member_id, config, MemberAddress(member_id, "127.0.0.1", port))
        nursery.cancel_scope.cancel()


async def test_members_answer_what_was_set_last(tmp_path: Path) -> None:
    batches = sets(), sets([(KEYS[0], VALUES[1])])
    (stretch, _) = [await write(tmp_path / str(one) / "log", *batches) for one in (0, 1)]
    state = dict(PAIRS) | {KEYS[0]: VALUES[1]}
    look = counted(5, value_bytes=8, keys=4)
    async with answering(state) as well, answering(dict(PAIRS), 1) as behind:
        members = [
            attrs.evolve(
                one, config=attrs.evolve(one.config, directory=tmp_path / str(one.member_id))
            )
            for one in (well, behind)
        ]
        await check_stretch(members[:1], stretch, look)
        with pytest.raises(LostError, match=r"member 1: b'key:0+' is b'aaaaaaaa', and was set"):
            await check_stretch(members, stretch, look)
        with pytest.raises(LostError, match="member 1"):
            await check_stretch(members[:1], stretch, look, [behind.address])


async def test_a_key_that_is_gone_is_told() -> None:
    last = {key: told(value) for key, value in PAIRS}
    async with answering(dict(PAIRS[1:])) as member:
        with pytest.raises(LostError, match=r"key:0+' is None, and was set to 8 bytes"):
            await check_state(last, [member.address])


# What becomes of a bench --------------------------------------------------------------------------


@pytest.fixture
def quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    def circumstances(_place: Path, _console: Console) -> dict[str, object]:
        return {"quorate": "0", "processors": 1, "python": "3"}

    monkeypatch.setattr(harness, "tell_circumstances", circumstances)


@pytest.mark.usefixtures("quietly")
async def test_a_bench_whose_check_fails_writes_no_figures(tmp_path: Path) -> None:
    async def check() -> None:
        raise LostError("key:3 is gone")

    async def bench() -> None:
        with harness.open_bench("steady", harness.Options(figures=tmp_path)) as bench:
            bench.found({"others": 1})
            async with trio.open_nursery() as nursery:
                nursery.start_soon(check)

    with pytest.raises(SystemExit, match="steady: no figures are written: key:3 is gone"):
        await bench()
    assert results.read("steady", tmp_path) is None


@pytest.mark.usefixtures("quietly")
def test_a_bench_that_is_right_writes_them(tmp_path: Path) -> None:
    with harness.open_bench("steady", harness.Options(figures=tmp_path)) as bench:
        bench.found({"others": 1})
    assert json.loads((tmp_path / "steady.json").read_text())["rows"] == [{"others": 1}]


@pytest.mark.usefixtures("quietly")
def test_a_bench_with_another_error_tells_that_one(tmp_path: Path) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        harness.open_bench("steady", harness.Options(figures=tmp_path)),
    ):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("quietly")
def test_a_bench_that_found_nothing_for_a_table_writes_no_figures(tmp_path: Path) -> None:
    with (
        pytest.raises(ValueError, match=r"a table of .*p50 µs, p99 µs has no rows"),
        harness.open_bench("anatomy", harness.Options(figures=tmp_path)) as bench,
    ):
        bench.found({"module": "trio", "share": 1.0, "us": 1.0})
    assert list(tmp_path.iterdir()) == []


def test_a_bench_without_a_tool_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match="no-tool not found, so nothing was measured: pip"):
        harness.stop_without("no-tool", "no-tool", by="pip install")
    beside = Path(sys.executable)  # as pip puts tools, with a venv that is not activated
    assert harness.stop_without(beside.name, "python3") == str(beside)


async def test_the_bench_that_profiles_does_not_begin_without_its_tool(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "redis-benchmark").touch(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(SystemExit, match="py-spy not found"):
        await anatomy.main(options=harness.Options(figures=tmp_path / "figures"))
    assert not (tmp_path / "figures").exists()


def test_requests_are_shared_out_evenly() -> None:
    load = Load("set", 64, 16)
    assert [load.whole(n) for n in (1, 1024, 1025)] == [1024, 1024, 2048]
    assert load.trial() % 1024 == 0
    assert Load("set", 1).whole(7) == 7
