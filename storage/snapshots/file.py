"""The file of a snapshot: the state of a service at one log position, in checked pieces.

::

    head      magic     4s    b"QRSN"
              version   u16   2 with a `membership`, else 1
              reserved  u16   0
              length    u32   bytes of the body
              checksum  u32
              body            a `SnapshotHead` as JSON

    piece     stored    u32   bytes of the zstd frame
              raw       u32   bytes when unpacked
              number    u64   from 0
              checksum  u32
              content         one zstd frame
    ...
    end       stored    u32   24
              raw       u32   0
              number    u64   how many pieces there are
              checksum  u32
              total     u64   bytes of all pieces, unpacked
              digest    16s   BLAKE2b of all pieces, unpacked

Integers are little endian. A part's checksum is the CRC-32C of everything in the part except
itself. It covers the piece's number, so pieces can't change places or come from another file.

Pieces come back as the service gave them. Equal states give equal pieces, so snapshots of one
position have the same digest on all members.

A file without its end part is no snapshot. Still it shows how much of it is whole, and a transfer
that broke off goes on from there.
"""

from __future__ import annotations

import json
import os
import struct
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, cast

import attrs
import cattrs
import zstandard

from ...errors import StorageError
from ..lmdb.checksum import crc32c, extend_crc32c
from ..log.batch import MAX_NUMBER, MAX_TIMESTAMP_MS
from ..rows.membership import MAX_MEMBERSHIP_BYTES
from ..rows.term_table import SnapshotRow, TermRow, incoherences

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedReader
    from pathlib import Path
    from typing import Self

MAX_PIECE_BYTES: Final = 16 << 20
"""Longest piece that a service may give. A reader refuses longer ones before it reserves memory."""
MAX_PART_BYTES: Final = MAX_PIECE_BYTES + (1 << 20)
"""Longest part of a file; zstd makes incompressible pieces a little longer."""
MAX_TERMS: Final = 512
"""Most terms, the newest, that a head lists."""
COMPRESSION_LEVEL: Final = 1
NO_STATE: Final = "witness, which has no state"
"""The service in the head of a witness' snapshot: it has no pieces, and nothing may load it."""

_MAGIC: Final = b"QRSN"
_VERSION: Final = 2
_VERSIONS: Final = frozenset({1, _VERSION})
_HEAD: Final = struct.Struct("<4sHHII")
_PART: Final = struct.Struct("<IIQI")
_COVERED: Final = struct.Struct("<IIQ")  # of a part's header
_TOTAL: Final = struct.Struct("<Q")
_DIGEST_BYTES: Final = 16
_END_BYTES: Final = _TOTAL.size + _DIGEST_BYTES
_MAX_HEAD_BYTES: Final = 1 << 20


@attrs.frozen
class SnapshotHead:
    """What a snapshot is of.

    Args:
        cluster: name of the cluster.
        position: log position up to which it has everything; the end of a batch.
        term: leadership term of that batch.
        timestamp_ms: log time of that batch.
        terms: the term table up to there, the newest `MAX_TERMS`; the last row is open.
        suspended: an operator has suspended the cluster.
        service: kind of the service, empty if unknown.
        membership: the configuration in force there, as its entry's text; empty if the log had none
            up to there.
    """

    cluster: str
    position: int
    term: int
    timestamp_ms: int
    terms: tuple[TermRow, ...]
    suspended: bool = False
    service: str = ""
    membership: str = ""

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"snapshot-{self.position:020d}-{self.term}"

    @property
    def row(self) -> SnapshotRow:
        """Its row in the store."""
        return SnapshotRow(self.position, self.term, self.timestamp_ms, self.name)


def head_of(
    cluster: str,
    terms: tuple[TermRow, ...],
    *,
    position: int,
    term: int,
    timestamp_ms: int,
    suspended: bool = False,
    service: str = "",
    membership: str = "",
) -> SnapshotHead:
    """Make the head of a snapshot taken behind a batch of `term`."""
    rows = [row for row in terms if row.term <= term][-MAX_TERMS:]
    assert rows, f"term {term} is not in the term table"
    assert rows[-1].term == term, f"term {term} is not in the term table"
    # Open, whether this member knows its end by now or not: all members' files are equal (I-24).
    rows[-1] = attrs.evolve(rows[-1], end=None)
    return SnapshotHead(
        cluster, position, term, timestamp_ms, tuple(rows), suspended, service, membership
    )


@attrs.frozen
class Summary:
    """A whole snapshot, summed up.

    Args:
        head: what it is of.
        pieces: number of pieces.
        raw_bytes: of all pieces, unpacked.
        file_bytes: of the file.
        digest: over all pieces; equal for equal states.
    """

    head: SnapshotHead
    pieces: int
    raw_bytes: int
    file_bytes: int
    digest: str


# --- encoding -------------------------------------------------------------------------------------


