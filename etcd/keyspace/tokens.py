"""Tokens of logins, so that all members know what one of them has given.

Only the digest of a token is here: who reads the log, a backup or a snapshot can't log in by it.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from ...storage.tables.deadlines import Deadlines
from ..messages import rpc_pb2 as rpc
from .notes import TOKEN_NOTES

if TYPE_CHECKING:
    from .rows import StateTables

__all__ = ["LIFE_MS", "MAX_TOKENS", "Tokens"]

LIFE_MS: Final = 360_000
"""How long a token is kept since its last renewal: the 300 s that it lives since it was shown, and
the time between two renewals, so that no member ends it early. Shorter, and tokens that are in use
are renewed more often; longer, and a lost token is good for longer at the other members."""

MAX_TOKENS: Final = 10_000
"""With one more, that goes which would end first, of the user that has the most. Fewer, and clients
of a large installation push out each other; more, and they take more memory and notes (300 bytes
each)."""

_MAX_ENDED: Final = 1000
"""Tokens that one batch removes. If larger, a batch may take longer than some milliseconds."""

_DEADLINE: Final = struct.Struct(">q")
_NEVER: Final = 1 << 62


class Tokens:
    """All tokens, by their digest. Deadlines are log time in milliseconds.

    Args:
        tables: their notes hold the tokens.
    """

    def __init__(self, tables: StateTables) -> None:
        self._tables = tables
        self._deadlines = Deadlines({}, tracked=False)
        self._of_users: dict[bytes, Deadlines] = {}

    def load(self) -> None:
        """Read the tokens from the notes."""
        deadlines: dict[bytes, int] = {}
        of_users: dict[bytes, dict[bytes, int]] = {}
        for key, row in self._tables.notes.rows.items():
            if key.startswith(TOKEN_NOTES):
                digest = key.removeprefix(TOKEN_NOTES)
                (deadlines[digest],) = _DEADLINE.unpack_from(row)
                of_users.setdefault(_token_of(row).name, {})[digest] = deadlines[digest]
        self._deadlines = Deadlines(deadlines, tracked=False)
        self._of_users = {name: Deadlines(found, tracked=False) for name, found in of_users.items()}

    def __len__(self) -> int:
        """Return how many tokens there are."""
        return len(self._deadlines.by_key)

    def put(self, token: rpc.Token, now_ms: int) -> None:
        """Keep a token for its whole life, whether it is new or not."""
        digest, deadline = token.digest, now_ms + LIFE_MS
        if digest in self._deadlines.by_key:
            self._remove(digest)
        elif len(self) >= MAX_TOKENS:
            self._make_room()
        self._deadlines.set(digest, deadline)
        self._of_users.setdefault(token.name, Deadlines({}, tracked=False)).set(digest, deadline)
        row = _DEADLINE.pack(deadline) + token.SerializeToString(deterministic=True)
        self._tables.put_note(TOKEN_NOTES + digest, row)

    def find(self, digest: bytes, now_ms: int) -> rpc.TokenFound:
        """Return whose token it is; with nothing to live if there is none."""
        left_ms = self._deadlines.by_key.get(digest, 0) - now_ms
        if left_ms <= 0:
            return rpc.TokenFound()
        row = self._tables.notes.rows[TOKEN_NOTES + digest]
        token = _token_of(row)
        return rpc.TokenFound(name=token.name, proof=token.proof, left_ms=left_ms)

    def advance(self, now_ms: int) -> None:
        """Note that a batch is applied: remove some tokens that are over."""
        for digest in self._deadlines.due(now_ms, _MAX_ENDED):
            self._remove(digest)

    def next_deadline_ms(self) -> int | None:
        """Return when log time must advance, so that a token ends; None without tokens."""
        return self._deadlines.first()

    def _make_room(self) -> None:
        # Else one user, who may do nothing but log in, could end the tokens of all others.
        most = max(self._of_users, key=lambda name: (len(self._of_users[name].by_key), name))
        self._remove(*self._of_users[most].due(_NEVER, 1))

    def _remove(self, digest: bytes) -> None:
        self._deadlines.set(digest, 0)
        name = _token_of(self._tables.notes.rows[TOKEN_NOTES + digest]).name
        self._of_users[name].set(digest, 0)
        if not self._of_users[name].by_key:
            del self._of_users[name]
        self._tables.delete_note(TOKEN_NOTES + digest)


def _token_of(row: bytes) -> rpc.Token:
    return rpc.Token.FromString(row[_DEADLINE.size :])
