"""The part of the tables on disk: one LMDB environment, written by flushes only.

Sub-databases: ``records`` (stored key: encoded record), ``deadlines`` (stored key: when it
expires, for those that do), ``notes`` (see :mod:`.tables_notes`) and ``meta`` (identity; log
position and time up to which all of them are complete, written in the transaction that changes
them).

The event loop reads from one read transaction that is kept open, and renewed after each flush:
opening one for each read would cost more than the read. A kept transaction forbids LMDB to change
the size of its map, so a flush that meets a full map gives up, and is written again after
:meth:`TablesDisk.grow` on the event loop's thread.
"""

from __future__ import annotations

import functools
import struct
from itertools import islice
from typing import TYPE_CHECKING, Final

import lmdb

from ..lmdb.environment import INITIAL_MAP_BYTES, Environment, told
from ..lmdb.file_check import DATA_FILE
from ..lmdb.sealed_rows import seal, unpack_untrusted, unseal_untrusted
from ..log.identity import (
    IDENTITY_KEY,
    Identity,
    check_identity,
    decode_identity_untrusted,
    encode_identity,
)
from .damage import DAMAGE, DAMAGED_PAGES, check_mark, found_damaged, telling_damage
from .flush import Cut, write_changes
from .memtable import HASHED_BYTES, Record, stored_key
from .rows import (
    decode_deadline_untrusted,
    decode_note_untrusted,
    decode_record_untrusted,
    hashed_key_untrusted,
)
from .stream import TablesView

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from typing import Self

    from ..lmdb.environment import Transaction

TABLES_MAX_DBS: Final = 4
_APPLIED_KEY: Final = b"applied"
_APPLIED: Final = struct.Struct("<qq")
_INCOMPLETE: Final = -1
_SPARE_BYTES: Final = 256 << 20


class TablesDatabases:
    """Handles of the sub-databases of open tables."""

    def __init__(self, raw: lmdb.Environment, *, create: bool = False) -> None:
        self.records = raw.open_db(b"records", create=create)
        self.deadlines = raw.open_db(b"deadlines", create=create)
        self.meta = raw.open_db(b"meta", create=create)
        # tables of an earlier version have none
        self.notes = raw.open_db(b"notes", create=create or not raw.flags()["readonly"])

    @property
    def streamed(self) -> tuple[lmdb._Database, ...]:
        """Those that a snapshot holds, in its order."""
        return self.records, self.deadlines, self.notes


