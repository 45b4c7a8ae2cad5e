"""The environment under the store: its map and its lock."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import threading
from typing import TYPE_CHECKING

import pytest

from quorate.storage.lmdb.environment import Environment, content_of
from quorate.storage.lmdb.file_check import DATA_FILE

if TYPE_CHECKING:
    from pathlib import Path

    import lmdb

    from quorate.storage.lmdb.environment import Transaction

VALUE = bytes(1 << 20)


def make(raw: lmdb.Environment) -> None:
    raw.open_db(b"things")


def put(txn: Transaction) -> None:
    txn.put(b"key", VALUE)


def get(txn: Transaction) -> bytes | None:
    return txn.get(b"key")


def test_the_map_does_not_grow_under_a_reader(tmp_path: Path) -> None:
    environment = Environment.open(tmp_path, max_dbs=1, initialise=make, map_bytes=1 << 16)
    writer = threading.Thread(target=environment.write, args=(put,), daemon=True)

    def look(txn: Transaction) -> bytes | None:
        writer.start()
        writer.join(0.05)
        assert writer.is_alive()
        return get(txn)

    assert environment.read(look) is None
    writer.join(5)
    assert environment.read(get) == VALUE
    environment.close()


def is_cached(file: Path, at: int) -> bool:
    """Whether the page there is in the system's cache.

    Asked of a mapping: even a read that is told not to wait may fetch the page, and find it there.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    page = ctypes.c_size_t(mmap.PAGESIZE)
    begin = ctypes.c_long(at - at % mmap.PAGESIZE)
    with file.open("rb") as opened:
        mapped = libc.mmap(None, page, mmap.PROT_READ, mmap.MAP_SHARED, opened.fileno(), begin)
    resident = ctypes.c_ubyte()
    try:
        assert libc.mincore(ctypes.c_void_p(mapped), page, ctypes.byref(resident)) == 0
    finally:
        libc.munmap(ctypes.c_void_p(mapped), page)
    return bool(resident.value & 1)


def test_what_nobody_reads_soon_leaves_the_page_cache_and_can_be_read(tmp_path: Path) -> None:
    trial = tmp_path / "trial"
    with trial.open("wb") as opened:
        opened.write(VALUE)
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if is_cached(trial, 0):
        pytest.skip("this file system has no other place than memory")
    environment = Environment.open(tmp_path / "store", max_dbs=1, initialise=make)
    data = environment.directory / DATA_FILE
    environment.write(put)
    middle = data.stat().st_size - len(VALUE) // 2
    assert is_cached(data, middle)
    environment.write(lambda txn: expect(txn.put(b"other", VALUE * 2)), passing=True)
    assert is_cached(data, middle)
    last = data.stat().st_size - len(VALUE)
    assert is_cached(data, last)  # LMDB looks at it before it appends
    environment.write(lambda txn: expect(txn.put(b"third", VALUE * 2)), passing=True)
    assert is_cached(data, middle)
    assert not is_cached(data, last)
    assert is_cached(data, data.stat().st_size - len(VALUE))
    assert environment.read(lambda txn: txn.get(b"other")) == VALUE * 2
    environment.write(lambda txn: expect(txn.delete(b"key")), passing=True)
    end = environment.used_bytes()
    environment.write(lambda _txn: None, passing=True)
    assert environment.used_bytes() == end  # nothing is added
    environment.write(lambda txn: expect(txn.put(b"fourth", VALUE * 2)), passing=True)
    assert is_cached(data, data.stat().st_size - len(VALUE))  # so nothing is dropped
    environment.close()


def test_a_volume_that_holds_nothing_is_empty(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    assert content_of(tmp_path) == []
    (tmp_path / "photo").touch()
    assert content_of(tmp_path) == [tmp_path / "photo"]


def test_advice_that_can_not_be_given_fails_no_write(tmp_path: Path) -> None:
    environment = Environment.open(tmp_path, max_dbs=1, initialise=make)
    environment.write(lambda txn: expect(txn.put(b"other", VALUE)), passing=True)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open("/", os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, before[1]))  # none is left
    try:
        with pytest.raises(OSError, match="Too many open files"):
            os.open("/", os.O_RDONLY)
        environment.write(put, passing=True)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert environment.read(get) == VALUE
    environment.close()


def expect(done: bool) -> None:  # noqa: FBT001 - an answer of LMDB's
    assert done
