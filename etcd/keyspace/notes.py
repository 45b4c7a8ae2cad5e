"""Keys of the notes of this state. Notes of other parts begin with other bytes."""

from typing import Final

from ...keyvalue.state.sessions import OTHER_NOTES

__all__ = [
    "ANNOUNCEMENT_NOTES",
    "CLOCK_NOTE",
    "COMPACTION_NOTE",
    "LEASE_NOTES",
    "TOKEN_NOTES",
    "is_etcd_note",
]

_ETCD: Final = OTHER_NOTES + b"etcd:"

LEASE_NOTES: Final = _ETCD + b"lease:"
"""With the id of a lease behind it."""

CLOCK_NOTE: Final = _ETCD + b"clock"

COMPACTION_NOTE: Final = _ETCD + b"compaction"

TOKEN_NOTES: Final = _ETCD + b"token:"
"""With the digest of a token behind it."""

ANNOUNCEMENT_NOTES: Final = _ETCD + b"member:"
"""With the id of a member behind it."""


def is_etcd_note(key: bytes) -> bool:
    """Say whether a note is one of this state."""
    return key.startswith(_ETCD)
