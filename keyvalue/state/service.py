"""The key-value store as the replicated state machine of a member.

A payload is RESP as clients send it: commands one after the other, which are applied as one, with
one reply, the join of theirs. Flags say in which protocol to reply, and whether the payload is the
body of MULTI and EXEC; then the reply is one array. Its first command may be ``WATCH key revision
...``: if any of the keys has another revision by now nothing is applied, and the reply is the null
array; a revision may be followed by a question mark, and then the key may be absent, too. As a
query, ``WATCH key ...`` returns the revisions. With :data:`IN_PARTS` a payload that
would cost much is done in part only, from its beginning, and the reply says how far.

A command with a session and a sequence number is applied once: :mod:`.sessions`.

Everything is deterministic: time is the log's, and there is no randomness. What differs between
members is only where a record lies (memtable or disk), and when an expired one is removed.

What one request may cost is bounded (:mod:`.limits`): beyond it, commands are not executed but
answered with an error, the same ones on every member.

Caveat: replies may take `limits.MAX_REPLY_BYTES` in all; beyond that, commands are still applied
but answered with an error.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final, Never, Self, TypeAlias

import trio

from ...errors import WireError
from ...node.state_machine.service import KEY_VALUE, Command
from ...storage.tables.damage import open_or_rebuild
from ...storage.tables.memtable import Record
from ...storage.tables.tables import FlushJob, Tables
from ...storage.writing.executor import ExecutorFactory
from ...storage.writing.group_commit import ThreadExecutor
from ..commands import expiry, keys, numbers, sessions, strings, walk
from ..commands.arguments import CommandError
from ..commands.strings import Handler
from ..commands.table import Kind, fault, lookup
from ..native.resp_reader import split_untrusted
from ..port.watching import may_have
from ..protocol import resp
from .limits import (
    ARGUMENT_WORK,
    COMMAND_WORK,
    MAX_EXPIRED_PER_BATCH,
    MAX_REPLY_BYTES,
    MAX_WORK,
    PART_REPLY_BYTES,
    PART_WORK,
    TICK_MS,
)
from .sessions import Sessions
from .store import TOO_MUCH_WORK, KeyStore

RESP3: Final = 1
"""Flag: reply in RESP3."""
TRANSACTION: Final = 2
"""Flag: the payload is the body of MULTI and EXEC."""
IN_PARTS: Final = 4
"""Flag: the payload may be done in part; then the reply begins as :func:`part` tells."""
PART: Final = b"\0"
"""With that begins the reply to a payload of which a part was done."""

AT_ONCE_BYTES: Final = 64 << 10
"""Entries of so many bytes are applied at one go (of many keys fewer, see `plain.apply_sets`), and
GETs are answered with so many, a thousand at most: with a send for each reply, one or two
milliseconds' work, and with a look-up on disk for each some more."""

_WATCH: Final = b"WATCH"
_ONE_GET: Final = b"*2\r\n$3\r\nGET\r\n"
_NOT_HERE: Final = resp.error("ERR this command is not one for the state machine")
_READ_ONLY: Final = resp.error("ERR a query can't write")
_TOO_MUCH: Final = resp.error(f"ERR replies may have {MAX_REPLY_BYTES} bytes in all")


