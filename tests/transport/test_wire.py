"""Frames: round trips, and whatever a hostile or broken network may make of them."""

import struct
from enum import Enum
from itertools import pairwise
from typing import Annotated, cast, get_args, get_origin

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorate.errors import WireError
from quorate.transport import fields as f
from quorate.transport import messages as m
from quorate.transport.codec import checksum
from quorate.transport.wire import (
    HEADER_BYTES,
    HELLO_FRAME_BYTES,
    MAX_FRAME_BYTES,
    MESSAGE_TYPES,
    PLAIN_FORWARD,
    FrameDecoder,
    decode_untrusted,
    encode,
)

FORWARD_FIXED = struct.calcsize("<qBBIQQIQ")
POSITIONS = st.integers(-1, f.MAX_POSITION)
PLAIN_FIELDS: dict[object, st.SearchStrategy[object]] = {
    str: st.text(max_size=f.MAX_STRING_BYTES // 4),
    bytes: st.binary(max_size=300),
    bool: st.booleans(),
    f.AppendFlags: st.integers(0, 15).map(f.AppendFlags),
    tuple[m.TermSpan, ...]: st.lists(
        st.builds(m.TermSpan, POSITIONS, POSITIONS, POSITIONS), max_size=20
    ).map(tuple),
    tuple[m.FoundingStore, ...]: st.lists(
        st.builds(
            m.FoundingStore, st.integers(-(1 << 31), (1 << 31) - 1), st.integers(0, (1 << 64) - 1)
        ),
        max_size=20,
    ).map(tuple),
}


def width_of(kind: object) -> tuple[int, int]:
    """Give the least and the largest integer that a field of this annotation has room for."""
    letter = cast("f.Integer", get_args(kind)[1]).format
    size = 8 * struct.calcsize("<" + letter)
    return (-(1 << size - 1), (1 << size - 1) - 1) if letter.islower() else (0, (1 << size) - 1)


def bounds_of(kind: object) -> tuple[int, int]:
    """Give the least and the largest integer that a field of this annotation may have."""
    return cast("f.Integer", get_args(kind)[1]).bounds or width_of(kind)


def field_values(kind: object) -> st.SearchStrategy[object]:
    """Draw what a field of this annotation may hold."""
    if get_origin(kind) is Annotated:
        low, high = bounds_of(kind)
        return st.sampled_from([low, high, 0]) | st.integers(low, high)
    if kind in PLAIN_FIELDS:
        return PLAIN_FIELDS[kind]
    assert isinstance(kind, type)
    assert issubclass(kind, Enum)
    return st.sampled_from(list(kind))


def instances(cls: type[m.Message]) -> st.SearchStrategy[m.Message]:
    fields = {field.name: field_values(field.type) for field in attrs.fields(cls)}
    return st.fixed_dictionaries(fields).map(lambda values: cls(**values))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


MESSAGES = st.one_of([instances(cls) for cls in MESSAGE_TYPES.values()])


def reframed(number: int, body: bytes, *, version: int = 1, reserved: int = 0) -> bytes:
    """Frame a body that no encoder made, with a checksum that is right."""
    head = struct.pack("<IBBH", len(body), number, version, reserved)
    return head + struct.pack("<I", checksum(head + body)) + body


def in_pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


def test_every_message_class_has_a_number() -> None:
    assert sorted(get_args(m.Message), key=repr) == sorted(MESSAGE_TYPES.values(), key=repr)


def test_the_wire_form_is_pinned() -> None:
    append = m.AppendPosition(3, 4096, 1, f.AppendFlags.READY, 7, 9)
    assert encode(append).hex() == (
        "25000000" "36" "01" "0000" "b96cda9f"
        "0300000000000000" "0010000000000000" "01000000" "02" "0700000000000000"
        "0900000000000000"
    )  # fmt: skip
    assert encode(m.LogBatch(3, 7, b"batch")).hex() == (
        "19000000" "70" "01" "0000" "b4888ed8"
        "0300000000000000" "0700000000000000" "05000000" "6261746368"
    )  # fmt: skip
    assert encode(m.CatchupPosition(1, 2, 3, "é:1")).hex()[24:] == (
        "0100000000000000" "0200000000000000" "03000000" "0400" "c3a93a31"
    )  # fmt: skip


@settings(deadline=None)
@given(MESSAGES)
def test_every_message_comes_back_as_it_went(message: m.Message) -> None:
    back = decode_untrusted(encode(message))
    assert back == message
    assert type(back) is type(message)
    for field in attrs.fields(type(message)):
        assert type(getattr(back, field.name)) is type(getattr(message, field.name))


def beyond(kind: object) -> st.SearchStrategy[int]:
    """Draw what a field has room for and may not have."""
    (least, most), (low, high) = width_of(kind), bounds_of(kind)
    return st.sampled_from([least, low - 1, high + 1, most])


@settings(deadline=None)
@given(MESSAGES, st.data())
def test_a_number_out_of_bounds_is_refused(message: m.Message, data: st.DataObject) -> None:
    bounded = [
        field
        for field in attrs.fields(type(message))
        if get_origin(field.type) is Annotated and bounds_of(field.type) != width_of(field.type)
    ]
    if not bounded:
        return
    field = data.draw(st.sampled_from(bounded))
    value = data.draw(beyond(field.type))
    frame = encode(attrs.evolve(message, **{field.name: value}))  # type: ignore[arg-type]
    with pytest.raises(WireError, match=f"{field.name} can't be {value}; expected"):
        decode_untrusted(frame)


@pytest.mark.parametrize(
    "span",
    [
        m.TermSpan(f.MAX_TERM + 1, 0, 0),
        m.TermSpan(0, -2, 0),
        m.TermSpan(0, 0, (1 << 63) - 1),
    ],
)
def test_a_term_of_a_table_is_bounded_too(span: m.TermSpan) -> None:
    vote = m.Vote(1, 0, 0, 1, 2, True, 1, f.VoteReason.GRANTED, (m.TermSpan(0, 0, 0), span))
    with pytest.raises(WireError, match=r"terms: (term|base|end) can't be"):
        decode_untrusted(encode(vote))


@pytest.mark.parametrize("kind", sorted(MESSAGE_TYPES.values(), key=repr))
def test_every_term_and_position_has_bounds(kind: type[m.Message]) -> None:
    for field in attrs.fields(kind):
        if field.name.endswith(("term_id", "_term", "position")) and field.name != "stop_position":
            assert bounds_of(field.type) == (-1, 1 << 62), field.name


@settings(deadline=None)
@given(st.lists(MESSAGES, max_size=8), st.lists(st.integers(0), max_size=20))
def test_the_pieces_in_which_a_stream_arrives_make_no_difference(
    messages: list[m.Message], cuts: list[int]
) -> None:
    decoder, found = FrameDecoder(), list[m.Message]()
    for piece in in_pieces(b"".join(map(encode, messages)), cuts):
        found += decoder.feed(piece)
    assert found == messages
    assert decoder.pending == 0


@settings(deadline=None)
@given(MESSAGES, st.data())
def test_a_frame_that_is_not_whole_gives_nothing(message: m.Message, data: st.DataObject) -> None:
    frame = encode(message)
    size = data.draw(st.integers(0, len(frame) - 1))
    decoder = FrameDecoder()
    assert decoder.feed(frame[:size]) == []
    assert decoder.pending == size
    assert decoder.feed(frame[size:]) == [message]


@settings(deadline=None)
@given(st.binary(max_size=200), st.lists(st.integers(0), max_size=5))
def test_arbitrary_bytes_raise_nothing_but_wire_errors(data: bytes, cuts: list[int]) -> None:
    decoder = FrameDecoder()
    try:
        for piece in in_pieces(data, cuts):
            assert decoder.feed(piece) == []
    except WireError:
        assert decoder.pending == 0
        with pytest.raises(WireError):
            decoder.feed(b"")


@settings(deadline=None)
@given(st.sampled_from(sorted(MESSAGE_TYPES)), st.binary(max_size=150))
def test_a_body_with_a_right_checksum_is_canonical_or_refused(number: int, body: bytes) -> None:
    frame = reframed(number, body)
    try:
        message = decode_untrusted(frame)
    except WireError:
        return
    if isinstance(message, m.ForwardRequest) and not (message.principal or message.rules):
        number = PLAIN_FORWARD  # the shorter one, which older members know
        body = body[: FORWARD_FIXED - 12] + body[FORWARD_FIXED:]
        frame = reframed(number, body)
    assert encode(message) == frame


def test_a_forwarded_request_of_the_default_user_has_the_form_of_version_3_0() -> None:
    plain = m.ForwardRequest(1, 0, 2, b"payload", 3, 4)
    fixed = struct.pack("<qBBIQQ", 1, 0, 2, 7, 3, 4)
    assert encode(plain) == reframed(120, fixed + b"payload")
    assert decode_untrusted(encode(plain)) == plain
    of_alice = attrs.evolve(plain, principal=5)
    assert encode(of_alice) == reframed(122, fixed + struct.pack("<IQ", 5, 0) + b"payload")
    assert decode_untrusted(encode(of_alice)) == of_alice
    ruled = attrs.evolve(plain, rules=7)
    assert encode(ruled) == reframed(122, fixed + struct.pack("<IQ", 0, 7) + b"payload")
    assert decode_untrusted(encode(ruled)) == ruled


@settings(deadline=None)
@given(MESSAGES, st.data())
def test_one_flipped_bit_is_noticed_except_in_a_batch(
    message: m.Message, data: st.DataObject
) -> None:
    frame = bytearray(encode(message))
    bit = data.draw(st.integers(0, 8 * len(frame) - 1))
    frame[bit // 8] ^= 1 << bit % 8
    decoder = FrameDecoder()
    try:
        found = decoder.feed(frame)
    except WireError:
        return
    if found:
        assert isinstance(message, m.LogBatch)
        assert bit // 8 >= len(frame) - len(message.batch)
        assert found == [attrs.evolve(message, batch=bytes(frame[-len(message.batch) :]))]
    else:  # the length grew
        assert bit < 32
        assert decoder.pending == len(frame)


@pytest.mark.parametrize("cls", [m.AppendPosition, m.LogBatch, m.NewLeadershipTerm, m.Hello])
def test_a_length_beyond_what_the_class_takes_is_refused_at_the_header(
    cls: type[m.Message],
) -> None:
    number = next(number for number, known in MESSAGE_TYPES.items() if known is cls)
    header = struct.pack("<IBBHI", 0xFFFF_FFFF, number, 1, 0, 0)
    with pytest.raises(WireError, match=f"{cls.__name__}: a body of 4294967295 bytes"):
        FrameDecoder().feed(header)


def test_nothing_is_reserved_for_bytes_that_have_not_come() -> None:
    decoder = FrameDecoder()
    decoder.feed(struct.pack("<IBBHI", 64 << 20, 112, 1, 0, 0) + b"start")
    assert decoder.pending == HEADER_BYTES + 5


def test_the_largest_batch_fits_and_one_byte_more_does_not() -> None:
    frame = encode(m.LogBatch(1, 2, bytes(64 << 20)))
    assert len(frame) <= MAX_FRAME_BYTES
    (batch,) = FrameDecoder().feed(frame)
    assert isinstance(batch, m.LogBatch)
    assert len(batch.batch) == 64 << 20
    with pytest.raises(ValueError, match="batch: 67108865 is more than the 67108864"):
        encode(m.LogBatch(1, 2, bytes((64 << 20) + 1)))


@pytest.mark.parametrize(
    ("number", "version", "reserved", "reason"),
    [
        (99, 1, 0, "no message has the type 99"),
        (54, 2, 0, "frame version 2, reserved 0x0; expected 1 and 0"),
        (54, 1, 9, "frame version 1, reserved 0x9; expected 1 and 0"),
    ],
)
def test_an_unknown_type_or_version_is_refused(
    number: int, version: int, reserved: int, reason: str
) -> None:
    with pytest.raises(WireError, match=reason):
        decode_untrusted(reframed(number, bytes(29), version=version, reserved=reserved))


VOTE = encode(m.Vote(1, 2, 3, 4, 5, True, 6, f.VoteReason.GRANTED))[HEADER_BYTES:]


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (reframed(52, VOTE[:32] + b"\2" + VOTE[33:]), "Vote: vote can't be 2"),
        (reframed(52, VOTE[:41] + b"\10" + VOTE[42:]), "Vote: reason can't be 8"),
        (reframed(54, bytes(20) + b"\x20" + bytes(16)), "AppendPosition: flags can't be 32"),
        (reframed(56, bytes(20) + b"\1\0\xff"), "catchup_endpoint: not UTF-8"),
        (reframed(56, bytes(20) + b"\1\1" + bytes(257)), "catchup_endpoint: 257 is more than 256"),
        (reframed(56, bytes(20) + b"\5\0four"), "take 5 bytes of a body that has 4 for them"),
        (
            reframed(120, bytes(10) + b"\xff\xff\xff\xff" + bytes(16)),
            "take 4294967295 bytes of a body",
        ),
        (encode(m.StopCatchup(1, 2)) + b"\0", "are not exactly one frame"),
        (encode(m.StopCatchup(1, 2))[:-1], "are not exactly one frame"),
    ],
)
def test_what_no_encoder_writes_is_refused(frame: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        decode_untrusted(frame)


def new_term(spans: int) -> m.NewLeadershipTerm:
    terms = tuple(m.TermSpan(i, i * 100, i * 100 + 100) for i in range(spans))
    return m.NewLeadershipTerm(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, True, 13, 14, terms)


def test_a_new_leadership_term_lists_at_most_512_terms() -> None:
    assert decode_untrusted(encode(new_term(512))) == new_term(512)
    with pytest.raises(ValueError, match="terms: 513 is more than the 512"):
        encode(new_term(513))
    body = encode(new_term(0))[HEADER_BYTES:-2] + struct.pack("<H", 513) + bytes(513 * 24)
    with pytest.raises(WireError):
        decode_untrusted(reframed(53, body))


def test_text_that_is_too_long_is_refused_before_it_is_sent() -> None:
    with pytest.raises(ValueError, match="catchup_endpoint: 257 is more than the 256"):
        encode(m.CatchupPosition(1, 2, 3, "x" * 257))
    with pytest.raises(struct.error):
        encode(m.StopCatchup(1 << 63, 2))


def test_only_the_first_frame_is_held_to_the_size_of_a_hello() -> None:
    large = encode(m.ForwardRequest(1, 2, 3, bytes(5000)))
    with pytest.raises(WireError, match=f"5042 bytes, at most {HELLO_FRAME_BYTES} here"):
        FrameDecoder(HELLO_FRAME_BYTES).feed(large[:20])
    small = encode(m.StopCatchup(1, 2))
    assert len(FrameDecoder(HELLO_FRAME_BYTES).feed(small + large)) == 2


def test_the_longest_hello_fits_what_a_stranger_may_send() -> None:
    longest = "x" * f.MAX_STRING_BYTES
    hello = m.Hello(
        longest, 1, 2, 3, f.StreamPurpose.CATCHUP, 4, 5, 6, service=longest, host=longest
    )
    assert len(encode(hello)) <= HELLO_FRAME_BYTES
    reply = m.HelloReply(1, f.HelloStatus.WRONG_CLUSTER, "x" * 256, 2)
    assert len(encode(reply)) <= HELLO_FRAME_BYTES


def test_an_error_is_final() -> None:
    decoder = FrameDecoder()
    with pytest.raises(WireError, match="frame version 0"):
        decoder.feed(bytes(12))
    with pytest.raises(WireError, match="invalid before"):
        decoder.feed(encode(m.StopCatchup(1, 2)))


@settings(deadline=None)
@given(st.binary(max_size=3), st.binary(max_size=100))
def test_a_batch_passes_through_untouched(start: bytes, rest: bytes) -> None:
    frame = encode(m.LogBatch(5, 6, start + rest))
    assert frame.endswith(start + rest)
    for data in (frame, bytearray(frame), memoryview(frame)):
        (message,) = FrameDecoder().feed(data)
        assert message == m.LogBatch(5, 6, start + rest)
        assert isinstance(message, m.LogBatch)
        assert type(message.batch) is bytes


def test_a_hello_without_credentials_is_that_of_version_3_0() -> None:
    """So members of both versions understand each other while a cluster is upgraded."""
    plain = m.Hello("c", 1, 3 << 16, 2, f.StreamPurpose.CONSENSUS, host="h", port=5)
    assert encode(plain)[4] == 1
    assert encode(plain).hex()[24:] == (
        "0100" "01000000" "00000300" "0200000000000000" "00" "ffffffff" "ffffffffffffffff"
        "ffffffff" "0000000000000000" "0000000000000000" "0000" "0100" "05000000" "63" "68"
    )  # fmt: skip
    assert decode_untrusted(encode(plain)) == plain
    proving = attrs.evolve(plain, credentials=b"nonce")
    assert encode(proving)[4] == 3
    assert decode_untrusted(encode(proving)) == proving
