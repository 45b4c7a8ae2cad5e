"""The crash test's checks find what is planted."""

import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import hiredis
import pytest
import trio

from quorate.cluster import HOST
from quorate.node.gateway import MemberAddress
from quorate.storage import Entry, EntryKind, InlineExecutor, Store, TermRow, encode_batch

from .clients import Ledger
from .harness import check_recordings, check_state

PAYLOADS = (b"first", b"second", b"third")


async def record(directory: Path, member_id: int, payloads: Sequence[bytes]) -> Path:
    """A member's directory with a recording; all but the last batch are known to be committed."""
    rng = random.Random(member_id)
    store = Store.open(
        directory / "log", cluster="c", member_id=member_id, rng=rng, executor=InlineExecutor
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        for payload in payloads:
            at = store.appended_position
            batch = encode_batch(
                [Entry(EntryKind.COMMAND, payload)],
                term=0,
                position=at,
                timestamp_ms=1,
                commit_position=at,
            )
            row = TermRow(0, 0, None, 1) if at == 0 else None
            await store.append_durably(batch, term_row=row)
        nursery.cancel_scope.cancel()
    store.close()
    return directory


async def test_equal_recordings_are_sound(tmp_path: Path) -> None:
    directories = [await record(tmp_path / str(n), n, PAYLOADS) for n in range(3)]
    commit, found = check_recordings(directories)
    assert commit > 0
    assert found == []


async def test_a_difference_above_the_commit_position_is_allowed(tmp_path: Path) -> None:
    one = await record(tmp_path / "0", 0, PAYLOADS)
    other = await record(tmp_path / "1", 1, (*PAYLOADS[:2], b"other"))
    assert check_recordings([one, other])[1] == []


async def test_a_difference_below_the_commit_position_is_found(tmp_path: Path) -> None:
    one = await record(tmp_path / "0", 0, PAYLOADS)
    other = await record(tmp_path / "1", 1, (b"FIRST", *PAYLOADS[1:]))
    (finding,) = check_recordings([one, other])[1]
    assert finding.startswith("at position 0 member 0 has (0, ")


async def test_a_missing_committed_batch_is_found(tmp_path: Path) -> None:
    one = await record(tmp_path / "0", 0, PAYLOADS)
    other = await record(tmp_path / "1", 1, PAYLOADS[:1])
    (finding,) = check_recordings([one, other])[1]
    assert "member 1 has None" in finding


async def test_damage_is_found(tmp_path: Path) -> None:
    directory = await record(tmp_path / "0", 0, PAYLOADS)
    file = directory / "log" / "data.mdb"
    file.write_bytes(file.read_bytes().replace(b"second", b"sEcond"))
    (finding,) = check_recordings([directory])[1]
    assert finding.startswith("member 0, term 0, position ")


@asynccontextmanager
async def member(state: dict[bytes, bytes]) -> AsyncGenerator[MemberAddress]:
    """A listener that answers READONLY, GET and DBSIZE from a dictionary."""

    async def serve(stream: trio.SocketStream) -> None:
        reader = hiredis.Reader()
        async for data in stream:
            reader.feed(bytes(data))
            while (command := reader.gets()) is not False:
                await stream.send_all(answer(command))

    def answer(command: list[bytes]) -> bytes:
        match command:
            case [b"GET", key]:
                value = state.get(key)
                return b"$-1\r\n" if value is None else b"$%d\r\n%s\r\n" % (len(value), value)
            case [b"DBSIZE"]:
                return b":%d\r\n" % len(state)
            case _:
                return b"+OK\r\n"

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host=HOST)
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        yield MemberAddress(0, HOST, listener.socket.getsockname()[1])
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("state", "found"),
    [
        ({b"a": b"1", b"n": b"2"}, None),
        ({b"a": b"1", b"u": b"2", b"n": b"3"}, None),
        ({b"n": b"2"}, "acknowledged b'a' is missing"),
        ({b"a": b"2", b"n": b"2"}, "b'a' has another value: b'2'"),
        ({b"a": b"1", b"r": b"3", b"n": b"2"}, "refused b'r' is there"),
        ({b"a": b"1", b"x": b"9", b"n": b"2"}, "3 keys, of which the clients wrote 2"),
        ({b"a": b"1", b"n": b"1"}, "b'n' is 1, not 2 to 3"),
        ({b"a": b"1", b"n": b"4"}, "b'n' is 4, not 2 to 3"),
    ],
    ids=["all", "unknown done", "lost", "changed", "refused", "phantom", "lost step", "twice"],
)
async def test_the_state_is_compared_with_what_clients_were_told(
    state: dict[bytes, bytes], found: str | None
) -> None:
    ledger = Ledger()
    ledger.acknowledged[b"a"] = b"1"
    ledger.unknown[b"u"] = b"2"
    ledger.refused[b"r"] = b"3"
    ledger.counters[b"n"] = (2, 3)
    async with member(state) as address:
        told = await check_state(ledger, address)
    assert told == ([] if found is None else [f"member 0: {found}"])
