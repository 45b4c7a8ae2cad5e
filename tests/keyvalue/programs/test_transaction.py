"""Transactions of programs: they take place at one point of the log, or not at all."""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from pathlib import Path
from random import Random

import anyio
import pytest
import trio
from trio.testing import MockClock

from quorate.errors import (
    ConfigurationError,
    ConflictError,
    KeyValueError,
    OversizedRequestError,
    UnknownOutcomeError,
)
from quorate.keyvalue.programs import transaction as transaction_module
from quorate.keyvalue.programs.client import KeyValue
from quorate.keyvalue.programs.session import open_session
from quorate.keyvalue.programs.transaction import Transaction
from quorate.keyvalue.protocol import resp
from quorate.node.requests.request import UNSTAMPED, Stamp
from tests.support.lone_member import LoneMember
from tests.support.service_world import Fed, open_service


@pytest.fixture
def member(tmp_path: Path) -> Generator[LoneMember]:
    service = open_service(tmp_path)
    yield LoneMember(Fed(service))
    service.close()


@pytest.fixture
def kv(member: LoneMember) -> KeyValue:
    return KeyValue(member)


class SlowMember(LoneMember):
    """A member whose requests take a moment, and whose replies may be lost."""

    def __init__(self, fed: Fed, rng: Random) -> None:
        super().__init__(fed)
        self.rng = rng
        self.losses = 0.0

    async def command(self, payload: bytes, flags: int = 0, stamp: Stamp = UNSTAMPED) -> bytes:
        await anyio.sleep(self.rng.random() / 100)
        if self.rng.random() < self.losses:
            raise UnknownOutcomeError("lost on its way")
        reply = await super().command(payload, flags, stamp)
        if self.rng.random() < self.losses:
            raise UnknownOutcomeError("its answer was lost")
        return reply

    async def query(self, payload: bytes, flags: int = 0) -> bytes:
        await anyio.sleep(self.rng.random() / 100)
        return await super().query(payload, flags)


Body = Callable[[Transaction], Awaitable[object]]
Change = Callable[[KeyValue], Awaitable[object]]

CHANGES: dict[str, Change] = {
    "set": lambda kv: kv.set("a", "1"),
    "deleted": lambda kv: kv.delete("a"),
    "expiry": lambda kv: kv.expire("a", 100),
    "created": lambda kv: kv.set("b", "1"),
}


async def run(t: Transaction, body: Body) -> None:
    async with t:
        await body(t)


async def test_reads_and_writes_take_place_together(kv: KeyValue, member: LoneMember) -> None:
    await kv.set("a", "1")
    async with kv.transaction() as t:
        assert await t.get("a") == b"1"
        assert await t.get_many(["a", "b", b"c"]) == {b"a": b"1"}
        assert not await t.exists("b")
        t.set("b", b"2", px=500)
        t.delete("a", "c")
        t.increment("n")
        t.increment("n", 5)
        t.expire("n", 5)
        t.execute("APPEND", "s", "x")
        assert await t.get("n") is None, "a block does not see its own writes"
        before = len(member.payloads)
    assert t.results == [b"OK", 1, 1, 6, 1, 1]
    assert len(member.payloads) == before + 1
    assert await kv.get_many(["a", "b", "n", "s"]) == {b"b": b"2", b"n": b"6", b"s": b"x"}
    assert [record and record.revision for record in await kv.records([*"bns"])] == [t.position] * 3
    assert 4000 < await kv.ttl_ms("n") <= 5000


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_of_what_was_read_is_a_conflict(kv: KeyValue, change: str) -> None:
    async def body(t: Transaction) -> None:
        await t.records(["a", "b"])
        t.set("c", "1")
        await CHANGES[change](kv)

    await kv.set("a", "1")
    t = kv.transaction()
    with pytest.raises(
        ConflictError, match=r"a key that the transaction has read .of 2. was changed"
    ):
        await run(t, body)
    assert await kv.get("c") is None
    assert (t.results, t.position) == ([], 0)


async def test_a_change_of_another_key_is_none(kv: KeyValue) -> None:
    async with kv.transaction() as t:
        await t.get("a")
        t.set("b", "1")
        await kv.set("b", "2")
        await kv.set("c", "2")
    assert await kv.get("b") == b"1"


async def test_a_key_that_expires_after_it_was_read_is_a_conflict(
    kv: KeyValue, member: LoneMember
) -> None:
    async def body(t: Transaction) -> None:
        assert await t.get("a") == b"1"
        member.fed.pass_time(200)
        t.set("b", "1")

    await kv.set("a", "1", px=100)
    with pytest.raises(ConflictError):
        await run(kv.transaction(), body)


async def test_reads_alone_are_of_one_point_of_the_log(kv: KeyValue, member: LoneMember) -> None:
    async def body(t: Transaction) -> None:
        await t.get("a")
        await kv.set("a", "1")
        await t.get("b")

    async with kv.transaction() as t:
        await t.get("a")
        await t.get("b")
    assert (t.results, t.position) == ([], 0)
    with pytest.raises(ConflictError):
        await run(kv.transaction(), body)
    assert len(member.payloads) == 1, "nothing of it is in the log"


