"""The keyspace as a log leaves it, for tools that run no member: tables in memory.

It begins with the rows and notes of a snapshot, or with nothing, and takes batches of the log as a
member applies them. So it ends with the very rows that a member has there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from ...keyvalue.protocol.payload import ETCD
from ...node.state_machine.service import Command
from ...storage.log.batch import EntryKind, decode_entries_untrusted, decode_header_untrusted
from ..keyspace.notes import is_etcd_note
from .machine import EtcdState

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["DictTables", "Replayed"]


@attrs.define
class DictNotes:
    """The notes of tables in memory."""

    rows: dict[bytes, bytes]


class DictTables:
    """Tables in memory; implements `StateTables`.

    Args:
        rows: to begin with; they are changed.
        notes: likewise.
        timestamp_ms: log time there.
    """

    def __init__(
        self, rows: dict[bytes, bytes], notes: dict[bytes, bytes], timestamp_ms: int
    ) -> None:
        self.rows, self.notes, self.timestamp_ms = rows, DictNotes(notes), timestamp_ms

    def put_note(self, key: bytes, row: bytes) -> None:
        """Set a note."""
        self.notes.rows[key] = row

    def delete_note(self, key: bytes) -> None:
        """Delete a note that exists."""
        del self.notes.rows[key]

    def get_row(self, key: bytes) -> bytes | None:
        """Return a row, or None."""
        return self.rows.get(key)

    def put_row(self, key: bytes, row: bytes) -> None:
        """Set a row."""
        self.rows[key] = row

    def delete_row(self, key: bytes) -> None:
        """Delete a row; does nothing if there is none."""
        self.rows.pop(key, None)

    def all_rows(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield all rows in the order of their keys."""
        yield from sorted(self.rows.items())


class Replayed:
    """A keyspace that follows a log.

    Args:
        rows: of a snapshot; left out for the beginning of the log.
        notes: likewise; those of other parts are left alone.
        timestamp_ms: log time of the snapshot.

    Attributes:
        state: the keyspace.
        tables: its rows and notes.
    """

    def __init__(
        self,
        rows: Mapping[bytes, bytes] | None = None,
        notes: Mapping[bytes, bytes] | None = None,
        timestamp_ms: int = 0,
    ) -> None:
        own = {key: row for key, row in (notes or {}).items() if is_etcd_note(key)}
        self.tables = DictTables(dict(rows or {}), own, timestamp_ms)
        self.state = EtcdState(self.tables)

    def take_untrusted(self, batch: bytes) -> None:
        """Apply the next batch of the log.

        Raises:
            WireError: it is malformed.
        """
        header, tables = decode_header_untrusted(batch), self.tables
        now_ms = max(tables.timestamp_ms, header.timestamp_ms)
        for index, entry in enumerate(decode_entries_untrusted(batch)):
            if entry.kind is EntryKind.NEW_LEADERSHIP_TERM:
                self.state.begin_term(now_ms)
            elif entry.kind is EntryKind.COMMAND and entry.flags & ETCD:
                place = (header.term, header.position, index, header.timestamp_ms)
                stamp = entry.session, entry.sequence
                self.state.apply(Command(entry.payload, entry.flags, *stamp, *place), now_ms)
        self.state.advance(now_ms)
        tables.timestamp_ms = now_ms
