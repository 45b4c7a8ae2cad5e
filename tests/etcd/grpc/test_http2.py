"""The rules of HTTP/2: what a client may send, in which pieces, and what ends a stream or all."""

import itertools
import random
from collections.abc import Callable

import attrs
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, ResponseReceived, StreamReset, TrailersReceived
from hpack import Encoder
from hypothesis import given
from hypothesis import strategies as st

from quorate.etcd.grpc.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADER,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PRIORITY_FLAG,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Fault,
    Setting,
    frame,
    settings_frame,
)
from quorate.etcd.grpc.http2 import MAX_STREAMS, Http2

Pairs = tuple[tuple[bytes, bytes], ...]

REQUEST = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/etcdserverpb.KV/Put"),
    (b":authority", b"test"),
    (b"content-type", b"application/grpc"),
)
BLOCK = Encoder().encode([(*pair, True) for pair in REQUEST])
SHORT = b"\x83\x86\x84"  # indices alone, so it is decoded once
HELLO = PREFACE + frame(SETTINGS, 0, 0)
WHOLE = END_HEADERS | END_STREAM
OPEN = frame(HEADERS, END_HEADERS, 1, BLOCK)
ENDED = frame(HEADERS, WHOLE, 1, BLOCK)


def block(*extra: tuple[bytes, bytes], base: Pairs = REQUEST) -> bytes:
    return Encoder().encode([(*pair, True) for pair in (*base, *extra)])


def sent_frames(data: bytes) -> list[tuple[int, int, int, bytes]]:
    found: list[tuple[int, int, int, bytes]] = []
    at = 0
    while at < len(data):
        high, low, kind, flags, stream_id = HEADER.unpack_from(data, at)
        start, at = at + HEADER.size, at + HEADER.size + (high << 8 | low)
        found.append((kind, flags, stream_id, data[start:at]))
    return found


@attrs.define
class Peer:
    """The server's side, what it has told of the client, and what it has sent."""

    events: list[tuple[object, ...]] = attrs.field(factory=list[tuple[object, ...]])
    now: float = 0.0
    echo: bool = False
    credits: bool = True
    http2: Http2 = attrs.field(init=False)
    sent: bytes = b""

    def __attrs_post_init__(self) -> None:
        self.http2 = Http2(self, lambda: self.now)

    def opened(self, stream_id: int, headers: Pairs, *, ended: bool) -> None:
        self.events.append(("opened", stream_id, headers, ended))

    def received(self, stream_id: int, data: bytes, size: int, *, ended: bool) -> None:
        self.events.append(("received", stream_id, data, size, ended))
        if self.credits:
            self.http2.credit(stream_id, size)
        if self.echo and ended:
            self.http2.send_headers(stream_id, ((b":status", b"200"),))
            self.http2.send(stream_id, data)
            self.http2.end(stream_id, ((b"grpc-status", b"0"),))

    def reset(self, stream_id: int) -> None:
        self.events.append(("reset", stream_id))

    def take(self, data: bytes) -> bool:
        goes_on = self.http2.receive_untrusted(data)
        self.sent += self.http2.take()
        return goes_on

    @property
    def goodbye(self) -> Fault | None:
        for kind, _, _, body in sent_frames(self.sent):
            if kind == GOAWAY:
                return Fault(int.from_bytes(body[4:8]))
        return None

    @property
    def resets(self) -> dict[int, Fault]:
        frames = sent_frames(self.sent)
        return {each: Fault(int.from_bytes(body)) for k, _, each, body in frames if k == RST_STREAM}


# --- what ends the connection, and what a stream

