"""Sealed files: only the whole file opens, with its own key, and anything else is one error."""

import io
import os
import tarfile
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from quorate.errors import StorageError
from quorate.local.archive import unpack_untrusted
from quorate.local.sealed import (
    CHUNK_BYTES,
    HEAD_BYTES,
    TAG_BYTES,
    SealedWriter,
    read_sealed_untrusted,
)

KEY = bytes(range(32))
SEALED_BYTES = CHUNK_BYTES + TAG_BYTES


def seal(data: bytes, *, key: bytes = KEY, step: int = 50_000) -> bytes:
    file = io.BytesIO()
    writer = SealedWriter(file, key)
    for at in range(0, len(data), step):
        assert writer.write(data[at : at + step]) == len(data[at : at + step])
    writer.close()
    return file.getvalue()


def unseal(sealed: bytes, key: bytes = KEY) -> bytes:
    return b"".join(read_sealed_untrusted(io.BytesIO(sealed), key))


class Dribbling(io.BytesIO):
    """A file that returns less than is asked for, as a pipe does."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(min(size or 0, 1000))


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1])
@pytest.mark.parametrize("chunks", [0, 1, 3])
def test_what_was_written_is_read(size: int, chunks: int) -> None:
    data = os.urandom(chunks * CHUNK_BYTES + size)
    sealed = seal(data)
    count = max(1, -(-len(data) // CHUNK_BYTES))
    assert len(sealed) == HEAD_BYTES + len(data) + count * TAG_BYTES
    assert unseal(sealed) == data
    assert b"".join(read_sealed_untrusted(Dribbling(sealed), KEY)) == data


def test_two_files_of_the_same_have_nothing_in_common() -> None:
    one, other = seal(bytes(1000)), seal(bytes(1000))
    assert one[HEAD_BYTES : HEAD_BYTES + 16] != other[HEAD_BYTES : HEAD_BYTES + 16]


WHOLE = os.urandom(3 * CHUNK_BYTES + 7)
SEALED = seal(WHOLE)
ANOTHER = seal(WHOLE)


def pieces(sealed: bytes) -> list[bytes]:
    """The head of a file, and its chunks."""
    body = sealed[HEAD_BYTES:]
    return [
        sealed[:HEAD_BYTES],
        *(body[at : at + SEALED_BYTES] for at in range(0, len(body), SEALED_BYTES)),
    ]


HEAD, A, B, C, LAST = pieces(SEALED)
OTHER_HEAD, OTHER_A, *_ = pieces(ANOTHER)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ([HEAD, B, A, C, LAST], "another key"),
        ([HEAD, A, C, B, LAST], "damaged, or cut off, at byte 65,600"),
        ([HEAD, A, A, B, C, LAST], "damaged"),
        ([HEAD, A, B, LAST], "damaged"),
        ([HEAD, B, C, LAST], "another key"),
        ([HEAD, LAST], "another key"),
        ([HEAD, A, B, C], "its end is missing"),
        ([HEAD, A], "its end is missing"),
        ([HEAD], "another key"),
        ([HEAD, A, B, C, LAST, LAST], "damaged"),
        ([HEAD, A, B, C, LAST[:-1]], "damaged"),
        ([HEAD, A, B, C, LAST, b"x"], "damaged"),
        ([HEAD, OTHER_A, B, C, LAST], "another key"),
        ([OTHER_HEAD, A, B, C, LAST], "another key"),
        ([], "no archive"),
        ([HEAD[:-1]], "no archive"),
        ([b"Q", HEAD[1:], A, B, C, LAST], "no archive"),
    ],
)
def test_a_file_that_was_changed_does_not_open(changed: list[bytes], words: str) -> None:
    with pytest.raises(StorageError, match=words):
        unseal(b"".join(changed))


def test_a_full_last_chunk_is_still_the_last() -> None:
    sealed = seal(WHOLE[: 2 * CHUNK_BYTES])
    with pytest.raises(StorageError, match="more follows its end at byte 65,600"):
        unseal(sealed + b"x")
    with pytest.raises(StorageError, match="its end is missing"):
        unseal(sealed[: HEAD_BYTES + SEALED_BYTES])


def test_another_key_opens_nothing() -> None:
    with pytest.raises(StorageError, match="another key"):
        unseal(SEALED, bytes(32))


def test_nothing_that_was_changed_is_yielded() -> None:
    reader = read_sealed_untrusted(io.BytesIO(HEAD + A + C + B + LAST), KEY)
    assert next(reader) == WHOLE[:CHUNK_BYTES]
    with pytest.raises(StorageError):
        next(reader)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_change_is_found(data: st.DataObject) -> None:
    small = seal(b"x" * 1000)
    at = data.draw(st.integers(0, len(small) - 1))
    bit = 1 << data.draw(st.integers(0, 7))
    changed = bytearray(small)
    changed[at] ^= bit
    cut = small[: data.draw(st.integers(0, len(small) - 1))]
    added = small + data.draw(st.binary(min_size=1, max_size=50))
    for each in (bytes(changed), cut, added):
        with pytest.raises(StorageError):
            unseal(each)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=500))
def test_any_bytes_are_one_error(data: bytes) -> None:
    for each in (data, HEAD + data):
        with pytest.raises(StorageError):
            unseal(each)


# What is in it ----------------------------------------------------------------------------------


def packed(*names: str, kind: bytes = tarfile.REGTYPE) -> bytes:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        for name in names:
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, "/etc/passwd"
            entry.size = 5 * (kind == tarfile.REGTYPE)
            tar.addfile(entry, io.BytesIO(b"hello"))
    return zstandard.compress(plain.getvalue())


def unpack(data: bytes, place: Path) -> None:
    unpack_untrusted(iter([data[:10], data[10:]]), place)


def test_files_of_a_backup_are_unpacked(tmp_path: Path) -> None:
    unpack(packed("log/data.mdb", "snapshots/snapshot-00000000000000000096-0"), tmp_path)
    (file,) = (tmp_path / "log").iterdir()
    assert file.read_bytes() == b"hello"


@pytest.mark.parametrize(
    "name",
    ["../log/x", "/log/x", "log/../x", "log/a/b", "log", "log/", "tables/x", "log/.x", "log/a\n"],
)
def test_no_other_file_is_written(tmp_path: Path, name: str) -> None:
    place = tmp_path / "in"
    place.mkdir()
    with pytest.raises(StorageError):
        unpack(packed(name), place)
    assert [*tmp_path.rglob("*")] == [place]


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE]
)
def test_only_files_are_written(tmp_path: Path, kind: bytes) -> None:
    with pytest.raises(StorageError):
        unpack(packed("log/data.mdb", kind=kind), tmp_path)
    assert not [*tmp_path.iterdir()]


def test_a_file_is_written_once(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        unpack(packed("log/data.mdb", "log/data.mdb"), tmp_path)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_malformed_contents_are_one_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = bytearray(zstandard.decompress(packed("log/data.mdb", "snapshots/s")))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, 1600))] = data.draw(st.integers(0, 255))
    pressed = zstandard.compress(bytes(whole))
    broken = bytearray(packed("log/data.mdb"))
    broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    for each in (pressed, bytes(broken), data.draw(st.binary(max_size=100))):
        place = tmp_path_factory.mktemp("place")
        try:
            unpack(each, place)
        except StorageError:
            continue