class TablesDisk:
    """Open tables on disk. Only :meth:`write` may be called off the event loop's thread.

    Attributes:
        position: log position up to which the records are complete.
        timestamp_ms: log time there.
        count: number of records.
    """

    def __init__(self, environment: Environment, dbs: TablesDatabases) -> None:
        self._environment = environment
        self._dbs = dbs
        self._views: list[TablesView] = []
        self._see()
        self.position = 0
        self.timestamp_ms = 0
        self.count = 0
        self._load()

    @classmethod
    def open(
        cls, directory: Path, *, cluster: str, member_id: int, map_bytes: int = INITIAL_MAP_BYTES
    ) -> Self:
        """Open the tables in `directory`; make them when there are none.

        Raises:
            StoreMismatchError: they are another cluster's or member's, or of another format.
            StoreBusyError: they are open already.
            StoreFullError: there is no room to make them.
            DamagedTablesError: they are damaged, or were found so before.
        """

        def initialise(raw: lmdb.Environment) -> None:
            dbs = TablesDatabases(raw, create=True)
            identity = Identity(cluster, member_id, instance_id=0)
            with raw.begin(write=True) as txn:
                txn.put(IDENTITY_KEY, encode_identity(identity), db=dbs.meta)
                _put_applied(txn, dbs, 0, 0)

        with telling_damage(directory):
            return cls._open(directory, initialise, Identity(cluster, member_id, 0), map_bytes)

    @classmethod
    def _open(
        cls,
        directory: Path,
        initialise: Callable[[lmdb.Environment], None],
        expected: Identity,
        map_bytes: int,
    ) -> Self:
        environment = Environment.open(
            directory, max_dbs=TABLES_MAX_DBS, initialise=initialise, map_bytes=map_bytes
        )
        with environment.opening():
            dbs = environment.databases(TablesDatabases)
            found = environment.read(lambda txn: txn.get(IDENTITY_KEY, db=dbs.meta))
            identity = decode_identity_untrusted(found)
            check_identity(identity, cluster=expected.cluster, member_id=expected.member_id)
            disk = cls(environment, dbs)
            if disk.position == _INCOMPLETE:
                disk._empty()
            return disk

    def close(self) -> None:
        """Close them; idempotent."""
        self._end_views()
        self._view.abort()
        self._environment.close()

    # --- the event loop's side; what is found damaged ends the member: see `tables_damage`

    def get(self, key: bytes) -> Record | None:
        """Read a record.

        Raises:
            DamagedTablesError: it is damaged.
        """
        try:
            data = self._view.get(stored_key(key), None, self._dbs.records)
            return None if data is None else decode_record_untrusted(key, data)
        except DAMAGE as error:
            raise found_damaged(self._environment.directory, error) from error

    def has(self, key: bytes) -> bool:
        """Say whether there is a record; it is not read."""
        return self._cursor.set_key(stored_key(key))

    def page(self, after: bytes, limit: int) -> tuple[list[bytes], bytes | None]:
        """Return up to `limit` stored keys above `after`, ascending, and the last one if cut."""
        cursor = self._view.cursor(self._dbs.records)
        if not cursor.set_range(after + b"\0"):
            return [], None
        found = list(islice(cursor.iternext(keys=True, values=False), limit))
        return found, found[-1] if len(found) == limit else None

    def key_of(self, stored: bytes) -> bytes | None:
        """Return the key that is stored under `stored`, None without such a record."""
        if len(stored) != HASHED_BYTES:
            return stored
        try:
            data = self._view.get(stored, None, self._dbs.records)
            return None if data is None else hashed_key_untrusted(stored, data)
        except DAMAGE as error:
            raise found_damaged(self._environment.directory, error) from error

    def last(self) -> bytes:
        """Return the highest stored key, empty without any."""
        cursor = self._view.cursor(self._dbs.records)
        return cursor.key() if cursor.last() else b""

    def deadlines(self) -> dict[bytes, int]:
        """Read all deadlines.

        Raises:
            DamagedTablesError: one is damaged.
        """
        try:
            cursor = self._view.cursor(self._dbs.deadlines)
            return dict(decode_deadline_untrusted(stored, data) for stored, data in cursor)
        except DAMAGE as error:
            raise found_damaged(self._environment.directory, error) from error

    def notes(self) -> dict[bytes, bytes]:
        """Read all notes.

        Raises:
            DamagedTablesError: one is damaged.
        """
        try:
            cursor = self._view.cursor(self._dbs.notes)
            return {key: decode_note_untrusted(key, data) for key, data in cursor}
        except DAMAGE as error:
            raise found_damaged(self._environment.directory, error) from error

    def refresh(self) -> None:
        """See what was flushed since."""
        self._view.abort()
        self._see()
        self._load()

    def grow(self) -> None:
        """Double the map, after a flush that did not fit. Views of snapshots end."""
        self.make_room(self._environment.raw.info()["map_size"])

    def make_room(self, size: int) -> None:
        """Let the map have room for so many bytes more than it holds. Views of snapshots end."""
        raw = self._environment.raw
        held, wanted = raw.info()["map_size"], self._environment.used_bytes() + size
        if wanted <= held:
            return
        self._end_views()
        self._view.abort()
        raw.set_mapsize(max(wanted, 2 * held))
        self._see()

    def open_view(self, left_out: frozenset[bytes]) -> TablesView:
        """Open a view of what is on disk now, without these stored keys.

        The map gets so much room first that it should not have to grow while the view is open.
        """
        raw = self._environment.raw
        self.make_room(raw.info()["last_pgno"] * raw.stat()["psize"] + _SPARE_BYTES)
        found = functools.partial(found_damaged, self._environment.directory)
        view = TablesView(self._environment.begin_reading(), self._dbs.streamed, left_out, found)
        self._views = [view]  # only one snapshot is taken at a time
        return view

    def _end_views(self) -> None:
        for view in self._views:
            view.close()
        self._views.clear()

    def _empty(self) -> None:
        """Begin anew after a load that did not come to its end."""
        self._environment.write(lambda txn: self._clear(txn, 0))
        self.refresh()

    def _see(self) -> None:
        self._view: Transaction = self._environment.begin_reading()
        self._cursor = self._view.cursor(self._dbs.records)

    def _load(self) -> None:
        body = unseal_untrusted(_APPLIED_KEY, self._view.get(_APPLIED_KEY, None, self._dbs.meta))
        self.position, self.timestamp_ms = unpack_untrusted(_APPLIED, _APPLIED_KEY, body)
        self.count = self._view.stat(self._dbs.records)["entries"]

    # --- the writer's side

    def write(self, cut: Cut) -> bool:
        """Make a cut durable as one transaction; False when the map must :meth:`grow` first.

        Raises:
            StoreFullError: the disk has no room; nothing was written.
        """
        return self._transact(lambda txn: self._write(txn, cut))

    def clear(self) -> bool:
        """Delete everything durably, and note that what follows is incomplete; see `write`."""
        return self._transact(lambda txn: self._clear(txn, _INCOMPLETE))

    def load(
        self,
        rows: Sequence[list[tuple[bytes, bytes]]],
        applied: tuple[int, int] | None,
    ) -> bool:
        """Add rows of records, deadlines and notes, durably; see `write`.

        Args:
            rows: as LMDB is to have them, behind all that are there.
            applied: log position and time up to which the tables are complete by that; None if
                more is to come.
        """

        def put(txn: Transaction) -> None:
            for database, some in zip(self._dbs.streamed, rows, strict=True):
                txn.cursor(database).putmulti(some, append=True)
            if applied is not None:
                _put_applied(txn, self._dbs, *applied)

        return self._transact(put)

    def _transact(self, change: Callable[[Transaction], None]) -> bool:
        with told(self._environment.directory):
            try:
                with self._environment.begin_writing() as txn:
                    change(txn)
            except lmdb.MapFullError:
                return False
            except DAMAGED_PAGES as error:
                raise found_damaged(self._environment.directory, error) from error
        return True

    def _clear(self, txn: Transaction, position: int) -> None:
        for database in self._dbs.streamed:
            txn.drop(database, delete=False)
        _put_applied(txn, self._dbs, position, 0)

    def _write(self, txn: Transaction, cut: Cut) -> None:
        if cut.layer.cleared:
            txn.drop(self._dbs.records, delete=False)
            txn.drop(self._dbs.deadlines, delete=False)
        write_changes(txn, self._dbs, cut)
        _put_applied(txn, self._dbs, cut.position, cut.timestamp_ms)


def tables_position(directory: Path) -> int:
    """Return the log position up to which the tables in `directory` are complete; 0 without any.

    What is applied is committed. The member may run meanwhile, in another process.

    Raises:
        StoreMismatchError: they are of another format.
        StoreBusyError: this very process has them open.
        StorageError: they are damaged.
    """
    with told(directory):
        if not (directory / DATA_FILE).exists():
            return 0
    check_mark(directory)
    environment = Environment.open_readonly(directory, max_dbs=TABLES_MAX_DBS)
    with environment.opening():
        dbs = environment.databases(TablesDatabases)
        row = environment.read(lambda txn: txn.get(_APPLIED_KEY, db=dbs.meta))
    environment.close()
    body = unseal_untrusted(_APPLIED_KEY, row)
    return max(unpack_untrusted(_APPLIED, _APPLIED_KEY, body)[0], 0)


def _put_applied(txn: Transaction, dbs: TablesDatabases, position: int, timestamp_ms: int) -> None:
    txn.put(_APPLIED_KEY, seal(_APPLIED_KEY, _APPLIED.pack(position, timestamp_ms)), db=dbs.meta)