P, S, F, C = (
    Fault.PROTOCOL_ERROR,
    Fault.FRAME_SIZE_ERROR,
    Fault.FLOW_CONTROL_ERROR,
    Fault.STREAM_CLOSED,
)
TRAILERS = frame(HEADERS, WHOLE, 1, block(base=((b"x", b"y"),)))
BEGUN = frame(HEADERS, 0, 1, BLOCK)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", P),
        (PREFACE + frame(PING, 0, 0, bytes(8)), P),
        (PREFACE + frame(SETTINGS, ACK, 0), P),
        (HELLO + frame(SETTINGS, 0, 1), P),
        (HELLO + frame(SETTINGS, ACK, 0, bytes(6)), S),
        (HELLO + frame(SETTINGS, 0, 0, bytes(5)), S),
        (HELLO + settings_frame({Setting.ENABLE_PUSH: 2}), P),
        (HELLO + settings_frame({Setting.INITIAL_WINDOW_SIZE: 1 << 31}), F),
        (HELLO + settings_frame({Setting.MAX_FRAME_SIZE: 16_383}), P),
        (HELLO + settings_frame({Setting.MAX_FRAME_SIZE: 1 << 24}), P),
        (HELLO + frame(DATA, 0, 0, b"x"), P),
        (HELLO + frame(DATA, 0, 1, b"x"), P),
        (HELLO + OPEN + frame(DATA, PADDED, 1, b"\x05abc"), P),
        (HELLO + OPEN + frame(DATA, PADDED, 1, b""), P),
        (HELLO + OPEN + HEADER.pack(64, 1, DATA, 0, 1), S),
        (HELLO + frame(HEADERS, WHOLE, 0, BLOCK), P),
        (HELLO + frame(HEADERS, WHOLE, 2, BLOCK), P),
        (HELLO + frame(HEADERS, WHOLE | PADDED, 1, b"\xff" + BLOCK), P),
        (HELLO + frame(HEADERS, WHOLE | PRIORITY_FLAG, 1, b"abc"), S),
        (HELLO + frame(HEADERS, WHOLE, 5, BLOCK) + frame(HEADERS, WHOLE, 3, BLOCK), C),
        (HELLO + frame(HEADERS, WHOLE, 1, b"\xbf"), Fault.COMPRESSION_ERROR),
        (HELLO + frame(HEADERS, WHOLE, 1, b"\x80"), Fault.COMPRESSION_ERROR),
        (HELLO + frame(HEADERS, WHOLE, 1, b"\x40\x0aab"), Fault.COMPRESSION_ERROR),
        (HELLO + frame(HEADERS, WHOLE, 1, b"\x3f\xe1\xff\xff\x07"), Fault.COMPRESSION_ERROR),
        (HELLO + frame(CONTINUATION, END_HEADERS, 1, BLOCK), P),
        (HELLO + OPEN + frame(CONTINUATION, END_HEADERS, 1, BLOCK), P),
        (HELLO + BEGUN + frame(CONTINUATION, END_HEADERS, 3), P),
        (HELLO + BEGUN + frame(PING, 0, 0, bytes(8)), P),
        (HELLO + BEGUN + frame(77, 0, 1, b""), P),
        (HELLO + BEGUN + OPEN, P),
        (HELLO + frame(PRIORITY, 0, 0, bytes(5)), P),
        (HELLO + frame(RST_STREAM, 0, 0, bytes(4)), P),
        (HELLO + frame(RST_STREAM, 0, 1, bytes(4)), P),
        (HELLO + OPEN + frame(RST_STREAM, 0, 1, bytes(3)), S),
        (HELLO + frame(PUSH_PROMISE, END_HEADERS, 1, bytes(4) + BLOCK), P),
        (HELLO + frame(PING, 0, 0, bytes(7)), S),
        (HELLO + frame(PING, 0, 1, bytes(8)), P),
        (HELLO + frame(GOAWAY, 0, 1, bytes(8)), P),
        (HELLO + frame(GOAWAY, 0, 0, bytes(7)), S),
        (HELLO + frame(WINDOW_UPDATE, 0, 0, bytes(4)), P),
        (HELLO + frame(WINDOW_UPDATE, 0, 0, bytes(3)), S),
        (HELLO + frame(WINDOW_UPDATE, 0, 1, b"\0\0\0\1"), P),
        (HELLO + frame(WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff"), F),
    ],
)
def test_what_breaks_the_rules_of_the_connection_ends_it_with_a_reason(
    data: bytes, fault: Fault
) -> None:
    peer = Peer()
    assert not peer.take(data)
    assert peer.goodbye is fault
    assert not peer.take(HELLO), "nothing is taken after that"


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (OPEN + frame(WINDOW_UPDATE, 0, 1, bytes(4)), P),
        (OPEN + frame(WINDOW_UPDATE, 0, 1, b"\x7f\xff\xff\xff"), F),
        (OPEN + frame(PRIORITY, 0, 1, bytes(4)), S),
        (OPEN + OPEN, P),
        (ENDED + TRAILERS, C),
        (ENDED + frame(DATA, 0, 1, b"x"), C),
        (OPEN + frame(DATA, 0, 1, bytes(16_384)) * 4, None),
        (frame(HEADERS, WHOLE, 1, block((b"content-length", b"5"))), P),
        (frame(HEADERS, END_HEADERS, 1, block((b"content-length", b"x"))), P),
        (
            frame(HEADERS, END_HEADERS, 1, block((b"content-length", b"5")))
            + frame(DATA, END_STREAM, 1, b"four"),
            P,
        ),
        (frame(HEADERS, WHOLE, 1, block((b"Upper", b"x"))), P),
        (frame(HEADERS, WHOLE, 1, block((b"connection", b"close"))), P),
        (frame(HEADERS, WHOLE, 1, block((b"te", b"gzip"))), P),
        (frame(HEADERS, WHOLE, 1, block((b"name", b"a\r\nb"))), P),
        (frame(HEADERS, WHOLE, 1, block((b"", b"x"))), P),
        (frame(HEADERS, WHOLE, 1, block((b":path", b"/"))), P),
        (frame(HEADERS, WHOLE, 1, block((b":status", b"200"))), P),
        (frame(HEADERS, WHOLE, 1, block(base=REQUEST[1:])), P),
        (frame(HEADERS, WHOLE, 1, block(base=REQUEST[::-1])), P),
        (frame(HEADERS, WHOLE, 1, block(base=(*REQUEST[:2], (b":path", b"")))), P),
        (OPEN + frame(HEADERS, WHOLE, 1, block(base=((b":path", b"/"),))), P),
    ],
)
def test_what_breaks_the_rules_of_a_stream_resets_it_alone(
    data: bytes, fault: Fault | None
) -> None:
    peer = Peer()
    assert peer.take(HELLO + data + frame(PING, 0, 0, b"goes on!"))
    assert peer.resets == ({} if fault is None else {1: fault})
    assert (PING, ACK, 0, b"goes on!") in sent_frames(peer.sent)
    assert peer.take(frame(HEADERS, WHOLE, 3, BLOCK))
    assert peer.events[-1] == ("opened", 3, REQUEST, True)


