"""The store within a session, from Python: whatever is lost on the way, a write is done once."""

from collections.abc import Generator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import quorate
from quorate.errors import (
    ConfigurationError,
    KeyValueError,
    NoLeaderError,
    OversizedRequestError,
    RefusedError,
    RequestError,
    UnknownOutcomeError,
)
from quorate.keyvalue.limits import LONGEST_KEPT_REPLY_BYTES
from quorate.keyvalue.programs.client import KeyValue
from quorate.keyvalue.programs.session import SessionKeyValue, open_session
from quorate.keyvalue.retry import SESSION_WINDOW
from quorate.local.cluster import free_client_port
from quorate.node.requests.request import UNSTAMPED, Stamp
from quorate.node.state_machine.service import Command
from tests.support.service_world import Fed, open_service


class LossyMember:
    """An endpoint that applies a command or not, now or later, and tells or not."""

    def __init__(self, fed: Fed, rng: Random) -> None:
        self.fed = fed
        self.rng = rng
        self.losses = 0.0
        self.stamps: list[Stamp] = []
        self.error: RequestError | None = None

    async def command(self, payload: bytes, flags: int = 0, stamp: Stamp = UNSTAMPED) -> bytes:
        self.stamps.append(stamp)
        await trio.sleep(self.rng.random() / 100)
        if self.error is not None:
            raise self.error
        if self.rng.random() < self.losses:
            raise NoLeaderError("nothing was done")
        if self.rng.random() < self.losses:
            raise UnknownOutcomeError("lost on its way")
        fed = self.fed
        reply = fed.replay(Command(payload, flags, *stamp, 1, fed.position, 0, fed.now))
        if self.rng.random() < self.losses:
            raise UnknownOutcomeError("its answer was lost")
        return reply

    async def query(self, payload: bytes, flags: int = 0) -> bytes:
        return self.fed.service.query(payload, flags)


@pytest.fixture
def member(tmp_path: Path) -> Generator[LossyMember]:
    service = open_service(tmp_path)
    yield LossyMember(Fed(service), Random(1))
    service.close()


async def test_every_write_counts_once(member: LossyMember, autojump_clock: MockClock) -> None:
    member.losses = 0.3

    async def count(store: KeyValue, name: str) -> None:
        for n in range(1, 101):
            assert await store.increment(name) == n
            await store.increment("all")

    async with open_session(member) as store, trio.open_nursery() as nursery:
        for name in ("a", "b", "c"):
            nursery.start_soon(count, store, name)
    assert await store.mget("a", "b", "c", "all") == [b"100", b"100", b"100", b"300"]
    assert len(member.stamps) > 900


async def test_a_slow_task_stays_in_the_window(
    member: LossyMember, autojump_clock: MockClock
) -> None:
    """One command is lost again and again while another task would send a thousand."""
    lost = trio.Event()
    apply = member.command

    async def command(payload: bytes, flags: int = 0, stamp: Stamp = UNSTAMPED) -> bytes:
        reply = await apply(payload, flags, stamp)
        if b"slow" in payload and not lost.is_set():
            raise UnknownOutcomeError("its answer was lost")
        return reply

    member.command = command  # type: ignore[method-assign]

    async def hurry(store: KeyValue) -> None:
        for n in range(1000):
            assert await store.increment("fast") == n + 1

    async with open_session(member) as store, trio.open_nursery() as nursery:
        nursery.start_soon(store.increment, "slow")
        await trio.sleep(0.1)
        nursery.start_soon(hurry, store)
        await trio.sleep(30)
        (sent,) = await store.mget("fast")
        assert sent is not None
        assert 90 < int(sent) <= 100, "the others wait for it"
        lost.set()
    assert await store.mget("slow", "fast") == [b"1", b"1000"]


async def test_a_session_that_has_ended_is_replaced(
    member: LossyMember, autojump_clock: MockClock
) -> None:
    async with open_session(member, timeout_s=1) as store:
        await store.increment("a")
        member.fed.pass_time(2000)
        assert await store.increment("a") == 2
    assert {session for session, _ in member.stamps} == {0, 1, 1281}
    assert member.fed.service.next_deadline_ms() is None, "it is closed at the end"


async def test_one_that_ends_before_an_unknown_write_is_answered_says_so(
    member: LossyMember, autojump_clock: MockClock
) -> None:
    async with open_session(member, timeout_s=1) as store:
        await store.increment("a")
        member.error = UnknownOutcomeError("lost")
        async with trio.open_nursery() as nursery:

            async def heal() -> None:
                await trio.sleep(3)
                member.fed.pass_time(2000)
                member.error = None

            nursery.start_soon(heal)
            with pytest.raises(UnknownOutcomeError, match="the session ended"):
                await store.increment("a")
        assert await store.increment("a") == 2


