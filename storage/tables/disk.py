"""The tables on disk: one LMDB environment, written by flushes only. `databases` shows its tables.

The row ``applied`` says up to which log position and time all rows are complete. It is written in
the transaction that changes the rows, so the two never differ.

The event loop reads through one read transaction that stays open, and is renewed after each flush:
opening one per read would cost more than the read. LMDB can't change the size of its map while a
transaction is open. So a flush that meets a full map gives up, and is repeated after
:meth:`TablesDisk.grow` on the event loop's thread.
"""

from __future__ import annotations

import functools
import struct
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

import lmdb

from ..lmdb.environment import INITIAL_MAP_BYTES, Environment, translating_errors
from ..lmdb.file_check import DATA_FILE
from ..lmdb.sealed_rows import seal, unpack_untrusted, unseal_untrusted
from ..rows.identity import (
    IDENTITY_KEY,
    Identity,
    check_identity,
    decode_identity_untrusted,
    encode_identity,
)
from .damage import DAMAGE, DAMAGED_PAGES, check_mark, classifying_damage, report_damage
from .databases import TABLES_MAX_DBS, TablesDatabases
from .flush import Cut, write_changes
from .memtable import HASHED_BYTES, Record, stored_key
from .rows import (
    decode_deadline_untrusted,
    decode_note_untrusted,
    decode_record_untrusted,
    hashed_key_untrusted,
)
from .view import TablesView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from typing import Self

    from ..lmdb.environment import Transaction

R = TypeVar("R")

_APPLIED_KEY: Final = b"applied"
_APPLIED: Final = struct.Struct("<qq")
_INCOMPLETE: Final = -1  # as the position: a load has begun and not ended
_SPARE_BYTES: Final = 256 << 20
"""Room that a view leaves for flushes. With less, a flush may have to end the view, and the
snapshot with it."""


