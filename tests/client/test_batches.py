"""Replies to a batch are cut apart whatever is in them, and batches hurt no task of theirs."""

import contextlib
from collections.abc import Awaitable, Callable, Sequence

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from quorate.client.batches import BATCH_BYTES, BATCH_COMMANDS, Batches, cut_untrusted
from quorate.errors import (
    KeyValueError,
    NoLeaderError,
    OversizedRequestError,
    RefusedError,
    RequestError,
    UnknownOutcomeError,
    WireError,
)
from quorate.keyvalue.protocol import resp

CUT = UnknownOutcomeError("the client was closed")

Answers = dict[bytes, bytes | RequestError]

REPLIES = st.one_of(
    st.sampled_from([resp.OK, b"_\r\n", b"$-1\r\n", b"#t\r\n", b",1.5\r\n"]),
    st.integers(-(2**63), 2**63 - 1).map(resp.integer),
    st.binary(max_size=60).map(resp.bulk),
    st.text("ab -$\r\n", max_size=20).map(resp.error),
)


@given(st.lists(REPLIES, max_size=20))
def test_joined_replies_are_cut_where_they_were_joined(replies: list[bytes]) -> None:
    assert cut_untrusted(b"".join(replies)) == replies


@given(st.one_of(st.binary(max_size=40), st.lists(REPLIES).map(lambda some: b"".join(some)[:-1])))
def test_whatever_arrives_is_cut_or_refused(data: bytes) -> None:
    with contextlib.suppress(WireError):
        assert b"".join(cut_untrusted(data)) == data


@pytest.mark.parametrize(
    "data", [b"*1\r\n:1\r\n", b"$5\r\nab\r\n", b"$" + b"9" * 5000 + b"\r\n", b"$-2\r\n", b"+OK"]
)
def test_what_is_no_single_reply_is_refused(data: bytes) -> None:
    with pytest.raises(WireError, match="a reply"):
        cut_untrusted(data)


class Target:
    """Answers each command with its own bytes, after a while."""

    def __init__(self) -> None:
        self.sent: list[list[bytes]] = []
        self.error: RequestError | None = None
        self.seconds = 1.0

    async def send(self, payload: bytes) -> bytes:
        commands = payload.split()
        self.sent.append(commands)
        await anyio.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        return b"".join(b"+%b\r\n" % command for command in commands)


async def test_a_lone_command_is_sent_at_once(autojump_clock: MockClock) -> None:
    target = Target()
    batches = Batches(target.send, 2, CUT)
    async with anyio.create_task_group() as tasks:
        batches.start(tasks)
        await anyio.sleep(0.1)
        before = anyio.current_time()
        assert await batches.execute(b"a ") == b"+a\r\n"
        assert anyio.current_time() - before == pytest.approx(target.seconds)
        tasks.cancel_scope.cancel()


async def test_commands_gather_while_all_workers_are_busy(autojump_clock: MockClock) -> None:
    target = Target()
    batches = Batches(target.send, 1, CUT)
    found: dict[bytes, bytes] = {}
    names = [b"n%d" % n for n in range(BATCH_COMMANDS + 1)]

    async def execute(name: bytes) -> None:
        found[name] = await batches.execute(name + b" ")

    async with anyio.create_task_group() as tasks:
        batches.start(tasks)
        await anyio.sleep(0.1)
        async with anyio.create_task_group() as asking:
            asking.start_soon(execute, b"first")
            await anyio.sleep(0.1)
            for name in names:
                asking.start_soon(execute, name)
        tasks.cancel_scope.cancel()
    assert [len(batch) for batch in target.sent] == [1, BATCH_COMMANDS, 1]
    assert found == {name: b"+%b\r\n" % name for name in [b"first", *names]}