async def test_a_key_is_read_once(kv: KeyValue, member: LoneMember) -> None:
    async def body(t: Transaction) -> None:
        assert await t.get("a") is None
        await kv.set("a", "1")
        assert await t.get("a") is None
        assert await t.get("b") is None

    with pytest.raises(ConflictError):
        await run(kv.transaction(), body)
    assert len(member.queries) == 3  # a, b, and the check


async def test_an_exception_discards_all(kv: KeyValue, member: LoneMember) -> None:
    async def body(t: Transaction) -> None:
        t.set("a", "1")
        raise KeyError

    with pytest.raises(KeyError):
        await run(kv.transaction(), body)
    assert not member.payloads


async def test_nothing_is_sent_for_nothing(kv: KeyValue, member: LoneMember) -> None:
    async with kv.transaction():
        pass
    async with kv.transaction() as t:
        await t.get("a")
    assert (len(member.payloads), len(member.queries)) == (0, 1)


async def test_writes_without_reads_and_reads_that_are_queued(
    kv: KeyValue, member: LoneMember
) -> None:
    async with kv.transaction() as t:
        t.set("a", "1")
    assert t.position == 1
    async with kv.transaction() as t:
        t.execute("GET", "a")
        t.execute("DBSIZE")
    assert (t.results, t.position) == ([b"1", 1], 0)
    assert len(member.payloads) == 1


async def test_a_failed_command_is_raised_and_the_other_ones_take_effect(kv: KeyValue) -> None:
    await kv.set("text", "x")
    words = r"^ERR value is not an integer or out of range \(command 2 of 3 in a transaction, "

    async def body(t: Transaction) -> None:
        t.set("a", "1")
        t.increment("text")
        t.set("b", "1")

    t = kv.transaction()
    with pytest.raises(KeyValueError, match=words):
        await run(t, body)
    assert [type(result) for result in t.results] == [bytes, KeyValueError, bytes]
    assert await kv.get_many(["a", "b"]) == {b"a": b"1", b"b": b"1"}
    assert t.position


async def test_it_is_used_inside_its_block_and_once(kv: KeyValue) -> None:
    t = kv.transaction()
    with pytest.raises(RuntimeError, match="not open"):
        await t.get("a")
    async with t:
        t.set("a", "1")
    with pytest.raises(RuntimeError, match="not open"):
        t.set("a", "2")
    with pytest.raises(RuntimeError, match="twice"):
        await t.__aenter__()
    assert "1 queued, position 1" in repr(t)


@pytest.mark.parametrize(
    "line", ["PING", "NOSUCH a", "GET", "ACL SETUSER x on", "QUORATE.SESSION OPEN", "MULTI"]
)
async def test_commands_that_have_no_place_in_it_are_refused(
    kv: KeyValue, member: LoneMember, line: str
) -> None:
    async def body(t: Transaction) -> None:
        t.execute(*line.split())

    with pytest.raises(KeyValueError, match=r"^ERR "):
        await run(kv.transaction(), body)
    assert not member.payloads


async def test_its_size_is_bounded(kv: KeyValue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_module, "_COMMANDS", 3)
    monkeypatch.setattr(transaction_module, "MAX_WATCHED_KEYS", 3)
    async with kv.transaction() as t:
        for _ in range(3):
            t.increment("n")
        with pytest.raises(OversizedRequestError, match="may have 3 commands"):
            t.increment("n")
        await t.get_many([*"abc"])
        with pytest.raises(OversizedRequestError, match="4 keys read"):
            await t.get("d")
    assert await kv.get("n") == b"3"


async def test_a_full_transaction_is_accepted(kv: KeyValue) -> None:
    keys = [f"k{i}" for i in range(10_000)]
    async with kv.transaction() as t:
        assert await t.get_many(keys) == {}
        for key in keys[:-1]:
            t.set(key, "1")
    assert len(t.results) == 9_999


async def test_a_body_runs_again_after_a_conflict(kv: KeyValue, autojump_clock: MockClock) -> None:
    seen: list[bytes | None] = []

    async def body(t: Transaction) -> int:
        seen.append(await t.get("a"))
        if len(seen) < 4:
            await kv.increment("a")
        t.increment("n")
        return len(seen)

    assert await kv.transact(body, rng=Random(1)) == 4
    assert seen == [None, b"1", b"2", b"3"]
    assert await kv.get("n") == b"1"

    async def hopeless(t: Transaction) -> None:
        await t.get("a")
        await kv.increment("a")
        t.increment("n")

    with pytest.raises(ConflictError):
        await kv.transact(hopeless, attempts=3, rng=Random(1))
    assert (await kv.get("a"), await kv.get("n")) == (b"6", b"1")
    for wrong, error in ((0, ConfigurationError), ("1", TypeError)):
        with pytest.raises(error, match="attempts = "):
            await kv.transact(hopeless, wrong)  # type: ignore[arg-type]


