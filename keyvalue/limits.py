"""Bounds of the key-value store, with their reasons.

**Work.** What one request may cost is counted in nanoseconds of a nominal machine, from what is
equal on all members: numbers of commands, arguments and lookups, lengths of values. Never by the
clock, and never by where a record happens to lie, for a command that is refused on one member
must be refused on all. The figures were measured with records on disk, in the page cache.

Caveat: what bears on which commands are executed is a part of the state machine. Members with
different figures drift apart, so to change one is to change the format of the log.
"""

from typing import Final

MAX_VALUE_BYTES: Final = 32 << 20
"""A value: APPEND and SETRANGE could otherwise grow one beyond what a request or a batch holds."""

MAX_REPLY_BYTES: Final = 48 << 20
"""All replies to one request: MGET or a pipeline may name a big value again and again. A forwarded
reply must fit into one frame between members (64 MiB)."""

MAX_ARGUMENTS: Final = 65_536
"""Arguments of a command, its name included: about 0.1 s for the slowest, DEL of keys on disk."""

MAX_CONNECTION_ARGUMENTS: Final = 512
"""Arguments of a command that the connection answers, such as CONFIG GET."""

MAX_TRANSACTION_COMMANDS: Final = 10_000
"""Commands between MULTI and EXEC, which are one entry of the log: 0.03 s of SET, 0.06 s of slower
ones. etcd takes 128."""

MAX_WATCHED_KEYS: Final = 10_000
"""They are looked up once more by the EXEC that ends the watch."""

MAX_CONTROL_BYTES: Final = 1024
"""What an operator asks of the leader."""

MAX_WORK: Final = 80_000_000
"""What one request may cost, or one command more; the others are answered with an error. Ordinary
commands up to the bounds above cost less."""

PART_WORK: Final = 15_000_000
"""After so much work a pipeline's request ends, and the rest of it is another one."""

PART_REPLY_BYTES: Final = 1 << 20
"""And after so many bytes of replies."""

COMMAND_WORK: Final = 1500
ARGUMENT_WORK: Final = 200
LOOKUP_WORK: Final = 1000
"""To look for a record, besides its bytes."""

SMALL_BYTES: Final = 512
"""Up to here the bytes of a value are not counted."""

LARGE_BYTES: Final = 256 << 10
"""From here on values are copied to and from main memory, and in pages that are fresh."""

MAX_EXPIRED_PER_BATCH: Final = 1000
"""Keys that one record batch removes because their time has come; a few milliseconds of work."""

TICK_MS: Final = 1000
"""How far log time may fall behind while nobody writes and some key has an expiry."""

MAX_SCAN_COUNT: Final = 10_000
"""Keys that one SCAN looks at; COUNT is a hint."""

WALK_WORK: Final = 200_000
"""To begin to walk over keys. How far it goes is bounded otherwise, see :mod:`.walk`."""

MAX_WALKED_KEYS: Final = 51_200
"""Keys that the walks of one request look at, deleted ones that are not flushed yet among them:
0.1 s."""

MAX_PATTERN_BYTES: Final = 1024
"""To compile one takes a millisecond."""

MATCH_STEPS: Final = 2000
"""Bytes of keys times bytes of the pattern that count as much as to look at one more key. A match
may take so many steps with a nasty pattern."""

MAX_CURSORS: Final = 16_384
"""SCAN cursors that a member remembers; the oldest go first."""


MAX_SESSIONS: Final = 4096
"""Open at once. With the bounds on the replies of each they take 128 MiB of memory at most."""

DEFAULT_SESSION_MS: Final = 300_000
MIN_SESSION_MS: Final = 1000
MAX_SESSION_MS: Final = 86_400_000
"""Timeouts of sessions. The default outlives an outage of some minutes, in which no client can give
a sign of life."""

KEPT_REPLIES: Final = 128
"""Replies that a session keeps: more commands than a client has under way."""

KEPT_REPLY_BYTES: Final = 32 << 10
"""And their bytes, in all."""

LONGEST_KEPT_REPLY_BYTES: Final = 16 << 10
"""A longer one (of SET ... GET, GETDEL) is not kept; only that there was one."""

MAX_EXPIRED_SESSIONS: Final = 16
"""Sessions that one record batch removes because their time has come; with all that they keep, a
few milliseconds of work."""


RUN_COMMANDS: Final = 1000
RUN_BYTES: Final = 1 << 20
AT_ONCE_BYTES: Final = 64 << 10


def work_of_bytes(count: int) -> int:
    """What it costs to read a value of so many bytes and to reply with it, or to make one."""
    return 2 * count if count >= LARGE_BYTES else count >> 2
