"""Bounds of the key-value store, with their reasons.

Work
    What one request may cost is counted in nanoseconds of a nominal machine. It is computed from
    what is equal on all members: numbers of commands, arguments and lookups, lengths of values. It
    is never measured by the clock, and never depends on where a record happens to lie. Otherwise
    a command could be refused on one member and executed on another. The figures were measured
    with records on disk, in the page cache.

Caveat
    A bound that decides which commands are executed is part of the state machine. Members with
    different figures drift apart, so changing one is changing the format of the log. Bounds of the
    clients' side stand at the end of the file; they may differ.
"""

from typing import Final

# --- part of the state machine: sizes

MAX_VALUE_BYTES: Final = 32 << 20
"""A value. Without it, APPEND and SETRANGE could grow one beyond what a batch can hold."""

MAX_REPLY_BYTES: Final = 48 << 20
"""All replies to one request: MGET or a pipeline may name a big value again and again. A forwarded
reply must fit into one frame between members (64 MiB)."""

# --- part of the state machine: work

MAX_WORK: Final = 80_000_000
"""Work of one request, or of a single command; commands beyond it are answered with an error.
Smaller, and ordinary commands up to the bounds above would be refused; larger, and one request
could hold up the member's heartbeats."""

PART_WORK: Final = 15_000_000
"""After this much work a pipeline's request ends, and its rest becomes another request. Smaller,
and long pipelines take more entries; larger, and other clients wait longer."""

PART_REPLY_BYTES: Final = 1 << 20
"""It also ends after this many bytes of replies."""

COMMAND_WORK: Final = 1500
ARGUMENT_WORK: Final = 200
LOOKUP_WORK: Final = 1000
"""Looking for a record, without its bytes."""

SMALL_BYTES: Final = 512
"""Values up to this length cost no work of their own."""

LARGE_BYTES: Final = 256 << 10
"""From this length on a value costs more per byte: it does not fit the processor's caches, and its
memory is fresh from the system."""

# --- part of the state machine: expiry

MAX_EXPIRED_PER_BATCH: Final = 1000
"""Expired keys that one batch of the log removes: a few milliseconds of work. Fewer, and expired
records pile up under many short-lived keys."""

TICK_MS: Final = 1000
"""How far log time may fall behind while nobody writes and some key has an expiry. Smaller, and an
idle cluster writes more; larger, and keys live on longer than their expiry."""

# --- walks over keys

MAX_SCAN_COUNT: Final = 10_000
"""Keys that one SCAN looks at; its COUNT is only a hint."""

WALK_WORK: Final = 200_000
"""Beginning a walk. How far it goes is bounded by `MAX_WALKED_KEYS`, see :mod:`.commands.walk`."""

MAX_WALKED_KEYS: Final = 51_200
"""Keys that the walks of one request look at, with deleted ones that are not flushed yet: 0.1 s."""

MAX_PATTERN_BYTES: Final = 1024
"""A glob pattern. Compiling one of this length takes a millisecond."""

MATCH_STEPS: Final = 2000
"""This many bytes of keys times bytes of the pattern count like looking at one more key. A match
with an adverse pattern really takes that many steps."""

MAX_CURSORS: Final = 16_384
"""SCAN cursors that a member remembers; the oldest are dropped first. A scan whose cursor was
dropped starts again."""

# --- part of the state machine: sessions

MAX_SESSIONS: Final = 4096
"""Open sessions. With the bounds on kept replies, all of them take at most 128 MiB of memory."""

DEFAULT_SESSION_MS: Final = 300_000
MIN_SESSION_MS: Final = 1000
MAX_SESSION_MS: Final = 86_400_000
"""Timeouts of sessions. No client can keep its session alive during an outage; the default outlives
one of some minutes."""

KEPT_REPLIES: Final = 128
"""Replies that a session keeps. It must exceed the number of commands a client has in flight:
otherwise a repeated command can find its reply forgotten."""

KEPT_REPLY_BYTES: Final = 32 << 10
"""Bytes of these replies together."""

LONGEST_KEPT_REPLY_BYTES: Final = 16 << 10
"""A longer reply (SET ... GET, GETDEL) is not kept, only the fact that there was one."""

MAX_EXPIRED_SESSIONS: Final = 16
"""Timed-out sessions that one batch of the log removes, with all their replies: a few milliseconds
of work."""

# --- the clients' side: members may differ

MAX_ARGUMENTS: Final = 65_536
"""Arguments of a command, its name included. The slowest command with this many, DEL of keys on
disk, takes about 0.1 s."""

MAX_TRANSACTION_COMMANDS: Final = 10_000
"""Commands between MULTI and EXEC, which form one log entry: 0.03 s of SET, 0.06 s of slower
commands. etcd takes 128."""

MAX_WATCHED_KEYS: Final = 10_000
"""Keys that a client watches. EXEC looks up each of them again."""

MAX_CLIENT_WATCHES: Final = 1000
"""Watches (QUORATE.WATCH) of one connection. A program that shares one connection needs one for
each of its caches and locks; each wakes up with every batch of the log."""

MAX_WATCHES: Final = 10_000
"""Those of all connections of a member. If a write concerns all of them, waking them and the pushes
take half a second of the member's processor, in slices of three milliseconds."""

MAX_CONNECTION_ARGUMENTS: Final = 512
"""Arguments of a command that the connection answers, such as CONFIG GET."""

MAX_CONTROL_BYTES: Final = 1024
"""An operator's request to the leader."""

RUN_COMMANDS: Final = 1000
"""Commands of a pipeline that travel as one request. An entry is applied in one go, so this bounds
a stretch of work to a few milliseconds."""

RUN_BYTES: Final = 1 << 20
"""Bytes of such a run. A longer one would gain nothing: its cost is that of the bytes."""

AT_ONCE_BYTES: Final = 64 << 10
"""Bytes of a joined request, and of replies that are handled in one go: one or two milliseconds.
Smaller, and a busy turn takes more entries of the log; larger, and other tasks wait longer."""


def work_of_bytes(count: int) -> int:
    """The work of reading a value of `count` bytes and replying with it, or of making one."""
    # per byte: a quarter of a nanosecond in the caches, two in main memory
    return 2 * count if count >= LARGE_BYTES else count >> 2


MOST_SKEW_MS: Final = 1000
"""Milliseconds by which log time of a move's target may be behind that of its source. So much
earlier leases may end at the target. Less, and groups whose leaders have ordinary clocks can't move
slots. More, and a wrong clock of one group ends the leases of another one."""
