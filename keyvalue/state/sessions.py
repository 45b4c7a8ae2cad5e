"""Sessions: by them each of a client's commands is applied exactly once, however often it is sent.

A client opens a session and numbers what it sends in it from 1 on. The first entry of the log with
some (session, sequence) is applied, and its reply is kept; any later one is answered with that very
reply, byte by byte, whoever leads by then. So a client that does not know what became of a command
sends it again, through any member, until it is answered.

Kept are the replies of a *window*: the last ones of a session, up to a count and a number of bytes
(:mod:`.limits`), as far as the client has not acknowledged them. What is below the window is never
applied again; it is answered with ``-FORGOTTEN``. Numbers may arrive in any order within it.

A session ends when it is closed, or when nothing of it has come for its timeout, in the log's time:
it is gone from the moment that log time reaches its deadline. Then ``-NOSESSION`` is the answer.

All of this is state of the tables (`storage.tables_notes`), beside the keys: durable with them, in
snapshots, and equal on all members. A session has one note under its id (8 bytes), with its
timeout, its deadline and the end of what is below its window (8 bytes each), and one note under its
id and a sequence for each reply. The note under id 0 has the last id that was given (8 bytes); all
numbers are big-endian. Ids are revisions, that is places in the log, so none is ever given twice.
"""

import struct
from bisect import bisect_right, insort
from typing import Final

import attrs

from ...errors import StorageError
from ...node.state_machine.timers import Timers
from ...storage.tables.tables import Tables
from ..limits import (
    KEPT_REPLIES,
    KEPT_REPLY_BYTES,
    LONGEST_KEPT_REPLY_BYTES,
    MAX_EXPIRED_SESSIONS,
    MAX_SESSIONS,
)
from ..protocol import resp
from ..protocol.resp import CommandError

__all__ = ["LAST_ID", "Sessions", "no_session"]

_ID: Final = struct.Struct(">Q")
_REPLY: Final = struct.Struct(">QQ")
_SESSION: Final = struct.Struct(">QQQ")
LAST_ID: Final = _ID.pack(0)
"""The note that has the last id that was given."""

_TOO_MANY: Final = resp.error(
    f"SESSIONLIMIT the cluster has {MAX_SESSIONS} sessions already; nothing was done"
)
_AHEAD: Final = resp.error("ERR a sequence that never came can't be acknowledged")


def no_session(session: int) -> bytes:
    """Word the error for a session that is not, or not any more."""
    return resp.error(
        f"NOSESSION there is no session {session}, it was closed, or it has timed out; "
        "nothing was done now"
    )


def _forgotten(session: int, sequence: int) -> bytes:
    return resp.error(
        f"FORGOTTEN {sequence} is below the window of session {session}: its outcome was "
        "acknowledged or has been forgotten; nothing was done now"
    )


def _too_long(size: int) -> bytes:
    return resp.error(
        f"FORGOTTEN this command was applied, once; its reply of {size} bytes was too long to keep"
    )


@attrs.define(eq=False)
class _Session:
    """One session.

    Args:
        timeout_ms: how long it lasts without a sign of life.
        deadline_ms: the log's time at which it is over.
        floor: every sequence up to here is below the window.
        sequences: whose replies are kept, ascending, all above `floor`.
        kept_bytes: of those replies.
    """

    timeout_ms: int
    deadline_ms: int = 0
    floor: int = 0
    sequences: list[int] = attrs.field(factory=list[int])
    kept_bytes: int = 0