async def _transfers(kv: KeyValue, rng: Random, *, count: int) -> None:
    """Move random amounts between three accounts."""

    async def move(t: Transaction) -> None:
        one, other = rng.sample("abc", 2)
        balances = await t.get_many([one])
        amount = rng.randint(1, 50)
        if int(balances[one.encode()]) >= amount:
            rest, more = int(balances[one.encode()]), int(await t.get(other) or 0)
            t.set(one, str(rest - amount))
            t.set(other, str(more + amount))

    for _ in range(count):
        await kv.transact(move, attempts=200, rng=rng)


@pytest.mark.parametrize("seed", range(3))
async def test_concurrent_transfers_keep_the_sum(
    member: LoneMember, autojump_clock: MockClock, seed: int
) -> None:
    rng = Random(seed)
    slow = SlowMember(member.fed, rng)
    kv = KeyValue(slow)
    await kv.set_many({"a": "100", "b": "100", "c": "100"})

    async def audit() -> None:
        async def body(t: Transaction) -> int:
            return sum([int(await t.get(key) or 0) for key in "abc"])

        for _ in range(10):
            assert await kv.transact(body, attempts=500, rng=rng) == 300

    async with trio.open_nursery() as nursery:
        nursery.start_soon(audit)
        for _ in range(4):
            nursery.start_soon(lambda: _transfers(kv, rng, count=8))
    balances = [int(value) for value in (await kv.get_many([*"abc"])).values()]
    assert sum(balances) == 300
    assert min(balances) >= 0


@pytest.mark.parametrize("seed", range(8))
async def test_transactions_take_place_one_after_the_other(
    member: LoneMember, autojump_clock: MockClock, seed: int
) -> None:
    """What each has read is the state that those before it, by position, have made."""
    rng = Random(seed)
    kv = KeyValue(SlowMember(member.fed, rng))
    done: list[tuple[int, dict[str, bytes | None], dict[str, bytes | None]]] = []

    async def some(name: int) -> None:
        for number in range(12):
            reads: dict[str, bytes | None] = {}
            writes: dict[str, bytes | None] = {}
            with suppress(ConflictError):
                async with kv.transaction() as t:
                    for key in rng.sample("abcd", rng.randint(0, 3)):
                        reads[key] = await t.get(key)
                    for key in rng.sample("abcd", rng.randint(1, 2)):
                        if rng.random() < 0.3:
                            t.delete(key)
                            writes[key] = None
                        else:
                            t.set(key, f"{name}/{number}")
                            writes[key] = b"%d/%d" % (name, number)
                done.append((t.position, reads, writes))

    async with trio.open_nursery() as nursery:
        for name in range(4):
            nursery.start_soon(some, name)
    state: dict[str, bytes | None] = {}
    for _, reads, writes in sorted(done, key=lambda one: one[0]):
        assert reads == {key: state.get(key) for key in reads}
        state |= writes
    found = {key: await kv.get(key) for key in "abcd"}
    assert found == {key: state.get(key) for key in "abcd"}
    assert 12 < len(done) < 48, "some met a conflict"


async def test_in_a_session_a_commit_of_unknown_outcome_is_done_once(
    member: LoneMember, autojump_clock: MockClock
) -> None:
    slow = SlowMember(member.fed, Random(2))
    async with open_session(slow) as kv:
        await kv.set("n", "0")
        slow.losses = 0.3

        async def count(t: Transaction) -> None:
            value = int(await t.get("n") or 0)
            t.set("n", str(value + 1))
            t.increment("check")

        for _ in range(30):
            await kv.transact(count, rng=slow.rng)
        slow.losses = 0.0
        assert await kv.get_many(["n", "check"]) == {b"n": b"30", b"check": b"30"}
        assert sum(b"WATCH" in payload for payload in slow.payloads) > 30


async def test_without_a_session_an_unknown_outcome_is_raised(member: LoneMember) -> None:
    slow = SlowMember(member.fed, Random(2))
    slow.losses = 1.0

    async def body(t: Transaction) -> None:
        t.set("a", "1")

    with pytest.raises(UnknownOutcomeError):
        await run(KeyValue(slow).transaction(), body)


async def test_the_commit_is_what_the_port_takes_as_a_whole_request(
    kv: KeyValue, member: LoneMember
) -> None:
    async with kv.transaction() as t:
        await t.get("a")
        t.set("b", "1")
    words = ["WATCH", "a", "0"], ["SET", "b", "1"], ["QUORATE.POSITION"]
    assert member.payloads == [b"".join(map(resp.encode_command, words))]


def test_all_of_it_runs_on_asyncio(member: LoneMember) -> None:
    slow = SlowMember(member.fed, Random(3))
    slow.losses = 0.1

    async def main() -> None:
        async with open_session(slow) as kv:
            await kv.set_many({"a": "100", "b": "100", "c": "100"})
            async with asyncio.TaskGroup() as group:
                for seed in range(3):
                    group.create_task(_transfers(kv, Random(seed), count=1))
            found = {key: int(value) async for key, value in kv.scan_items()}
            assert sum(found.values()) == 300
            assert await kv.set("d", "1")

    asyncio.run(main())