@pytest.mark.parametrize(
    ("error", "raised"),
    [(NoLeaderError("none"), NoLeaderError), (UnknownOutcomeError("lost"), UnknownOutcomeError)],
)
async def test_patience_has_an_end(
    member: LossyMember, autojump_clock: MockClock, error: RequestError, raised: type[Exception]
) -> None:
    store = SessionKeyValue(member, timeout_s=60, patience_s=10)
    await store.increment("a")
    member.error = error
    before = trio.current_time()
    with pytest.raises(raised):
        await store.increment("a")
    assert 9 < trio.current_time() - before < 11


@pytest.mark.parametrize("refusal", [NoLeaderError("none"), RefusedError("suspended")])
async def test_that_nothing_was_done_is_never_said_of_an_attempt_before(
    member: LossyMember, autojump_clock: MockClock, refusal: RequestError
) -> None:
    store = SessionKeyValue(member, timeout_s=60, patience_s=10)
    await store.increment("a")
    member.error = UnknownOutcomeError("lost")
    async with trio.open_nursery() as nursery:

        async def suspend() -> None:
            await trio.sleep(3)
            member.error = refusal

        nursery.start_soon(suspend)
        with pytest.raises(UnknownOutcomeError, match="an earlier attempt may or may not"):
            await store.increment("a")


@pytest.mark.parametrize("refusal", [KeyValueError("NOPERM"), OversizedRequestError("long")])
async def test_what_refuses_a_request_says_nothing_of_an_attempt_before(
    member: LossyMember, autojump_clock: MockClock, refusal: RequestError
) -> None:
    """The rules may have changed between two attempts."""
    store = SessionKeyValue(member, timeout_s=60, patience_s=10)
    await store.increment("a")
    member.error = refusal
    with pytest.raises(type(refusal)):
        await store.increment("a")
    apply = member.command

    async def command(payload: bytes, flags: int = 0, stamp: Stamp = UNSTAMPED) -> bytes:
        member.error = None
        await apply(payload, flags, stamp)
        member.error, member.command = refusal, apply  # type: ignore[method-assign]
        raise UnknownOutcomeError("its answer was lost")

    member.command = command  # type: ignore[method-assign]
    with pytest.raises(UnknownOutcomeError, match="an earlier attempt may or may not"):
        await store.increment("a")
    assert await store.get("a") == b"2"


async def test_no_task_waits_for_the_patience_of_another_one(
    member: LossyMember, autojump_clock: MockClock
) -> None:
    store = SessionKeyValue(member, timeout_s=60, patience_s=5)
    member.error = NoLeaderError("none")
    began, took = trio.current_time(), list[float]()

    async def write() -> None:
        with pytest.raises(NoLeaderError):
            await store.increment("a")
        took.append(trio.current_time() - began)

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(write)
    assert max(took) < 6
    member.error = None
    assert await store.increment("a") == 1, "another one opens the session later"


async def test_patience_covers_the_wait_for_older_writes(
    member: LossyMember, autojump_clock: MockClock
) -> None:
    store = SessionKeyValue(member, timeout_s=60, patience_s=5)
    await store.increment("a")
    apply, late = member.command, trio.Event()

    async def command(payload: bytes, flags: int = 0, stamp: Stamp = UNSTAMPED) -> bytes:
        if stamp[1] == 2:
            await late.wait()
        return await apply(payload, flags, stamp)

    member.command = command  # type: ignore[method-assign]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.increment, "a")
        await trio.sleep(1)
        for _ in range(SESSION_WINDOW):
            await store.increment("b")
        began = trio.current_time()
        with pytest.raises(NoLeaderError, match="this one was not sent, and nothing was done"):
            await store.increment("b")
        assert trio.current_time() - began == pytest.approx(5)
        late.set()


async def test_a_task_that_is_cancelled_already_writes_nothing(
    member: LossyMember, autojump_clock: MockClock
) -> None:
    async with open_session(member) as store:
        await store.increment("a")
        sent = len(member.stamps)
        with trio.CancelScope() as scope:
            scope.cancel()
            await store.increment("a")
        assert len(member.stamps) == sent


