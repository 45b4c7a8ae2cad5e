"""The file of a snapshot: what was written comes back, and whatever was damaged is noticed."""

import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

import attrs
import pytest

from quorate.errors import StorageError
from quorate.storage import (
    MAX_MEMBERSHIP_BYTES,
    SnapshotFolder,
    SnapshotHead,
    SnapshotReader,
    SnapshotWriter,
    Summary,
    TermRow,
    head_of,
)
from quorate.storage.lmdb.checksum import crc32c
from quorate.storage.snapshots.file import (
    MAX_PIECE_BYTES,
    MAX_TERMS,
    check_snapshot,
    decode_head_untrusted,
    encode_head,
    whole_bytes,
)

TERMS = (TermRow(0, 0, 640, 5), TermRow(1, 640, 640, 6), TermRow(2, 640, None, 7))
HEAD = head_of("orders", TERMS, position=9600, term=2, timestamp_ms=1234)
PIECES = [b"first" * 100, b"", bytes(range(256)) * 9, b"last"]


def write(folder: Path, pieces: list[bytes] = PIECES, head: SnapshotHead = HEAD) -> Summary:
    folder.mkdir(exist_ok=True)
    writer = SnapshotWriter(folder, head, iter(pieces))
    while writer.step():
        pass
    return writer.finish()


def test_a_snapshot_comes_back_as_it_was_written(tmp_path: Path) -> None:
    summary = write(tmp_path)
    assert summary == check_snapshot(tmp_path / HEAD.name)
    assert summary.pieces == len(PIECES)
    assert summary.raw_bytes == sum(map(len, PIECES))
    assert summary.file_bytes == (tmp_path / HEAD.name).stat().st_size
    with SnapshotReader(tmp_path / HEAD.name) as reader:
        assert reader.head == HEAD
        assert list(reader.pieces()) == PIECES
    assert [path.name for path in tmp_path.iterdir()] == [HEAD.name]


def test_a_reader_that_has_unpacked_some_pieces_can_begin_again(tmp_path: Path) -> None:
    write(tmp_path)
    with SnapshotReader(tmp_path / HEAD.name) as reader:
        assert next(reader.pieces()) == PIECES[0]
        reader.rewind()
        assert list(reader.pieces()) == PIECES


def test_equal_pieces_have_equal_digests_and_others_another(tmp_path: Path) -> None:
    digests = [
        write(tmp_path / str(i), pieces).digest
        for i, pieces in enumerate((PIECES, PIECES, [*PIECES, b"more"]))
    ]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize("bit", [0, 7])
def test_a_flipped_bit_anywhere_is_noticed(tmp_path: Path, bit: int) -> None:
    write(tmp_path)
    path = tmp_path / HEAD.name
    good = path.read_bytes()
    for at in range(len(good)):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1 << bit]) + good[at + 1 :])
        with pytest.raises(StorageError):
            check_snapshot(path)


def test_a_file_that_ends_early_is_noticed_and_what_is_whole_of_it_is_known(tmp_path: Path) -> None:
    write(tmp_path)
    path = tmp_path / HEAD.name
    good = path.read_bytes()
    with SnapshotReader(path) as reader:
        borders = [reader.end]
        while reader.next_part():
            borders.append(reader.end)
    assert borders[-1] == len(good)
    for size in range(len(good)):
        path.write_bytes(good[:size])
        with pytest.raises(StorageError):
            check_snapshot(path)
        assert whole_bytes(path) == max([0, *(border for border in borders if border <= size)])


def test_bytes_behind_the_end_are_noticed(tmp_path: Path) -> None:
    write(tmp_path)
    path = tmp_path / HEAD.name
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(StorageError):
        check_snapshot(path)


def test_a_piece_that_is_too_long_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    writer = SnapshotWriter(tmp_path, HEAD, iter([bytes(MAX_PIECE_BYTES + 1)]))
    with pytest.raises(StorageError, match="at most"):
        writer.step()
    writer.abandon()
    assert list(tmp_path.iterdir()) == []


def test_a_head_lists_the_newest_terms_and_none_behind_its_own() -> None:
    many = tuple(TermRow(i, 32 * i, 32 * i + 32, 0) for i in range(1000))
    head = head_of("c", many, position=32 * 901, term=900, timestamp_ms=1)
    assert len(head.terms) == MAX_TERMS
    assert head.terms[-1] == TermRow(900, 32 * 900, None, 0)


def test_a_head_has_the_configuration_in_force() -> None:
    words = '{"host": "m\u00fcller"}'
    head = head_of("c", TERMS, position=9600, term=2, timestamp_ms=1, membership=words)
    assert head.membership == words
    assert decode_head_untrusted(encode_head(head)) == head
    # Only such a file is of version 2: members of the version before read the other ones.
    assert [encode_head(each)[4] for each in (HEAD, head)] == [1, 2]


