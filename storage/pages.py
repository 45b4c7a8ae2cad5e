"""What can be said of LMDB's file before LMDB maps it, for it believes what it reads.

LMDB has no checksums. A file that is shorter than its own figures ends the process that looks
behind its end (SIGBUS), and so may a damaged page (an assertion). Its two meta pages take turns:
transaction n is in page n mod 2, so their numbers differ by one; if they don't, the newest state
is not the one that LMDB would take. (Nearly always: a damaged number may look like the one before
the other's.)

A sound file may lack its last pages where those were never used. So a short file is walked
through from beginning to end by a process of its own (:func:`unreadable`), which may die of it.

Source: LMDB 0.9, `mdb.c`: MDB_page, MDB_meta, mdb_page_flush.
"""

from __future__ import annotations

import contextlib
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Final

import attrs
import lmdb

from ..errors import StorageError, StoreMismatchError

DATA_FILE: Final = "data.mdb"

_SMALLEST_FILE: Final = 8192  # LMDB's two meta pages
_PAGE_HEAD_BYTES: Final = 16
_META: Final = struct.Struct("=IIQQ96sQQ")  # magic, version, address, map, two tables, page, txn
_MAGIC: Final = 0xBEEFC0DE
_PAGE_SIZES: Final = frozenset(1 << bits for bits in range(8, 17))
_TELL_EVERY: Final = 256
_MAX_DBS: Final = 16
_LOOKS: Final = 5


@attrs.frozen
class _Meta:
    page_bytes: int
    last_page: int
    transaction: int


@attrs.frozen
class Unreadable:
    """Where reading ended.

    Args:
        table: name of the sub-database; empty if not even those could be found.
        key: the last key that was surely read, empty for none.
        words: what happened.
    """

    table: str
    key: bytes
    words: str


def check_file(directory: Path) -> None:
    """Refuse a data file that LMDB would take for new, or for something else than it was.

    Raises:
        StoreMismatchError: it is none of LMDB's.
        StorageError: it is damaged.
    """
    path = directory / DATA_FILE
    size = path.stat().st_size if path.exists() else 0
    if size < _SMALLEST_FILE:
        raise StoreMismatchError(f"{path}: {size} bytes, expected a store of quorate")
    metas = _metas_untrusted(path)
    for _ in range(_LOOKS):  # a member may be writing them
        if metas is None:
            return  # LMDB says what is wrong
        if _in_turn(*metas):
            break
        metas = _metas_untrusted(path)
    else:
        assert metas is not None
        raise StorageError(
            f"{path}: its two meta pages are of transactions {metas[0].transaction} and "
            f"{metas[1].transaction}, expected two that follow each other: one of them is damaged"
        )
    newest = max(metas, key=lambda meta: meta.transaction)
    expected = (newest.last_page + 1) * newest.page_bytes
    if size < expected and (trouble := unreadable(directory)) is not None:
        raise StorageError(
            f"{path}: {size:,} bytes, expected {expected:,}: {trouble.words}; it was cut short"
        )


def _in_turn(first: _Meta, second: _Meta) -> bool:
    even, odd = first.transaction, second.transaction
    return even == odd == 0 or (abs(even - odd) == 1 and even % 2 == 0)


def _metas_untrusted(path: Path) -> tuple[_Meta, _Meta] | None:
    """Read the meta pages; None if they are not of the LMDB that is known here."""
    with path.open("rb") as file:
        first = _meta_untrusted(file.read(_PAGE_HEAD_BYTES + _META.size))
        if first is None:
            return None
        file.seek(first.page_bytes)
        second = _meta_untrusted(file.read(_PAGE_HEAD_BYTES + _META.size))
        return None if second is None else (first, second)


def _meta_untrusted(data: bytes) -> _Meta | None:
    if len(data) < _PAGE_HEAD_BYTES + _META.size:
        return None
    magic, version, _, _, tables, last, transaction = _META.unpack_from(data, _PAGE_HEAD_BYTES)
    page_bytes = int.from_bytes(tables[:4], sys.byteorder)
    if magic != _MAGIC or version != 1 or page_bytes not in _PAGE_SIZES:
        return None
    return _Meta(page_bytes, last, transaction)


def unreadable(directory: Path) -> Unreadable | None:
    """Read every row of a store in a process of its own; None if all could be read."""
    command = [sys.executable, "-m", __name__, str(directory)]
    done = subprocess.run(  # noqa: S603 - the command is ours
        command, capture_output=True, check=False, stdin=subprocess.DEVNULL
    )
    *lines, last = done.stdout.decode("ascii", "replace").split("\n")
    if done.returncode == 0:
        return None
    table, _, key = (lines[-1] if lines else "").partition(" ")
    with contextlib.suppress(ValueError):
        if done.returncode < 0:
            last = f"reading it ends the process with {signal.Signals(-done.returncode).name}"
    return Unreadable(table, bytes.fromhex(key), last or "it can't be read")


def walk(directory: Path) -> int:
    """Read every row; say where we are, now and then, and at the end what is wrong.

    Returns:
        The exit status: 0 if all could be read.
    """
    try:
        with (
            lmdb.open(str(directory), readonly=True, create=False, max_dbs=_MAX_DBS) as raw,
            raw.begin() as txn,
        ):
            for name in [bytes(name) for name, _ in txn.cursor()]:
                table = raw.open_db(name, txn=txn, create=False)
                text = name.decode("ascii", "replace")
                _say(f"{text} \n")
                for count, (key, _copied) in enumerate(txn.cursor(table)):
                    if count % _TELL_EVERY == 0:
                        _say(f"{text} {key.hex()}\n")
    except lmdb.Error as error:
        _say(str(error))
        return 1
    return 0


def _say(words: str) -> None:
    sys.stdout.write(words)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(walk(Path(sys.argv[1])))
