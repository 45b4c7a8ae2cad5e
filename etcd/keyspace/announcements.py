"""Where each member listens for clients of etcd: it announces that in the log."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from ..messages import rpc_pb2 as rpc
from .notes import ANNOUNCEMENT_NOTES

if TYPE_CHECKING:
    from .rows import StateTables

__all__ = ["announce", "announcements"]

_ID: Final = struct.Struct(">I")


def announce(tables: StateTables, request: rpc.Announcement) -> None:
    """Keep what a member says of itself; it replaces what it said before."""
    key = ANNOUNCEMENT_NOTES + _ID.pack(request.member_id)
    tables.put_note(key, request.SerializeToString(deterministic=True))


def announcements(tables: StateTables) -> rpc.Announcements:
    """Return what all members have said, in the order of their ids."""
    rows = tables.notes.rows
    found = sorted(key for key in rows if key.startswith(ANNOUNCEMENT_NOTES))
    return rpc.Announcements(members=[rpc.Announcement.FromString(rows[key]) for key in found])
