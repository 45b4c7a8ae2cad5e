"""Who wrote an entry of a recording: the names of the numbers that it has.

The names are part of the state, not of the log. So they come from the member's tables, or from a
snapshot, and from the changes of users in the log behind those.
"""

from contextlib import suppress
from pathlib import Path

from ..errors import StorageError, WireError
from ..keyvalue.access.names_in_log import NamesInLog
from ..keyvalue.access.principals import shown
from ..keyvalue.access.users import DEFAULT_NAME
from ..node.state_machine.service import KEY_VALUE
from ..storage.log.batch import Entry, EntryKind, decode_entries_untrusted
from ..storage.log.readonly import ReadOnlyStore
from ..storage.snapshots.file import SnapshotReader
from ..storage.tables.disk import tables_notes
from ..storage.tables.stream import notes_untrusted

__all__ = ["Principals"]


class Principals:
    """The principals of a recording.

    Args:
        store: the recording.
        directory: has the tables and the snapshots of its member.
    """

    def __init__(self, store: ReadOnlyStore, directory: Path) -> None:
        self._store = store
        self._directory = directory
        self._key_value = store.recorded.service in {"", KEY_VALUE}
        self._names: NamesInLog | None = None

    def name(self, entry: Entry) -> str:
        """Return the name of the user that sent an entry, or ``#`` and its number.

        Empty if it has none: the cluster has made it, or a program that embeds a member.
        """
        if not entry.principal:
            by_default = self._key_value and entry.kind is EntryKind.COMMAND
            return DEFAULT_NAME.decode() if by_default else ""
        # Finding the names may mean to read the log, so that waits until one is needed.
        if self._names is None:
            self._names = self._find_names()
        return shown(entry.principal, self._names.get(entry.principal))

    def _find_names(self) -> NamesInLog:
        if not self._key_value:
            return NamesInLog()
        store = self._store
        position, notes = _newest_notes(store, self._directory)
        names = NamesInLog(notes)
        # Changes in a pruned part are not known. Numbers behind it might be given to wrong names.
        if position >= store.start_position:
            with suppress(StorageError, WireError):  # `verify` reports damage
                for batch in store.scan(position):
                    for entry in decode_entries_untrusted(batch):
                        names.take(entry)
        return names


def _newest_notes(store: ReadOnlyStore, directory: Path) -> tuple[int, dict[bytes, bytes]]:
    """Return the notes of the tables or of a snapshot, and their position; none at 0."""
    position, notes = 0, dict[bytes, bytes]()
    with suppress(StorageError):
        position, notes = tables_notes(directory / "tables")
    for row in store.snapshots:
        with suppress(StorageError, OSError):
            if row.position > position:
                with SnapshotReader(directory / "snapshots" / row.name) as reader:
                    notes = dict(notes_untrusted(reader.pieces()))
                position = row.position
    return position, notes
