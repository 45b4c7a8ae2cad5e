"""Every error that quorate raises on purpose, as one tree.

::

    QuorateError
    ├── ConfigurationError          a setting is missing, unknown or out of range
    │   └── UsageError              so is an argument of a command
    ├── UnsupportedError            a client has no such method or command; the message says why
    ├── StorageError                the store on disk
    │   ├── StoreMismatchError      it belongs to another cluster or member, or to a newer format
    │   ├── StoreBusyError          another process has it open
    │   ├── StoreAccessError        the system refuses access to it
    │   ├── LostStoreError          it is new, but the cluster has a history; or its vote is damaged
    │   ├── DamagedRecordError      a recorded batch does not match its checksum, key or term
    │   ├── DamagedTablesError      the tables are damaged; they are rebuilt from the log
    │   ├── PrunedError             the position is older than the oldest one kept
    │   └── StoreFullError          the disk is full
    ├── TransportError              links between members
    │   ├── WireError               bytes from outside are not a valid frame or message
    │   └── HandshakeError          the other end is of another cluster, or another member
    ├── LeaseLostError              a lock, or what else rests on a lease, was lost
    ├── RemovedError                this member was removed from its cluster
    ├── HistoryError                a recorded history is malformed, or has unknown operations
    ├── RecordingError              a file is no recording of what members did, or is damaged
    ├── SafetyViolationError        the member saw what the protocol rules out, and stopped
    └── RequestError                a command or query of a client
        ├── NoLeaderError           it was not sent: no leader was found in time
        ├── UnknownOutcomeError     it was sent, and its outcome will not be known
        ├── ConflictError           a key that a transaction has read was changed; nothing was done
        ├── CallError               a method of a replicated object has raised; nothing was done
        ├── WatchLostError          a watch can't go on without a gap; it says from where it could
        ├── RefusedError            an operator's request is not possible now; nothing changed
        ├── OversizedRequestError   it is larger than the member accepts
        └── KeyValueError           the key-value store answered with an error
            └── CrossSlotError      keys of several slots, where partitions allow only those of one

``except quorate.RequestError`` catches every way in which a request can fail. Each class is a name
of ``quorate``, too.

Not in the tree: ``OSError`` and broken connections, which the code that retries handles; and the
errors of redis-py that `SessionRedis` raises, since its callers expect those. Any other exception
is a bug, and ends the member.
"""

import re
from collections.abc import Iterator
from typing import Final, Self, cast

_DAMAGED: Final = re.compile(
    r"\bmember (-?\d+): damaged record at term (-?\d+), position (-?\d+): (.*)"
)


class QuorateError(Exception):
    """Base of every error that quorate raises on purpose."""


class ConfigurationError(QuorateError):
    """A setting is missing, unknown or out of range. The message gives what was expected."""


class UsageError(ConfigurationError):
    """A command was called with a wrong argument. The message gives what was expected."""


class UnsupportedError(QuorateError, NotImplementedError):
    """A client has no such method or command. The message says which promise it would break."""


class StorageError(QuorateError):
    """The store on disk cannot be opened, read or written."""


class StoreMismatchError(StorageError):
    """The store is of another cluster, member or format. The message names both."""


class StoreBusyError(StorageError):
    """Another process has the store open."""


class StoreAccessError(StorageError):
    """The system refuses access to the store: a permission, a read-only file system."""


class LostStoreError(StorageError):
    """The store is new although the cluster has a history: it replaces one that was lost.

    It is also raised if the record of its vote is damaged. Such a member may not vote, since it
    forgot its promises. ``quorate recover`` asks the other members to admit it.
    """


class DamagedRecordError(StorageError):
    """A recorded batch does not match its checksum, its key or its term.

    Args:
        member_id: the member that owns the store.
        term: leadership term in the key of the record.
        position: log position in the key of the record.
        reason: what was found and what was expected.
    """

    def __init__(self, *, member_id: int, term: int, position: int, reason: str) -> None:
        super().__init__(
            f"member {member_id}: damaged record at term {term}, position {position}: {reason}"
        )
        self.member_id = member_id
        self.term = term
        self.position = position
        self.reason = reason

    @classmethod
    def quoted_in(cls, text: str) -> Self | None:
        """Read the error back from a text that quotes it, or return None.

        Spark passes an error of a worker process on as the text of its traceback. The object and
        its type are lost on the way.
        """
        found = _DAMAGED.search(text)
        if found is None:
            return None
        member_id, term, position = (int(number) for number in found.groups()[:3])
        return cls(member_id=member_id, term=term, position=position, reason=found[4])


