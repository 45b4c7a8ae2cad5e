r"""Who did it: the numbers by which the log's entries name users.

An entry has four bytes for its principal (:mod:`quorate.storage.log.batch`), too few for a name. So
each name gets a number when a user of that name is created, and this table says which name a number
stands for. It is part of the replicated users: each member counts alike.

- 0 is the user `default`. It is also the number of entries that no client has sent, and of those of
  a program that embeds a member and names nobody.
- A number is never given to another name. A user that is deleted and created again has its old one.
- Names outlive their users: an entry of a deleted user can still be read.

The table is bounded: beyond `MAX_NAMES`, the oldest name that no user has is forgotten. Entries
with its number then show the number.

- key of the note: ``\xffn`` and the number, 4 bytes, big endian; row: the name
"""

import struct
from collections.abc import Container, Iterator, Mapping
from typing import Final

from ..state.sessions import OTHER_NOTES

__all__ = ["MAX_NAMES", "Names", "is_name_note", "shown"]

MAX_NAMES: Final = 65_536
"""Names that are kept. Fewer, and old entries of deleted users can't be read in a company that
makes a user for each job; more, and their notes take more than 10 MB of each member's memory."""

_NAME: Final = OTHER_NOTES + b"n"
_NUMBER: Final = struct.Struct(">I")


def is_name_note(key: bytes) -> bool:
    """Whether a note of the tables is one of this file's."""
    return key.startswith(_NAME) and len(key) == len(_NAME) + _NUMBER.size


class Names:
    """The names of all numbers; an iteration gives pairs of number and name, ascending.

    Args:
        rows: the notes of the tables.
    """

    def __init__(self, rows: Mapping[bytes, bytes] | None = None) -> None:
        found: dict[int, bytes] = {}
        for key, name in (rows or {}).items():
            if is_name_note(key):
                (number,) = _NUMBER.unpack_from(key, len(_NAME))
                found[number] = name
        self._names = dict(sorted(found.items()))
        self._numbers = {name: number for number, name in self._names.items()}

    def __len__(self) -> int:
        """Return how many names are kept."""
        return len(self._names)

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """Return numbers and names."""
        return iter(self._names.items())

    def get(self, number: int) -> bytes | None:
        """Return the name of a number; None if it has none, or not any more."""
        return self._names.get(number)

    def number(self, name: bytes) -> int:
        """Return the number of a name; 0 if it has none."""
        return self._numbers.get(name, 0)

    def add(self, name: bytes, *, users: Container[bytes]) -> Iterator[tuple[bytes, bytes | None]]:
        """Give a new name the next number; yield what that changes of the notes.

        Args:
            name: has no number yet.
            users: the names that are never forgotten.

        Returns:
            The key of each note, and its new row, None to delete it. Nothing is changed before the
            notes are taken.
        """
        # The last name is never forgotten before a newer one: so no number is given out twice.
        number = next(reversed(self._names), 0) + 1
        self._names[number] = name
        self._numbers[name] = number
        yield _NAME + _NUMBER.pack(number), name
        if len(self._names) > MAX_NAMES:
            oldest = next(each for each, known in self._names.items() if known not in users)
            del self._numbers[self._names.pop(oldest)]
            yield _NAME + _NUMBER.pack(oldest), None


def shown(number: int, name: bytes | None) -> str:
    """Return how a principal is shown, by its name if that is known."""
    if name is None:
        return f"#{number}" if number else ""
    text = name.decode("utf-8", "backslashreplace")
    # A name may have any characters but blanks, also those that command a terminal.
    return text if text.isprintable() else ascii(text)[1:-1]
