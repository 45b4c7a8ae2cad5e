"""The replicated state machine of a member: it executes the commands of the log, and queries.

A member calls :meth:`KeyValueService.apply` for each committed command, in the order of the log,
and :meth:`KeyValueService.query` for reads. Payloads, flags and partial replies are described in
:mod:`.protocol.payload`; the handlers of the commands are in :mod:`.commands`.

Determinism
    All members must reach the same state from the same log. So time is the log's, there is no
    randomness, and bounds are counted, not measured (:mod:`.limits`). Members differ only in where
    a record lies (memtable or disk). No command of the log may depend on that.

Transactions
    With the flag TRANSACTION the payload is the body of MULTI and EXEC, and the reply is one array.
    It may begin with ``WATCH key condition ...``. If a condition no longer holds, nothing is
    applied, and the reply is the null array.

Users
    They are part of the state, :mod:`.access`. Whether a client may send a command was decided by
    the member that it talks to; here every command of the log is applied.

Exactly once
    A command with a session and a sequence is applied once (:mod:`.state.sessions`). Sessions are
    the one place where it matters which user has sent an entry.

Bounds
    A command beyond the request's work is not executed; its reply is an error, on every member.
    Beyond `limits.MAX_REPLY_BYTES` of replies, commands are still applied, but answered with an
    error.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Never, Self, TypeAlias

import trio

from ..errors import WireError
from ..node.state_machine.service import KEY_VALUE, Command
from ..storage.tables.damage import open_or_rebuild
from ..storage.tables.memtable import Record
from ..storage.tables.tables import FlushJob, Tables
from ..storage.writing.executor import ExecutorFactory
from ..storage.writing.group_commit import ThreadExecutor
from .access import commands as acl_commands
from .access.users import Users
from .commands import expiry, keys, numbers, positions, sessions, slots, strings, walk
from .commands.slot_checks import SlotChecks
from .commands.strings import Handler
from .commands.table import Kind, fault, lookup
from .keyspace import Keyspace
from .limits import (
    ARGUMENT_WORK,
    COMMAND_WORK,
    MAX_REPLY_BYTES,
    MAX_WORK,
    PART_REPLY_BYTES,
    PART_WORK,
    TICK_MS,
)
from .native.resp_reader import split_untrusted
from .protocol import resp
from .protocol.payload import (
    ETCD,
    FROZEN,
    IN_PARTS,
    RESP3,
    TRANSACTION,
    PayloadParser,
    encode_part,
    still_holds,
)
from .protocol.resp import CommandError
from .slots.hashing import key_slot
from .state.changes import RecentChanges
from .state.ownership import OWNED, Ownership
from .state.sessions import Sessions
from .state.store import TOO_MUCH_WORK, KeyStore

_WATCH: Final = b"WATCH"
_ONE_GET: Final = b"*2\r\n$3\r\nGET\r\n"
_NOT_HERE: Final = resp.error("ERR this command is not one for the state machine")
_NOT_SERVED: Final = resp.error("CLUSTERDOWN Hash slot not served")
_READ_ONLY: Final = resp.error("ERR a query can't write")
_TOO_MUCH: Final = resp.error(f"ERR replies may have {MAX_REPLY_BYTES} bytes in all")


class KeyValueService:
    """A `node.state_machine.service.Service` over :class:`Tables`.

    Attributes:
        remade: the tables were damaged when they were opened, and start empty.
        users: the replicated users, for the client port.
        kind: recorded in the store, so that another service does not open it.
        ownership: the slots of a partition; None in a cluster without partitions.
        moved: returns the error reply to a command with a slot of another partition. Members may
            differ in it; the port sets it.
        keyspace: the second keyspace in the same log and tables. Without one its entries are
            skipped, so only a reader of Redis's keys may do without.
    """

    remade = False
    kind = KEY_VALUE

    def __init__(
        self,
        tables: Tables,
        *,
        partition: bool = False,
        keyspace: Callable[[Tables], Keyspace] | None = None,
    ) -> None:
        self._tables = tables
        self.keyspace = None if keyspace is None else keyspace(tables)
        self.ownership = Ownership(tables) if partition else None
        self.moved: Callable[[int], bytes] = not_served
        self._store = KeyStore(tables, self.ownership)
        if self.keyspace is not None:
            self.keyspace.resume(self._store.now)
        self.users = Users(tables)
        self._parse = PayloadParser().parse_untrusted
        # Walks have handlers for each service, because they remember cursors.
        handlers = strings.HANDLERS | numbers.HANDLERS | keys.HANDLERS | expiry.HANDLERS
        handlers |= sessions.HANDLERS | positions.HANDLERS | acl_commands.handlers(self.users)
        set_users = acl_commands.replacing(self.users)
        handlers |= slots.handlers(self.ownership, set_users) | walk.handlers()
        watching: dict[str, Handler] = {"watch": _revisions}
        self._checks = None
        self._states = None if self.ownership is None else self.ownership.states
        self._first = 1  # revision of the log's first entry
        if self.ownership is not None:
            self.ownership.listen(self._slots_changed)
            self._slots_changed()
            self._checks = SlotChecks(self.ownership, self._moved)
            handlers = self._checks.around(handlers)
            watching = self._checks.around(watching)
        self._commands = _by_spelling(handlers)
        # Queries have a table of their own: a write in a query finds no handler.
        self._queries = {
            name: command
            for name, command in self._commands.items()
            if (spec := lookup(name)) and spec.kind is Kind.READ
        } | _by_spelling(
            watching | acl_commands.queries(self.users) | slots.queries(self.ownership)
        )

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        cluster: str,
        member_id: int,
        executor: ExecutorFactory[FlushJob] = ThreadExecutor,
        partition: bool = False,
        keyspace: Callable[[Tables], Keyspace] | None = None,
    ) -> Self:
        """Open the tables in `directory`; create them if there are none, or if they are damaged.

        Args:
            directory: of the tables.
            cluster: its name.
            member_id: which member of it.
            executor: runs the writes.
            partition: the cluster is one partition of a larger one, and owns some slots only.
            keyspace: makes the second keyspace over the tables.

        Raises:
            StoreMismatchError: they belong to another cluster or member, or have another format.
            StoreBusyError: they are open already.
            StoreFullError: the disk is full.
        """
        # Damaged tables are removed, and `opened` is called again: the member then loads a
        # snapshot, or replays the log.
        tries: list[Path] = []

        def opened() -> Tables:
            tries.append(directory)
            return Tables.open(
                directory,
                cluster=cluster,
                member_id=member_id,
                executor=executor,
            )

        tables = open_or_rebuild(directory, opened)
        service = cls(tables, partition=partition, keyspace=keyspace)
        service.remade = len(tries) > 1
        return service

    def close(self) -> None:
        """Close the tables, after `run` has ended."""
        self._tables.close()

    @property
    def rules(self) -> int:
        """The version of the users; see `RuledService`."""
        return self.users.version

    @property
    def changes(self) -> RecentChanges:
        """The latest changes of keys."""
        return self._store.changes

    @property
    def position(self) -> int:
        """Log position up to which everything is applied and durable."""
        return self._tables.position

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> Never:
        """Flush the tables from time to time until cancelled, and once more at the end."""
        await self._tables.run(task_status=task_status)

    async def flush(self) -> None:
        """Make everything that is applied durable."""
        await self._tables.flush()

    def put_off(self, *, wanted: bool) -> None:
        """Flush the tables less often, or as usual again; see `PatientService`."""
        self._tables.patient = wanted

    async def save(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> Iterator[bytes]:
        """Return the tables as of now, in pieces; see `SnapshotService`."""
        return await self._tables.save(task_status=task_status)

    async def load(self, pieces: Iterator[bytes], position: int, timestamp_ms: int) -> None:
        """Replace the tables; see `SnapshotService`."""
        if self.keyspace is not None:
            # Its rows may be gone at any moment of the load: if the file grows, half of the new
            # content shows.
            self.keyspace.halt()
        await self._tables.load(pieces, position, timestamp_ms)
        if self.ownership is not None:
            self.ownership.reload()
            position += self.ownership.shift
            timestamp_ms = max(timestamp_ms, self.ownership.now_ms)
        self._store.now, self._store.revision = timestamp_ms, position
        # Made anew: the sessions in memory are those of the tables that were just replaced.
        self._store.sessions = Sessions(self._tables)
        self._store.changes.restart(position)
        self.users.reload()
        if self.keyspace is not None:
            self.keyspace.reload()
            self.keyspace.resume(timestamp_ms)

    # --- the state machine

    def apply(self, command: Command) -> bytes:
        """Apply a committed command and return the reply; empty if nobody wants it."""
        store = self._store
        # Never backwards: a new leader's clock may be behind, but expired keys must stay expired,
        # on all members alike (I-23).
        store.now = max(store.now, command.timestamp_ms)
        if command.flags & ETCD:
            return b"" if self.keyspace is None else self.keyspace.apply(command, store.now)
        store.revision = command.position + command.index + 1  # see `KeyStore`
        if self.ownership is not None:
            store.revision += self.ownership.shift
        store.principal, store.applying = command.principal, True
        if command.session:
            return self._apply_once(command)
        return self._answer(
            command.payload, command.flags, self._commands, wanted=command.wants_reply
        )

    def begin_term(self, timestamp_ms: int) -> None:
        """Note that a leadership term begins; see `TermService`."""
        self._store.now = max(self._store.now, timestamp_ms)
        if self.keyspace is not None:
            self.keyspace.begin_term(self._store.now)

    def advance(self, position: int, timestamp_ms: int) -> None:
        """Everything up to `position` is applied: remove some expired keys and sessions."""
        store, tables = self._store, self._tables
        store.now = max(store.now, timestamp_ms)
        if self.keyspace is not None:
            self.keyspace.advance(store.now)
        store.advance(position + self._first - 1)
        if store.sessions:
            store.sessions.expire(store.now)
        if self._checks is not None:
            store.changes.tire(store.now)
        tables.advance(position, store.now)

    def query(self, payload: bytes, flags: int) -> bytes:
        """Answer read-only commands from the applied state, as of the log's time."""
        # Nearly all reads are one GET. It cannot exceed the work of a request, so it needs no
        # budget, and takes a third of the time here.
        if payload.startswith(_ONE_GET) and not flags & TRANSACTION:
            commands, end = split_untrusted(payload, 2)
            if (
                end == len(payload)
                and len(commands) == 1
                and (self._states is None or self._states[key_slot(commands[0][1])] == OWNED)
            ):
                record = self._tables.get(commands[0][1])
                if record is None or (record[1] and record[1] <= self._store.now):
                    return resp.NULL[flags & RESP3]
                return b"$%d\r\n%b\r\n" % (len(record[0]), record[0])
        if flags & ETCD:
            return b"" if self.keyspace is None else self.keyspace.query(payload, self._store.now)
        self._store.applying = False  # so walks over keys are allowed
        return self._answer(payload, flags, self._queries)

    def next_deadline_ms(self) -> int | None:
        """Return when log time should move at the latest: at the next expiry, or after a tick."""
        # Nothing else depends on log time, so an idle cluster without expiries is quiet.
        first = self._tables.deadlines.first()
        if first is not None:
            first = min(first, self._store.now + TICK_MS)
        second = None if self.keyspace is None else self.keyspace.next_deadline_ms()
        due = [first, second, self._store.sessions.next_deadline_ms()]
        return min((deadline for deadline in due if deadline is not None), default=None)

    def _slots_changed(self) -> None:
        if self.ownership is not None:
            self._first = 1 + self.ownership.shift

    def _moved(self, slot: int) -> bytes:
        return self.moved(slot)  # it may have been set after the handlers were made

    def _apply_once(self, command: Command) -> bytes:
        """Apply a command of a session unless it was applied before; see :mod:`.state.sessions`."""
        sessions, session, sequence = self._store.sessions, command.session, command.sequence
        # Looked up where the log is applied, not at the port: only here all members agree on what
        # came first (I-33, H13).
        reply = sessions.reply_to(session, sequence, self._store.now, command.principal)
        if reply is None:
            # Never in parts: the kept reply must be that of the whole command.
            flags = command.flags & ~IN_PARTS
            try:
                commands = self._parse(command.payload)
            except WireError as trouble:
                reply = _malformed(trouble)
            else:
                reply = self._refusal(commands, flags)
                reply = reply or self._answer_to(commands, flags, self._commands)
            if reply != FROZEN:  # nothing was done: the same command will come again
                sessions.keep(session, sequence, reply)
        return reply

    def _refusal(self, commands: list[list[bytes]], flags: int) -> bytes | None:
        """Return the reply to a request of a session that a partition must not execute, or None."""
        if self._checks is None:
            return None
        return self._checks.refusal(commands, atomic=bool(flags & TRANSACTION), stamped=True)

    def _answer(
        self, payload: bytes, flags: int, known: "_Commands", *, wanted: bool = True
    ) -> bytes:
        # A malformed payload cannot come from our own port. If one is in the log, all members must
        # treat it alike: it changes nothing.
        try:
            commands = self._parse(payload)
        except WireError as trouble:
            return _malformed(trouble)
        return self._answer_to(commands, flags, known, wanted=wanted)

    def _answer_to(
        self, commands: list[list[bytes]], flags: int, known: "_Commands", *, wanted: bool = True
    ) -> bytes:
        store = self._store
        store.null, store.left, store.walked = resp.NULL[flags & RESP3], MAX_WORK, 0
        # Commands before a failed one are not undone, in a transaction neither, as in Redis. Only
        # the watch is checked before anything runs.
        if flags & TRANSACTION:
            try:
                return self._transaction(commands, flags, known, wanted=wanted)
            except CommandError as trouble:  # the watched keys used up the work; nothing ran
                return trouble.reply
        replies = self._execute(commands, known, wanted=wanted, in_parts=flags & IN_PARTS)
        if len(replies) == 1 == len(commands):
            return replies[0]
        if wanted and len(replies) < len(commands):
            return encode_part(len(replies), b"".join(replies))
        return b"".join(replies)

    def _transaction(
        self, commands: list[list[bytes]], flags: int, known: "_Commands", *, wanted: bool
    ) -> bytes:
        if self._checks is not None:
            refusal = self._checks.refusal(commands, atomic=True, stamped=False)
            if refusal is not None:
                return refusal
        if commands and commands[0][0].upper() == _WATCH:
            # The lookups of the watch are charged like those of commands.
            watched = commands.pop(0)[1:]
            for key, condition in zip(watched[::2], watched[1::2], strict=False):
                if not still_holds(condition, self._store.revision_of(key)):
                    return resp.NULL_ARRAY[flags & RESP3]
        return resp.array(self._execute(commands, known, wanted=wanted))

    def _execute(
        self, commands: list[list[bytes]], known: "_Commands", *, wanted: bool, in_parts: int = 0
    ) -> list[bytes]:
        """Execute commands in order; an error is the reply to its command, and the next one runs.

        Returns:
            The replies: fewer before a frozen slot, or if `in_parts` allows that and enough work
            was done, and none if they are not wanted, because together they may be large.
        """
        store = self._store
        replies: list[bytes] = []
        size = 0
        # The fixed costs are charged before anything runs, so they are charged for all commands.
        store.left -= COMMAND_WORK * len(commands) + ARGUMENT_WORK * sum(map(len, commands))
        enough, room = store.left - PART_WORK, PART_REPLY_BYTES
        for arguments in commands:
            if in_parts and (store.left < enough or size > room):
                break  # all members stop here, whether they want the replies or not
            count = len(arguments)
            # `known` holds the usual spellings; .upper() is only for `Set` and the like.
            found = known.get(arguments[0]) or known.get(arguments[0].upper())
            # The port has checked name and arity; members of other versions, or an embedding
            # program, may have not.
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
                    if reply == FROZEN:
                        break  # all members stop here, as above
            # The command has run: members that keep no replies must do the same.
            if size + len(reply) > MAX_REPLY_BYTES:
                reply = _TOO_MUCH
            size += len(reply)
            if wanted:
                replies.append(reply)
        return replies


