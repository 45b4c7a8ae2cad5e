"""Transactions: reads first, then all writes at once, if nothing that was read has changed.

The idea
    Optimistic, as in Redis (WATCH, MULTI, EXEC) and in software transactional memory. A block reads
    through its transaction, which notes the revision of each key: the log position of its last
    change. Writes are queued. At the end of the block one request carries the revisions and the
    writes. The state machine compares them before it executes anything, so the whole takes place at
    one point of the log, or not at all. No lock is held while the block runs.

What a block sees
    The state before the transaction, without its own writes. A key is read from the store once;
    after that the block gets the same again. Two reads may be of different points of the log. Then
    what they show together may never have been true, but such a block never commits.

Conflicts
    The commit of a transaction fails if another one has changed a key that it has read. Under much
    contention a transaction may fail often; `KeyValue.transact` runs it again after a random pause.
    For a single key there are cheaper ways without conflicts: INCR, or `compare_and_set`.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import Final, Protocol, Self

from ...errors import ConflictError, KeyValueError, OversizedRequestError
from ..access.commands import CHANGES
from ..commands.table import Kind
from ..limits import MAX_TRANSACTION_COMMANDS, MAX_WATCHED_KEYS
from ..protocol import resp
from ..protocol.payload import watch_condition
from ..protocol.resp import word_of
from .encoding import (
    Argument,
    Text,
    command_of,
    decoded,
    expiry_words,
    integer_in,
    integer_of,
    list_of,
    set_words,
    words_of,
)
from .records import Record

__all__ = ["Commit", "Transaction"]

_POSITION: Final = resp.encode_command(["QUORATE.POSITION"])
_NOT_HERE: Final = CHANGES | {"quorate.session"}
_COMMANDS: Final = MAX_TRANSACTION_COMMANDS - 1  # the last one is ours


class Commit(Protocol):
    """Sends the payload of a transaction."""

    def __call__(self, payload: bytes, *, writes: bool) -> Awaitable[bytes]:
        """Send it to the log if it writes, else as a query; return the reply."""
        ...


class Transaction:
    """One transaction, an async context manager; made by :meth:`KeyValue.transaction`.

    The end of the block commits it. An exception that leaves the block discards it. If a queued
    command fails (INCR of a text), the other ones take effect all the same, as in Redis, and
    :class:`~quorate.errors.KeyValueError` is raised.

    Attributes:
        results: after the commit, the replies to the queued commands, in order.
        position: after the commit, its log position; 0 if nothing was to be written.
    """

    def __init__(
        self,
        read: Callable[[Sequence[Text]], Awaitable[list[Record | None]]],
        commit: Commit,
    ) -> None:
        self.results: list[resp.Reply] = []
        self.position: int = 0
        self._fetch, self._send = read, commit
        self._read: dict[bytes, Record | None] = {}
        self._queued: list[bytes] = []
        self._names: list[str] = []
        self._writes = self._open = False

    def __repr__(self) -> str:
        state = "open" if self._open else f"position {self.position}"
        return f"<Transaction: {len(self._read)} read, {len(self._queued)} queued, {state}>"

    async def __aenter__(self) -> Self:
        if self._names or self._read or self._open:
            raise RuntimeError("a transaction can't be used twice: begin another one")
        self._open = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open = False
        if kind is None:
            await self._commit()

    # --- reads

    async def get(self, key: Text) -> bytes | None:
        """Return the value of a key; None if it does not exist."""
        (record,) = await self.records([word_of(key, "key")])
        return None if record is None else record.value

    async def exists(self, key: Text) -> bool:
        """Return whether a key exists."""
        return await self.get(key) is not None

    async def get_many(self, keys: Iterable[Text]) -> dict[bytes, bytes]:
        """Return the values of those keys that exist."""
        words = words_of(keys)
        found = zip(words, await self.records(words), strict=True)
        return {key: record.value for key, record in found if record is not None}

    async def records(self, keys: Iterable[Text]) -> list[Record | None]:
        """Return value, revision and expiry of each key; None for one that does not exist.

        Raises:
            OversizedRequestError: the transaction would have read more keys than it may.
        """
        self._check_open()
        words = words_of(keys)
        new = [key for key in dict.fromkeys(words) if key not in self._read]
        if len(self._read) + len(new) > MAX_WATCHED_KEYS:
            raise OversizedRequestError(
                f"{len(self._read) + len(new)} keys read in a transaction: expected "
                f"{MAX_WATCHED_KEYS} at most; read what may change meanwhile before it begins"
            )
        if new:
            self._read.update(zip(new, await self._fetch(new), strict=True))
        return [self._read[key] for key in words]

    # --- writes

    def set(self, key: Text, value: Text, *, ex: int | None = None, px: int | None = None) -> None:
        """Queue the new value of a key; see :meth:`KeyValue.set`."""
        self.execute(*set_words(key, value, ex=ex, px=px))

    def delete(self, *keys: Text) -> None:
        """Queue the deletion of keys; the result is how many of them existed."""
        self.execute("DEL", *words_of(keys))

    def increment(self, key: Text, by: int = 1) -> None:
        """Queue an addition to a number; the result is the sum."""
        self.execute("INCRBY", word_of(key, "key"), integer_of(by, "by"))

    def expire(self, key: Text, seconds: float) -> None:
        """Queue the expiry of a key, in seconds of log time; the result is 0 if it is missing."""
        self.execute(*expiry_words(key, seconds))

    def execute(self, *arguments: Argument) -> None:
        """Queue any command of the state machine (``execute("APPEND", "key", "more")``).

        Raises:
            KeyValueError: it is unknown or malformed, or not allowed in a transaction.
            OversizedRequestError: the transaction has as many commands as it may.
        """
        self._check_open()
        spec, words = command_of(arguments)
        if spec.name in _NOT_HERE:
            name = spec.name.replace("|", " ").upper()
            raise KeyValueError(f"ERR {name} is not allowed in a transaction")
        if len(self._queued) == _COMMANDS:
            raise OversizedRequestError(
                f"a transaction may have {_COMMANDS} commands: make several transactions"
            )
        self._queued.append(resp.pack(words))
        self._names.append(spec.name)
        self._writes |= spec.kind is Kind.WRITE

    # --- the end

    def _check_open(self) -> None:
        if not self._open:
            raise RuntimeError("this transaction is not open: use it inside of its block")

    async def _commit(self) -> None:
        """Send it all.

        Raises:
            ConflictError: a key that was read has changed; nothing was done.
            KeyValueError: a command failed; the other ones were executed.
            RequestError: what the endpoint raises.
        """
        # A single key is read at one point, whatever happens.
        if not self._queued and len(self._read) <= 1:
            return
        payload = b"".join([self._conditions(), *self._queued, _POSITION])
        reply = decoded(await self._send(payload, writes=self._writes))
        if reply is None:
            raise ConflictError(
                f"a key that the transaction has read (of {len(self._read)}) was changed before "
                "its commit, and nothing was done: run it again, as KeyValue.transact does"
            )
        *self.results, position = list_of(reply)
        if self._writes and not isinstance(position, KeyValueError):
            self.position = integer_in(position)
        for at, (name, result) in enumerate(zip(self._names, self.results, strict=True), 1):
            if isinstance(result, KeyValueError):
                where = f"command {at} of {len(self._names)} in a transaction, {name.upper()}"
                raise KeyValueError(f"{result} ({where}; those that did not fail took effect)")

    def _conditions(self) -> bytes:
        """Encode the keys that were read, with their revisions."""
        if not self._read:
            return b""
        pairs = [b"WATCH"]
        for key, record in self._read.items():
            revision = 0 if record is None else record.revision
            pairs += key, watch_condition(revision, or_absent=False)
        return resp.pack(tuple(pairs))
