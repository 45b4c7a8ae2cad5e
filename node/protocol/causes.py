"""Why elections begin, as a label: a figure needs a small, bounded set of values.

The reason itself is a sentence, with numbers of members and terms in it. It is in the log, and in
the entry that opens the term.
"""

from __future__ import annotations

from enum import StrEnum


class Cause(StrEnum):
    """Why a role ended; the values are labels of figures, so they stay as they are."""

    START = "start"
    HEARTBEAT_TIMEOUT = "heartbeat-timeout"
    LINK_LOST = "link-lost"
    LEADER_CLOSED = "leader-closed"
    HANDOVER = "handover"
    LEADER_GAVE_UP = "leader-gave-up"
    QUORUM_SILENT = "quorum-silent"
    DISK = "disk"
    NEWER_TERM = "newer-term"
    TWO_LEADERS = "two-leaders"
    LIVE_LOG = "live-log"
    OTHER = "other"
