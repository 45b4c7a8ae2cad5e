"""What a request carries: the contract between clients' side and the state machine.

The port and the embedded store write payloads; :mod:`..service` executes them. Both must agree on
four things, so these stand in one file:

**The payload** is RESP as clients send it: commands, each an array of bulk strings, one after the
other. The reply is the join of their replies.

**The flags** travel in the request and in the log entry. They choose the protocol of the reply
(:data:`RESP3`), make the payload one transaction (:data:`TRANSACTION`), or allow the state machine
to stop in the middle (:data:`IN_PARTS`). One flag stands alone, :data:`ETCD`.

**A partial reply** begins with :data:`PART` and the number of commands that were executed; see
:func:`part`. The sender then submits the rest as its next request. In a partition, a frozen slot
ends a payload like that, whatever the flags; see :data:`FROZEN`.

**The watch.** As a query, ``WATCH key ...`` returns revisions. At the head of a transaction,
``WATCH key condition ...`` names the revision that each key must still have.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Final, Literal, cast

import hiredis

from ...errors import WireError
from ..limits import MAX_ARGUMENTS
from ..native.resp_reader import split_untrusted
from .resp import at_end, bulk_array, pack

__all__ = [
    "ETCD",
    "FROZEN",
    "IN_PARTS",
    "PART",
    "RESP3",
    "TRANSACTION",
    "PayloadParser",
    "encode_part",
    "part",
    "still_holds",
    "watch_condition",
    "watch_query",
    "watched_keys",
]

RESP3: Final = 1
"""Flag: reply in RESP3."""
TRANSACTION: Final = 2
"""Flag: the payload is the body of MULTI and EXEC; the reply is one array."""
IN_PARTS: Final = 4
"""Flag: the state machine may stop after some commands. Set only where the sender can resume."""
ETCD: Final = 8
"""Flag: the payload is no RESP at all, but a request of the second keyspace (`..keyspace`)."""

PART: Final = b"\0"
"""First byte of a partial reply. No RESP value begins with it."""

_OR_ABSENT: Final = b"?"


def encode_part(count: int, replies: bytes) -> bytes:
    """Encode the replies to the first `count` commands of a payload that was executed in part."""
    return b"%b%d\r\n%b" % (PART, count, replies)


FROZEN: Final = encode_part(0, b"")
"""The reply to a payload whose first command, or any one of a transaction, has a frozen slot.

Nothing was executed, and nothing was kept: wait for the move to end, and send the same again."""


def part(reply: bytes, count: int) -> tuple[int, bytes]:
    """Return how many of `count` commands a reply answers, and their replies alone."""
    if not reply.startswith(PART):
        return count, reply
    done, _, replies = reply[1:].partition(b"\r\n")
    return int(done), replies


# --- the watch


def watch_query(keys: Sequence[bytes]) -> bytes:
    """Encode the query for the revisions of keys."""
    return bulk_array([b"WATCH", *keys])


def watch_condition(revision: int, *, or_absent: bool) -> bytes:
    """Encode the revision that a key must have for EXEC to run; 0 for an absent key.

    Args:
        revision: of the key when it was watched.
        or_absent: the key may also be gone.
    """
    return b"%d%b" % (revision, _OR_ABSENT if or_absent else b"")


def still_holds(condition: bytes, revision: int) -> bool:
    """Whether a key with this revision, 0 for an absent one, meets a condition of a watch."""
    if condition.endswith(_OR_ABSENT):
        return not revision or condition[:-1] == b"%d" % revision
    return condition == b"%d" % revision


def watched_keys(watch: Sequence[bytes]) -> Sequence[bytes]:
    """Return the keys in ``WATCH key condition ...``."""
    return watch[1::2]


# --- commands

_SHORT_BYTES: Final = 4096
_LISTS: Final = frozenset((list,))
_STRINGS: Final = frozenset((bytes,))


class PayloadParser:
    """Splits payloads into commands. It keeps a hiredis reader: to make one costs a command's time.

    The client port has bounded all sizes before anything reaches this class.

    Caveat: hiredis lets a command argument be of another type than a bulk string (``:5``, ``+a``).
    Numbers, nulls and nested arrays are refused here; simple strings pass as bytes.
    """

    def __init__(self) -> None:
        self._reader = hiredis.Reader()

    def parse_untrusted(self, payload: bytes) -> list[list[bytes]]:
        """Split a payload into its commands, each a list of at least one argument.

        Empty arrays are left out: like Redis, nothing answers them.

        Raises:
            WireError: it is not a whole number of arrays of strings.
        """
        plain, end = split_untrusted(payload, MAX_ARGUMENTS)
        if plain and end == len(payload):
            return plain
        reader = self._reader
        try:
            reader.feed(payload)
            first = cast("list[bytes] | Literal[False]", reader.gets(False))
            # Usually this is one short command. If its encoding equals the payload, nothing else
            # is in there, and the checks below are not needed.
            if first and len(payload) <= _SHORT_BYTES and pack(tuple(first)) == payload:
                return [first]
            rest = cast("list[list[bytes]]", iter(reader.gets, False))
            commands = [] if first is False else [first, *rest]
            whole = at_end(reader)
        except (hiredis.ProtocolError, TypeError) as broken:
            self._reader = hiredis.Reader()  # the old one stays in its failed state
            raise WireError(f"a payload is not RESP: {broken}") from broken
        # Types are compared through sets of types: that runs in C, a loop over arguments would not.
        if not (
            whole
            and _LISTS.issuperset(map(type, commands))
            and _STRINGS.issuperset(map(type, chain.from_iterable(commands)))
        ):
            self._reader = hiredis.Reader()
            raise WireError("a payload holds something else than whole arrays of strings")
        return commands if all(commands) else [args for args in commands if args]
