"""Exactly-once calls: the last reply of each program, as a part of the state.

A program sends one batch of calls at a time, and numbers them. So the state machine keeps one
reply per program: a batch with the number of that reply was applied, and is answered with it. (Raft
dissertation, section 6.3; `keyvalue/state/sessions.py` does it for many batches at a time.)

A session has no timeout. When there are too many, the one that was used least recently is dropped.
A program whose session is gone learns that, and opens another one.
"""

from __future__ import annotations

from typing import Final

import msgspec

from . import wire

__all__ = ["MAX_SESSIONS", "Sessions"]

MAX_SESSIONS: Final = 1024
"""If smaller, programs that pause lose their sessions. If larger, snapshots grow."""

LONGEST_KEPT: Final = 64 << 10
"""Bytes of a kept reply. If smaller, a lost reply is lost for more calls. If larger, so are
snapshots."""


class Session(msgspec.Struct, array_like=True):
    """The last batch of one program.

    Args:
        sequence: its number; 0 before the first.
        reply: to it.
    """

    sequence: int = 0
    reply: bytes = b""


class Sessions:
    """All sessions, the least recently used one first."""

    def __init__(self) -> None:
        self.by_id: dict[int, Session] = {}

    def open(self, session: int) -> bytes:
        """Open a session with an id that never came before; return the reply."""
        while len(self.by_id) >= MAX_SESSIONS:
            del self.by_id[next(iter(self.by_id))]
        self.by_id[session] = Session()
        return wire.encode(wire.Opened(session))

    def reply_to(self, session: int, sequence: int) -> bytes | None:
        """Return the reply to a batch that must not be applied; None if it must be."""
        found = self.by_id.get(session)
        # Not the next one: it comes from a session of that id in a state that was lost, such as
        # one of before a restore.
        if found is None or sequence not in (found.sequence, found.sequence + 1) or not sequence:
            return wire.encode(wire.SessionLost())
        return found.reply if sequence == found.sequence else None

    def keep(self, session: int, sequence: int, reply: bytes) -> None:
        """Keep the reply to a batch that was just applied."""
        kept = reply if len(reply) <= LONGEST_KEPT else wire.encode(wire.TooLong())
        self.by_id.pop(session, None)
        self.by_id[session] = Session(sequence, kept)
