"""What can be checked in LMDB's file before LMDB maps it.

LMDB has no checksums and believes what it reads. A file shorter than its own figures ends the
process that reads behind its end (SIGBUS). So may a damaged page: SIGABRT by an assertion of
LMDB's, or SIGSEGV.

The two meta pages take turns. Transaction n writes page n mod 2, so their transaction numbers
differ by one. If they do not, one page is damaged and LMDB would take an old state for the newest.
(A damaged number can look right by chance.)

An intact file may be short of its last pages if those were never used. So a short file is read from
beginning to end in a child process (:func:`unreadable`), because reading a damaged page can crash.

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
_ROWS_PER_STEP: Final = 256
_STEP_BYTES: Final = 16 << 20
_MAP_BYTES: Final = 1 << 30
_MAX_DBS: Final = 16
_ATTEMPTS: Final = 5

# A member that starts after a crash waits for this process. The storage's `__init__` imports all of
# it, and trio, which takes twice as long as the rest. So a bare module stands in for it here.
_CHILD: Final = f"""\
import pathlib, signal, sys, types
signal.signal(signal.SIGTERM, signal.default_int_handler)
storage = sys.modules["quorate.storage"] = types.ModuleType("quorate.storage")
storage.__path__ = [sys.argv[1]]
from {__name__} import walk
sys.exit(walk(pathlib.Path(sys.argv[2])))
"""


@attrs.frozen
class _Meta:
    page_bytes: int
    last_page: int
    transaction: int


@attrs.frozen
class Unreadable:
    """Where reading ended.

    Args:
        table: name of the sub-database; empty if the list of them can't be read.
        key: the last key that was surely read, empty for none.
        words: what happened.
    """

    table: str
    key: bytes
    words: str


def check_file(directory: Path) -> None:
    """Refuse a data file that LMDB would take for a new one, or for an older state.

    Raises:
        StoreMismatchError: it is not one of LMDB's.
        StorageError: it is damaged.
    """
    path = directory / DATA_FILE
    size = path.stat().st_size if path.exists() else 0
    if size < _SMALLEST_FILE:
        raise StoreMismatchError(f"{path}: {size} bytes, expected a store of quorate")
    metas = _metas_untrusted(path)
    for _ in range(_ATTEMPTS):  # a running member may be just writing them
        if metas is None:
            return  # LMDB's own error will say what is wrong
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
    """Read both meta pages; None if they are not of a version of LMDB that is known here."""
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
    """Read every row of a store in a child process; None if all can be read."""
    storage = Path(__file__).parents[1]
    status, printed = _run([sys.executable, "-c", _CHILD, str(storage), str(directory)])
    *lines, last = printed.decode("ascii", "replace").split("\n")
    if status == 0:
        return None
    table, _, key = (lines[-1] if lines else "").partition(" ")
    with contextlib.suppress(ValueError):
        if status < 0:
            last = f"reading it ends the process with {signal.Signals(-status).name}"
    return Unreadable(table, bytes.fromhex(key), last or "it can't be read")


def _run(command: list[str]) -> tuple[int, bytes]:
    """Run a command; return its exit status and its standard output."""
    with subprocess.Popen(  # noqa: S603 - the command is ours
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        try:
            printed, _ = child.communicate()
        except BaseException:
            child.terminate()  # not kill: on SIGTERM it gives its reader's slot back
            child.wait()
            raise
    return child.returncode, printed


def walk(directory: Path) -> int:
    """Read every row. Print the place now and then, and at the end what is wrong.

    Each transaction is short, since a member can't reuse pages that a reader may still see.

    Returns:
        The exit status: 0 if all rows can be read.
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
    """Read some rows of a table behind a key, or from its beginning; None at its end."""
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
    for _ in range(_ROWS_PER_STEP):
        if not more or size >= _STEP_BYTES:
            break
        last, value = cursor.item()
        size += len(value)
        more = cursor.next()
    return last


def _say(words: str) -> None:
    sys.stdout.write(words)
    sys.stdout.flush()
