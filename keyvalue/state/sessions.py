"""Replicated sessions: each of a client's commands is applied exactly once, however often sent.

The idea
    A client opens a session and numbers its commands from 1. The first log entry with a pair
    (session, sequence) is applied, and its reply is kept. Any later entry with that pair is
    answered with the kept reply, byte for byte, by any leader. So a client that does not know the
    outcome of a command sends it again, through any member, until it is answered. (Raft
    dissertation, section 6.3, "Implementing linearizable semantics".)

The window
    Replies are not kept for ever. A session keeps its last ones, up to a count and a number of
    bytes (:mod:`..limits`), as far as the client has not acknowledged them. A command below this
    window is never applied again; the answer is ``-FORGOTTEN``. Within the window, sequences may
    arrive in any order.

The end
    A session ends when it is closed, or when none of its commands arrived for its timeout. It is
    gone from the moment that log time reaches its deadline; the answer is then ``-NOSESSION``.

The owner
    A session belongs to the user that has opened it, by the number in the entry (`principal`). For
    entries of another user it does not exist: ids can be guessed, and kept replies have values. The
    answer is that for a missing session, so that nobody learns which ids are in use.

Where it is stored
    In the notes of the tables (`storage.tables.notes`), next to the keys: durable with them, part
    of snapshots, and equal on all members. All numbers are big-endian, 8 bytes each.

    - key: id; row: timeout, deadline, floor (the last sequence below the window); then the number
      of the owner, unless that is 0
    - key: id, sequence; row: the kept reply
    - key: 0; row: the last id that was given out

    An id is the revision of the entry that opened the session, so no id is given out twice. Notes
    of other parts of the store begin with `OTHER_NOTES`, a byte that no id begins with.
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

__all__ = ["LAST_ID", "OTHER_NOTES", "Sessions", "no_session"]

_ID: Final = struct.Struct(">Q")
_REPLY: Final = struct.Struct(">QQ")
_SESSION: Final = struct.Struct(">QQQ")
_OWNED_BYTES: Final = _SESSION.size + _ID.size
LAST_ID: Final = _ID.pack(0)
"""Key of the note with the last id that was given out."""
OTHER_NOTES: Final = b"\xff"
"""Keys of notes that belong to other parts of the store begin with it."""

_TOO_MANY: Final = resp.error(
    f"SESSIONLIMIT the cluster has {MAX_SESSIONS} sessions already; nothing was done"
)
_AHEAD: Final = resp.error("ERR a sequence that never came can't be acknowledged")


def no_session(session: int) -> bytes:
    """Return the error for a session that does not exist, or not any more."""
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
class _SessionRecord:
    """One session.

    Args:
        timeout_ms: how long it lasts without a command.
        owner: the principal of the entry that opened it; only its entries may use it.
        deadline_ms: log time at which it ends.
        floor: every sequence up to here is below the window.
        sequences: those with kept replies, ascending, all above `floor`.
        kept_bytes: length of the kept replies together.
    """

    timeout_ms: int
    owner: int
    deadline_ms: int = 0
    floor: int = 0
    sequences: list[int] = attrs.field(factory=list[int])
    kept_bytes: int = 0


class Sessions:
    """The sessions of one store.

    Raises:
        StorageError: a note in the tables is malformed.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._timers = Timers()
        # In memory, next to the notes: windows and deadlines are looked at for each command of a
        # session.
        self._sessions: dict[int, _SessionRecord] = {}
        self._last_id = 0
        # Sorted, the note of a session comes before those of its replies.
        for key in sorted(tables.notes.rows):
            if key.startswith(OTHER_NOTES):
                continue
            self._load_untrusted(key, tables.notes.rows[key])

    def _load_untrusted(self, key: bytes, row: bytes) -> None:
        if key == LAST_ID and len(row) == _ID.size:
            (self._last_id,) = _ID.unpack(row)
        elif len(key) == _ID.size and len(row) in (_SESSION.size, _OWNED_BYTES):
            timeout_ms, deadline_ms, floor = _SESSION.unpack_from(row)
            owner = _ID.unpack_from(row, _SESSION.size)[0] if len(row) > _SESSION.size else 0
            self._sessions[_ID.unpack(key)[0]] = _SessionRecord(
                timeout_ms, owner, deadline_ms, floor
            )
            self._timers.schedule(key, deadline_ms)
        elif len(key) == _REPLY.size and _REPLY.unpack(key)[0] in self._sessions:
            session_id, sequence = _REPLY.unpack(key)
            session = self._sessions[session_id]
            # Keys are big endian, so sequences arrive in ascending order here.
            session.sequences.append(sequence)
            session.kept_bytes += len(row)
        else:
            # Refused, not skipped: with a reply missing, a repeated command would be applied twice
            # (I-33).
            raise StorageError(f"a note {key[:64]!r} of {len(row)} bytes is no session's")

    def __len__(self) -> int:
        """Return the number of sessions, with timed-out ones that are not removed yet."""
        return len(self._sessions)

    # --- open, keep alive, close

    def open(self, timeout_ms: int, revision: int, now: int, owner: int) -> int:
        """Open a session of a user, given by its number, and return the session's id.

        Raises:
            CommandError: there are too many already.
        """
        # Timed-out ones that are not removed yet count. Removal follows log time, so the number is
        # the same on all members.
        if len(self._sessions) >= MAX_SESSIONS:
            raise CommandError(_TOO_MANY)
        self._last_id = session_id = max(revision, self._last_id + 1)  # one entry may open several
        # Durable with the session. After a restart no id may come twice (I-30).
        self._tables.put_note(LAST_ID, _ID.pack(session_id))
        self._sessions[session_id] = session = _SessionRecord(timeout_ms, owner)
        self._alive(session_id, session, now)
        return session_id

    def keep_alive(self, session_id: int, acknowledged: int, now: int, user: int) -> int:
        """Renew the deadline and forget the acknowledged replies; return their number.

        Args:
            session_id: the session.
            acknowledged: the client has all replies up to this sequence; 0 for none.
            now: log time in milliseconds.
            user: the number of the user that asks.

        Raises:
            CommandError: the user has no such session, or no command with that sequence arrived.
        """
        session = self._find(session_id, now, user)
        # An acknowledgement of the future would drop replies that the client has not seen.
        highest = session.sequences[-1] if session.sequences else session.floor
        if acknowledged > highest:
            raise CommandError(_AHEAD)
        count = bisect_right(session.sequences, acknowledged)
        self._forget(session_id, session, count)
        # The client may acknowledge again what it has acknowledged before: the floor never falls.
        session.floor = max(session.floor, acknowledged)
        self._alive(session_id, session, now)
        return count

    def close(self, session_id: int, now: int, user: int) -> int:
        """End a session; return the number of replies that were removed with it.

        Raises:
            CommandError: the user has no such session.
        """
        # A session that timed out is gone for the client, whether it is removed or not (I-32).
        self._find(session_id, now, user)
        return self._end(session_id)

    def expire(self, now: int) -> None:
        """Remove some of the sessions that have timed out."""
        # Bounded: each may have many replies to remove, and a batch has to stay short.
        for timer in self._timers.due(now, MAX_EXPIRED_SESSIONS):
            self._end(*_ID.unpack(timer.timer_id))

    def next_deadline_ms(self) -> int | None:
        """Return when the next session times out, in log time; None without sessions."""
        return self._timers.next_deadline_ms()

    # --- exactly once

    def reply_to(self, session_id: int, sequence: int, now: int, user: int) -> bytes | None:
        """Return the reply to a command of a user that must not be applied; None if it must be.

        It is the kept reply, or an error: no such session, or below the window.
        """
        session = self._living(session_id, now, user)
        if session is None:
            return no_session(session_id)
        # A repetition renews the deadline as well: it shows that the client is alive.
        self._alive(session_id, session, now)
        # Its reply is gone, so nobody knows whether it was applied. Applying it could be the second
        # time (I-33).
        if sequence <= session.floor:
            return _forgotten(session_id, sequence)
        return self._tables.notes.rows.get(_REPLY.pack(session_id, sequence))

    def keep(self, session_id: int, sequence: int, reply: bytes) -> None:
        """Keep the reply to a command that was just applied, because `reply_to` returned None."""
        session = self._sessions.get(session_id)
        if session is None:  # this very command has closed it
            return
        # One long reply would push all others out of the window.
        kept = reply if len(reply) <= LONGEST_KEPT_REPLY_BYTES else _too_long(len(reply))
        self._tables.put_note(_REPLY.pack(session_id, sequence), kept)
        # Sequences may arrive in any order, and the window drops the lowest first.
        insort(session.sequences, sequence)
        session.kept_bytes += len(kept)
        # The oldest replies make room; the floor rises, so their commands are never applied again.
        before = session.floor
        while len(session.sequences) > KEPT_REPLIES or session.kept_bytes > KEPT_REPLY_BYTES:
            session.floor = session.sequences[0]
            self._forget(session_id, session, 1)
        # The note is written only if it has changed: each note is a row of the next flush.
        if session.floor != before:
            self._note(session_id, session)

    # --- parts

    def _living(self, session_id: int, now: int, user: int) -> _SessionRecord | None:
        """Return a session that a user may use; None if there is none."""
        session = self._sessions.get(session_id)
        # The deadline decides, not the removal: `expire` may be behind.
        if session is None or session.deadline_ms <= now:
            return None
        # Looked at here and not at the port: the entry says which user it is on all members alike,
        # and a repetition must not even renew the deadline of a stranger's session.
        return session if session.owner == user else None

    def _find(self, session_id: int, now: int, user: int) -> _SessionRecord:
        session = self._living(session_id, now, user)
        if session is None:
            raise CommandError(no_session(session_id))
        return session

    def _alive(self, session_id: int, session: _SessionRecord, now: int) -> None:
        session.deadline_ms = now + session.timeout_ms
        self._timers.schedule(_ID.pack(session_id), session.deadline_ms)
        self._note(session_id, session)

    def _note(self, session_id: int, session: _SessionRecord) -> None:
        row = _SESSION.pack(session.timeout_ms, session.deadline_ms, session.floor)
        if session.owner:
            row += _ID.pack(session.owner)
        self._tables.put_note(_ID.pack(session_id), row)

    def _forget(self, session_id: int, session: _SessionRecord, count: int) -> None:
        """Forget the first `count` replies."""
        for sequence in session.sequences[:count]:
            key = _REPLY.pack(session_id, sequence)
            session.kept_bytes -= len(self._tables.notes.rows[key])
            self._tables.delete_note(key)
        del session.sequences[:count]

    def _end(self, session_id: int) -> int:
        # The last id stays: an id must never come back, or old commands would count as new.
        session = self._sessions.pop(session_id)
        count = len(session.sequences)
        self._forget(session_id, session, count)
        key = _ID.pack(session_id)
        self._timers.cancel(key)
        self._tables.delete_note(key)
        return count
