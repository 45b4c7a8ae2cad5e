"""The checks of the torture find what is planted."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
import trio

from quorate.histories.history import HistoryWriter
from quorate.histories.linearizability import Verdict
from quorate.storage import Entry, EntryKind, Store, encode_batch
from quorate.storage.testing import InlineExecutor
from quorate.torture.checks import check_recordings, check_state
from quorate.torture.clients import CLIENTS, Clients
from quorate.torture.plan import check_history
from tests.support.servers import FakeConnection, FakeStore, serving

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from quorate.histories.history import Value

PAYLOADS = (b"first", b"second", b"third")
ENOUGH = 1000


# Recordings -------------------------------------------------------------------------------------


async def record(directory: Path, member_id: int, payloads: Sequence[bytes]) -> Path:
    """A member's directory with a recording; all but the last batch are known to be committed."""
    rng = random.Random(member_id)
    store = Store.open(
        directory / "log", cluster="c", member_id=member_id, rng=rng, executor=InlineExecutor
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        for payload in payloads:
            at = store.submitted_position
            batch = encode_batch(
                [Entry(EntryKind.COMMAND, payload)],
                term=0,
                position=at,
                timestamp_ms=1,
                commit_position=at,
            )
            await store.append_durably(batch)
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


async def test_a_removed_member_need_not_have_what_came_later(tmp_path: Path) -> None:
    one = await record(tmp_path / "0", 0, (*PAYLOADS, b"fourth"))
    left = await record(tmp_path / "1", 1, PAYLOADS[:2])
    assert check_recordings([one], [left])[1] == []
    (finding,) = check_recordings([one, left])[1]
    assert "member 1 has None" in finding


async def test_what_a_removed_member_knew_to_be_committed_is_compared(tmp_path: Path) -> None:
    one = await record(tmp_path / "0", 0, PAYLOADS)
    other = await record(tmp_path / "1", 1, (b"FIRST", *PAYLOADS[1:]))
    (finding,) = check_recordings([one], [other])[1]
    assert finding.startswith("at position 0 member 0 has (0, ")


async def test_damage_is_found(tmp_path: Path) -> None:
    directory = await record(tmp_path / "0", 0, PAYLOADS)
    file = directory / "log" / "data.mdb"
    file.write_bytes(file.read_bytes().replace(b"second", b"sEcond"))
    (finding,) = check_recordings([directory])[1]
    assert finding.startswith("member 0, term 0, position ")


# States -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "found"),
    [
        ({b"a": b"1", b"n": b"2"}, []),
        (
            {b"n": b"2"},
            ["b'a' is None, expected b'1'", "1 keys, expected the 2 that clients wrote"],
        ),
        ({b"a": b"3", b"n": b"2"}, ["b'a' is b'3', expected b'1'"]),
        (
            {b"a": b"1", b"n": b"2", b"gone": b"3"},
            ["b'gone' is b'3', expected None", "3 keys, expected the 2 that clients wrote"],
        ),
        ({b"a": b"1", b"n": b"2", b"x": b"9"}, ["3 keys, expected the 2 that clients wrote"]),
    ],
    ids=["right", "lost", "changed", "undead", "phantom"],
)
async def test_a_state_is_compared_with_the_last_read(
    state: dict[bytes, bytes], found: list[str]
) -> None:
    async with serving(FakeStore(state)) as address:
        told = await check_state([b"a", b"n", b"gone"], [b"1", b"2", None], address)
    assert told == [f"member 0: {words}" for words in found]


async def test_many_differences_are_not_all_told() -> None:
    keys = [b"%d" % n for n in range(100)]
    async with serving(FakeStore()) as address:
        told = await check_state(keys, [b"x"] * 100, address)
    assert len(told) == 4
    assert told[-1] == "member 0: 98 more like these"


# Histories --------------------------------------------------------------------------------------


class Slow(FakeStore):
    """Lets other clients come between: what is right here stays right with much overlap."""

    async def answer(self, connection: FakeConnection, command: list[bytes]) -> bytes:
        for _ in range(self.commands % 5):
            await trio.lowlevel.checkpoint()
        return await super().answer(connection, command)


class Forgetful(Slow):
    """Acknowledges a write now and then that it has not done."""

    def execute(self, name: str, key: bytes, args: list[bytes]) -> Value:
        before = self.state.get(key)
        result = super().execute(name, key, args)
        if name == "append" and self.commands % 50 == 0 and before is not None:
            self.state[key] = before
        return result