@pytest.mark.parametrize(
    "data",
    [
        frame(77, 0xFF, 9, b"of an extension"),
        frame(PRIORITY, 0, 9, bytes(5)),
        frame(PING, ACK, 0, bytes(8)),
        frame(GOAWAY, 0, 0, bytes(8)),
        frame(SETTINGS, 0, 0, b"\0\x99" + bytes(4)),
        frame(HEADERS, WHOLE | PADDED | PRIORITY_FLAG, 1, b"\x03" + bytes(5) + BLOCK + bytes(3)),
        BEGUN + frame(CONTINUATION, END_HEADERS, 1),
        OPEN + frame(RST_STREAM, 0, 1, bytes(4)) * 2 + frame(WINDOW_UPDATE, 0, 1, b"\0\0\0\1"),
    ],
)
def test_what_a_client_may_send_does_no_harm(data: bytes) -> None:
    peer = Peer()
    assert peer.take(HELLO + data + frame(HEADERS, WHOLE, 11, BLOCK))
    assert peer.events[-1] == ("opened", 11, REQUEST, True)
    assert peer.resets == {}


# --- bounds


def test_a_call_more_than_allowed_is_refused_and_can_be_tried_again() -> None:
    peer = Peer()
    ids = range(1, 2 * MAX_STREAMS + 1, 2)
    assert peer.take(HELLO + b"".join(frame(HEADERS, END_HEADERS, each, SHORT) for each in ids))
    assert peer.take(frame(HEADERS, END_HEADERS, 5001, BLOCK) + frame(DATA, 0, 5001, b"late"))
    assert peer.resets == {5001: Fault.REFUSED_STREAM}
    assert peer.take(frame(RST_STREAM, 0, 1, bytes(4)) + frame(HEADERS, END_HEADERS, 5003, BLOCK))
    assert peer.events[-1][:2] == ("opened", 5003)