def encode_head(head: SnapshotHead) -> bytes:
    """Return the first part of a file."""
    body = json.dumps(attrs.asdict(head), separators=(",", ":")).encode()
    # A reader of version 1 would ignore the configuration, and follow wrong voters: refused by the
    # number. Without one it can read the file, so members may be upgraded one after the other.
    version = _VERSION if head.membership else 1
    start = _MAGIC + struct.pack("<HHI", version, 0, len(body))
    return start + struct.pack("<I", crc32c(start + body)) + body


class Encoder:
    """Makes the parts behind the head, one per piece."""

    def __init__(self) -> None:
        self._packer = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL)
        self._digest = blake2b(digest_size=_DIGEST_BYTES)
        self.pieces = 0
        self.raw_bytes = 0

    @property
    def digest(self) -> str:
        """Of all pieces so far."""
        return self._digest.hexdigest()

    def piece(self, piece: bytes) -> bytes:
        """Encode the next piece.

        Raises:
            StorageError: it is longer than `MAX_PIECE_BYTES`.
        """
        if len(piece) > MAX_PIECE_BYTES:
            raise StorageError(
                f"a piece of a snapshot has {len(piece)} bytes, expected at most {MAX_PIECE_BYTES}"
            )
        self._digest.update(piece)
        part = _part(self._packer.compress(piece), len(piece), self.pieces)
        self.pieces += 1
        self.raw_bytes += len(piece)
        return part

    def end(self) -> bytes:
        """Return the last part."""
        return _part(_TOTAL.pack(self.raw_bytes) + self._digest.digest(), 0, self.pieces)


def _part(stored: bytes, raw_bytes: int, number: int) -> bytes:
    start = _COVERED.pack(len(stored), raw_bytes, number)
    return start + struct.pack("<I", extend_crc32c(crc32c(start), stored)) + stored


# --- decoding -------------------------------------------------------------------------------------


def decode_head_untrusted(part: bytes) -> SnapshotHead:
    """Decode the first part of a file.

    Raises:
        StorageError: this is no head, or it is damaged.
    """
    try:
        magic, version, reserved, length, check = _HEAD.unpack_from(part)
    except struct.error as error:
        raise StorageError(f"snapshot: a head of {len(part)} bytes") from error
    body = part[_HEAD.size :]
    if magic != _MAGIC or version not in _VERSIONS or reserved or length != len(body):
        raise StorageError(f"snapshot: magic {magic!r}, version {version}, {length} bytes of head")
    if crc32c(part[: _HEAD.size - 4] + body) != check:
        raise StorageError("snapshot: its head is damaged")
    try:
        head = cattrs.structure(json.loads(body), SnapshotHead)
        membership_bytes = len(head.membership.encode())  # JSON may name what is no character
    except (ValueError, TypeError, RecursionError, cattrs.BaseValidationError) as error:
        raise StorageError(f"snapshot: its head is invalid: {error}") from error
    if membership_bytes > MAX_MEMBERSHIP_BYTES:
        raise StorageError(
            f"snapshot: its head has a configuration of {membership_bytes} bytes, "
            f"expected at most {MAX_MEMBERSHIP_BYTES}"
        )
    if not head.terms or head.terms[-1].term != head.term or any(incoherences(head.terms)):
        raise StorageError("snapshot: the terms in its head contradict each other")
    if not 0 <= head.terms[-1].base <= head.position or len(head.terms) > MAX_TERMS:
        raise StorageError("snapshot: the terms in its head contradict each other")
    times = [head.timestamp_ms, *(row.timestamp_ms for row in head.terms)]
    if not (0 <= min(times) <= max(times) <= MAX_TIMESTAMP_MS and head.term <= MAX_NUMBER):
        raise StorageError(f"snapshot: its head has a number out of range: {head}")
    if not (head.position <= MAX_NUMBER and head.terms[0].term >= 0):
        raise StorageError(f"snapshot: its head has a number out of range: {head}")
    return head


