"""What the state asks of the tables: rows under keys of revisions, and notes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["StateTables"]


class _Notes(Protocol):
    @property
    def rows(self) -> Mapping[bytes, bytes]: ...


class StateTables(Protocol):
    """The part of `storage.tables.Tables` that this state uses; see `LayeredTables`."""

    @property
    def notes(self) -> _Notes:
        """A few small rows, all in memory."""
        ...

    @property
    def timestamp_ms(self) -> int:
        """Log time where the tables end, as of their last flush; what was read when they opened."""
        ...

    def put_note(self, key: bytes, row: bytes) -> None:
        """Set a note; its key has 1 to 64 bytes."""
        ...

    def delete_note(self, key: bytes) -> None:
        """Delete a note that exists."""
        ...

    def get_row(self, key: bytes) -> bytes | None:
        """Return a row, or None."""
        ...

    def put_row(self, key: bytes, row: bytes) -> None:
        """Set a row; its key has 1 to 64 bytes."""
        ...

    def delete_row(self, key: bytes) -> None:
        """Delete a row; does nothing if there is none."""
        ...

    def all_rows(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield all rows in the order of their keys; nothing may change during that."""
        ...
