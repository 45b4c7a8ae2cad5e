"""Why elections begin, in a few words: the label of a figure needs a small, bounded set.

The reason itself is a sentence, with numbers of members and terms in it. It is in the log, and in
the entry that opens the term.
"""

from __future__ import annotations

from typing import Final

OTHER: Final = "other"

_CAUSES: Final = (
    ("node started", "start"),
    ("leader heartbeat timeout", "heartbeat-timeout"),
    ("log disconnected", "link-lost"),
    ("closed in order", "leader-closed"),
    ("closing in order", "leader-closed"),
    ("hands over", "handover"),
    ("takes over", "handover"),
    ("has given up", "leader-gave-up"),
    ("inactive follower quorum", "quorum-silent"),
    ("disk", "disk"),
    ("nothing is applied", "disk"),
    ("is in term", "newer-term"),
    ("leads term", "newer-term"),
    ("has log of term", "newer-term"),
    ("both lead term", "two-leaders"),
    ("live log", "live-log"),
    ("a batch of term", "live-log"),
)
"""Parts of reasons, and their words; the first that is found counts."""

CAUSES: Final = (*dict.fromkeys(word for _, word in _CAUSES), OTHER)
"""All words for causes."""


def cause_of(reason: str) -> str:
    """Return the word for the reason why a role ended."""
    return next((word for part, word in _CAUSES if part in reason), OTHER)
