"""The building blocks of messages: widths and bounds of integers, and enumerations."""

from enum import IntEnum, IntFlag
from typing import Annotated, Final, TypeAlias, cast, get_args, get_origin

import attrs

NULL_VALUE: Final = -1
"""Stands for no term, no position, no member."""

PROTOCOL_VERSION: Final = (3 << 16) + 2
"""Major version in the upper 16 bits, minor in the lower; other majors are refused at the hello.

A member of version 1 has a row for each skipped term, too. A leader of version 2 does not list
these terms, and that member would truncate its log there. The hello of version 2 names neither
the store nor the dialler's address.

Version 3.0 knows neither credentials nor heartbeat requests, and ends a connection over which one
comes. So members send them only where both ends need them, or know them."""

HEARTBEAT_VERSION: Final = (3 << 16) + 1
"""The first version that answers a `HeartbeatRequest`."""

EVENTS_VERSION: Final = (3 << 16) + 2
"""The first version that shows its events to other members. One before takes a hello with that
purpose for a broken frame."""

MAX_TERM: Final = 1 << 62
"""Highest term that is accepted. A sum of two still fits 64 bits."""

MAX_POSITION: Final = 1 << 62
"""Highest position that is accepted, for the same reason."""

MAX_TIMESTAMP_MS: Final = 253_402_300_799_999
"""The end of the year 9999, the last that Python's calendar has."""

MAX_TERM_SPANS: Final = 512
"""Most terms in a NewLeadershipTerm."""

MAX_STRING_BYTES: Final = 256
"""Longest string in a message, as UTF-8."""


@attrs.frozen
class Integer:
    """The wire form of an integer field.

    Args:
        format: its letter for ``struct``.
        bounds: smallest and largest value, if that is less than the width allows. A frame with
            another value is refused.
        is_term: it is a term, which receivers compare with their own before they act on it.
    """

    format: str
    bounds: tuple[int, int] | None = None
    is_term: bool = False


I64: TypeAlias = Annotated[int, Integer("q")]
I32: TypeAlias = Annotated[int, Integer("i")]
U64: TypeAlias = Annotated[int, Integer("Q")]
U32: TypeAlias = Annotated[int, Integer("I")]
U8: TypeAlias = Annotated[int, Integer("B")]
Term: TypeAlias = Annotated[int, Integer("q", (NULL_VALUE, MAX_TERM), is_term=True)]
Position: TypeAlias = Annotated[int, Integer("q", (NULL_VALUE, MAX_POSITION))]
Milliseconds: TypeAlias = Annotated[int, Integer("q", (0, MAX_TIMESTAMP_MS))]
Clock: TypeAlias = Annotated[int, Integer("q", (NULL_VALUE, MAX_TIMESTAMP_MS))]
Count: TypeAlias = Annotated[int, Integer("q", (0, MAX_POSITION))]


def is_term(annotation: object) -> bool:
    """Whether a field with this annotation is a term."""
    return get_origin(annotation) is Annotated and cast("Integer", get_args(annotation)[1]).is_term


class VoteReason(IntEnum):
    """Why a member gave its vote, or refused it."""

    GRANTED = 0
    TERM = 1
    ALREADY_VOTED = 2
    LOG_NEWER = 3
    LEADER_ALIVE = 4
    BUSY = 5
    NO_VOTE = 6
    """Its store replaces a lost one, and is not admitted yet."""
    PROMISED = 7
    """It is bound by a promise to a leader: see :mod:`quorate.node.leader.lease`."""


class AppendFlags(IntFlag):
    """What an append position says besides the position."""

    NONE = 0
    CATCHUP = 1
    """The follower is catching up."""
    READY = 2
    """The new term is durably in the follower's term table."""
    INSTALL = 4
    """The follower installs a snapshot, and needs the log behind it afterwards."""
    NO_VOTE = 8
    """The follower has no vote and counts for no quorum."""
    NO_ROOM = 16
    """Little room is left on the follower's disk."""


class StreamPurpose(IntEnum):
    """What a connection is for."""

    CONSENSUS = 0
    CATCHUP = 1
    REPLAY = 2
    SNAPSHOT = 3
    BACKUP = 4
    HEARTBEAT = 5
    EVENTS = 6
    """Live events, for a member that shows the cluster to somebody; not for tools."""


class HelloStatus(IntEnum):
    """The answer to a hello."""

    ACCEPTED = 0
    WRONG_CLUSTER = 1
    WRONG_MEMBER = 2
    WRONG_VERSION = 3
    BUSY = 4
    REMOVED = 5
    """The dialler was a member and is none any more. Its id is never used again."""
    UNAUTHORISED = 6
    """The dialler has not proved that it may come in as what it says."""
