"""A place in the log: the end of some batch, with the term of that batch."""

from __future__ import annotations

from typing import Final, NamedTuple


class LogEnd(NamedTuple):
    """How far a log goes: the term of its last batch, and the position behind that batch.

    The order is "more up to date" as Raft defines it (§5.4.1): the later term wins, then the
    longer log. A named tuple, since each append compares two of them.

    Args:
        term: leadership term; -1 if the log is empty.
        position: byte offset in the log.
    """

    term: int
    position: int


EMPTY_LOG: Final = LogEnd(-1, 0)
"""The end of an empty log, below every other end. As a bound it says "nothing": nothing lost, no
admission yet, a cluster that began without a log."""
