"""Where a log is read from."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import attrs

__all__ = ["Connect", "Origin"]


@attrs.frozen
class Connect:
    """A running cluster.

    Args:
        members: client addresses of members, ``HOST:PORT,HOST:PORT``; the first one that answers
            names all members.
        member: read from this member only. None to prefer a follower, and to switch to another
            member when it is lost.
        security: path of a file with a table [security], on the machine of each task, if members
            ask who we are; empty if they do not.
    """

    members: str
    member: int | None = None
    security: str = ""


Origin: TypeAlias = Path | str | Connect
"""Where a log is read from: the directory of a member or a backup, or a running cluster."""
