"""The record batch: the one form of the log, on disk, on the wire and in exports.

A leader encodes a batch once; the same bytes go into every member's log.

::

    +--------+--------------+-----+--------------+-----------+-----+-----------+---------+
    | header | descriptor 0 | ... | descriptor n | payload 0 | ... | payload n | zeros   |
    +--------+--------------+-----+--------------+-----------+-----+-----------+---------+
      64       32                   32                                           to 32 * k

    header      0   4  magic "QRMB"
                4   4  CRC-32C of everything from byte 8 to the end of the batch
                8   2  format version (1)
               10   2  flags (0)
               12   4  length of the whole batch, header and zeros included
               16   8  leadership term
               24   8  log position at which the batch begins
               32   8  commit position that the leader knew when it encoded the batch
               40   8  timestamp, milliseconds of log time
               48   4  number of entries
               52  12  reserved (0)

    descriptor  0   1  kind (EntryKind)
                1   1  flags, free for the service
                2   2  reserved (0)
                4   4  length of the payload
                8   4  offset of the payload from the start of the batch
               12   4  principal: number of the user that sent it (0 = `default`, or the cluster)
               16   8  client session (0 = none)
               24   8  sequence number within the session

All integers are little endian. Descriptors stand together, so a reader finds entry *i* without
walking, and an audit reads no payload.

The principal takes bytes that were reserved, and zero, before there were users. So it adds no byte
to the log, and an old log reads as one that `default` has written.

Positions
---------
A position is a byte offset in one endless log. A batch's length is a multiple of 32, so positions
are too. The commit position in a header stays true for ever: a directory alone shows what is
committed.

Checking
--------
There are three levels: the header alone, the checksum of the whole batch, and the descriptors. Each
raises ``WireError`` and nothing else. The checksum finds accidents, not forgery.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from typing import Final, overload

import attrs

from ...errors import WireError
from ..lmdb.checksum import crc32c, extend_crc32c
from ..rows.membership import MAX_MEMBERSHIP_BYTES

BATCH_ALIGNMENT: Final = 32
HEADER_BYTES: Final = 64
DESCRIPTOR_BYTES: Final = 32
MAX_BATCH_BYTES: Final = 64 * 1024 * 1024
"""Longest batch. Larger ones would hold up heartbeats on the link that carries them; smaller ones
would refuse large values."""
FORMAT_VERSION: Final = 1

MAX_NUMBER: Final = 1 << 62
"""Largest term and position that is accepted from another member. A sum of two still fits 64
bits."""

MAX_TIMESTAMP_MS: Final = 253_402_300_799_999
"""Largest time that is accepted: the end of the year 9999, the last that Python's calendar has."""

_MAGIC: Final = b"QRMB"
_PREFIX: Final = struct.Struct("<4sI")  # what the checksum does not cover
_REST: Final = struct.Struct("<HHIqqqqI12x")
_HEADER: Final = struct.Struct("<4sIHHIqqqqI12s")
_DESCRIPTOR: Final = struct.Struct("<BBHIIIQQ")
_LOCATION: Final = struct.Struct("<2xHII20x")  # a descriptor's reserved bytes and place
_RESERVED: Final = bytes(12)

MAX_PRINCIPAL: Final = (1 << 32) - 1
"""Largest number of a principal, by the width of its field."""

# A position is a signed 64-bit field of the header, so the end of a batch has to fit one too.
_MAX_POSITION: Final = (1 << 63) - 1
# crc32c takes only bytes objects, so a part has to be copied; copies of this size stay in the
# cache.
_CRC_STEP: Final = 64 * 1024
_CRC_PIECES: Final = 256
_PADDING: Final = tuple(bytes(-n % BATCH_ALIGNMENT) for n in range(BATCH_ALIGNMENT))


class EntryKind(enum.IntEnum):
    """What an entry of the log is. The numbers are on disk."""

    NEW_LEADERSHIP_TERM = 1
    SESSION_OPEN = 2
    SESSION_CLOSE = 3
    COMMAND = 4
    TIMER = 5
    CLUSTER_ACTION = 6
    MEMBERSHIP = 7


_MEMBERSHIP: Final = int(EntryKind.MEMBERSHIP)
_KIND_BYTES: Final = bytes(EntryKind)
_KINDS: Final = {int(kind): kind for kind in EntryKind}


@attrs.define
class Entry:
    """One entry of a batch.

    Not frozen: making a frozen one takes twice as long. Nobody changes one.

    Args:
        kind: what it is.
        payload: opaque bytes.
        flags: 0..255, free for the service.
        session: client session, unsigned 64 bits; 0 = none.
        sequence: number within the session, unsigned 64 bits.
        principal: number of the user that sent it, unsigned 32 bits; 0 = `default`, or the cluster.
    """

    kind: EntryKind
    payload: bytes = b""
    flags: int = 0
    session: int = 0
    sequence: int = 0
    principal: int = 0