FLOODS: dict[str, Callable[[int], bytes]] = {
    "pings": lambda _each: frame(PING, 0, 0, bytes(8)),
    "settings": lambda _each: frame(SETTINGS, 0, 0),
    "priorities": lambda _each: frame(PRIORITY, 0, 1, bytes(5)),
    "no data": lambda _each: frame(DATA, 0, 1),
    "extensions": lambda _each: frame(77, 0, 0),
    "resets": lambda each: (
        frame(HEADERS, END_HEADERS, 2 * each + 3, SHORT)
        + frame(RST_STREAM, 0, 2 * each + 3, bytes(4))
    ),
}


@pytest.mark.parametrize("flood", FLOODS)
def test_frames_that_ask_for_nothing_are_bounded(flood: str) -> None:
    peer = Peer()
    assert peer.take(HELLO + OPEN)
    ended_at = next(each for each in itertools.count() if not peer.take(FLOODS[flood](each)))
    assert 5_000 < ended_at < 10_010
    assert peer.goodbye is Fault.ENHANCE_YOUR_CALM


def test_pings_are_allowed_for_ever_if_they_take_their_time() -> None:
    peer = Peer()
    assert peer.take(HELLO)
    for _ in range(150):
        peer.now += 0.11
        assert peer.take(frame(PING, 0, 0, bytes(8)) * 100)


@pytest.mark.parametrize("piece", [b"", bytes(1000)])
def test_headers_without_an_end_are_bounded(piece: bytes) -> None:
    peer = Peer()
    assert peer.take(HELLO + BEGUN)
    more = frame(CONTINUATION, 0, 1, piece)
    assert next(each for each in itertools.count() if not peer.take(more)) < 10_010
    assert peer.goodbye is Fault.ENHANCE_YOUR_CALM


def test_headers_that_unpack_to_too_much_end_the_connection() -> None:
    big = Encoder().encode([(b"x", bytes(100).replace(b"\0", b"y"))])
    peer = Peer()
    assert not peer.take(HELLO + frame(HEADERS, WHOLE, 1, BLOCK + big + b"\xbe" * 500))
    assert peer.goodbye is Fault.ENHANCE_YOUR_CALM


def test_data_that_nobody_takes_end_at_the_window() -> None:
    peer = Peer(credits=False)
    assert peer.take(HELLO + OPEN + frame(DATA, 0, 1, bytes(16_384)) * 3)
    assert peer.take(frame(DATA, 0, 1, bytes(16_384)))
    assert peer.resets == {1: Fault.FLOW_CONTROL_ERROR}


def test_the_window_of_the_connection_opens_again_whatever_becomes_of_its_streams() -> None:
    peer = Peer(credits=False)
    assert peer.take(HELLO)
    for each in range(1, 2001, 2):
        data = frame(DATA, 0, each, bytes(16_384)) * 2
        reset = frame(RST_STREAM, 0, each, bytes(4))
        assert peer.take(frame(HEADERS, END_HEADERS, each, SHORT) + data + reset)
    opened = [body for kind, _, _, body in sent_frames(peer.sent) if kind == WINDOW_UPDATE]
    assert len(opened) == 4, "in bulk: at the beginning, and for each 8 MiB"


# --- bytes in any pieces, and another implementation