async def test_a_cluster_with_too_many_sessions_is_asked_again(
    member: LossyMember, autojump_clock: MockClock
) -> None:
    apply, full = member.command, True

    async def command(payload: bytes, flags: int = 0, stamp: Stamp = UNSTAMPED) -> bytes:
        if full and b"OPEN" in payload:
            return b"-SESSIONLIMIT the cluster has 4096 sessions already; nothing was done\r\n"
        return await apply(payload, flags, stamp)

    member.command = command  # type: ignore[method-assign]
    async with open_session(member, patience_s=10) as store, trio.open_nursery() as nursery:
        with pytest.raises(KeyValueError, match=r"^SESSIONLIMIT .* exactly_once=False"):
            await store.increment("a")

        async def write() -> None:
            assert await store.increment("a") == 1

        nursery.start_soon(write)
        await trio.sleep(5)
        full = False


async def test_a_closed_store_opens_no_session(
    member: LossyMember, autojump_clock: MockClock
) -> None:
    async with open_session(member) as store:
        await store.increment("a")
    with pytest.raises(RefusedError, match="closed; nothing was done"):
        await store.increment("a")
    assert member.fed.service.next_deadline_ms() is None


async def test_a_reply_that_is_kept_no_more_leaves_the_outcome_unknown(
    member: LossyMember, autojump_clock: MockClock
) -> None:
    apply = member.command

    async def command(payload: bytes, flags: int = 0, stamp: Stamp = UNSTAMPED) -> bytes:
        await apply(payload, flags, stamp)
        member.command = apply  # type: ignore[method-assign]
        raise UnknownOutcomeError("its answer was lost")

    async with open_session(member) as store:
        await store.set("a", b"x" * LONGEST_KEPT_REPLY_BYTES)
        member.command = command  # type: ignore[method-assign]
        with pytest.raises(UnknownOutcomeError, match="applied, once"):
            await store.execute("GETDEL", "a")
        assert await store.get("a") is None


async def test_long_replies_do_not_push_out_one_that_is_waited_for(
    member: LossyMember, autojump_clock: MockClock
) -> None:
    """One reply is lost for a while; meanwhile other tasks get more than a session keeps."""
    lost = trio.Event()
    apply = member.command

    async def command(payload: bytes, flags: int = 0, stamp: Stamp = UNSTAMPED) -> bytes:
        reply = await apply(payload, flags, stamp)
        if b"slow" in payload and not lost.is_set():
            raise UnknownOutcomeError("its answer was lost")
        return reply

    member.command = command  # type: ignore[method-assign]
    async with open_session(member) as store, trio.open_nursery() as nursery:
        nursery.start_soon(store.increment, "slow")
        await trio.sleep(0.1)

        async def hurry() -> None:
            for _ in range(100):
                await store.execute("SET", "fast", b"x" * 1000, "GET")

        nursery.start_soon(hurry)
        await trio.sleep(30)
        lost.set()
    assert await store.get("slow") == b"1"


@pytest.mark.parametrize("name", ["timeout_s", "patience_s"])
@pytest.mark.parametrize("value", ["60", None, True, -1, float("nan"), 86_401])
async def test_what_is_no_number_of_seconds(member: LossyMember, name: str, value: object) -> None:
    wrong: dict[str, Any] = {name: value}
    with pytest.raises(ConfigurationError, match=rf"^{name} = .*: expected seconds, [01] to 86400"):
        await open_session(member, **wrong).__aenter__()


async def test_what_is_refused_is_not_sent_again(
    member: LossyMember, autojump_clock: MockClock
) -> None:
    async with open_session(member) as store:
        await store.increment("a")
        member.error = RefusedError("suspended")
        with pytest.raises(RefusedError):
            await store.increment("a")
        assert len(member.stamps) == 3


async def test_a_program_with_a_member_inside_has_it(tmp_path: Path) -> None:
    first = free_client_port(2)
    alone = (quorate.MemberConfig(0, "127.0.0.1", first, first + 1),)
    config = quorate.NodeConfig("alone", 0, tmp_path, alone)
    async with quorate.open_node(config) as node:
        async with node.session() as kv:
            assert [await kv.increment("a") for _ in range(3)] == [1, 2, 3]
            async with kv.watch("b") as changes:
                async with kv.transaction() as t:
                    t.set("b", await t.get("a") or b"")
                assert t.results == [b"OK"]
                change = await anext(changes)
            assert (change.key, change.value, change.position) == (b"b", b"3", t.position)
        assert await node.kv.get("a") == b"3"


async def test_reads_and_session_commands_are_not_stamped(
    member: LossyMember, autojump_clock: MockClock
) -> None:
    async with open_session(member) as store:
        assert await store.get("a") is None
        assert await store.execute("QUORATE.SESSION", "OPEN") == 1
    assert member.stamps == [UNSTAMPED]
