"""What can be said of LMDB's file before LMDB maps it, for it believes what it reads.

LMDB has no checksums. A file that is shorter than its own figures ends the process that looks
behind its end (SIGBUS), and so may a damaged page (SIGABRT by an assertion of LMDB's, or SIGSEGV).
Its two meta pages take turns: transaction n is in page n mod 2, so their numbers differ by one; if
they don't, the newest state is not the one that LMDB would take. (Nearly always: a damaged number
may look like the one before the other's.)

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
from typing import TYPE_CHECKING, Final

import attrs
import lmdb

from ...errors import StorageError, StoreMismatchError
from .readers import open_for_reading

if TYPE_CHECKING:
    from .readers import Guard

DATA_FILE: Final = "data.mdb"

_SMALLEST_FILE: Final = 8192  # LMDB's two meta pages
_PAGE_HEAD_BYTES: Final = 16
_META: Final = struct.Struct("=IIQQ96sQQ")  # magic, version, address, map, two tables, page, txn
_MAGIC: Final = 0xBEEFC0DE
_PAGE_SIZES: Final = frozenset(1 << bits for bits in range(8, 17))
_TELL_EVERY: Final = 256
_STEP_BYTES: Final = 16 << 20
_MAP_BYTES: Final = 1 << 30
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
    status, said = _run(command)
    *lines, last = said.decode("ascii", "replace").split("\n")
    if status == 0:
        return None
    table, _, key = (lines[-1] if lines else "").partition(" ")
    with contextlib.suppress(ValueError):
        if status < 0:
            last = f"reading it ends the process with {signal.Signals(-status).name}"
    return Unreadable(table, bytes.fromhex(key), last or "it can't be read")


def _run(command: list[str]) -> tuple[int, bytes]:
    """Run a command; return how it ended, and what it has said on standard output."""
    with subprocess.Popen(  # noqa: S603 - the command is ours
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        try:
            said, _ = child.communicate()
        except BaseException:
            child.terminate()  # it gives its reader's slot back, which a kill would leave behind
            child.wait()
            raise
    return child.returncode, said


def walk(directory: Path) -> int:
    """Read every row; say where we are, now and then, and at the end what is wrong.

    Each transaction is short, for a member can't use again what a reader may still see.

    Returns:
        The exit status: 0 if all could be read.
    """
    try:
        raw, guard = open_for_reading(directory, map_bytes=_MAP_BYTES, max_dbs=_MAX_DBS)
        with raw:
            with guard(), raw.begin() as txn:
                names = [bytes(name) for name, _ in txn.cursor()]
            for name in names:
                text, last = name.decode("ascii", "replace"), b""
                _say(f"{text} \n")
                while (after := _walk_on(raw, guard, name, last)) is not None:
                    _say(f"{text} {after.hex()}\n")
                    last = after
    except (lmdb.Error, StorageError) as error:
        _say(str(error))
        return 1
    return 0


def _walk_on(raw: lmdb.Environment, guard: Guard, name: bytes, after: bytes) -> bytes | None:
    """Read some rows behind a key of a table, or from its beginning; None at its end."""
    try:
        with guard():
            table = raw.open_db(name, create=False)
            with raw.begin() as txn:
                return _read_rows(txn.cursor(table), after)
    except lmdb.MapResizedError:  # the member has grown it
        raw.set_mapsize(0)
        return _walk_on(raw, guard, name, after)


def _read_rows(cursor: lmdb.Cursor[bytes], after: bytes) -> bytes | None:
    more = cursor.set_range(after) if after else cursor.first()
    if more and after and cursor.key() == after:
        more = cursor.next()
    last, size = None, 0
    for _ in range(_TELL_EVERY):
        if not more or size >= _STEP_BYTES:
            break
        last, value = cursor.item()
        size += len(value)
        more = cursor.next()
    return last


def _say(words: str) -> None:
    sys.stdout.write(words)
    sys.stdout.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(walk(Path(sys.argv[1])))