@given(st.randoms(use_true_random=False))
def test_any_split_of_the_bytes_gives_the_same_events(rng: random.Random) -> None:
    client = H2Connection(H2Configuration(client_side=True, header_encoding=None))
    client.initiate_connection()
    for _ in range(rng.randrange(1, 8)):
        stream_id = client.get_next_available_stream_id()
        client.send_headers(stream_id, [*REQUEST, (b"n", b"%d" % rng.randrange(3))])
        client.ping(bytes(8))
        padding = rng.choice((None, 0, 9))
        client.send_data(stream_id, bytes(rng.randrange(40)), pad_length=padding)
        if rng.random() < 0.3:
            client.reset_stream(stream_id)
        else:
            client.end_stream(stream_id)
    data = client.data_to_send() + rng.choice((b"", OPEN, frame(GOAWAY, 0, 0, b"\1" * 8)))
    whole, pieces = Peer(echo=True), Peer(echo=True)
    goes_on = whole.take(data)
    at = 0
    while at < len(data):
        size = rng.choice((1, 3, 9, 10, 50))
        pieces.take(data[at : at + size])
        at += size
    assert pieces.events == whole.events
    assert pieces.sent == whole.sent
    assert pieces.take(b"") is goes_on


@given(st.randoms(use_true_random=False))
def test_another_implementation_gets_its_data_back(rng: random.Random) -> None:
    client = H2Connection(H2Configuration(client_side=True, header_encoding=None))
    client.initiate_connection()
    client.update_settings({4: rng.choice((0, 10, 65_535)), 1: rng.choice((0, 4096))})
    peer, sent, got, ended = Peer(echo=True), dict[int, bytes](), dict[int, bytes](), set[int]()
    for _ in range(8):
        if rng.random() < 0.7:
            stream_id = client.get_next_available_stream_id()
            client.send_headers(stream_id, [*REQUEST, (b"n", b"%d" % rng.randrange(3))])
            sent[stream_id] = bytes(rng.randrange(300))
            client.send_data(stream_id, sent[stream_id], end_stream=True)
        got_now = exchange(client, peer)
        collect(got_now, got, ended)
    client.update_settings({4: 100_000})
    collect(exchange(client, peer), got, ended)
    collect(exchange(client, peer), got, ended)
    assert {each: got.get(each, b"") for each in sent} == sent
    assert ended == set(sent)
    assert peer.http2.waiting_bytes == 0


def exchange(client: H2Connection, peer: Peer) -> list[object]:
    assert peer.take(client.data_to_send())
    data, peer.sent = peer.sent, b""
    return list(client.receive_data(data))


def collect(events: list[object], got: dict[int, bytes], ended: set[int]) -> None:
    for event in events:
        match event:
            case DataReceived():
                got[event.stream_id] = got.get(event.stream_id, b"") + event.data
            case TrailersReceived():
                ended.add(event.stream_id)
            case ResponseReceived():
                assert dict(event.headers) == {b":status": b"200"}
            case StreamReset():
                raise AssertionError(event)
            case _:
                pass


KINDS = st.integers(0, 11)
BODIES = st.one_of(
    st.binary(max_size=12),
    st.sampled_from(
        (BLOCK, b"\x05" + BLOCK, bytes(4), bytes(5), bytes(6), bytes(8), bytes(17_000))
    ),
)
FRAMES = st.tuples(KINDS, st.integers(0, 255), st.integers(0, 7), BODIES)


@given(st.lists(FRAMES, max_size=12), st.binary(max_size=30))
def test_hostile_frames_end_in_an_answer_and_never_in_an_exception(
    frames: list[tuple[int, int, int, bytes]], end: bytes
) -> None:
    peer = Peer(echo=True)
    peer.take(HELLO)
    for each in (*(frame(*parts) for parts in frames), end):
        if not peer.take(each):
            break
    opened = [event[1] for event in peer.events if event[0] == "opened"]
    assert len(opened) == len(set(opened))
    sent_frames(peer.sent)