@attrs.define
class BatchHeader:
    """What a batch's header says. Positions and lengths are bytes of the log.

    Not frozen, for the same reason as `Entry`.
    """

    term: int
    position: int
    length: int
    count: int
    timestamp_ms: int
    commit_position: int

    @property
    def end(self) -> int:
        """Log position just behind the batch."""
        return self.position + self.length


def encode_batch(
    entries: Sequence[Entry], *, term: int, position: int, timestamp_ms: int, commit_position: int
) -> bytes:
    """Encode entries as one batch that begins at `position`.

    The caller keeps the batch within `MAX_BATCH_BYTES`, and numbers within their fields.
    """
    assert position % BATCH_ALIGNMENT == 0, f"position {position} is not aligned"
    count = len(entries)
    offset = HEADER_BYTES + DESCRIPTOR_BYTES * count
    # A local name: this loop runs once for each command of the cluster.
    pack = _DESCRIPTOR.pack
    pieces: list[bytes] = []
    payloads: list[bytes] = []
    for entry in entries:
        payload = entry.payload
        size = len(payload)
        who = entry.principal
        pieces.append(
            pack(entry.kind, entry.flags, 0, size, offset, who, entry.session, entry.sequence)
        )
        payloads.append(payload)
        offset += size
    # Payloads go behind all descriptors, so a reader finds entry i without the payloads before it.
    pieces += payloads
    padding = _PADDING[offset % BATCH_ALIGNMENT]
    pieces.append(padding)
    length = offset + len(padding)
    assert length <= MAX_BATCH_BYTES, f"a batch of {length} bytes"
    rest = _REST.pack(
        FORMAT_VERSION, 0, length, term, position, commit_position, timestamp_ms, count
    )
    crc = crc32c(rest)
    for start in range(0, len(pieces), _CRC_PIECES):  # joined piecewise: one large copy, not two
        crc = extend_crc32c(crc, b"".join(pieces[start : start + _CRC_PIECES]))
    # These bytes go unchanged into every log and over every link.
    return b"".join((_PREFIX.pack(_MAGIC, crc), rest, *pieces))


def decode_header_untrusted(data: bytes) -> BatchHeader:
    """Decode the header at the start of `data`; 64 bytes are enough. The checksum is not checked.

    Raises:
        WireError: this is no header of a batch of this format.
    """
    if len(data) < HEADER_BYTES:
        raise WireError(f"batch header: {len(data)} bytes, expected {HEADER_BYTES}")
    magic, _, version, flags, length, term, position, commit, timestamp, count, reserved = (
        _HEADER.unpack_from(data)
    )
    if magic != _MAGIC or version != FORMAT_VERSION:
        raise WireError(
            f"batch header: magic {magic!r} version {version}, "
            f"expected {_MAGIC!r} version {FORMAT_VERSION}"
        )
    # Refused, not ignored: a later version may give these bytes a meaning that this one would miss.
    if flags or reserved != _RESERVED:
        raise WireError("batch header: flags or reserved bytes are set")
    # Checked before anybody reserves memory or reads for this length: the bytes may be hostile.
    if not HEADER_BYTES + DESCRIPTOR_BYTES * count <= length <= MAX_BATCH_BYTES:
        raise WireError(f"batch header: length {length} with {count} entries")
    if (length | position) % BATCH_ALIGNMENT:
        raise WireError(f"batch header: position {position}, length {length} not aligned")
    # The sign bit of the disjunction is set if any of the four is negative: one comparison, not
    # four.
    if term | position | commit | timestamp < 0 or position + length > _MAX_POSITION:
        raise WireError(
            f"batch header: term {term}, position {position}, commit position {commit}, "
            f"timestamp {timestamp} out of range"
        )
    return BatchHeader(term, position, length, count, timestamp, commit)


def check_sum_untrusted(data: bytes) -> BatchHeader:
    """Check length and checksum of one whole batch, but not its descriptors.

    Enough for bytes that were checked completely before they were recorded.

    Raises:
        WireError: this is not exactly one batch, or its checksum differs.
    """
    header = decode_header_untrusted(data)
    if len(data) != header.length:
        raise WireError(f"batch: {len(data)} bytes, its header says {header.length}")
    (expected,) = struct.unpack_from("<I", data, 4)
    crc = crc32c(data[8:_CRC_STEP])
    for start in range(_CRC_STEP, len(data), _CRC_STEP):
        crc = extend_crc32c(crc, data[start : start + _CRC_STEP])
    if crc != expected:
        raise WireError(f"batch: checksum {crc:08x}, its header says {expected:08x}")
    return header


def check_batch_untrusted(data: bytes) -> BatchHeader:
    """Check one whole batch: header, length, checksum, and the place of every entry.

    Raises:
        WireError: this is not exactly one intact batch.
    """
    header = check_sum_untrusted(data)
    _check_descriptors_untrusted(data, header)
    return header