async def test_a_batch_has_no_more_bytes_than_it_may(autojump_clock: MockClock) -> None:
    target = Target()
    batches = Batches(target.send, 1, CUT)
    async with anyio.create_task_group() as tasks:
        batches.start(tasks)
        await anyio.sleep(0.1)
        async with anyio.create_task_group() as asking:
            for name in (b"a", b"b", b"c"):
                asking.start_soon(batches.execute, name * (BATCH_BYTES // 2 - 1) + b" ")
        tasks.cancel_scope.cancel()
    assert sorted(len(batch) for batch in target.sent) == [1, 2]


async def test_a_cancelled_task_leaves_the_others_of_its_batch(autojump_clock: MockClock) -> None:
    target = Target()
    batches = Batches(target.send, 1, CUT)
    found: list[bytes] = []

    async def execute(name: bytes, within: float) -> None:
        with anyio.move_on_after(within):
            found.append(await batches.execute(name + b" "))

    async with anyio.create_task_group() as tasks:
        batches.start(tasks)
        await anyio.sleep(0.1)
        async with anyio.create_task_group() as asking:
            asking.start_soon(execute, b"first", 9)
            await anyio.sleep(0.1)
            asking.start_soon(execute, b"unsent", 0.5)
            asking.start_soon(execute, b"sent", 1.5)
            asking.start_soon(execute, b"other", 9)
        tasks.cancel_scope.cancel()
    assert found == [b"+first\r\n", b"+other\r\n"]
    assert sorted(target.sent[1]) == [b"other", b"sent"], "what was not sent is left out"


async def test_each_task_gets_an_error_of_its_own(autojump_clock: MockClock) -> None:
    target = Target()
    target.error = NoLeaderError("nobody leads")
    batches = Batches(target.send, 1, CUT)
    errors: list[RequestError] = []

    async def execute() -> None:
        try:
            await batches.execute(b"a ")
        except NoLeaderError as error:
            errors.append(error)

    async with anyio.create_task_group() as tasks:
        batches.start(tasks)
        await anyio.sleep(0.1)
        async with anyio.create_task_group() as asking:
            for _ in range(3):
                asking.start_soon(execute)
        tasks.cancel_scope.cancel()
    assert len(set(map(id, errors))) == 3


async def answers_to(send: Callable[[bytes], Awaitable[bytes]], names: Sequence[bytes]) -> Answers:
    """Execute commands, which share a batch; return what each task gets."""
    batches, found = Batches(send, 1, CUT), Answers()

    async def execute(name: bytes) -> None:
        try:
            found[name] = await batches.execute(name)
        except RequestError as error:
            found[name] = error

    async with anyio.create_task_group() as tasks:
        batches.start(tasks)
        await anyio.sleep(0.1)
        async with anyio.create_task_group() as asking:
            for name in names:
                asking.start_soon(execute, name)
        tasks.cancel_scope.cancel()
    return found


@pytest.mark.parametrize("kind", [KeyValueError, OversizedRequestError])
async def test_a_refused_batch_is_halved_until_the_refused_command_is_alone(
    autojump_clock: MockClock, kind: type[RequestError]
) -> None:
    sent = list[list[bytes]]()

    async def send(payload: bytes) -> bytes:
        sent.append(payload.split())
        if b"bad" in payload:
            raise kind("NOPERM this user may not")
        return b"+OK\r\n" * len(payload.split())

    names = [b"good%d " % n for n in range(BATCH_COMMANDS - 1)]
    found = await answers_to(send, [*names, b"bad "])
    assert isinstance(found.pop(b"bad "), kind)
    assert found == dict.fromkeys(names, b"+OK\r\n")
    assert len(sent) == 1 + 2 * 7, "128 is 2 ** 7"
    done = [name for one in sent if b"bad" not in one for name in one]
    assert len(done) == len(set(done))


async def test_a_task_that_is_cancelled_between_the_halves_of_a_batch_leaves_the_others(
    autojump_clock: MockClock,
) -> None:
    sent, found = list[list[bytes]](), set[bytes]()

    async def send(payload: bytes) -> bytes:
        commands = payload.split()
        sent.append(commands)
        await anyio.sleep(1.0)
        if len(commands) == 4:
            raise KeyValueError("NOPERM this user may not")
        return b"".join(b"+%b\r\n" % command for command in commands)

    async def execute(name: bytes, within: float) -> None:
        with anyio.move_on_after(within):
            found.add(await batches.execute(name + b" "))

    batches = Batches(send, 1, CUT)
    async with anyio.create_task_group() as tasks, anyio.create_task_group() as asking:
        for n in range(4):  # in this order
            asking.start_soon(execute, b"%d" % n, 1.5 if n == 3 else 9.0)
            await anyio.sleep(0.01)
        batches.start(tasks)
        await anyio.sleep(5)
        tasks.cancel_scope.cancel()
    assert sent == [[b"0", b"1", b"2", b"3"], [b"0", b"1"], [b"2"]]
    assert found == {b"+0\r\n", b"+1\r\n", b"+2\r\n"}


async def test_a_batch_of_unknown_outcome_is_not_sent_again(autojump_clock: MockClock) -> None:
    sent = list[bytes]()

    async def send(payload: bytes) -> bytes:
        sent.append(payload)
        raise UnknownOutcomeError("its reply is lost: FORGOTTEN")

    found = await answers_to(send, [b"a ", b"b "])
    assert len(sent) == 1
    assert {type(answer) for answer in found.values()} == {UnknownOutcomeError}


async def test_a_command_without_room_in_its_batch_is_sent_alone(autojump_clock: MockClock) -> None:
    async def send(payload: bytes) -> bytes:
        if len(payload) == 2:
            return b"+alone\r\n"
        return b"+first\r\n-ERR replies may have 7 bytes in all\r\n"

    batches, found = Batches(send, 1, CUT), list[bytes]()

    async def execute() -> None:
        found.append(await batches.execute(b"a "))

    async with anyio.create_task_group() as tasks:
        batches.start(tasks)
        await anyio.sleep(0.1)
        async with anyio.create_task_group() as asking:
            asking.start_soon(execute)
            asking.start_soon(execute)
        tasks.cancel_scope.cancel()
    assert sorted(found) == [b"+alone\r\n", b"+first\r\n"]


async def test_replies_that_do_not_fit_make_the_outcome_unknown(autojump_clock: MockClock) -> None:
    async def send(payload: bytes) -> bytes:
        return b"+OK\r\n+OK\r\n+OK\r\n"

    batches, errors = Batches(send, 1, CUT), list[UnknownOutcomeError]()

    async def execute() -> None:
        try:
            await batches.execute(b"a ")
        except UnknownOutcomeError as error:
            errors.append(error)

    async with anyio.create_task_group() as tasks:
        batches.start(tasks)
        await anyio.sleep(0.1)
        async with anyio.create_task_group() as asking:
            asking.start_soon(execute)
            asking.start_soon(execute)
        tasks.cancel_scope.cancel()
    assert [str(error) for error in errors] == ["2 commands were sent, 3 answered"] * 2


async def test_a_batch_that_is_not_done_since_a_slot_has_moved_says_so_to_each_task(
    autojump_clock: MockClock,
) -> None:
    async def send(payload: bytes) -> bytes:
        return b"-NOTHERE slot 7\r\n" if b"b" in payload else b"-NOTHERE slot 7\r\n+OK\r\n"

    moved = await answers_to(send, [b"a ", b"b "])
    assert {*moved.values()} == {b"-NOTHERE slot 7\r\n"}
    done = await answers_to(send, [b"a ", b"c "])
    assert {*done.values()} == {b"-NOTHERE slot 7\r\n", b"+OK\r\n"}


async def test_a_closed_client_answers_those_that_wait(autojump_clock: MockClock) -> None:
    target, errors = Target(), dict[bytes, RequestError]()
    batches = Batches(target.send, 1, CUT)

    async def execute(name: bytes) -> None:
        try:
            await batches.execute(name)
        except RequestError as error:
            errors[name] = error

    async with anyio.create_task_group() as asking, anyio.create_task_group() as tasks:
        batches.start(tasks)
        await anyio.sleep(0.1)
        asking.start_soon(execute, b"sent ")
        await anyio.sleep(0.1)
        asking.start_soon(execute, b"waiting ")
        await anyio.sleep(0.1)
        batches.close()
        tasks.cancel_scope.cancel()
    assert isinstance(errors[b"sent "], UnknownOutcomeError)
    assert isinstance(errors[b"waiting "], RefusedError)
    assert all("closed" in str(error) for error in errors.values())
    with pytest.raises(RefusedError, match="is closed"):
        await batches.execute(b"later ")


async def test_a_cancelled_task_sends_nothing(autojump_clock: MockClock) -> None:
    target = Target()
    batches = Batches(target.send, 1, CUT)
    async with anyio.create_task_group() as tasks:
        batches.start(tasks)
        await anyio.sleep(0.1)
        for _ in range(10):  # trio wakes the worker or the task first, by chance
            with anyio.CancelScope() as scope:
                scope.cancel()
                await batches.execute(b"a ")
            await anyio.sleep(2)
        tasks.cancel_scope.cancel()
    assert not target.sent
