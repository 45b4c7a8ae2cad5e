r"""The replicated users: one note of the tables for each, equal on all members.

Where they are stored
    In the notes of the tables (`storage.tables.notes`), like sessions: durable with the keys, and
    part of snapshots and backups. The keys of these notes begin with a byte above 127. Those of
    sessions never do, because an id is a position of the log.

    - key: ``\xffu`` and the name; row: the user's words as in ACL LIST, with blanks between them
    - key: ``\xffv``; row: the version, 8 bytes, big endian
    - key: ``\xffn`` and a number; row: the name that has it (:mod:`.principals`)

The version
    The revision of the log entry that last changed a user. A member whose version is the same has
    the same users.

The user `default`
    Exists always, with Redis's rules, until somebody changes it. It can't be deleted.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Protocol

import attrs

from ...errors import StorageError
from ..protocol import resp
from ..protocol.resp import CommandError
from ..state.sessions import OTHER_NOTES
from .principals import Names, is_name_note
from .rules import DEFAULT, NOBODY, RuleError, User, apply, words

__all__ = ["DEFAULT_NAME", "MAX_NAME_BYTES", "MAX_USERS", "NoteTables", "Users", "is_user_note"]

DEFAULT_NAME: Final = b"default"

MAX_NAME_BYTES: Final = 60
"""A name; a note's key has 64 bytes at most."""

MAX_USERS: Final = 1024
"""Users of a cluster, which are in memory. Fewer, and a user for each service and person is not
possible in a large company; more, and their rules (16 KiB each) take too much of a small member."""

_USER: Final = OTHER_NOTES + b"u"
_VERSION_KEY: Final = OTHER_NOTES + b"v"
_VERSION: Final = struct.Struct(">Q")
_FORBIDDEN: Final = frozenset(b" \0")

_BAD_NAME: Final = resp.error("ERR Usernames can't contain spaces or null characters")
_LONG_NAME: Final = resp.error(f"ERR a user's name has 1 to {MAX_NAME_BYTES} bytes")
_TOO_MANY: Final = resp.error(f"ERR the cluster has {MAX_USERS} users already; nothing was done")
_NO_LINES: Final = resp.error(
    "ERR expected lines of ACL LIST, one for each user, and one of 'default'; nothing was done"
)
_NOT_DEFAULT: Final = resp.error("ERR The 'default' user cannot be removed")


class _Notes(Protocol):
    @property
    def rows(self) -> Mapping[bytes, bytes]: ...


class NoteTables(Protocol):
    """What this file needs of the tables."""

    @property
    def notes(self) -> _Notes:
        """All notes."""
        ...

    def put_note(self, key: bytes, row: bytes) -> None:
        """Set a note."""
        ...

    def delete_note(self, key: bytes) -> None:
        """Delete a note that exists."""
        ...


def is_user_note(key: bytes) -> bool:
    """Whether a note of the tables is one of this file's."""
    return key.startswith(_USER) or key == _VERSION_KEY or is_name_note(key)


