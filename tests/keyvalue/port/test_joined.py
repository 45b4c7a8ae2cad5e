"""What is joined with what others have sent leads to what it would lead to taken apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import attrs
import trio
import trio.testing
from hypothesis import example, given
from hypothesis import strategies as st

from quorate.errors import NoLeaderError
from quorate.keyvalue.native.resp_reader import count_untrusted
from quorate.keyvalue.protocol.payload import RESP3
from tests.support.client_port_world import command
from tests.support.joined_world import Client, Leader, open_port

if TYPE_CHECKING:
    import pytest

MUCH = 10_000
AT_A_TIME = 2
FLAGS = (0, 0, RESP3, 0)  # of each client
KEY = b"\r\nK\r\n"  # the number of the client goes in here, so that each command shows its client

PLAIN = (
    command("SET", "K", "1"),
    command("set", "K", "\r\n*3"),
    command("GET", "K"),
    command("gEt", "K"),
)
CALLS = (
    *PLAIN,
    command("SET", "K", "1", "NX"),
    command("SET", "K"),
    command("GET", "K", "b"),
    command("GEX", "K"),
    command("PING"),
    command("DEL", "K"),
    command("MULTI"),
    command("EXEC"),
    command("READONLY"),
    command("RESET"),
    command("SET", "K", "c" * MUCH),
    b"PING\r\n",
    b"*1\r\nx",
    b"*0\r\n",
)
# What a leader does behind a turn: nothing, or send, answer or refuse all that it was given.
STEPS = ("wait", "send", "answer", "fail")

Said: TypeAlias = list[tuple[int, bytes]]  # by whom; who says nothing closes its connection
Turn: TypeAlias = tuple[Said, str]

calls = st.lists(st.sampled_from(CALLS), max_size=8).map(b"".join)
chunk = st.one_of(
    st.sampled_from(PLAIN),
    st.tuples(st.sampled_from(PLAIN), st.integers(1, 5)).map(lambda it: it[0] * it[1]),
    calls,
    st.tuples(calls, st.integers(1, 60)).map(lambda it: it[0][: it[1]]),
)
clients = st.integers(0, len(FLAGS) - 1)
said = st.lists(st.tuples(clients, chunk), max_size=6, unique_by=lambda one: one[0])
turns = st.lists(st.tuples(said, st.sampled_from(STEPS)), max_size=8)


def lead(leader: Leader, step: str) -> None:
    """Do what a leader does behind a turn."""
    leader.error = NoLeaderError("it was refused") if step == "fail" else None
    if step == "send":
        leader.send()
    while step in {"answer", "fail"} and (leader.waiting or leader.sent):
        leader.answer()


def state_of(client: Client) -> object:
    """What can be seen of a client."""
    client.take()
    name = client.client.last_command.lower()
    held = client.connection.waiting_bytes
    return client.received, client.idle, held, client.open, client.client.closing, name


def talk(turns: list[Turn], *, at_once: bool, joined: bool) -> list[object]:
    """What comes of turns."""
    leader = Leader(AT_A_TIME)
    leader.at_once = at_once
    out: list[object] = []
    gone = set[int]()
    with open_port(leader) as port:
        everybody = [port.connect(flags) for flags in FLAGS]
        for said, step in turns:
            if at_once:
                leader.error = NoLeaderError("it was refused") if step == "fail" else None
            port.state.begin_turn(0.0)
            for number, data in said:
                connection = everybody[number].connection
                own = data.replace(KEY, b"\r\n%d\r\n" % number)
                if own:
                    connection.on_data(own, count_untrusted(own) if joined else 0)
                else:
                    gone.add(number)
                    connection.close()
            port.state.end_turn()
            lead(leader, step)
            out += map(state_of, everybody)
        lead(leader, "answer")
        out += map(state_of, everybody)
        for number in {*range(len(FLAGS))} - gone:  # what others did that left is not certain
            key = b"%d" % number
            out.append([call for call in leader.applied if key in call[1:2]])
        counters = port.state.counters
        counts = {kind: each.count for kind, each in counters.durations.items()}
        out.append(attrs.asdict(counters) | {"durations": counts})
    assert not leader.waiting
    return out


@given(turns, st.booleans())
@example([([(0, PLAIN[0] * 5), (1, PLAIN[0] * 3), (3, PLAIN[1])], "answer")], False)
@example([([(0, PLAIN[0] * 5), (1, PLAIN[0] * 3), (3, PLAIN[1])], "fail")], False)
@example([([(0, PLAIN[2]), (1, PLAIN[3] * 3), (2, PLAIN[2]), (3, PLAIN[2])], "answer")], False)
@example([([(0, PLAIN[0]), (1, PLAIN[0])], "wait"), ([(0, b"")], "answer")], False)
@example([([(0, PLAIN[0]), (1, PLAIN[0])], "send"), ([(0, b"")], "answer")], False)
@example([([(0, PLAIN[0]), (1, PLAIN[0])], "send"), ([(0, CALLS[0] + CALLS[8])], "fail")], False)
@example([([(0, PLAIN[0]), (1, PLAIN[2]), (0, PLAIN[0])], "answer")], True)
@example([([(0, CALLS[14] + b"*1\r\nx"), (1, CALLS[14])], "answer")], False)
@example([([(0, b"*1\r\n$4\r\nPI")], "wait"), ([(0, PLAIN[0]), (1, PLAIN[0])], "answer")], False)
def test_what_is_joined_leads_to_the_same(turns: list[Turn], at_once: bool) -> None:  # noqa: FBT001
    async def both() -> None:
        joined = talk(turns, at_once=at_once, joined=True)
        assert joined == talk(turns, at_once=at_once, joined=False)

    trio.run(both, clock=trio.testing.MockClock())


def test_what_is_joined_is_taken_apart_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    leader = Leader()
    with open_port(leader) as port:
        one, other = port.connect(), port.connect()
        monkeypatch.delattr("quorate.keyvalue.protocol.parser.CommandParser.take_untrusted")
        port.turn((one, PLAIN[0] * 2), (other, PLAIN[1]))
        assert [payload for _, payload, _ in leader.seen] == [PLAIN[0] * 2 + PLAIN[1]]
        leader.answer()
        assert one.take() == b"$7\r\nSET K 1\r\n" * 2
        assert other.take() == b"$10\r\nset K \r\n*3\r\n"
        assert port.state.counters.commands == 3


def test_a_broken_protocol_behind_a_large_command_is_told_after_its_reply() -> None:
    leader = Leader()
    with open_port(leader) as port:
        client = port.connect()
        port.turn((client, command("SET", "c", "c" * MUCH) + b"*1\r\nx"))
        assert client.take() == b""
        leader.answer()
        assert client.take().startswith(b"$")
        assert b"-ERR Protocol error: expected '$'" in client.received
        assert client.client.closing
