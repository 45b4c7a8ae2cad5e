"""The record batch: round trip, layout, and that nothing but WireError comes of bad bytes."""

import contextlib
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quorate.errors import WireError
from quorate.storage import (
    DESCRIPTOR_BYTES,
    HEADER_BYTES,
    BatchHeader,
    CheckedEntries,
    Entry,
    EntryKind,
    check_batch_untrusted,
    decode_entries_untrusted,
    decode_header_untrusted,
    encode_batch,
)
from quorate.storage.log.batch import BATCH_ALIGNMENT
from tests.support.storage_world import batch_at, flipped

U64 = st.integers(0, 2**64 - 1)
entries = st.lists(
    st.builds(
        Entry,
        kind=st.sampled_from(EntryKind),
        payload=st.binary(max_size=100),
        flags=st.integers(0, 255),
        session=U64,
        sequence=U64,
        principal=st.integers(0, 2**32 - 1),
    ),
    max_size=20,
)
ONE = batch_at(64, term=3, count=3, size=5)


def crc32c(data: bytes) -> int:
    """Compute CRC-32C bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def reseal(batch: bytes) -> bytes:
    """Return the batch with the checksum that its bytes should have."""
    return batch[:4] + struct.pack("<I", crc32c(batch[8:])) + batch[8:]


@given(
    entries=entries,
    term=st.integers(0, 2**63 - 1),
    blocks=st.integers(0, 2**57),
    timestamp_ms=st.integers(0, 2**63 - 1),
    commit_position=st.integers(0, 2**63 - 1),
)
def test_a_batch_decodes_to_what_was_encoded(
    entries: list[Entry], term: int, blocks: int, timestamp_ms: int, commit_position: int
) -> None:
    position = blocks * BATCH_ALIGNMENT
    batch = encode_batch(
        entries,
        term=term,
        position=position,
        timestamp_ms=timestamp_ms,
        commit_position=commit_position,
    )
    header = check_batch_untrusted(batch)
    assert header == BatchHeader(
        term=term,
        position=position,
        length=len(batch),
        count=len(entries),
        timestamp_ms=timestamp_ms,
        commit_position=commit_position,
    )
    assert header.end == position + len(batch)
    assert len(batch) % BATCH_ALIGNMENT == 0
    assert decode_header_untrusted(batch[:HEADER_BYTES]) == header
    assert decode_entries_untrusted(batch) == entries
    made = CheckedEntries(batch, header)
    assert (len(made), list(made), made[1:], made[:-1]) == (
        len(entries),
        entries,
        entries[1:],
        entries[:-1],
    )
    for wrong in (-1 - len(entries), len(entries)):
        with pytest.raises(IndexError):
            made[wrong]


@pytest.mark.parametrize("size", [65_536 - 96, 65_536, 200_000])
@pytest.mark.parametrize("count", [1, 300])
def test_large_batches_decode_too(size: int, count: int) -> None:
    batch = batch_at(0, count=count, size=size // count)
    assert check_batch_untrusted(batch).count == count
    assert b"".join(e.payload for e in decode_entries_untrusted(batch)) == bytes(
        size // count * count
    )


def test_the_layout_is_what_the_module_says() -> None:
    batch = encode_batch(
        [Entry(EntryKind.TIMER, b"abc", flags=9, session=10, sequence=11, principal=12)],
        term=1,
        position=32,
        timestamp_ms=4,
        commit_position=5,
    )
    assert batch[:4] == b"QRMB"
    assert batch[4:8] == struct.pack("<I", crc32c(batch[8:]))
    assert batch[8:64] == struct.pack("<HHIqqqqI12x", 1, 0, 128, 1, 32, 5, 4, 1)
    assert batch[64:96] == struct.pack("<BBHIIIQQ", 5, 9, 0, 3, 96, 12, 10, 11)
    assert batch[96:] == b"abc" + bytes(29)


@given(st.binary(max_size=300) | st.binary(max_size=300).map(lambda tail: ONE[:64] + tail))
def test_arbitrary_bytes_are_refused_as_wire_errors_only(data: bytes) -> None:
    if data == ONE:
        return
    with pytest.raises(WireError):
        check_batch_untrusted(data)
    for decode in (decode_header_untrusted, decode_entries_untrusted):
        with contextlib.suppress(WireError):
            decode(data)


@given(st.integers(0, len(ONE) - 1), st.integers(0, 7))
def test_any_flipped_bit_is_found(at: int, bit: int) -> None:
    with pytest.raises(WireError):
        check_batch_untrusted(flipped(ONE, at, bit))


@given(st.integers(0, len(ONE) - 1), st.integers(0, 255))
@example(HEADER_BYTES + 2 * DESCRIPTOR_BYTES + 4, 0)  # its zeros could be the padding as well
def test_a_batch_whose_checksum_fits_is_refused_or_just_what_the_encoder_makes(
    at: int, byte: int
) -> None:
    batch = reseal(ONE[:at] + bytes([byte]) + ONE[at + 1 :])
    try:
        header = check_batch_untrusted(batch)
    except WireError:
        return
    again = encode_batch(
        decode_entries_untrusted(batch),
        term=header.term,
        position=header.position,
        timestamp_ms=header.timestamp_ms,
        commit_position=header.commit_position,
    )
    assert again == batch


@given(st.integers(0, len(ONE) - 1))
def test_a_truncated_batch_is_refused(length: int) -> None:
    with pytest.raises(WireError):
        check_batch_untrusted(ONE[:length])
    with pytest.raises(WireError):
        decode_entries_untrusted(ONE[:length])


def test_bytes_behind_a_batch_are_refused() -> None:
    with pytest.raises(WireError, match="its header says"):
        check_batch_untrusted(ONE + bytes(32))


@pytest.mark.parametrize(
    ("layout", "offset", "value"),
    [
        ("<H", 8, 2),  # a newer version
        ("<H", 10, 1),  # header flags
        ("<I", 12, 2**31),  # longer than any batch
        ("<q", 16, -1),  # term
        ("<q", 24, 33),  # not aligned
        ("<q", 24, -32),
        ("<q", 32, -1),  # commit position
        ("<q", 40, -1),  # timestamp
        ("<I", 48, 2**32 - 1),  # entries that do not fit
        ("<B", 60, 1),  # reserved
        ("<B", HEADER_BYTES, 0),  # kind
        ("<B", HEADER_BYTES, 8),
        ("<H", HEADER_BYTES + 2, 1),
        ("<I", HEADER_BYTES + 4, 2**32 - 1),  # payload behind the end
        ("<I", HEADER_BYTES + 8, 64),  # payload on top of the descriptors
        ("<I", HEADER_BYTES + 2 * DESCRIPTOR_BYTES + 4, 100),
        ("<I", HEADER_BYTES + 2 * DESCRIPTOR_BYTES + 4, 54),  # ends aligned, but behind the end
        ("<B", len(ONE) - 1, 1),  # padding
    ],
)
def test_a_field_out_of_its_range_is_refused(layout: str, offset: int, value: int) -> None:
    batch = bytearray(ONE)
    struct.pack_into(layout, batch, offset, value)
    with pytest.raises(WireError):
        check_batch_untrusted(reseal(bytes(batch)))
