"""A chunk that is passed on as it came leads to what it would lead to taken apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast
from unittest import mock

import attrs
import pytest
import trio
import trio.testing
from client_port_world import command
from hypothesis import example, given
from hypothesis import strategies as st
from test_plain import plain_commands, stream

from quorate.keyvalue import resp
from quorate.keyvalue.conversation import Conversation
from quorate.keyvalue.guard import CommandParser, ParserLimits, WholeCommands
from quorate.keyvalue.plain import NATIVE, count_untrusted
from quorate.keyvalue.routes import RUN_COMMANDS
from quorate.keyvalue.service import IN_PARTS, TRANSACTION
from quorate.keyvalue.session import ClientPortLimits, PortState, Session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorate.node.gateway import Gateway, Request, RequestKind

pytestmark = pytest.mark.skipif(not NATIVE, reason="keyvalue/plain.c was not compiled")

MUCH = 10_000
AT_A_TIME = 2


def counted(data: bytes) -> int:
    """The specification of `count_untrusted`."""
    commands, end = plain_commands(data, 3)
    calls = {(arguments[0].lower(), len(arguments)) for arguments in commands}
    if end < len(data) or len(commands) > RUN_COMMANDS or len(calls) != 1:
        return 0
    return {(b"set", 3): len(commands), (b"get", 2): -len(commands)}.get(calls.pop(), 0)


CALLS = (
    command("SET", "a", "1"),
    command("set", "b", "\r\n*3"),
    command("GET", "a"),
    command("gEt", "b"),
    command("SET", "a", "1", "NX"),
    command("SET", "a"),
    command("GET", "a", "b"),
    command("GEX", "a"),
    command("PING"),
    command("DEL", "a"),
    command("MULTI"),
    command("EXEC"),
    command("READONLY"),
    command("SET", "c", "c" * MUCH),
    b"PING\r\n",
    b"*1\r\nx",
    b"*0\r\n",
)
calls = st.lists(st.sampled_from(CALLS), max_size=12)


@given(st.one_of(stream, calls.map(b"".join)))
@example(b"")
@example(command("GET", "a") * RUN_COMMANDS)
@example(command("SET", "a", "1") * RUN_COMMANDS)
@example(command("SET", "a", "1") * (RUN_COMMANDS + 1))
@example(command("SET", "a", "1")[:-1])
@example(command("SET", "a", "1") + b"\0")
@example(b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$999999999\r\n")
@example(b"*2\r\n$4\r\nGETS\r\n$1\r\na\r\n")
def test_runs_are_counted(data: bytes) -> None:
    assert count_untrusted(data) == counted(data)


@pytest.mark.parametrize("data", ["text", bytearray(b"*1"), None])
def test_wrong_arguments_are_refused(data: object) -> None:
    with pytest.raises(TypeError):
        count_untrusted(cast("bytes", data))


class Leader:
    """Answers requests when it is told to, at most two commands of one at a time."""

    @attrs.frozen
    class Topology:
        is_leader: bool = True

    topology = Topology()

    def __init__(self, *, at_once: bool) -> None:
        self.at_once = at_once
        self.waiting: list[Request] = []
        self.seen: list[tuple[RequestKind, bytes, int]] = []

    def submit(self, request: Request) -> None:
        self.seen.append((request.kind, request.payload, request.flags))
        self.waiting.append(request)
        if self.at_once:
            self.answer()

    def answer(self) -> None:
        waiting, self.waiting = self.waiting, []
        for request in waiting:
            request.done(self.reply(request))

    def reply(self, request: Request) -> bytes:
        if request.flags & TRANSACTION:
            return b"*1\r\n+done\r\n"
        commands = resp.CommandParser().parse_untrusted(request.payload)
        done = commands[:AT_A_TIME] if request.flags & IN_PARTS else commands
        replies = b"".join(resp.bulk(b" ".join(arguments)) for arguments in done)
        return replies if done == commands else b"\0%d\r\n" % len(done) + replies


class Client:
    """A client's conversation, and what it was told."""

    def __init__(self, leader: Leader) -> None:
        self.session = Session(1, "a", "b", 0.0, 0.0)
        self.port = PortState(cast("Gateway", leader), ClientPortLimits())
        self.told = b""
        self.conversation = Conversation(
            self.session,
            CommandParser(WholeCommands(), ParserLimits()),
            self.port,
            self.deliver,
            self.fail,
        )

    def deliver(self) -> None:
        self.told += b"".join(self.conversation.replies)
        self.conversation.replies.clear()

    def fail(self) -> None:
        raise AssertionError("a mistake")


def talk(chunks: Sequence[bytes], answers: Sequence[bool], *, at_once: bool) -> list[object]:
    """What comes of chunks, after each of which waiting requests are answered or are not."""
    leader = Leader(at_once=at_once)
    client = Client(leader)
    out: list[object] = []
    for chunk, answer in zip(chunks, answers, strict=True):
        if client.session.closing:
            break
        client.conversation.feed(chunk)
        while answer and leader.waiting:
            leader.answer()
        conversation = client.conversation
        out += [client.told, conversation.idle, conversation.waiting_bytes, client.session.closing]
    while leader.waiting:
        leader.answer()
    assert client.conversation.idle or client.conversation.failed
    name = client.session.last_command.lower()
    return [*out, client.told, name, attrs.asdict(client.port.counters), leader.seen]


chunk = st.one_of(
    calls.map(b"".join),
    st.tuples(st.sampled_from(CALLS[:4]), st.integers(1, 7)).map(lambda it: it[0] * it[1]),
    st.tuples(calls.map(b"".join), st.integers(0, 60)).map(lambda it: it[0][: it[1]]),
).filter(bool)


@given(st.lists(st.tuples(chunk, st.booleans()), max_size=8), st.booleans())
@example([(command("SET", "c", "c" * MUCH) + b"*1\r\nx", True)], False)
@example([(CALLS[0] * 5, False), (CALLS[2] * 3, False), (CALLS[0] * 5, True)], False)
@example([(CALLS[2] * 5, True), (b"*1\r\n$4\r\nPI", True), (b"NG\r\n", True)], True)
def test_what_is_passed_on_leads_to_the_same(
    steps: list[tuple[bytes, bool]],
    at_once: bool,  # noqa: FBT001
) -> None:
    chunks, answers = [step[0] for step in steps], [step[1] for step in steps]

    async def both() -> None:
        passed_on = talk(chunks, answers, at_once=at_once)
        with mock.patch.object(CommandParser, "count_untrusted", return_value=0):
            assert talk(chunks, answers, at_once=at_once) == passed_on

    trio.run(both, clock=trio.testing.MockClock())


def test_a_run_is_passed_on_untouched() -> None:
    leader = Leader(at_once=True)
    client = Client(leader)
    with mock.patch.object(CommandParser, "take_untrusted", side_effect=AssertionError):
        for data in (CALLS[0] * 2, CALLS[2], CALLS[1]):
            client.conversation.feed(data)
            assert leader.seen[-1][1] is data
    assert client.told == b"".join(
        map(resp.bulk, (b"SET a 1", b"SET a 1", b"GET a", b"set b \r\n*3"))
    )
    assert client.port.counters.commands == 4


def test_a_broken_protocol_behind_a_large_command_is_told_after_its_reply() -> None:
    leader = Leader(at_once=False)
    client = Client(leader)
    client.conversation.feed(command("SET", "c", "c" * MUCH) + b"*1\r\nx")
    assert client.told == b""
    leader.answer()
    assert client.told.startswith(b"$")
    assert b"-ERR Protocol error: expected '$'" in client.told
    assert client.session.closing