class Users:
    """The users of one store, and what each may do.

    Args:
        tables: hold the notes; None for a port without a store: only `default` exists then.

    Attributes:
        version: of the last change; 0 before the first one.
        names: of the numbers in the log's entries.

    Raises:
        StorageError: a note in the tables is malformed.
    """

    def __init__(self, tables: NoteTables | None = None) -> None:
        self._tables = tables
        self._listeners: list[Callable[[], None]] = []
        self._users: dict[bytes, User] = {}
        self.version = 0
        self.names = Names()
        self.reload()

    def reload(self) -> None:
        """Read all users anew: the tables were replaced by those of a snapshot."""
        rows: Mapping[bytes, bytes] = {} if self._tables is None else self._tables.notes.rows
        users = {DEFAULT_NAME: DEFAULT}
        self.version = 0
        self.names = Names(rows)
        for key, row in rows.items():
            if key == _VERSION_KEY and len(row) == _VERSION.size:
                (self.version,) = _VERSION.unpack(row)
            elif key.startswith(_USER):
                users[key.removeprefix(_USER)] = _decode_untrusted(key, row)
        self._users = {
            name: attrs.evolve(user, number=self.names.number(name)) for name, user in users.items()
        }
        self._changed()

    def listen(self, listener: Callable[[], None]) -> None:
        """Call a listener after each change, on the trio thread; it must not raise."""
        self._listeners.append(listener)

    # --- reading

    def __iter__(self) -> Iterator[bytes]:
        """Return the names, in order."""
        return iter(sorted(self._users))

    def get(self, name: bytes) -> User | None:
        """Return a user; None if there is none of that name."""
        return self._users.get(name)

    # --- the log's commands

    def set(self, name: bytes, given: Iterable[bytes], revision: int) -> None:
        """Create a user, or change one: all words are applied, or none.

        Raises:
            CommandError: the name or a word is malformed, or there are too many users.
        """
        check_name(name)
        if name not in self._users and len(self._users) >= MAX_USERS:
            raise CommandError(_TOO_MANY)
        user = _applied(self._users.get(name, NOBODY), given)
        self._put(_USER + name, b" ".join(words(user)))
        self._users[name] = attrs.evolve(user, number=self._number(name))
        self._note_version(revision)

    def delete(self, names: Iterable[bytes], revision: int) -> int:
        """Delete users; return how many of them existed.

        Raises:
            CommandError: one of them is `default`; nothing was done.
        """
        names = dict.fromkeys(names)
        if DEFAULT_NAME in names:
            raise CommandError(_NOT_DEFAULT)
        gone = [name for name in names if self._users.pop(name, None) is not None]
        for name in gone:
            if self._tables is not None:
                self._tables.delete_note(_USER + name)
        if gone:
            self._note_version(revision)
        return len(gone)

    def replace(self, lines: Iterable[bytes], revision: int) -> None:
        """Have the users of some lines of ACL LIST, and no others: all of them, or no change.

        Raises:
            CommandError: a line is none of a user, there is none of `default`, or too many.
        """
        wanted: dict[bytes, list[bytes]] = {}
        for line in lines:
            first, _, rest = line.partition(b" ")
            name, *rules = rest.split(b" ")
            check_name(name)
            if first != b"user" or not rules:
                raise CommandError(_NO_LINES)
            _applied(NOBODY, rules)
            wanted[name] = rules
        if DEFAULT_NAME not in wanted:
            raise CommandError(_NO_LINES)
        if len(wanted) > MAX_USERS:
            raise CommandError(_TOO_MANY)
        self.delete(sorted(self._users.keys() - wanted.keys()), revision)
        for name in sorted(wanted):
            self.set(name, [b"reset", *wanted[name]], revision)

    # --- parts

    def _number(self, name: bytes) -> int:
        """Return the number of a name; a new one has none yet."""
        if name == DEFAULT_NAME or self.names.number(name):
            return self.names.number(name)
        for key, row in self.names.add(name, users=self._users):
            if row is not None:
                self._put(key, row)
            elif self._tables is not None:
                self._tables.delete_note(key)
        return self.names.number(name)

    def _put(self, key: bytes, row: bytes) -> None:
        if self._tables is not None:
            self._tables.put_note(key, row)

    def _note_version(self, revision: int) -> None:
        self.version = revision
        self._put(_VERSION_KEY, _VERSION.pack(revision))
        self._changed()

    def _changed(self) -> None:
        for listener in self._listeners:
            listener()


def check_name(name: bytes) -> None:
    """Refuse what can't be the name of a user.

    Raises:
        CommandError: it has a space, or is too long.
    """
    if _FORBIDDEN.intersection(name):
        raise CommandError(_BAD_NAME)
    if not 1 <= len(name) <= MAX_NAME_BYTES:
        raise CommandError(_LONG_NAME)


def _applied(user: User, given: Iterable[bytes]) -> User:
    try:
        return apply(user, given)
    except RuleError as error:
        raise CommandError(resp.error(b"ERR " + error.text)) from None


def _decode_untrusted(key: bytes, row: bytes) -> User:
    try:
        return apply(NOBODY, row.split(b" "))
    except RuleError as error:
        # A rule that this version does not know must not be dropped: it may be one that denies.
        text = error.text.decode("utf-8", "replace")
        raise StorageError(f"user {key[2:]!r} has rules that can't be read: {text}") from error
