"""What the fields of messages are made of: widths of integers, bounds, and words with a number."""

from enum import IntEnum, IntFlag
from typing import Annotated, Final, TypeAlias

import attrs

NULL_VALUE: Final = -1
"""No such term, position or member."""

PROTOCOL_VERSION: Final = 2 << 16
"""Major version in the upper 16 bits, minor in the lower; other majors are refused at the hello.

A member of version 1 gives terms that were skipped a row each, and would drop its log where a
leader of version 2 does not list them."""

MAX_TERM: Final = 1 << 62
"""No term is higher. So a sum of two still fits into 64 bits."""

MAX_POSITION: Final = 1 << 62
"""No log is longer."""

MAX_TIMESTAMP_MS: Final = 253_402_300_799_999
"""The end of the year 9999, behind which no calendar goes."""

MAX_TERM_SPANS: Final = 512
"""Most terms that a NewLeadershipTerm lists."""

MAX_STRING_BYTES: Final = 256
"""Longest string in a message, as UTF-8."""


@attrs.frozen
class Integer:
    """The wire form of an integer field.

    Args:
        format: its letter in the language of ``struct``.
        bounds: its least and its largest value, where that is less than what the width takes; a
            frame with another one is refused.
    """

    format: str
    bounds: tuple[int, int] | None = None


I64: TypeAlias = Annotated[int, Integer("q")]
I32: TypeAlias = Annotated[int, Integer("i")]
U64: TypeAlias = Annotated[int, Integer("Q")]
U8: TypeAlias = Annotated[int, Integer("B")]
Term: TypeAlias = Annotated[int, Integer("q", (NULL_VALUE, MAX_TERM))]
Position: TypeAlias = Annotated[int, Integer("q", (NULL_VALUE, MAX_POSITION))]
Milliseconds: TypeAlias = Annotated[int, Integer("q", (0, MAX_TIMESTAMP_MS))]
Clock: TypeAlias = Annotated[int, Integer("q", (NULL_VALUE, MAX_TIMESTAMP_MS))]
Count: TypeAlias = Annotated[int, Integer("q", (0, MAX_POSITION))]


class VoteReason(IntEnum):
    """Why a member gave its vote, or did not."""

    GRANTED = 0
    TERM = 1
    ALREADY_VOTED = 2
    LOG_NEWER = 3
    LEADER_ALIVE = 4
    BUSY = 5
    NO_VOTE = 6
    """Its store stands in the place of a lost one, and was not admitted yet."""
    PROMISED = 7
    """It has promised a leader not to, for a while: see :mod:`quorate.node.leader.lease`."""


class AppendFlags(IntFlag):
    """What an append position is about."""

    NONE = 0
    CATCHUP = 1
    """The follower is catching up."""
    READY = 2
    """The new term is in the follower's recording log, durably."""
    INSTALL = 4
    """The follower installs a snapshot, and will need the log behind it."""
    NO_VOTE = 8
    """The follower counts for no quorum."""


class StreamPurpose(IntEnum):
    """What a connection is opened for."""

    CONSENSUS = 0
    CATCHUP = 1
    REPLAY = 2
    SNAPSHOT = 3
    BACKUP = 4


class HelloStatus(IntEnum):
    """How a hello was received."""

    ACCEPTED = 0
    WRONG_CLUSTER = 1
    WRONG_MEMBER = 2
    WRONG_VERSION = 3
    BUSY = 4