class Sessions:
    """The sessions in some tables.

    Raises:
        StorageError: what the tables say of them makes no sense.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._timers = Timers()
        self._sessions: dict[int, _Session] = {}
        self._last_id = 0
        for key in sorted(tables.notes.rows):  # a session comes before its replies
            self._load_untrusted(key, tables.notes.rows[key])

    def _load_untrusted(self, key: bytes, row: bytes) -> None:
        if key == LAST_ID and len(row) == _ID.size:
            (self._last_id,) = _ID.unpack(row)
        elif len(key) == _ID.size and len(row) == _SESSION.size:
            timeout_ms, deadline_ms, floor = _SESSION.unpack(row)
            self._sessions[_ID.unpack(key)[0]] = _Session(timeout_ms, deadline_ms, floor)
            self._timers.schedule(key, deadline_ms)
        elif len(key) == _REPLY.size and _REPLY.unpack(key)[0] in self._sessions:
            session_id, sequence = _REPLY.unpack(key)
            session = self._sessions[session_id]
            session.sequences.append(sequence)
            session.kept_bytes += len(row)
        else:
            raise StorageError(f"a note {key[:64]!r} of {len(row)} bytes is no session's")

    def __len__(self) -> int:
        """Count them."""
        return len(self._sessions)

    # --- their lives

    def open(self, timeout_ms: int, revision: int, now: int) -> int:
        """Open one and return its id.

        Raises:
            CommandError: there are too many already.
        """
        if len(self._sessions) >= MAX_SESSIONS:
            raise CommandError(_TOO_MANY)
        self._last_id = session_id = max(revision, self._last_id + 1)  # several in one entry
        self._tables.put_note(LAST_ID, _ID.pack(session_id))
        self._sessions[session_id] = session = _Session(timeout_ms)
        self._alive(session_id, session, now)
        return session_id

    def keep_alive(self, session_id: int, acknowledged: int, now: int) -> int:
        """Take a sign of life, and let go of the replies up to a sequence; return how many.

        Raises:
            CommandError: there is no such session, or that sequence never came.
        """
        session = self._find(session_id, now)
        highest = session.sequences[-1] if session.sequences else session.floor
        if acknowledged > highest:
            raise CommandError(_AHEAD)
        count = bisect_right(session.sequences, acknowledged)
        self._forget(session_id, session, count)
        session.floor = max(session.floor, acknowledged)
        self._alive(session_id, session, now)
        return count

    def close(self, session_id: int, now: int) -> int:
        """End one; return how many replies went with it.

        Raises:
            CommandError: there is no such session.
        """
        self._find(session_id, now)
        return self._end(session_id)

    def expire(self, now: int) -> None:
        """Remove some of those whose time has come."""
        for timer in self._timers.due(now, MAX_EXPIRED_SESSIONS):
            self._end(*_ID.unpack(timer.timer_id))

    def next_deadline_ms(self) -> int | None:
        """Say when the next one times out."""
        return self._timers.next_deadline_ms()

    # --- exactly once

    def reply_to(self, session_id: int, sequence: int, now: int) -> bytes | None:
        """Return what there is to say to a command without applying it; None if it must be applied.

        That is its reply if it has been applied, else an error.
        """
        session = self._sessions.get(session_id)
        if session is None or session.deadline_ms <= now:
            return no_session(session_id)
        self._alive(session_id, session, now)
        if sequence <= session.floor:
            return _forgotten(session_id, sequence)
        return self._tables.notes.rows.get(_REPLY.pack(session_id, sequence))

    def keep(self, session_id: int, sequence: int, reply: bytes) -> None:
        """Keep the reply to a command that was applied just now, as `reply_to` had it done."""
        session = self._sessions.get(session_id)
        if session is None:  # it was closed by this very command
            return
        kept = reply if len(reply) <= LONGEST_KEPT_REPLY_BYTES else _too_long(len(reply))
        self._tables.put_note(_REPLY.pack(session_id, sequence), kept)
        insort(session.sequences, sequence)
        session.kept_bytes += len(kept)
        before = session.floor
        while len(session.sequences) > KEPT_REPLIES or session.kept_bytes > KEPT_REPLY_BYTES:
            session.floor = session.sequences[0]
            self._forget(session_id, session, 1)
        if session.floor != before:
            self._note(session_id, session)

    # --- parts

    def _find(self, session_id: int, now: int) -> _Session:
        session = self._sessions.get(session_id)
        if session is None or session.deadline_ms <= now:
            raise CommandError(no_session(session_id))
        return session

    def _alive(self, session_id: int, session: _Session, now: int) -> None:
        session.deadline_ms = now + session.timeout_ms
        self._timers.schedule(_ID.pack(session_id), session.deadline_ms)
        self._note(session_id, session)

    def _note(self, session_id: int, session: _Session) -> None:
        row = _SESSION.pack(session.timeout_ms, session.deadline_ms, session.floor)
        self._tables.put_note(_ID.pack(session_id), row)

    def _forget(self, session_id: int, session: _Session, count: int) -> None:
        """Forget the first so many replies."""
        for sequence in session.sequences[:count]:
            key = _REPLY.pack(session_id, sequence)
            session.kept_bytes -= len(self._tables.notes.rows[key])
            self._tables.delete_note(key)
        del session.sequences[:count]

    def _end(self, session_id: int) -> int:
        session = self._sessions.pop(session_id)
        count = len(session.sequences)
        self._forget(session_id, session, count)
        key = _ID.pack(session_id)
        self._timers.cancel(key)
        self._tables.delete_note(key)
        return count