class SnapshotReader:
    """Reads the file of a snapshot part by part, each one checked.

    Attributes:
        head: what the snapshot is of.
        end: bytes of the file that were read and are whole.
        summary: of the whole, once the end part was read.
    """

    def __init__(self, path: Path) -> None:
        """Open a file, and read its head.

        Raises:
            StorageError: the file can't be read, or has no valid head.
        """
        self._path = path
        self._unpacker = zstandard.ZstdDecompressor()
        self._digest = blake2b(digest_size=_DIGEST_BYTES)
        self._number = 0
        self._raw_bytes = 0
        self.summary: Summary | None = None
        try:
            self._file: BufferedReader = path.open("rb")
        except OSError as error:
            raise StorageError(f"snapshot {path}: {error.strerror}") from error
        try:
            self.head_part = self._head_untrusted()
            self.head = decode_head_untrusted(self.head_part)
        except StorageError as error:
            self._file.close()
            raise StorageError(f"{path}: {error}") from error
        self.end = len(self.head_part)

    def close(self) -> None:
        """Close the file; idempotent."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _head_untrusted(self) -> bytes:
        start = self._read(_HEAD.size)
        length = _HEAD.unpack(start)[3] if len(start) == _HEAD.size else 0
        if length > _MAX_HEAD_BYTES:
            raise StorageError(f"snapshot: {length} bytes of head")
        return start + self._read(length)

    def _read(self, size: int) -> bytes:
        try:
            return self._file.read(size)
        except OSError as error:
            raise StorageError(f"snapshot {self._path}: {error.strerror}") from error

    @property
    def file_bytes(self) -> int:
        """Length of the file, even if it was removed since."""
        return os.fstat(self._file.fileno()).st_size

    def rewind(self) -> None:
        """Go back to just behind the head."""
        self.end = len(self.head_part)
        self._file.seek(self.end)
        self._number = self._raw_bytes = 0
        # Of the pieces from here on: those unpacked before are unpacked again.
        self._digest = blake2b(digest_size=_DIGEST_BYTES)
        self.summary = None

    def next_part(self) -> bytes | None:
        """Read the next part as it is stored, checked; None behind the last one.

        Raises:
            StorageError: the part is damaged, or the file ends too soon.
        """
        if self.summary is not None:
            return None
        start = self._read(_PART.size)
        if len(start) < _PART.size:
            raise self._broken("the file ends too soon")
        stored_bytes, raw_bytes, number, check = _PART.unpack(start)
        # Before the read: until the checksum has passed, a length is only a claim.
        if max(stored_bytes, raw_bytes) > MAX_PART_BYTES or number != self._number:
            raise self._broken(f"piece {number} of {stored_bytes} bytes")
        stored = self._read(stored_bytes)
        if len(stored) < stored_bytes:
            raise self._broken("the file ends too soon")
        if extend_crc32c(crc32c(start[: _COVERED.size]), stored) != check:
            raise self._broken("the checksum differs")
        # No piece looks like this: the zstd frame of an empty piece is shorter.
        if stored_bytes == _END_BYTES and not raw_bytes:
            self._end(stored, len(start))
        else:
            self._number += 1
            self._raw_bytes += raw_bytes
        self.end += len(start) + stored_bytes
        return start + stored

    def _end(self, stored: bytes, header_bytes: int) -> None:
        (raw_bytes,) = _TOTAL.unpack_from(stored)
        # The read finds bytes behind the end, which no snapshot has.
        if raw_bytes != self._raw_bytes or self._read(1):
            raise self._broken("its end part does not match it")
        size = self.end + header_bytes + len(stored)
        digest = stored[_TOTAL.size :].hex()
        self.summary = Summary(self.head, self._number, raw_bytes, size, digest)

    def pieces(self) -> Iterator[bytes]:
        """Yield the remaining pieces, unpacked; compare the digest at the end.

        Raises:
            StorageError: a piece is damaged or missing, or it is of a witness.
        """
        # Taken for a state, no pieces would be an empty one.
        if self.head.service == NO_STATE:
            raise StorageError(f"{self._path}: it is of a witness, which keeps no state")
        yield from self.all_pieces()

    def all_pieces(self) -> Iterator[bytes]:
        """Do the same, and yield nothing for a witness; for checks."""
        from_start = self._number == 0  # else the digest misses the first pieces
        while True:
            part = self.next_part()
            if self.summary is not None or part is None:
                break
            piece = self._unpack_untrusted(part)
            self._digest.update(piece)
            yield piece
        assert self.summary is not None
        if from_start and self._digest.hexdigest() != self.summary.digest:
            raise self._broken("the digest differs")

    def _unpack_untrusted(self, part: bytes) -> bytes:
        raw_bytes = cast("int", _PART.unpack_from(part)[1])
        try:
            # Bounded: a small frame can claim to unpack to gigabytes.
            piece = self._unpacker.decompress(part[_PART.size :], max_output_size=raw_bytes)
        except zstandard.ZstdError as error:
            raise self._broken(str(error)) from error
        if len(piece) != raw_bytes:
            raise self._broken(f"{len(piece)} bytes unpacked of {raw_bytes}")
        return piece

    def _broken(self, reason: str) -> StorageError:
        return StorageError(f"{self._path}: piece {self._number}, byte {self.end}: {reason}")


def check_snapshot(path: Path) -> Summary:
    """Read a whole snapshot, and check every byte of it.

    Raises:
        StorageError: it is damaged, or can't be read.
    """
    with SnapshotReader(path) as reader:
        for _ in reader.all_pieces():
            pass
        assert reader.summary is not None
        return reader.summary


def whole_bytes(path: Path) -> int:
    """Return how many bytes from the start of a file are whole parts of a snapshot."""
    try:
        reader = SnapshotReader(path)
    except StorageError:
        return 0
    with reader:
        try:
            while reader.next_part() is not None:
                pass
        except StorageError:
            pass
        return reader.end
