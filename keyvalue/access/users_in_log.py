"""The users that the changes in a log make, for a reader of the log that has no store."""

from collections.abc import Sequence
from typing import Final

from ..state.ownership_note import SLOTS_NOTE, decode_note_untrusted
from .users import NoteTables, Users

__all__ = ["UsersInLog"]

_FOUND_WORDS: Final = 3
"""Of QUORATE.SLOTS FOUND; users may come behind them."""


class UsersInLog:
    """Users, and what the next entries make of them.

    Args:
        tables: hold the notes of users.
        note: of the slots, where the reading begins; None if there is none.

    Attributes:
        users: as of now.

    Raises:
        StorageError: a note is malformed.
    """

    def __init__(self, tables: NoteTables, note: bytes | None) -> None:
        self.users = Users(tables)
        self._founded = note is not None and decode_note_untrusted(note).founded

    @classmethod
    def of(cls, tables: NoteTables) -> "UsersInLog":
        """Return the users of tables that have the note of the slots, too."""
        return cls(tables, tables.notes.rows.get(SLOTS_NOTE))

    def apply(self, arguments: Sequence[bytes], revision: int) -> None:
        """Apply a command; most commands change nothing.

        Raises:
            CommandError: a member refuses it, too; nothing is changed.
        """
        match [word.lower() for word in arguments[:2]]:
            case [b"acl", b"setuser"] if arguments[2:]:
                self.users.set(arguments[2], arguments[3:], revision)
            case [b"acl", b"deluser"] if arguments[2:]:
                self.users.delete(arguments[2:], revision)
            case [b"quorate.slots", b"found"] if arguments[2:] and not self._founded:
                # Users come with the first slots, and only then.
                if users := arguments[_FOUND_WORDS:]:
                    self.users.replace(users, revision)
                self._founded = True
            case _:
                pass