def part_of(version: int, head: Mapping[str, object]) -> bytes:
    """Return the first part of a file of some version."""
    body = json.dumps(dict(head)).encode()
    start = struct.pack("<4sHHI", b"QRSN", version, 0, len(body))
    return start + struct.pack("<I", crc32c(start + body)) + body


def test_the_head_of_a_file_of_version_1_has_no_configuration() -> None:
    fields = attrs.asdict(HEAD)
    del fields["membership"]
    assert decode_head_untrusted(part_of(1, fields)) == HEAD
    with pytest.raises(StorageError, match="version 3"):
        decode_head_untrusted(part_of(3, fields))


@pytest.mark.parametrize(
    ("membership", "words"),
    [
        ("x" * (MAX_MEMBERSHIP_BYTES + 1), "a configuration of 65537 bytes, expected at most"),
        ("\u00fc" * (MAX_MEMBERSHIP_BYTES // 2 + 1), "a configuration of 65538 bytes"),
        ("\ud800", "its head is invalid"),
    ],
)
def test_a_head_with_an_impossible_configuration_is_refused(membership: str, words: str) -> None:
    with pytest.raises(StorageError, match=words):
        decode_head_untrusted(part_of(2, attrs.asdict(HEAD) | {"membership": membership}))


def test_the_file_of_another_snapshot_is_not_taken_for_it(tmp_path: Path) -> None:
    write(tmp_path)
    other = attrs.evolve(HEAD, position=9632)
    (tmp_path / HEAD.name).rename(tmp_path / other.name)
    with pytest.raises(StorageError, match="it is"):
        SnapshotFolder(tmp_path).check(other.row)


# Transfers ----------------------------------------------------------------------------------------


def parts_of(path: Path) -> list[bytes]:
    with SnapshotReader(path) as reader:
        parts = [reader.head_part]
        while part := reader.next_part():
            parts.append(part)
    return parts


@pytest.mark.parametrize("broken_at", range(len(PIECES) + 1))
def test_a_transfer_that_broke_goes_on_where_it_stopped(tmp_path: Path, broken_at: int) -> None:
    write(tmp_path / "there")
    head, *parts = parts_of(tmp_path / "there" / HEAD.name)
    folder = SnapshotFolder(tmp_path / "here")
    folder.open([])
    transfer = folder.transfer(HEAD, head, len(head))
    for part in parts[:broken_at]:
        transfer.write(part)
    transfer.close()
    with (tmp_path / "here" / f"{HEAD.name}.part").open("ab") as file:
        file.write(b"half a part")
    folder.open([])
    position, term, offset = folder.arriving()
    assert (position, term) == (HEAD.position, HEAD.term)
    assert offset == len(head) + sum(map(len, parts[:broken_at]))
    transfer = folder.transfer(HEAD, head, offset)
    for part in parts[broken_at:]:
        transfer.write(part)
    assert transfer.finish() == check_snapshot(tmp_path / "there" / HEAD.name)
    assert folder.check(HEAD.row).head == HEAD


def spoil(parts: list[bytes]) -> list[bytes]:
    return [parts[0][:-1] + bytes([parts[0][-1] ^ 1]), *parts[1:]]


def lose_the_last(parts: list[bytes]) -> list[bytes]:
    return parts[:-1]


def swap(parts: list[bytes]) -> list[bytes]:
    return [parts[1], parts[0], *parts[2:]]


@pytest.mark.parametrize("change", [spoil, lose_the_last, swap])
def test_nothing_of_a_damaged_transfer_is_kept(
    tmp_path: Path, change: Callable[[list[bytes]], list[bytes]]
) -> None:
    write(tmp_path / "there")
    head, *parts = parts_of(tmp_path / "there" / HEAD.name)
    folder = SnapshotFolder(tmp_path / "here")
    folder.open([])
    transfer = folder.transfer(HEAD, head, len(head))
    for part in change(parts):
        transfer.write(part)
    with pytest.raises(StorageError):
        transfer.finish()
    assert list((tmp_path / "here").iterdir()) == []


def test_a_newer_offer_replaces_what_has_come_of_an_older_one(tmp_path: Path) -> None:
    write(tmp_path / "there")
    head, part, *_ = parts_of(tmp_path / "there" / HEAD.name)
    folder = SnapshotFolder(tmp_path / "here")
    folder.open([])
    transfer = folder.transfer(HEAD, head, len(head))
    transfer.write(part)
    transfer.close()
    newer = attrs.evolve(HEAD, position=96000)
    folder.transfer(newer, b"head", 4).close()
    assert [path.name for path in (tmp_path / "here").iterdir()] == [f"{newer.name}.part"]
    with pytest.raises(StorageError, match="does not continue"):
        folder.transfer(HEAD, head, 5000)
