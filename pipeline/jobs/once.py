"""Finds commands that were not applied: repeated ones of sessions, and ones that came too late.

A client that does not know the outcome of a command sends it again with the same session and
sequence, so the log may hold it twice (see `keyvalue.sessions`). Which of them was applied depends
on the lives of all sessions up to that point. So the driver runs the state machine's own table of
sessions over the log, in one pass.

In a partition, slots decide, too. A request of a session, or a transaction, is executed as a whole
or not at all; any other one up to a command on a frozen slot, and its rest comes again.

Caveat: the length of replies is not known here. Long replies move a session's window forward. A
command that is below the window only for that reason, and is no repetition, is reported as applied.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final, cast

from ...errors import PrunedError
from ...keyvalue.access.users import is_user_note
from ...keyvalue.access.users_in_log import UsersInLog
from ...keyvalue.commands.sessions import session
from ...keyvalue.commands.table import lookup
from ...keyvalue.protocol.payload import ETCD, FROZEN, TRANSACTION
from ...keyvalue.protocol.resp import CommandError
from ...keyvalue.state.ownership_note import SLOTS_NOTE
from ...keyvalue.state.sessions import LAST_ID, Sessions
from ...storage import EntryKind, decode_entries_untrusted, decode_header_untrusted
from ...storage.tables.notes import Notes
from .replay import Machine, commands_of
from .slots_note import take_steps

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...keyvalue.state.store import KeyStore
    from ...storage import Entry
    from ...storage.tables.tables import Tables
    from ..source.logs import Log

__all__ = ["notes_at", "partly_applied", "unapplied"]

_NAME: Final = b"quorate.session"
_ACL: Final = b"\r\nacl\r\n"  # as a whole word of a command
_FOUND: Final = b"\r\nquorate.slots\r\n$5\r\nfound\r\n"  # users come with it


class _Store:
    """The part of the store and of the tables that sessions, users and their commands use."""

    def __init__(self, rows: dict[bytes, bytes]) -> None:
        self.notes = Notes(rows)
        self.put_note, self.delete_note = self.notes.put, self.notes.delete
        self.sessions = Sessions(cast("Tables", self))
        self.users = UsersInLog.of(self)
        self.now = self.revision = self.left = self.principal = 0


def unapplied(log: Log, begin: int, end: int) -> list[tuple[int, int]]:
    """Return position and index of each request in a range of which no command was applied.

    Raises:
        PrunedError: the sessions at `begin` are not known.
        DamagedRecordError: a batch is damaged.
    """
    return [(at, index) for at, index, count in partly_applied(log, begin, end) if not count]


def partly_applied(log: Log, begin: int, end: int) -> list[tuple[int, int, int]]:
    """Return position and index of each request that was not applied as a whole.

    Returns:
        Position, index, and the number of commands that were applied.

    Raises:
        PrunedError: the sessions at `begin` are not known.
        DamagedRecordError: a batch is damaged.
    """
    places = _walk(*_at_snapshot(log, begin), log, end)
    return [(at, index, n) for at, index, n in places if at >= begin and n is not None]


def notes_at(log: Log, position: int) -> tuple[int, dict[bytes, bytes]]:
    """Return the number of sessions at a position, and the notes to keep: `LAST_ID`, and the users.

    Raises:
        PrunedError: the earlier sessions and users are not known.
        DamagedRecordError: a batch is damaged.
    """
    store, start = _at_snapshot(log, position)
    for _ in _walk(store, start, log, position):
        pass
    rows = sorted(store.notes.rows.items())
    kept = {key: row for key, row in rows if key == LAST_ID or is_user_note(key)}
    return len(store.sessions), kept


def _at_snapshot(log: Log, position: int) -> tuple[_Store, int]:
    """Return the sessions of the newest snapshot up to a position, and the snapshot's position."""
    row = log.facts.snapshot_at(position)
    start = row.position if row else 0
    if start < log.facts.start:
        raise PrunedError(
            f"{log.facts.whose}: sessions must be known from position {start} on, and "
            f"the log begins at position {log.facts.start}: read from a copy that still has it"
        )
    return _Store(dict(log.notes(row)) if row else {}), start


def _walk(store: _Store, start: int, log: Log, end: int) -> Iterator[tuple[int, int, int | None]]:
    """Read the log; yield position and index of each entry, and how much of it is applied.

    That is the number of its commands, or None if all are.
    """
    note = store.notes.rows.get(SLOTS_NOTE, b"")
    slots = Machine(note) if log.facts.partition is not None else None
    for batch in log.batches(start, end):
        header = decode_header_untrusted(batch)
        store.now = max(store.now, header.timestamp_ms)
        for index, entry in enumerate(decode_entries_untrusted(batch)):
            store.revision = header.position + index + 1
            if slots is not None:
                store.revision += slots.shift
                store.now = max(store.now, slots.taken_over_ms)
                take_steps(slots, header, index, entry)
            yield header.position, index, _applied(store, entry, slots)
        store.sessions.expire(store.now)


def _applied(store: _Store, entry: Entry, slots: Machine | None) -> int | None:
    """Apply the effect of an entry on sessions; return how many of its commands are applied."""
    if entry.kind is not EntryKind.COMMAND or entry.flags & ETCD:
        return None
    store.principal = entry.principal
    refusal, stamped = None, bool(entry.session)
    if slots is not None and (stamped or entry.flags & TRANSACTION):
        refusal = slots.refusal(entry.payload, entry.flags, stamped=stamped)
    if entry.session:
        stamp = entry.session, entry.sequence
        if store.sessions.reply_to(*stamp, store.now, entry.principal) is not None:
            return 0
        if refusal != FROZEN:  # nothing is kept then: it comes again
            store.sessions.keep(entry.session, entry.sequence, b"")
    if refusal is not None:
        return 0
    _change(store, entry)
    return None if slots is None or stamped else slots.before_frozen(entry.payload)


def _change(store: _Store, entry: Entry) -> None:
    """Open and close sessions, and change users, as an entry asks for."""
    if not entry.session and _NAME in entry.payload.lower():
        for arguments in commands_of(entry.payload):
            spec = lookup(arguments[0])
            if spec is not None and spec.name.encode() == _NAME and spec.takes(len(arguments)):
                _session(store, arguments)
    if any(word in entry.payload.lower() for word in (_ACL, _FOUND)):
        for arguments in commands_of(entry.payload):
            with suppress(CommandError):
                store.users.apply(arguments, store.revision)


def _session(store: _Store, arguments: list[bytes]) -> None:
    with suppress(CommandError):  # a failed command changes nothing
        session(cast("KeyStore", store), arguments)