class DamagedTablesError(StorageError):
    """The materialised tables are damaged.

    Nothing is lost: the log and its snapshots hold the same data. The next start drops the tables
    and rebuilds them.
    """


class PrunedError(StorageError):
    """The position is older than the oldest one kept: a snapshot replaced that part of the log."""


class StoreFullError(StorageError):
    """The disk is full. Nothing of this write was written."""


class TransportError(QuorateError):
    """A link between members failed."""


class WireError(TransportError):
    """Bytes from outside are not a valid frame or message."""


class HandshakeError(TransportError):
    """The other end is of another cluster, speaks another protocol, or is another member.

    Attributes:
        status: the number of the `HelloStatus` with which it refused us; None if it did not.
        reason: in its own words; empty if it did not refuse us.
    """

    def __init__(self, text: str, status: int | None = None, reason: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.reason = reason


class HistoryError(QuorateError):
    """A recorded history is malformed, or has an operation that the checker does not know."""


class RecordingError(QuorateError):
    """A file is no recording of what members did, or has a line that is none of its events."""


class SafetyViolationError(QuorateError):
    """The member saw what the protocol rules out. It stops, so that no data is lost."""


class LeaseLostError(QuorateError):
    """A lock, a leadership or a place was lost while its block ran; the block was cancelled.

    Its lease could not be renewed in time, or somebody has deleted it. What the block has done may
    be concurrent with the work of the next owner; fencing tokens tell them apart.
    """


class RemovedError(QuorateError):
    """The member was removed from the cluster. It stops, and never comes back under this id."""


class RequestError(QuorateError):
    """A command or query of a client failed."""


class NoLeaderError(RequestError):
    """No leader was found in time. The request was not sent, and never takes effect."""


class UnknownOutcomeError(RequestError):
    """The command was sent, but its reply is lost. It may or may not take effect."""


class ConflictError(RequestError):
    """A key that a transaction has read was changed before its commit. Nothing was done."""


class CallError(RequestError):
    """A method of a replicated object has raised an exception. Nothing was done, on no member.

    Attributes:
        method: object and name, as it was called.
        kind: name of the exception's class.
        text: the exception's own words.
    """

    def __init__(self, method: str, kind: str, text: str) -> None:
        super().__init__(f"{method}: {kind}: {text}")
        self.method = method
        self.kind = kind
        self.text = text


class WatchLostError(RequestError):
    """A watch can't go on without a gap.

    The reader was too slow, or the position is older than what the members have kept.

    Attributes:
        after: the position up to which all changes were returned.
        oldest: the oldest position from which a watch can begin now. If `after` is not below it,
            ``watch(prefix, after=error.after)`` continues without a gap. Otherwise read the keys
            again, and watch from there.
    """

    def __init__(self, text: str, *, after: int, oldest: int) -> None:
        super().__init__(text)
        self.after = after
        self.oldest = oldest


class RefusedError(RequestError):
    """An operator's request is not possible now. Nothing changed; the message says why."""


class OversizedRequestError(RequestError):
    """The request is larger than the member accepts. It was not done."""


class KeyValueError(RequestError):
    """The key-value store answered a command with an error. The command changed nothing.

    The message is the text of the reply in Redis' words, with its code first: ``ERR syntax error``.
    """

    @property
    def code(self) -> str:
        """The first word of the reply: ``ERR``, ``NOAUTH``, ``WRONGTYPE``."""
        return str(self).partition(" ")[0]


class CrossSlotError(KeyValueError):
    """A call has keys of several slots, and in a cluster with partitions it may have those of one.

    Nothing was done. The message names two of the keys, their slots and partitions. Keys with the
    same text in braces, such as ``{order 7}:state`` and ``{order 7}:total``, have the same slot.
    """


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors in a tree of exception groups; a single error yields itself."""
    if isinstance(error, BaseExceptionGroup):
        for inner in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from leaves(inner)
    else:
        yield error


def check_interpreter() -> None:
    """Refuse ``python -O`` and ``PYTHONOPTIMIZE``.

    Raises:
        ConfigurationError: assertions are off.
    """
    # Assertions carry safety checks: without them a member could go on with broken invariants.
    if not __debug__:
        raise ConfigurationError(
            "Python runs with assertions off (-O or PYTHONOPTIMIZE), but quorate guards its data "
            "with assertions: start it without -O, and with PYTHONOPTIMIZE unset"
        )