def _malformed(trouble: WireError) -> bytes:
    return resp.error(f"ERR Protocol error: {trouble}")


def not_served(_slot: int) -> bytes:
    """Return the error for a slot of another partition, while nobody knows which one."""
    return _NOT_SERVED


_Commands: TypeAlias = dict[bytes, tuple[int, Handler]]


def _revisions(store: KeyStore, arguments: list[bytes]) -> bytes:
    """WATCH key [key ...] as a query: the revision of each key, 0 for an absent one.

    For a key with an expiry it is an array of the revision and the expiry.
    """
    return resp.array([_revision(store.get(key)) for key in arguments[1:]])


def _revision(record: Record | None) -> bytes:
    if record is None:
        return resp.ZERO
    revision = resp.integer(record[2])
    return resp.array([revision, resp.integer(record[1])]) if record[1] else revision


def _by_spelling(handlers: dict[str, Handler]) -> "_Commands":
    """Return arity and handler of each command, by its usual spellings."""
    found: _Commands = {}
    for name, handler in handlers.items():
        spec = lookup(name.encode())
        assert spec is not None, f"{name} is not in the table of commands"
        found[name.encode()] = found[name.upper().encode()] = (spec.arity, handler)
    return found


def _unknown(arguments: list[bytes]) -> bytes:
    """Return the error for a command that must not run here."""
    if trouble := fault(arguments):
        return resp.error(trouble)
    spec = lookup(arguments[0])
    return _READ_ONLY if spec is not None and spec.kind is Kind.WRITE else _NOT_HERE