def check_received_untrusted(data: bytes) -> BatchHeader:
    """Check one whole batch from another member, and that its numbers can be computed with.

    Raises:
        WireError: this is not exactly one intact batch, or a number is one that no leader writes.
    """
    header = check_batch_untrusted(data)
    # A leader encodes a batch before it can be committed. A batch that says it is committed itself
    # would make a follower apply what no quorum holds.
    if not header.commit_position <= header.position <= MAX_NUMBER:
        raise WireError(
            f"batch: it begins at {header.position}, and says that {header.commit_position} is "
            "committed"
        )
    if header.term > MAX_NUMBER or header.timestamp_ms > MAX_TIMESTAMP_MS:
        raise WireError(f"batch: term {header.term}, timestamp {header.timestamp_ms} out of range")
    # By all kinds, not the first alone: a configuration behind a command would get no row.
    if (
        _MEMBERSHIP
        in data[HEADER_BYTES : HEADER_BYTES + DESCRIPTOR_BYTES * header.count][::DESCRIPTOR_BYTES]
    ):
        payload = configuration_untrusted(data)
        if payload is None or header.count > 1 or len(payload) > MAX_MEMBERSHIP_BYTES:
            raise WireError(
                f"batch: a configuration among {header.count} entries, {header.length} bytes; "
                f"expected it alone, with at most {MAX_MEMBERSHIP_BYTES} bytes"
            )
    return header


def is_configuration(data: bytes, header: BatchHeader) -> bool:
    """Say whether a checked batch holds a configuration of the cluster."""
    # Such an entry is alone in its batch, so the first kind says it all.
    return data[HEADER_BYTES] == _MEMBERSHIP if header.count else False


def configuration_untrusted(data: bytes) -> bytes | None:
    """Return the configuration that a whole batch holds, None without one.

    Raises:
        WireError: header or descriptors are not those of exactly one batch.
    """
    if not is_configuration(data, decode_header_untrusted(data)):
        return None
    return decode_entries_untrusted(data)[0].payload


def decode_entries_untrusted(data: bytes) -> list[Entry]:
    """Decode the entries of one whole batch; the checksum is not checked.

    Raises:
        WireError: header or descriptors are not those of exactly one batch.
    """
    header = decode_header_untrusted(data)
    if len(data) != header.length:
        raise WireError(f"batch: {len(data)} bytes, its header says {header.length}")
    _check_descriptors_untrusted(data, header)
    # A copy of the descriptors alone, so that one `iter_unpack` walks all of them.
    table = data[HEADER_BYTES : HEADER_BYTES + DESCRIPTOR_BYTES * header.count]
    return [
        Entry(_KINDS[kind], data[offset : offset + size], flags, session, sequence, principal)
        for kind, flags, _, size, offset, principal, session, sequence in _DESCRIPTOR.iter_unpack(
            table
        )
    ]


class CheckedEntries(Sequence[Entry]):
    """The entries of a batch that `check_batch_untrusted` accepted, decoded one by one on access.

    A service that reads the batch's bytes itself never pays for them.

    Attributes:
        batch: its bytes.
    """

    __slots__ = ("_count", "batch")

    # Only the count is kept: `check_batch_untrusted` has proven that each entry lies inside.
    def __init__(self, batch: bytes, header: BatchHeader) -> None:
        self.batch = batch
        self._count = header.count

    def __len__(self) -> int:
        """Return the number of entries."""
        return self._count

    @overload
    def __getitem__(self, index: int) -> Entry: ...

    @overload
    def __getitem__(self, index: slice) -> list[Entry]: ...

    def __getitem__(self, index: int | slice) -> Entry | list[Entry]:
        """Decode an entry, or a slice of them."""
        if isinstance(index, slice):
            return [self[place] for place in range(self._count)[index]]
        # Through `range`: it resolves negative indices, and raises IndexError as a sequence must.
        at = HEADER_BYTES + DESCRIPTOR_BYTES * range(self._count)[index]
        kind, flags, _, size, offset, principal, session, sequence = _DESCRIPTOR.unpack_from(
            self.batch, at
        )
        payload = self.batch[offset : offset + size]
        return Entry(_KINDS[kind], payload, flags, session, sequence, principal)


def _check_descriptors_untrusted(data: bytes, header: BatchHeader) -> None:
    """Check kind, place and reserved bytes of every entry, and the zeros behind them."""
    at = HEADER_BYTES + DESCRIPTOR_BYTES * header.count
    table = data[HEADER_BYTES:at]
    # Entry by entry: most batches have few, and column-wise checks gain nothing even for 100.
    if table[::DESCRIPTOR_BYTES].translate(None, _KIND_BYTES):
        raise WireError("batch: an entry of unknown kind")
    for reserved, size, offset in _LOCATION.iter_unpack(table):
        # Each payload must begin where the one before ended. So no two entries share bytes, and no
        # bytes of a batch belong to none.
        if offset != at or reserved:
            raise WireError(
                "batch: an entry does not lie where it should, or reserved bytes are set"
            )
        at += size
    # Sizes are unsigned, so `at` only rises: one comparison at the end bounds every entry.
    if at > len(data) or data[at:] != _PADDING[at % BATCH_ALIGNMENT]:
        raise WireError("batch: the entries do not end where it does")
