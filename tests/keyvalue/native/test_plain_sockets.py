"""What was compiled reads from sockets, cuts replies, and sends them, as its specification says."""

from __future__ import annotations

import gc
import os
import re
import select
import socket
import struct
import sys
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quorate.keyvalue.native.plain import NATIVE, cut_replies_untrusted, receive_untrusted, send_all
from quorate.keyvalue.port.connection import RECEIVE_BYTES
from quorate.keyvalue.port.listener import TURN_EVENTS
from tests.keyvalue.commands.test_counting import CALLS, counted
from tests.support.client_port_world import command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.skipif(not NATIVE, reason="keyvalue/native/plain.c was not compiled")

TURN_BYTES, MOST = 1 << 20, TURN_EVENTS
EVENTS = select.EPOLLIN | select.EPOLLRDHUP
Pair = tuple[socket.socket, socket.socket]


class Sockets:
    """Pairs of sockets, one of each registered with an epoll."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack
        self.epoll = stack.enter_context(select.epoll())
        self.pairs: list[Pair] = []

    def pair(self, said: bytes = b"", *, ends: bool = False) -> Pair:
        """Make a pair of which one end has said something, and perhaps closed."""
        near, far = socket.socketpair()
        for each in (near, far):
            each.setblocking(False)
            self.stack.enter_context(each)
        if said:
            assert far.send(said) == len(said)
        if ends:
            far.close()
        self.epoll.register(near.fileno(), EVENTS)
        self.pairs.append((near, far))
        return near, far

    def expected(self) -> dict[int, tuple[int, bytes | None, int]]:
        """The specification of `receive_untrusted`, but for its bounds; nothing is taken."""
        out: dict[int, tuple[int, bytes | None, int]] = {}
        own = {near.fileno(): near for near, _ in self.pairs}
        for fileno, events in self.epoll.poll(0):
            data = None
            if events == select.EPOLLIN:
                data = own[fileno].recv(RECEIVE_BYTES, socket.MSG_PEEK)
            out[fileno] = events, data, counted(data) if data else 0
        return out


@pytest.fixture
def sockets() -> Iterator[Sockets]:
    with ExitStack() as stack:
        yield Sockets(stack)


# --- receiving

said = st.one_of(
    st.just(b""),
    st.binary(max_size=20),
    st.lists(st.sampled_from(CALLS), max_size=4).map(b"".join),
    st.sampled_from(CALLS).map(lambda call: call[:-1]),
)


@given(st.lists(st.tuples(said, st.booleans()), max_size=6))
def test_what_was_sent_is_received(clients: list[tuple[bytes, bool]]) -> None:
    with ExitStack() as stack:
        sockets = Sockets(stack)
        for data, ends in clients:
            sockets.pair(data, ends=ends)
        expected = sockets.expected()
        rows = receive_untrusted(sockets.epoll, MOST)
        assert {fileno: (events, data, count) for fileno, events, data, count in rows} == expected
        assert len(rows) == len(expected) == sum(bool(data or ends) for data, ends in clients)
        again = receive_untrusted(sockets.epoll, MOST)  # the ends are the caller's to read
        assert {fileno for fileno, *_ in again} == {
            f for f, row in expected.items() if row[1] is None
        }


def test_so_much_is_read_of_one_socket(sockets: Sockets) -> None:
    data = command("SET", "a", "v" * 100_000)
    near, _ = sockets.pair(data)
    rows = [receive_untrusted(sockets.epoll, MOST) for _ in range(3)]
    assert rows[0] == [(near.fileno(), select.EPOLLIN, data[:RECEIVE_BYTES], 0)]
    assert rows[1] == [(near.fileno(), select.EPOLLIN, data[RECEIVE_BYTES:], 0)]
    assert rows[2] == []


@pytest.mark.parametrize("size", [RECEIVE_BYTES, RECEIVE_BYTES - 1])
def test_so_much_is_read_in_all(sockets: Sockets, size: int) -> None:
    for _ in range(20):
        sockets.pair(bytes(size))
    rows = receive_untrusted(sockets.epoll, MOST)
    read = [data for _, _, data, _ in rows if data is not None]
    assert len(rows) == 20
    assert [data is None for _, _, data, _ in rows] == sorted(
        data is None for _, _, data, _ in rows
    )
    assert len(read) == -(-TURN_BYTES // size)
    assert {len(data) for data in read} == {size}
    rest = [row for row in receive_untrusted(sockets.epoll, MOST) if row[2] is not None]
    assert len(rest) == 20 - len(read), "nothing is lost"


@pytest.mark.parametrize("most", [1, 3, MOST, MOST + 1, 1 << 40])
def test_so_many_sockets_are_looked_at(sockets: Sockets, most: int) -> None:
    for _ in range(5):
        sockets.pair(b"x")
    assert len(receive_untrusted(sockets.epoll, most)) == min(most, 5)


def test_what_is_no_socket_or_broken_is_the_callers(sockets: Sockets) -> None:
    wake = os.eventfd(1, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    with socket.create_server(("127.0.0.1", 0)) as server:
        far = socket.create_connection(server.getsockname())
        near = sockets.stack.enter_context(server.accept()[0])
    far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    far.close()
    for fileno in (wake, near.fileno()):
        sockets.epoll.register(fileno, EVENTS)
    rows = receive_untrusted(sockets.epoll, MOST)
    os.close(wake)
    assert {row[0]: row[2:] for row in rows} == {wake: (None, 0), near.fileno(): (None, 0)}
    assert {row[0]: row[1] for row in rows}[near.fileno()] & select.EPOLLERR


def test_a_closed_epoll_is_an_error(sockets: Sockets) -> None:
    sockets.epoll.close()
    with pytest.raises(ValueError, match="closed epoll"):
        receive_untrusted(sockets.epoll, MOST)


# --- sending

sizes = st.sampled_from([0, 1, 5, 5000, 300_000, 1_000_000])
ways = st.sampled_from(["open", "small", "full", "gone", "closed", "none"])


def prepared(sockets: Sockets, way: str) -> tuple[int, Pair]:
    """A socket that is in some way; and how it is called."""
    near, far = sockets.pair()
    if way == "small":
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    if way == "full":
        with suppress(BlockingIOError):
            while True:
                near.send(bytes(1000))
    if way == "gone":
        far.close()
    fileno = {"none": -1, "closed": 1 << 20}.get(way, near.fileno())
    return fileno, (near, far)


def received(far: socket.socket) -> bytes:
    data = b""
    with suppress(BlockingIOError):
        while more := far.recv(1 << 20):
            data += more
    return data


@given(st.lists(st.tuples(ways, sizes), max_size=6))
@example([("open", 5000), ("small", 300_000), ("full", 5000), ("gone", 5000), ("none", 5000)])
def test_replies_are_sent_as_far_as_sockets_take_them(cases: list[tuple[str, int]]) -> None:
    with ExitStack() as stack:
        sockets = Sockets(stack)
        ready = [prepared(sockets, way) for way, _ in cases]
        replies = [os.urandom(size) for _, size in cases]
        unsent = send_all([fileno for fileno, _ in ready], replies)
        assert [place for place, _ in unsent] == sorted({place for place, _ in unsent})
        for place, (way, size) in enumerate(cases):
            sent = dict(unsent).get(place, size)
            if way == "none":
                assert (place, 0) in unsent
            elif way == "closed" or (way == "gone" and size):
                assert (place, -1) in unsent
            elif way == "full":
                assert (place, 0) in unsent or size == 0
            elif way != "gone":
                assert received(ready[place][1][1]) == replies[place][:sent]
                assert sent == size or (size > 4096 and sent > 0)


def test_nothing_is_sent_to_nobody() -> None:
    assert send_all([], []) == []
    assert send_all([-1, -5], [b"", b"x"]) == [(0, 0), (1, 0)]


# --- cutting replies

BULK = re.compile(rb"\$(0|[1-9][0-9]{0,8})\r\n").match
LINE = re.compile(rb"\$-1\r\n|[+_-](?:[^\n]*)(?<=\r)\n").match


def cut(replies: bytes, counts: list[int]) -> list[bytes] | None:
    """The specification of `cut_replies_untrusted`."""
    at, own = 0, list[bytes]()
    for count in counts:
        start = at
        for _ in range(count):
            bulk, line = BULK(replies, at), LINE(replies, at)
            if bulk and replies.startswith(b"\r\n", bulk.end() + int(bulk[1])):
                at = bulk.end() + int(bulk[1]) + 2
            elif line:
                at = line.end()
            else:
                return None
        if count < 0:
            return None
        own.append(replies[start:at])
    return own if at == len(replies) else None


WHOLE = (
    b"+OK\r\n",
    b"-ERR no\r\n",
    b"$-1\r\n",
    b"_\r\n",
    b"$0\r\n\r\n",
    b"$3\r\n\r\n+\r\n",
    b"+\r\n",
)
BROKEN = (
    b"\0a\r\n \0 + +\n +\r $ $\r\n $-2\r\n $-1\r $-1\n $01\r\na\r\n $5\r\n $5\r\n+a\r\n "
    b"$1\r\nab\r\n $999999999\r\n $1000000000\r\n *0\r\n :1\r\n ,1\r\n \r\n \n $-1x\r\n $-10\r\n "
    b"$-1234567890123456789012345678901234567890\r\n"
).split(b" ")
whole = st.lists(st.sampled_from(WHOLE), max_size=8).map(b"".join)
broken = st.lists(st.sampled_from([*WHOLE, *BROKEN]), max_size=5).map(b"".join)


@given(st.one_of(whole, broken, st.binary(max_size=12)), st.lists(st.integers(-1, 4), max_size=5))
@example(b"", [])
@example(b"", [0, 0])
@example(b"+OK\r\n", [])
@example(b"$5\r\n+a\r\n", [1])
@example(b"\0\r\n", [1])
@example(b"+a\nb\r\n", [1])
@example(b"+OK\r\n" * 3, [1, 0, 2])
@example(b"+OK\r\n", [1 << 40])
def test_replies_are_cut(replies: bytes, counts: list[int]) -> None:
    assert cut_replies_untrusted(replies, counts) == cut(replies, counts)


@given(st.lists(st.lists(st.sampled_from(WHOLE), max_size=4), max_size=5), st.data())
def test_replies_are_cut_as_they_are_damaged(own: list[list[bytes]], draw: st.DataObject) -> None:
    counts, parts = [len(each) for each in own], [b"".join(each) for each in own]
    data = b"".join(parts)
    assert cut_replies_untrusted(data, counts) == parts
    at = draw.draw(st.integers(0, len(data)))
    for damaged in (
        data[:at],
        data[at:],
        data[:at] + b"\0" + data[at:],
        data[:at] + data[at + 1 :],
    ):
        assert cut_replies_untrusted(damaged, counts) == cut(damaged, counts)


# --- all of them

WRONG: list[tuple[Callable[..., object], tuple[Any, ...], type[Exception]]] = [
    (receive_untrusted, (), TypeError),
    (receive_untrusted, (0, 1, 2), TypeError),
    (receive_untrusted, ("epoll", 1), TypeError),
    (receive_untrusted, (0, "1"), TypeError),
    (receive_untrusted, (0, 2**70), OverflowError),
    (receive_untrusted, (-1, 1), ValueError),
    (receive_untrusted, (1 << 20, 1), OSError),
    (send_all, (), TypeError),
    (send_all, ([], [], []), TypeError),
    (send_all, ((), ()), TypeError),
    (send_all, ([], ()), TypeError),
    (send_all, ([], [b""]), TypeError),
    (send_all, ([1], []), TypeError),
    (send_all, (["1"], [b""]), TypeError),
    (send_all, ([-1], ["text"]), TypeError),
    (send_all, ([-1, -1], [b"", bytearray()]), TypeError),
    (send_all, ([2**70], [b""]), OverflowError),
    (cut_replies_untrusted, (), TypeError),
    (cut_replies_untrusted, (b"",), TypeError),
    (cut_replies_untrusted, (b"", (1,)), TypeError),
    (cut_replies_untrusted, ("", []), TypeError),
    (cut_replies_untrusted, (bytearray(), []), TypeError),
    (cut_replies_untrusted, (b"", ["1"]), TypeError),
    (cut_replies_untrusted, (b"", [1.0]), TypeError),
    (cut_replies_untrusted, (b"", [2**70]), OverflowError),
]


@pytest.mark.parametrize(("function", "arguments", "error"), WRONG)
def test_wrong_arguments_are_refused(
    function: Callable[..., object], arguments: tuple[Any, ...], error: type[Exception]
) -> None:
    with pytest.raises(error):
        function(*arguments)


def test_none_of_the_sockets_is_looked_at_where_most_is_wrong(sockets: Sockets) -> None:
    sockets.pair(b"x")
    for most in (0, -1):
        with pytest.raises(OSError, match="Invalid argument"):
            receive_untrusted(sockets.epoll, most)


def test_nothing_is_leaked(sockets: Sockets) -> None:
    near, far = sockets.pair()
    _, other = sockets.pair(ends=True)
    reply = b"$-1\r\n" * 10

    def all_ways() -> None:
        far.send(CALLS[0])
        assert len(receive_untrusted(sockets.epoll, MOST)) == 2
        send_all([near.fileno(), -1, 1 << 20], [reply, reply, reply])
        far.recv(1000)
        for counts in ([1, 9], [1], [11], [2, -1]):
            cut_replies_untrusted(reply, counts)
        for function, arguments, error in WRONG:
            with suppress(error):
                function(*arguments)

    def blocks_after(rounds: int) -> int:
        for _ in range(rounds):
            all_ways()
        gc.collect()
        return sys.getallocatedblocks()

    before = blocks_after(200), sys.getrefcount(reply)
    after = blocks_after(2000), sys.getrefcount(reply)
    assert other.fileno() < 0
    assert after[0] < before[0] + 100
    assert after[1] == before[1]


def test_what_collects_garbage_amidst_may_read_from_other_sockets() -> None:
    """Whoever runs then has the same buffer to read into."""
    with ExitStack() as stack:
        ours, theirs = Sockets(stack), Sockets(stack)
        said, others = command("SET", "ours", "1"), command("SET", "theirs", "22")
        for _ in range(300):
            ours.pair(said)
        theirs.pair(others)
        seen: list[object] = []

        def collect(phase: str, _info: dict[str, int]) -> None:
            if phase == "start" and not seen:
                seen.append(receive_untrusted(theirs.epoll, MOST)[0][2])

        before = gc.get_threshold()
        gc.collect()
        gc.callbacks.append(collect)
        gc.set_threshold(100)
        try:
            found = receive_untrusted(ours.epoll, MOST)
        finally:
            gc.set_threshold(*before)
            gc.callbacks.remove(collect)
        assert seen == [others]
        assert {(data, count) for _, _, data, count in found} == {(said, 1)}