class TablesDisk:
    """Open tables on disk.

    Only `write`, `clear` and `load` may be called off the event loop's thread.

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
        """Open the tables in `directory`; make them if there are none.

        Raises:
            StoreMismatchError: they are of another cluster, member or format.
            StoreBusyError: another handle has them open.
            StoreFullError: there is no room to make them.
            DamagedTablesError: they are damaged, or marked as damaged.
        """

        def initialise(raw: lmdb.Environment) -> None:
            dbs = TablesDatabases(raw, create=True)
            # No instance id: tables are derived from the log, and nobody votes by them.
            identity = Identity(cluster, member_id, instance_id=0)
            with raw.begin(write=True) as txn:
                txn.put(IDENTITY_KEY, encode_identity(identity), db=dbs.meta)
                _put_applied(txn, dbs, 0, 0)

        # Every error in here is sorted: damage leads to new tables, anything else must not delete
        # them.
        with classifying_damage(directory):
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
            row = environment.read(lambda txn: txn.get(IDENTITY_KEY, db=dbs.meta))
            identity = decode_identity_untrusted(row)
            check_identity(identity, cluster=expected.cluster, member_id=expected.member_id)
            disk = cls(environment, dbs)
            # A crash interrupted a load. What is there is neither the old state nor the new one.
            if disk.position == _INCOMPLETE:
                disk._empty()
            return disk

    def close(self) -> None:
        """Close them; idempotent."""
        # Views and the open transaction first: LMDB must not be closed under a reader.
        self._end_views()
        self._view.abort()
        self._environment.close()

    # --- the event loop's side; damage ends the member, see `damage`

    def get(self, key: bytes) -> Record | None:
        """Read a record.

        Raises:
            DamagedTablesError: it is damaged.
        """
        try:
            data = self._view.get(stored_key(key), None, self._dbs.records)
            return None if data is None else decode_record_untrusted(key, data)
        except DAMAGE as error:
            raise report_damage(self._environment.directory, error) from error

    def has(self, key: bytes) -> bool:
        """Say whether there is a record; does not read it."""
        # By a cursor, which copies no value, unlike `get`. It stays open, since this runs once per
        # new key.
        return self._cursor.set_key(stored_key(key))

    def page(self, after: bytes, limit: int) -> tuple[list[bytes], bytes | None]:
        """Return up to `limit` stored keys above `after`, ascending, and the last one if cut."""
        cursor = self._view.cursor(self._dbs.records)
        # The least key above `after`: LMDB sorts keys as bytes.
        if not cursor.set_range(after + b"\0"):
            return [], None
        # Without values: a walk over keys needs none of these bytes.
        keys = list(islice(cursor.iternext(keys=True, values=False), limit))
        return keys, keys[-1] if len(keys) == limit else None

    def key_of(self, stored: bytes) -> bytes | None:
        """Return the key stored under `stored`, None without such a record."""
        if len(stored) != HASHED_BYTES:
            return stored
        try:
            data = self._view.get(stored, None, self._dbs.records)
            return None if data is None else hashed_key_untrusted(stored, data)
        except DAMAGE as error:
            raise report_damage(self._environment.directory, error) from error

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
            raise report_damage(self._environment.directory, error) from error

    def notes(self) -> dict[bytes, bytes]:
        """Read all notes.

        Raises:
            DamagedTablesError: one is damaged.
        """
        try:
            cursor = self._view.cursor(self._dbs.notes)
            return {key: decode_note_untrusted(key, data) for key, data in cursor}
        except DAMAGE as error:
            raise report_damage(self._environment.directory, error) from error

    def get_row(self, key: bytes) -> bytes | None:
        """Read a row; see `LayeredTables.put_row`.

        Raises:
            DamagedTablesError: it is damaged.
        """
        try:
            data = self._view.get(key, None, self._dbs.rows)
            return None if data is None else decode_note_untrusted(key, data)
        except DAMAGE as error:
            raise report_damage(self._environment.directory, error) from error

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield all rows in the order of their keys.

        Raises:
            DamagedTablesError: one is damaged.
        """
        try:
            for key, data in self._view.cursor(self._dbs.rows):
                yield key, decode_note_untrusted(key, data)
        except DAMAGE as error:
            raise report_damage(self._environment.directory, error) from error

    def refresh(self) -> None:
        """See what was flushed since the last call."""
        # An open transaction keeps its view for ever, and keeps LMDB from reusing the pages of it.
        self._view.abort()
        self._see()
        self._load()

    def grow(self) -> None:
        """Double the map, after a flush that did not fit. Ends views."""
        self.make_room(self._environment.raw.info()["map_size"])

    def make_room(self, size: int) -> None:
        """Make room in the map for this many bytes beyond what is used. May end views."""
        raw = self._environment.raw
        held, wanted = raw.info()["map_size"], self._environment.used_bytes() + size
        if wanted <= held:
            return
        # LMDB forbids it while a transaction of this process is open.
        self._end_views()
        self._view.abort()
        # Doubled at least, so that a growing file needs few of these moments.
        raw.set_mapsize(max(wanted, 2 * held))
        self._see()

    def open_view(self) -> TablesView:
        """Open a view of what is on disk now.

        The map first gets room enough that it should not have to grow while the view is open.
        """
        raw = self._environment.raw
        # While a view is open, freed pages can't be reused: a flush that rewrites every page needs
        # as much room again.
        self.make_room(raw.info()["last_pgno"] * raw.stat()["psize"] + _SPARE_BYTES)
        report = functools.partial(report_damage, self._environment.directory)
        # A transaction of its own: the event loop renews its own one after each flush.
        view = TablesView(self._environment.begin_reading(), self._dbs.streamed, report)
        self._views = [view]  # only one snapshot is taken at a time
        return view

    def _end_views(self) -> None:
        for view in self._views:
            view.close()
        self._views.clear()

    def _empty(self) -> None:
        """Begin anew after a load that did not reach its end."""
        self._environment.write(lambda txn: self._clear(txn, 0))
        self.refresh()

    def _see(self) -> None:
        self._view: Transaction = self._environment.begin_reading()
        self._cursor = self._view.cursor(self._dbs.records)

    def _load(self) -> None:
        body = unseal_untrusted(_APPLIED_KEY, self._view.get(_APPLIED_KEY, None, self._dbs.meta))
        self.position, self.timestamp_ms = unpack_untrusted(_APPLIED, _APPLIED_KEY, body)
        # LMDB counts its rows itself, so this reads no row.
        self.count = self._view.stat(self._dbs.records)["entries"]

    # --- the writer's side

    def write(self, cut: Cut) -> bool:
        """Make a cut durable as one transaction.

        Returns:
            False if the map must :meth:`grow` first; nothing was written then.

        Raises:
            StoreFullError: the disk is full; nothing was written.
        """
        return self._transact(lambda txn: self._write(txn, cut))

    def clear(self) -> bool:
        """Durably delete everything, and mark the tables incomplete; returns as `write`."""
        return self._transact(lambda txn: self._clear(txn, _INCOMPLETE))

    def load(
        self,
        rows: Sequence[list[tuple[bytes, bytes]]],
        applied: tuple[int, int] | None,
    ) -> bool:
        """Durably add the rows of all tables; returns as `write`.

        Args:
            rows: encoded as in LMDB, above all keys that are there.
            applied: log position and time up to which the tables are complete with these rows; None
                if more rows follow.
        """

        def put(txn: Transaction) -> None:
            for database, some in zip(self._dbs.streamed, rows, strict=True):
                # MDB_APPEND: rows come in the order of their keys, so LMDB fills one page after the
                # other without searching the tree.
                txn.cursor(database).putmulti(some, append=True)
            if applied is not None:
                _put_applied(txn, self._dbs, *applied)

        return self._transact(put)

    def _transact(self, change: Callable[[Transaction], None]) -> bool:
        with translating_errors(self._environment.directory):
            try:
                with self._environment.begin_writing() as txn:
                    change(txn)
            except lmdb.MapFullError:
                # The transaction has been aborted. This thread must not change the map: the event
                # loop's transaction is open.
                return False
            except DAMAGED_PAGES as error:
                raise report_damage(self._environment.directory, error) from error
        return True

    def _clear(self, txn: Transaction, position: int) -> None:
        for database in self._dbs.streamed:
            txn.drop(database, delete=False)
        _put_applied(txn, self._dbs, position, 0)

    def _write(self, txn: Transaction, cut: Cut) -> None:
        # In the transaction of the new rows, so no crash shows empty tables at an old position.
        if cut.layer.cleared:
            txn.drop(self._dbs.records, delete=False)
            txn.drop(self._dbs.deadlines, delete=False)
        write_changes(txn, self._dbs, cut)
        # Position and rows in one transaction: a restart replays the log from exactly here (H19).
        _put_applied(txn, self._dbs, cut.position, cut.timestamp_ms)


