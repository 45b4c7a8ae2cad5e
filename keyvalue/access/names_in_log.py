"""The names of principals, for a reader of the log that runs no member.

A number stands for a name from the entry on that created the user. So a reader begins with the
notes of some tables or snapshot, and applies the changes of users behind them, as the members do.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from typing import Final

from ...errors import WireError
from ...storage.log.batch import Entry, EntryKind
from ...storage.tables.notes import Notes
from ..protocol.payload import ETCD, PayloadParser
from ..protocol.resp import CommandError
from ..state.ownership_note import SLOTS_NOTE
from .users import DEFAULT_NAME, is_user_note
from .users_in_log import UsersInLog

__all__ = ["NamesInLog"]

# A change of users is alone in its entry: the client port sends it so.
_CHANGE: Final = re.compile(
    rb"\*\d+\r\n(?:\$3\r\nacl\r\n\$7\r\n(?:set|del)user|\$13\r\nquorate.slots\r\n\$5\r\nfound)\r\n",
    re.IGNORECASE,
)


class NamesInLog:
    """Names the principals of entries.

    Args:
        notes: of tables or of a snapshot; empty for the beginning of the log.
    """

    def __init__(self, notes: dict[bytes, bytes] | None = None) -> None:
        rows = {key: row for key, row in (notes or {}).items() if is_user_note(key)}
        self.notes = Notes(rows)
        self.put_note, self.delete_note = self.notes.put, self.notes.delete
        self._users = UsersInLog(self, (notes or {}).get(SLOTS_NOTE))
        self._parse = PayloadParser().parse_untrusted

    def take(self, entry: Entry) -> None:
        """Apply the next entry behind the notes."""
        if entry.kind is not EntryKind.COMMAND or entry.flags & ETCD:
            return
        if not _CHANGE.match(entry.payload):
            return
        with suppress(WireError, CommandError):  # what fails changes nothing
            for arguments in self._parse(entry.payload):
                self._users.apply(arguments, 0)

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """Return numbers and names, ascending; the first one is `default`."""
        return chain([(0, DEFAULT_NAME)], self._users.users.names)

    def get(self, principal: int) -> bytes | None:
        """Return the name of a principal; None if it is not known."""
        return self._users.users.names.get(principal) if principal else DEFAULT_NAME