class Repeating(Slow):
    """Does an increment twice now and then."""

    def execute(self, name: str, key: bytes, args: list[bytes]) -> Value:
        if name == "incr" and self.commands % 50 == 0:
            super().execute(name, key, args)
        return super().execute(name, key, args)


class Stale(Slow):
    """Answers some reads with what it knew a while ago."""

    def __init__(self) -> None:
        super().__init__()
        self.old: dict[bytes, bytes] = {}

    def execute(self, name: str, key: bytes, args: list[bytes]) -> Value:
        if self.commands % 40 == 0:
            self.old = dict(self.state)
        if name == "get" and self.commands % 7 == 0 and key in self.old:
            return self.old[key]
        return super().execute(name, key, args)


class Careless(Slow):
    """Does not look whether a watched key has changed."""

    def changed(self, key: bytes, value: bytes | None) -> bool:
        return False


class Attentive(Slow):
    """Notes when a key is watched while an earlier WATCH still holds."""

    def __init__(self) -> None:
        super().__init__()
        self.watched_twice: list[list[bytes]] = []

    async def answer(self, connection: FakeConnection, command: list[bytes]) -> bytes:
        if command[0] == b"WATCH" and connection.watched:
            self.watched_twice.append([*connection.watched, *command[1:]])
        return await super().answer(connection, command)


async def judge(store: FakeStore, tmp_path: Path) -> tuple[Clients, Verdict]:
    """Let the torture's clients work on a store, and check what they wrote down."""
    path = tmp_path / "history.jsonl"
    with path.open("wb") as file:
        async with serving(store) as address, trio.open_nursery() as nursery:
            clients = Clients([address], HistoryWriter(file), seed=1)
            nursery.start_soon(clients.run)
            while clients.outcomes["ok"] < ENOUGH:
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        async with serving(store) as address:
            clients.addresses = [address]
            await clients.read_all()
    return clients, check_history(path).verdict


async def test_a_right_store_is_found_right(tmp_path: Path) -> None:
    clients, verdict = await judge(Slow(), tmp_path)
    assert verdict is Verdict.LINEARIZABLE
    assert clients.violations == []
    assert clients.outcomes["fail"] > 0  # somebody came between WATCH and EXEC
    assert len(clients.keys) > 10


async def test_what_was_watched_for_a_write_that_was_not_made_is_let_go(tmp_path: Path) -> None:
    """It may have been absent then, made since, and deleted again before EXEC."""
    store = Attentive()
    await judge(store, tmp_path)
    assert store.watched_twice == []


@pytest.mark.parametrize("store", [Forgetful, Repeating, Stale, Careless])
async def test_a_broken_store_is_found_out(store: type[FakeStore], tmp_path: Path) -> None:
    _, verdict = await judge(store(), tmp_path)
    assert verdict is Verdict.VIOLATED


class Refusing(FakeStore):
    """Gives every command the same reply."""

    def __init__(self, reply: bytes) -> None:
        super().__init__()
        self.reply = reply

    async def answer(self, connection: FakeConnection, command: list[bytes]) -> bytes:
        await trio.lowlevel.checkpoint()
        return self.reply


@pytest.mark.parametrize(
    ("reply", "status", "violation"),
    [
        (b"-CLUSTERDOWN no leader\r\n", "fail", None),
        (b"-UNKNOWN lost\r\n", "unknown", None),
        (b"-ERR strange\r\n", "unknown", "error to b'"),
        (b"*0\r\n", "unknown", "unexpected reply to "),
    ],
    ids=["refused", "unknown", "error", "strange"],
)
async def test_a_reply_becomes_an_outcome(
    reply: bytes, status: str, violation: str | None, tmp_path: Path
) -> None:
    with (tmp_path / "history").open("wb") as file:
        async with serving(Refusing(reply)) as address, trio.open_nursery() as nursery:
            clients = Clients([address], HistoryWriter(file), seed=1)
            nursery.start_soon(clients.run)
            while clients.outcomes.total() < 3 * CLIENTS:
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
    assert set(clients.outcomes) <= {status, "unknown"}  # those cancelled at the end are unknown
    assert clients.outcomes[status] > 2 * CLIENTS  # type: ignore[index]
    assert bool(clients.violations) == (violation is not None)
    assert all(told.startswith(violation or "") for told in clients.violations)