def tables_position(directory: Path) -> int:
    """Return the log position up to which the tables in `directory` are complete; 0 without any.

    The log is committed up to there. The member may be running, in another process.

    Raises:
        StoreMismatchError: they are of another format.
        StoreBusyError: this process has them open.
        StorageError: they are damaged.
    """
    return _read_only(directory, _applied_untrusted) or 0


def tables_notes(directory: Path) -> tuple[int, dict[bytes, bytes]]:
    """Return position and notes of the tables in `directory`; 0 and none without any.

    Raises:
        StorageError: see `tables_position`.
    """

    def read(txn: Transaction, dbs: TablesDatabases) -> tuple[int, dict[bytes, bytes]]:
        rows = {key: decode_note_untrusted(key, data) for key, data in txn.cursor(dbs.notes)}
        return _applied_untrusted(txn, dbs), rows

    return _read_only(directory, read) or (0, {})


def _read_only(directory: Path, read: Callable[[Transaction, TablesDatabases], R]) -> R | None:
    """Read tables that a member may have open; return None if there are none."""
    with translating_errors(directory):
        if not (directory / DATA_FILE).exists():
            return None
    check_mark(directory)
    environment = Environment.open_readonly(directory, max_dbs=TABLES_MAX_DBS)
    try:
        with environment.opening():
            dbs = environment.databases(TablesDatabases)
            return environment.read(lambda txn: read(txn, dbs))
    finally:
        environment.close()


def _applied_untrusted(txn: Transaction, dbs: TablesDatabases) -> int:
    body = unseal_untrusted(_APPLIED_KEY, txn.get(_APPLIED_KEY, db=dbs.meta))
    # Tables whose load was interrupted say -1: they are complete up to nowhere.
    return max(unpack_untrusted(_APPLIED, _APPLIED_KEY, body)[0], 0)


def _put_applied(txn: Transaction, dbs: TablesDatabases, position: int, timestamp_ms: int) -> None:
    txn.put(_APPLIED_KEY, seal(_APPLIED_KEY, _APPLIED.pack(position, timestamp_ms)), db=dbs.meta)
