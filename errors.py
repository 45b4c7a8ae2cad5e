"""Every error that quorate raises on purpose, as one tree.

::

    QuorateError
    ├── ConfigurationError          a setting is missing, unknown or out of range
    │   └── UsageError              an argument of a command is
    ├── UnsupportedError            a client has no such method or command; the message says why
    ├── StorageError                the store on disk
    │   ├── StoreMismatchError      it belongs to another cluster or member, or to a newer format
    │   ├── StoreBusyError          another process has it open
    │   ├── StoreAccessError        the system refuses access to it
    │   ├── LostStoreError          it is new, but the cluster has a history; or its vote is damaged
    │   ├── DamagedRecordError      a recorded batch does not match its checksum, key or term
    │   ├── DamagedTablesError      the materialised tables are damaged; they can be made anew
    │   ├── PrunedError             a position below the oldest one that is kept
    │   └── StoreFullError          the disk has no room
    ├── TransportError              links between members
    │   ├── WireError               bytes from outside that are not a valid frame or message
    │   └── HandshakeError          the other end is of another cluster, or not the member we called
    ├── HistoryError                a recorded history that is none, or is of unknown operations
    ├── SafetyViolationError        something that the protocol rules out was seen: the member stops
    └── RequestError                a command or query of a client
        ├── NoLeaderError           it was not sent: no leader was found in time
        ├── UnknownOutcomeError     it was sent and its outcome will not be known
        ├── RefusedError            what an operator asked for can't be done now; nothing changed
        ├── OversizedRequestError   it is larger than the member takes
        └── KeyValueError           the key-value store answered with an error

Expected trouble of the outside world (``OSError``, a broken connection) is handled where the
retry is and does not appear here. Anything else that rises is a bug, and ends the member.
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
    """A setting is missing, unknown or out of range; named with its value and what was expected."""


class UsageError(ConfigurationError):
    """A command was called with a wrong argument; named with its value and what was expected."""


class UnsupportedError(QuorateError, NotImplementedError):
    """A client has no such method or command, since it could not keep its promises; says why."""


class StorageError(QuorateError):
    """The store on disk can't do what was asked."""


class StoreMismatchError(StorageError):
    """A store of another cluster, member or format; says what was found and what expected."""


class StoreBusyError(StorageError):
    """Another process has the store open."""


class StoreAccessError(StorageError):
    """The system refuses access to the store: a permission, a read-only file system."""


class LostStoreError(StorageError):
    """The store is new, but the cluster has a history: it stands in the place of a lost one.

    Or what it has promised is damaged, which is as good as lost.
    It may not vote as if nothing had been; ``quorate recover`` has it admitted by the others.
    """


class DamagedRecordError(StorageError):
    """A recorded batch does not match its checksum, its key or its term.

    Args:
        member_id: whose store it is.
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

        Spark hands on what a process of its own has raised as the text of a traceback, and so
        neither the object nor its type.
        """
        found = _DAMAGED.search(text)
        if found is None:
            return None
        member_id, term, position = (int(number) for number in found.groups()[:3])
        return cls(member_id=member_id, term=term, position=position, reason=found[4])


class DamagedTablesError(StorageError):
    """The materialised tables are damaged.

    They say nothing that the log and its snapshots do not: when they are opened again they are
    thrown away and made anew.
    """


class PrunedError(StorageError):
    """A position was asked for that is below the oldest one kept."""


class StoreFullError(StorageError):
    """The disk has no room for what was to be written; nothing of it was written."""


class TransportError(QuorateError):
    """A link between members."""


class WireError(TransportError):
    """Bytes from outside that are not a valid frame or message."""


class HandshakeError(TransportError):
    """The other end is of another cluster, speaks another protocol, or is not whom we called."""


class HistoryError(QuorateError):
    """A recorded history is not one, or holds an operation that the checker does not know."""


class SafetyViolationError(QuorateError):
    """Something that the protocol rules out was seen: the member stops, rather than lose data."""


class RequestError(QuorateError):
    """A command or query of a client was not answered."""


class NoLeaderError(RequestError):
    """The request was not sent, since no leader was found in time: it has no effect, ever."""


class UnknownOutcomeError(RequestError):
    """The command was sent and its outcome will not be known: it may or may not take effect."""


class RefusedError(RequestError):
    """What an operator asked for can't be done now; nothing has changed. The message says why."""


class OversizedRequestError(RequestError):
    """The request is larger than the member takes; nothing of it was done."""


class KeyValueError(RequestError):
    """The key-value store answered a command with an error; the command changed nothing.

    The message is the reply's text as Redis words it, its code first: ``ERR syntax error``.
    """

    @property
    def code(self) -> str:
        """The first word of the reply: ``ERR``, ``NOAUTH``, ``WRONGTYPE``."""
        return str(self).partition(" ")[0]


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield what is at the ends of a tree of exception groups; an error of its own is its leaf."""
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
