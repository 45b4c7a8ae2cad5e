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
        members: where members listen for clients, ``HOST:PORT,HOST:PORT``; whoever of them answers
            names the others.
        member: read from this member only; None for a follower by preference, and another one when
            it is lost.
    """

    members: str
    member: int | None = None


Origin: TypeAlias = Path | str | Connect
"""Where a log is read from: the directory of a member or a backup, or a running cluster."""
