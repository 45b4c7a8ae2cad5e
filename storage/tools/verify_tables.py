"""Checking every row of the tables from outside: records, deadlines, and notes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from ...errors import StorageError
from ..lmdb.environment import Environment
from ..lmdb.file_check import unreadable
from ..tables.databases import TABLES_MAX_DBS, TablesDatabases
from ..tables.memtable import HASHED_BYTES
from ..tables.rows import (
    decode_deadline_untrusted,
    decode_note_untrusted,
    decode_record_untrusted,
    hashed_key_untrusted,
)

if TYPE_CHECKING:
    from pathlib import Path

    from ..lmdb.environment import Transaction

MAX_FINDINGS: Final = 100
_CHUNK_BYTES: Final = 4 << 20


@attrs.frozen
class TablesReport:
    """What was found.

    Args:
        records: number of records checked.
        findings: what is wrong, in words; the first `MAX_FINDINGS`.
    """

    records: int
    findings: tuple[str, ...]


def verify_tables(directory: Path) -> TablesReport:
    """Check every row of the tables in `directory`; the member may be running.

    Raises:
        StoreMismatchError: there are none, or they are of another format.
        StoreBusyError: this process has them open.
        StorageError: LMDB can't open them.
    """
    if (trouble := unreadable(directory)) is not None:
        key = f" behind {trouble.key[:64]!r}" if trouble.key else ""
        where = f"a page of the table {trouble.table!r}{key}"
        return TablesReport(0, (f"{where} is damaged: {trouble.words}",))
    environment = Environment.open_readonly(directory, max_dbs=TABLES_MAX_DBS)
    try:
        dbs = environment.databases(TablesDatabases)
        check = _Check(dbs)
        while environment.read(check.more_records):
            pass
        environment.read(check.other_tables)
    finally:
        environment.close()
    return TablesReport(check.records, tuple(check.findings))


class _Check:
    def __init__(self, dbs: TablesDatabases) -> None:
        self.records = 0
        self.findings: list[str] = []
        self._dbs = dbs
        self._last = b""

    def more_records(self, txn: Transaction) -> bool:
        """Check some records in a short transaction; return whether there are more."""
        cursor, room = txn.cursor(self._dbs.records), _CHUNK_BYTES
        more = cursor.set_range(self._last + b"\0") if self._last else cursor.first()
        while more and room > 0:
            self._last, data = cursor.item()
            self._record(self._last, data)
            room -= len(data)
            more = cursor.next()
        return more

    def _record(self, stored: bytes, data: bytes) -> None:
        self.records += 1
        try:
            key = hashed_key_untrusted(stored, data) if len(stored) == HASHED_BYTES else stored
            decode_record_untrusted(key, data)
        except StorageError as error:
            self._note(error)

    def other_tables(self, txn: Transaction) -> None:
        """Check all deadlines, notes and rows."""
        for database, decode in (
            (self._dbs.deadlines, decode_deadline_untrusted),
            (self._dbs.notes, decode_note_untrusted),
            (self._dbs.rows, decode_note_untrusted),
        ):
            for stored, data in txn.cursor(database):
                try:
                    decode(stored, data)
                except StorageError as error:
                    self._note(error)

    def _note(self, error: StorageError) -> None:
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(str(error))
