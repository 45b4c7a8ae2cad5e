"""Notes: a few rows that are not keys, for the owner of the tables.

Nothing that counts, walks or clears keys sees them. They are complete up to the same log position
as the keys: the same flush writes them, in the same transaction, and a snapshot has them. All notes
are in memory, so their owner bounds them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Notes:
    """Rows of bytes under keys of 1 to 64 bytes. Everything runs on the trio thread.

    Args:
        rows: those on disk.
    """

    def __init__(self, rows: dict[bytes, bytes]) -> None:
        self._rows = rows
        self._changes: dict[bytes, bytes | None] = {}

    @property
    def rows(self) -> Mapping[bytes, bytes]:
        """All rows; read them only."""
        return self._rows

    @property
    def changed(self) -> bool:
        """Whether a flush has something to write."""
        return bool(self._changes)

    def put(self, key: bytes, row: bytes) -> None:
        """Set a row."""
        self._rows[key] = self._changes[key] = row

    def delete(self, key: bytes) -> None:
        """Delete a row that exists."""
        del self._rows[key]
        self._changes[key] = None

    def take_changes(self) -> dict[bytes, bytes | None]:
        """Return the rows changed since the last call; None for deleted ones."""
        changes, self._changes = self._changes, {}
        return changes