class KeyValueService:
    """A `node.service.Service` over :class:`Tables`.

    Attributes:
        remade: the tables were damaged when they were opened, and begin anew.
        kind: tells its stores from those of other services.
    """

    remade = False
    kind = KEY_VALUE

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._store = KeyStore(tables)
        self._parse = resp.CommandParser().parse_untrusted
        handlers = strings.HANDLERS | numbers.HANDLERS | keys.HANDLERS | expiry.HANDLERS
        handlers |= sessions.HANDLERS
        self._commands = _by_spelling(handlers | walk.handlers())
        self._queries = {
            name: command
            for name, command in self._commands.items()
            if (spec := lookup(name)) and spec.kind is Kind.READ
        } | _by_spelling({"watch": _revisions})

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        cluster: str,
        member_id: int,
        executor: ExecutorFactory[FlushJob] = ThreadExecutor,
    ) -> Self:
        """Open the tables in `directory`; make them when there are none, or they are damaged.

        Raises:
            StoreMismatchError: they are another cluster's or member's, or of another format.
            StoreBusyError: they are open already.
            StoreFullError: there is no room.
        """
        tries: list[Path] = []

        def opened() -> Tables:
            tries.append(directory)
            return Tables.open(
                directory,
                cluster=cluster,
                member_id=member_id,
                executor=executor,
            )

        service = cls(open_or_rebuild(directory, opened))
        service.remade = len(tries) > 1
        return service

    def close(self) -> None:
        """Close the tables, after `run` has ended."""
        self._tables.close()

    @property
    def position(self) -> int:
        """Log position up to which everything is applied, durably."""
        return self._tables.position

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> Never:
        """Flush the tables now and then until cancelled, and at the end once more."""
        await self._tables.run(task_status=task_status)

    async def flush(self) -> None:
        """Make everything that is applied durable."""
        await self._tables.flush()

    def put_off(self, *, wanted: bool) -> None:
        """Flush the tables less often, or as usual again; see `node.service.PatientService`."""
        self._tables.patient = wanted

    async def save(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> Iterator[bytes]:
        """Return the tables as of now, in pieces; see `node.service.SnapshotService`."""
        return await self._tables.save(task_status=task_status)

    async def load(self, pieces: Iterator[bytes], position: int, timestamp_ms: int) -> None:
        """Replace the tables; see `node.service.SnapshotService`."""
        await self._tables.load(pieces, position, timestamp_ms)
        self._store.now, self._store.revision = timestamp_ms, position
        self._store.sessions = Sessions(self._tables)

    # --- the state machine

    def apply(self, command: Command) -> bytes:
        """Apply a committed command and return the reply; nothing if nobody wants it."""
        store = self._store
        store.now = max(store.now, command.timestamp_ms)
        store.revision = command.position + command.index + 1
        store.applying = True
        if command.session:
            return self._once(command)
        return self._answer(
            command.payload, command.flags, self._commands, wanted=command.wants_reply
        )

    def advance(self, position: int, timestamp_ms: int) -> None:
        """Everything up to `position` is applied; remove some of what has expired by now."""
        store, tables = self._store, self._tables
        store.now = max(store.now, timestamp_ms)
        for key in tables.deadlines.due(store.now, MAX_EXPIRED_PER_BATCH):
            tables.delete(key)
        if store.sessions:
            store.sessions.expire(store.now)
        tables.advance(position, store.now)

    def query(self, payload: bytes, flags: int) -> bytes:
        """Answer read-only commands from the applied state, as of the log's time."""
        # Nearly all reads are one GET, which cannot exceed what a request may cost: it is answered
        # here in a third of the time.
        if payload.startswith(_ONE_GET) and not flags & TRANSACTION:
            commands, end = split_untrusted(payload, 2)
            if end == len(payload) and len(commands) == 1:
                record = self._tables.get(commands[0][1])
                if record is None or (record[1] and record[1] <= self._store.now):
                    return resp.NULL[flags & RESP3]
                return b"$%d\r\n%b\r\n" % (len(record[0]), record[0])
        self._store.applying = False
        return self._answer(payload, flags, self._queries)

    def next_deadline_ms(self) -> int | None:
        """Say when log time should move: at the next expiry, but soon while any key has one."""
        first = self._tables.deadlines.first()
        session = self._store.sessions.next_deadline_ms()
        if first is None:
            return session
        soon = min(first, self._store.now + TICK_MS)
        return soon if session is None else min(soon, session)

    def _once(self, command: Command) -> bytes:
        """Apply a command of a session, unless it has been applied before; see :mod:`.sessions`."""
        sessions, session, sequence = self._store.sessions, command.session, command.sequence
        reply = sessions.reply_to(session, sequence, self._store.now)
        if reply is None:
            reply = self._answer(command.payload, command.flags & ~IN_PARTS, self._commands)
            sessions.keep(session, sequence, reply)
        return reply

    def _answer(
        self, payload: bytes, flags: int, known: "_Commands", *, wanted: bool = True
    ) -> bytes:
        try:
            commands = self._parse(payload)
        except WireError as trouble:
            return resp.error(f"ERR Protocol error: {trouble}")
        store = self._store
        store.null, store.left, store.walked = resp.NULL[flags & RESP3], MAX_WORK, 0
        if flags & TRANSACTION:
            try:
                return self._transaction(commands, flags, known, wanted=wanted)
            except CommandError as trouble:  # it watches too much: nothing was executed
                return trouble.reply
        replies = self._execute(commands, known, wanted=wanted, in_parts=flags & IN_PARTS)
        if len(replies) == 1 == len(commands):
            return replies[0]
        if wanted and len(replies) < len(commands):
            replies.insert(0, b"%b%d\r\n" % (PART, len(replies)))
        return b"".join(replies)

    def _transaction(
        self, commands: list[list[bytes]], flags: int, known: "_Commands", *, wanted: bool
    ) -> bytes:
        if commands and commands[0][0].upper() == _WATCH:
            watched = commands.pop(0)[1:]
            for key, revision in zip(watched[::2], watched[1::2], strict=False):
                if not may_have(revision, self._store.revision_of(key)):
                    return resp.NULL_ARRAY[flags & RESP3]
        return resp.array(self._execute(commands, known, wanted=wanted))

    def _execute(
        self, commands: list[list[bytes]], known: "_Commands", *, wanted: bool, in_parts: int = 0
    ) -> list[bytes]:
        """Execute one command after the other; an error is one's reply, and the next goes on.

        Returns:
            The replies, fewer if that is allowed and enough was done; none if they are not wanted,
            for together they may be large.
        """
        store = self._store
        replies: list[bytes] = []
        size = 0
        store.left -= COMMAND_WORK * len(commands) + ARGUMENT_WORK * sum(map(len, commands))
        enough, room = store.left - PART_WORK, PART_REPLY_BYTES
        for arguments in commands:
            if in_parts and (store.left < enough or size > room):
                break  # every member stops here, whether it wants the replies or not
            count = len(arguments)
            found = known.get(arguments[0]) or known.get(arguments[0].upper())
            if found is None:
                reply = _unknown(arguments)
            elif count != found[0] and (found[0] > 0 or count < -found[0]):
                reply = resp.error(fault(arguments) or b"ERR wrong number of arguments")
            elif store.left <= 0:
                reply = TOO_MUCH_WORK
            else:
                try:
                    reply = found[1](store, arguments)
                except CommandError as trouble:
                    reply = trouble.reply
            if size + len(reply) > MAX_REPLY_BYTES:
                reply = _TOO_MUCH
            size += len(reply)
            if wanted:
                replies.append(reply)
        return replies


def part(reply: bytes, count: int) -> tuple[int, bytes]:
    """Say how many of `count` commands a reply is for, and return their replies alone."""
    if not reply.startswith(PART):
        return count, reply
    done, _, replies = reply[1:].partition(b"\r\n")
    return int(done), replies


_Commands: TypeAlias = dict[bytes, tuple[int, Handler]]


def _revisions(store: KeyStore, arguments: list[bytes]) -> bytes:
    """WATCH key [key ...], as a query: the revision of each, 0 for an absent one.

    Of a key that expires it is an array of the revision and the time.
    """
    return resp.array([_revision(store.get(key)) for key in arguments[1:]])


def _revision(record: Record | None) -> bytes:
    if record is None:
        return resp.ZERO
    revision = resp.integer(record[2])
    return resp.array([revision, resp.integer(record[1])]) if record[1] else revision


def _by_spelling(handlers: dict[str, Handler]) -> "_Commands":
    """Return arity and handler of commands by their usual spellings."""
    found: _Commands = {}
    for name, handler in handlers.items():
        spec = lookup(name.encode())
        assert spec is not None, f"{name} is not in the table of commands"
        found[name.encode()] = found[name.upper().encode()] = (spec.arity, handler)
    return found


def _unknown(arguments: list[bytes]) -> bytes:
    """Word the error for a command that is not among those that may be executed."""
    if trouble := fault(arguments):
        return resp.error(trouble)
    spec = lookup(arguments[0])
    return _READ_ONLY if spec is not None and spec.kind is Kind.WRITE else _NOT_HERE
