"""Which commands of sessions were not applied: those sent again, and those that came too late.

A client that does not know what became of a command sends it again with the same session and
sequence, and the log then has it twice (see `keyvalue.sessions`). Which of them was applied hangs
on all sessions' lives up to there, so this is found by the state machine's own table of sessions,
in one pass over the log, on the driver.

Caveat: how long replies were is not known here. A command whose number is below the window only
because long replies had pushed the window on, and which never came before, is taken for applied.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final, cast

from ...errors import PrunedError
from ...keyvalue.commands.sessions import session
from ...keyvalue.commands.table import lookup
from ...keyvalue.protocol.resp import CommandError
from ...keyvalue.state.sessions import LAST_ID, Sessions
from ...storage import EntryKind, decode_entries_untrusted, decode_header_untrusted
from ...storage.tables.notes import Notes
from .replay import commands_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...keyvalue.state.store import KeyStore
    from ...storage import Entry
    from ...storage.tables.tables import Tables
    from ..source.logs import Log

__all__ = ["sessions_at", "unapplied"]

_NAME: Final = b"quorate.session"


class _Store:
    """What commands on sessions take for the store, and the sessions for the tables."""

    def __init__(self, rows: dict[bytes, bytes]) -> None:
        self.notes = Notes(rows)
        self.put_note, self.delete_note = self.notes.put, self.notes.delete
        self.sessions = Sessions(cast("Tables", self))
        self.now = self.revision = self.left = 0


def unapplied(log: Log, begin: int, end: int) -> list[tuple[int, int]]:
    """Return position and index of each command of a session in a range that was not applied.

    Raises:
        PrunedError: the log does not tell which sessions there were at `begin`.
        DamagedRecordError: a batch is damaged.
    """
    places = _walk(*_at_snapshot(log, begin), log, end)
    return [(at, index) for at, index, applied in places if at >= begin and not applied]


def sessions_at(log: Log, position: int) -> tuple[int, bytes | None]:
    """Say how many sessions there were at a position, and what the note `LAST_ID` said, if any.

    Raises:
        PrunedError: the log does not tell which sessions there were before.
        DamagedRecordError: a batch is damaged.
    """
    store, start = _at_snapshot(log, position)
    for _ in _walk(store, start, log, position):
        pass
    return len(store.sessions), store.notes.rows.get(LAST_ID)


def _at_snapshot(log: Log, position: int) -> tuple[_Store, int]:
    """Return the sessions of the newest snapshot up to a position, and where it stands."""
    row = log.facts.snapshot_at(position)
    start = row.position if row else 0
    if start < log.facts.start:
        raise PrunedError(
            f"{log.facts.whose}: sessions must be known from position {start} on, and "
            f"the log begins at position {log.facts.start}: read from a copy that still has it"
        )
    return _Store(dict(log.notes(row)) if row else {}), start


def _walk(store: _Store, start: int, log: Log, end: int) -> Iterator[tuple[int, int, bool]]:
    """Go through the log; yield position and index of each entry, and whether it is applied."""
    for batch in log.batches(start, end):
        header = decode_header_untrusted(batch)
        store.now = max(store.now, header.timestamp_ms)
        for index, entry in enumerate(decode_entries_untrusted(batch)):
            store.revision = header.position + index + 1
            yield header.position, index, _applied(store, entry)
        store.sessions.expire(store.now)


def _applied(store: _Store, entry: Entry) -> bool:
    """Apply what an entry has to do with sessions; False for a command that is not applied."""
    if entry.kind is not EntryKind.COMMAND:
        return True
    if entry.session:
        if store.sessions.reply_to(entry.session, entry.sequence, store.now) is not None:
            return False
        store.sessions.keep(entry.session, entry.sequence, b"")
    elif _NAME in entry.payload.lower():
        for arguments in commands_of(entry.payload):
            spec = lookup(arguments[0])
            if spec is not None and spec.name.encode() == _NAME and spec.takes(len(arguments)):
                _session(store, arguments)
    return True


def _session(store: _Store, arguments: list[bytes]) -> None:
    with suppress(CommandError):  # then it has changed nothing
        session(cast("KeyStore", store), arguments)
