"""Applies the log's commands, in parallel and exactly, to get every version of every key.

The result of a command may depend on the old value (``SET ... NX``, ``INCR``, ``WATCH``). So the
commands are applied by the same state machine that the members run, in the order of the log. But
most commands touch a single key. So the log is split into pieces:

- A command on one key is applied in order with the other commands on that key. A command on several
  keys with independent effects (``MSET``, ``DEL``) becomes one piece for each key.
- A command that must see several keys at once is *coupled*: ``RENAME``, ``COPY``, ``MSETNX``, or a
  transaction that watches. So is an entry so large that it may exceed the bound on the cost of one
  request. A coupled entry is applied whole. All keys of all coupled entries are kept in one shard.
- ``FLUSHALL`` goes to every shard.
- In the log of a partition, so do the steps of moves, since each command depends on who owns its
  slot. The rows of a ``CHUNK`` go to the shards of their keys.
- A command that only reads is left out, except in a coupled entry.

The keys are spread over shards by hash. One task applies a shard and holds its keys in memory. If
everything in a log is coupled, one task applies it all: correct, and no faster than a member.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final, TypeAlias, cast

import attrs

from ...errors import WireError
from ...keyvalue import limits
from ...keyvalue.commands.slot_checks import SlotChecks
from ...keyvalue.commands.slots import NAME as SLOTS_NAME
from ...keyvalue.commands.table import Kind, keys_of, lookup
from ...keyvalue.protocol.payload import FROZEN, IN_PARTS, TRANSACTION, PayloadParser
from ...keyvalue.protocol.resp import encode_command
from ...keyvalue.service import KeyValueService, not_served
from ...keyvalue.slots.hashing import SLOTS, key_slot
from ...keyvalue.slots.history import SLOTS_COMMAND
from ...keyvalue.state.ownership_note import SLOTS_NOTE
from ...node.state_machine.service import Command
from ...storage.tables.notes import Notes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ...keyvalue.commands.spec import CommandSpec
    from ...keyvalue.state.ownership import Ownership
    from ...storage.tables.memtable import Record
    from ...storage.tables.tables import Tables

__all__ = [
    "Machine",
    "Piece",
    "Sizes",
    "Version",
    "commands_of",
    "keys_coupled",
    "pieces",
    "shard_of",
    "sizes",
]

_SEPARABLE: Final = frozenset({"mset", "del", "unlink"})
_LONGEST_NUMBER_BYTES: Final = 5120
"""INCRBYFLOAT prints no longer number than this."""
_PLAIN_SET: Final = 3
"""Number of words in ``SET key value``."""

_ROW_WORDS: Final = 5
"""Words of a row in QUORATE.SLOTS CHUNK."""

_REPLY_BYTES: Final = 64
"""Upper bound of a reply that holds no value."""
_RETURN_VALUES: Final = frozenset(
    {"get", "getset", "getdel", "getex", "set", "mget", "getrange", "substr", "keys", "scan"}
    | {"quorate.records"}
)

_HEAD_BYTES: Final = 64
_PARSER: Final = PayloadParser()


@attrs.frozen
class Sizes:
    """Bounds on the length of values in a log: the longest one set, and the sum of all appended."""

    longest: int = _LONGEST_NUMBER_BYTES
    appended: int = 0

    def __or__(self, other: Sizes) -> Sizes:
        return Sizes(max(self.longest, other.longest), self.appended + other.appended)

    @property
    def bound(self) -> int:
        """Return an upper bound of the length of any value."""
        return min(self.longest + self.appended, limits.MAX_VALUE_BYTES)


@attrs.frozen
class Piece:
    """A part of an entry that is applied on its own.

    Args:
        key: the shard of this key applies the piece; None for the shard of the coupled keys.
        everywhere: whether every shard applies it.
        payload: commands, as RESP.
        flags: the entry's flags, as the key-value service defines them.
    """

    key: bytes | None
    everywhere: bool
    payload: bytes
    flags: int


def commands_of(payload: bytes) -> list[list[bytes]]:
    """Return the commands of an entry; none if the payload is malformed."""
    try:
        return _PARSER.parse_untrusted(payload)
    except WireError:  # the state machine answers with an error, and changes nothing
        return []


def _known(arguments: list[bytes]) -> CommandSpec | None:
    """Look a command up; None if the state machine rejects its name or its number of arguments."""
    spec = lookup(arguments[0])
    return spec if spec is not None and spec.takes(len(arguments)) else None


def sizes(payload: bytes) -> Sizes:
    """Return the bounds on values that one entry adds."""
    found = Sizes()
    for arguments in commands_of(payload):
        longest = max(map(len, arguments))
        match arguments[0].lower():
            case b"append":
                found |= Sizes(appended=len(arguments[-1]))
            case b"setrange":
                digits = arguments[2] if len(arguments) > 2 else b""  # noqa: PLR2004
                offset = int(digits) if digits.isdigit() else 0
                found |= Sizes(min(offset, limits.MAX_VALUE_BYTES) + longest)
            case _:
                found |= Sizes(longest)
    return found


def pieces(payload: bytes, flags: int, bound: int, executed: int | None = None) -> list[Piece]:
    """Split an entry; its pieces, applied in this order, have the same effect as the entry.

    Args:
        payload: the payload of a COMMAND entry.
        flags: the flags of that entry.
        bound: an upper bound of the length of all values in the log.
        executed: how many of its commands are executed; None for all.
    """
    commands = commands_of(payload)
    if _coupled(commands, flags, bound):
        return [Piece(None, False, payload, flags)]  # the state machine stops where members do
    alone = flags & ~(TRANSACTION | IN_PARTS)
    found: list[Piece] = []
    for arguments in commands[:executed]:
        spec = _known(arguments)
        if spec is not None and spec.name == SLOTS_NAME:
            found += _steps(arguments, alone)
            continue
        if spec is None or spec.kind is not Kind.WRITE or spec.name == "quorate.session":
            continue  # the driver handles sessions, see `once`
        keys = keys_of(spec, arguments)
        if not keys:
            found.append(Piece(None, True, encode_command(arguments), alone))
        elif len(keys) == 1:
            found.append(Piece(keys[0], False, encode_command(arguments), alone))
        elif spec.name != "mset":
            found += [Piece(key, False, encode_command([b"DEL", key]), alone) for key in keys]
        elif len(arguments) % 2:
            pairs = zip(arguments[1::2], arguments[2::2], strict=True)
            found += [
                Piece(key, False, encode_command([b"SET", key, value]), alone)
                for key, value in pairs
            ]
    return found


def _steps(arguments: list[bytes], flags: int) -> list[Piece]:
    """Split QUORATE.SLOTS: the rows of a chunk first, then the command without them."""
    head, rows = arguments, list[bytes]()
    if arguments[1].upper() == b"CHUNK" and not len(arguments[4:]) % _ROW_WORDS:
        head, rows = arguments[:4], arguments[4:]
    of_rows = (rows[at : at + _ROW_WORDS] for at in range(0, len(rows), _ROW_WORDS))
    found = [Piece(row[0], False, encode_command([*head, *row]), flags) for row in of_rows]
    return [*found, Piece(None, True, encode_command(head), flags)]


def _coupled(commands: Sequence[list[bytes]], flags: int, bound: int) -> bool:
    """Return whether commands must be applied together."""
    if not commands:
        return False
    if flags & TRANSACTION and commands[0][0].upper() == b"WATCH":
        return True
    work = replies = 0
    for arguments in commands:
        spec = _known(arguments)
        work += limits.COMMAND_WORK + limits.ARGUMENT_WORK * len(arguments)
        replies += _REPLY_BYTES
        if spec is None:
            replies += sum(map(len, arguments))
            continue
        keys = keys_of(spec, arguments)
        if spec.kind is Kind.WRITE and len(keys) > 1 and spec.name not in _SEPARABLE:
            return True
        if spec.name == "set" and len(arguments) == _PLAIN_SET:
            continue  # reads nothing and replies with a word, so it cannot exceed the bound
        lookups = max(len(keys), 1)  # a command may read a key and write a new value of it
        work += lookups * (limits.LOOKUP_WORK + 2 * limits.work_of_bytes(bound))
        work += limits.WALK_WORK * (not keys)
        replies += (bound + _REPLY_BYTES) * lookups * (spec.name in _RETURN_VALUES)
    if len(commands) == 1 and len(keys_of_all(commands)) <= 1:
        return False  # the first command of a request is never refused for its cost
    most_work, most_replies = limits.MAX_WORK, limits.MAX_REPLY_BYTES
    if flags & IN_PARTS:
        most_work, most_replies = limits.PART_WORK, limits.PART_REPLY_BYTES
    return work >= most_work or replies >= most_replies


def keys_of_all(commands: Sequence[list[bytes]]) -> set[bytes]:
    """Return the keys of some commands."""
    found: set[bytes] = set()
    for arguments in commands:
        if arguments[0].upper() == b"WATCH":
            found.update(arguments[1::2])
        elif (spec := _known(arguments)) is not None:
            found.update(keys_of(spec, arguments))
    return found


def keys_coupled(payload: bytes, flags: int, bound: int) -> set[bytes]:
    """Return the keys of a coupled entry; nothing for any other entry."""
    commands = commands_of(payload)
    return keys_of_all(commands) if _coupled(commands, flags, bound) else set()


def shard_of(key: bytes, shards: int) -> int:
    """Return the shard of a key that is not coupled, 1 to `shards`; shard 0 is for coupled keys."""
    return 1 + zlib.crc32(key) % shards


Version: TypeAlias = tuple[
    *tuple[bytes, int, int, bytes, int, int],
    *tuple[int | None, int | None, int | None, int | None],
    *tuple[bool, bool, bool],
]
"""Key, revision, place among the key's versions of this revision, value, tag, expiry (ms, 0 for
never), position and time (ms) of its begin, and position and time of its end, or None. Then whether
a move of slots began it, whether one ended it, and whether the partition does not serve it yet."""


@attrs.frozen
class _Open:
    """A version that has not ended.

    Args:
        change: its number among those of one revision.
        position: where it began, None if that is not known.
        timestamp_ms: when, None likewise.
        moved_in: it came from another partition.
        hidden: the partition does not own its slot yet.
    """

    change: int
    position: int | None
    timestamp_ms: int | None
    moved_in: bool = False
    hidden: bool = False


class _NoDeadlines:
    """In place of deadlines: expired keys are found by their times at the end."""

    def unpark(self) -> None:
        """Let keys be due that were held back: there are none."""


class _Keys:
    """The state machine's tables for one shard: its keys, in memory.

    Attributes:
        records: current records, including expired ones that nothing has replaced yet.
        position: position of the current batch.
        timestamp_ms: time of the current batch.
        changes: number of values that the current entry has given each key.
        ended: versions that have ended since the last `take_ended`.
        notes: rows of the store that are not keys.
        moving: the present command is a step of a move.
    """

    def __init__(self) -> None:
        self.records: dict[bytes, Record] = {}
        self.position = 0
        self.timestamp_ms = 0
        self.ended: list[Version] = []
        self.changes: dict[bytes, int] = {}
        self.notes = Notes({})
        self.moving = False
        self._open: dict[bytes, _Open] = {}
        self.deadlines = _NoDeadlines()

    def get(self, key: bytes) -> Record | None:
        return self.records.get(key)

    def put(self, key: bytes, record: Record) -> None:
        self._end(key)
        change = self.changes.get(key, 0)
        self.changes[key] = change + 1
        self.records[key] = record
        self._open[key] = _Open(change, self.position, self.timestamp_ms)

    def copy(self, key: bytes, record: Record) -> None:
        """Put a row of slots that the partition does not own yet."""
        self._end(key)
        self.records[key] = record
        self._open[key] = _Open(0, self.position, self.timestamp_ms, moved_in=True, hidden=True)

    def show(self, serves: Callable[[bytes], bool]) -> None:
        """Let the copies of slots that the partition serves now begin here."""
        for key, begun in self._open.items():
            if begun.hidden and serves(key):
                self._open[key] = _Open(0, self.position, self.timestamp_ms, moved_in=True)

    def delete(self, key: bytes) -> None:
        self._end(key)
        self.records.pop(key, None)

    def clear(self) -> None:
        for key in list(self.records):
            self.delete(key)

    def put_note(self, key: bytes, row: bytes) -> None:
        self.notes.put(key, row)

    def delete_note(self, key: bytes) -> None:
        self.notes.delete(key)

    def __len__(self) -> int:
        return len(self.records)

    def _end(self, key: bytes) -> None:
        begun = self._open.pop(key, None)
        if begun is not None and not begun.hidden:  # nobody has seen a copy that is hidden
            self.ended.append(self._version(key, begun, self.position, self.timestamp_ms))

    def _version(
        self, key: bytes, begun: _Open, position: int | None, timestamp_ms: int | None
    ) -> Version:
        value, expires_at_ms, revision, tag = self.records[key]
        return (
            *(key, revision, begun.change, value, tag, expires_at_ms),
            *(begun.position, begun.timestamp_ms, position, timestamp_ms),
            *(begun.moved_in, self.moving and position is not None, begun.hidden),
        )

    def load(self, key: bytes, record: Record, begun: _Open) -> None:
        """Add a version that existed before the first piece."""
        self.records[key] = record
        self._open[key] = begun

    def still_open(self) -> Iterator[Version]:
        """Yield the versions that have not ended."""
        for key, begun in self._open.items():
            yield self._version(key, begun, None, None)


class Machine:
    """Applies the pieces of one shard, in the order of the log.

    Args:
        note: of the log of a partition: what it knows of its slots where the pieces begin; empty
            for nothing. None for any other log.
    """

    def __init__(self, note: bytes | None = None) -> None:
        self._keys = _Keys()
        if note:
            self._keys.notes.put(SLOTS_NOTE, note)
        self._entry = (-1, -1)
        # commands of the log use only this part of Tables
        self._service = KeyValueService(cast("Tables", self._keys), partition=note is not None)
        ownership = self._service.ownership
        self._checks = None if ownership is None else SlotChecks(ownership, not_served)

    @property
    def note(self) -> bytes:
        """What a partition knows of its slots."""
        return self._keys.notes.rows.get(SLOTS_NOTE, b"")

    def refusal(self, payload: bytes, flags: int, *, stamped: bool) -> bytes | None:
        """Return why members execute no command of a request now, as a reply; None if they do.

        Args:
            payload: of a transaction, or of a request of a session: of any other one it may be
                that some commands are executed.
            flags: of the entry.
            stamped: it is of a session.
        """
        if self._checks is None:
            return None
        atomic = bool(flags & TRANSACTION)
        return self._checks.refusal(commands_of(payload), atomic=atomic, stamped=stamped)

    def before_frozen(self, payload: bytes) -> int | None:
        """Return how many commands members execute before one on a frozen slot; None for all.

        They stop there, and the rest comes again.
        """
        ownership = self._service.ownership
        if self._checks is None or ownership is None or not ownership.frozen:
            return None
        for number, arguments in enumerate(commands_of(payload)):
            if self._checks.refusal([arguments], atomic=True, stamped=False) == FROZEN:
                return number
        return None

    @property
    def shift(self) -> int:
        """How far revisions are above log positions."""
        return 0 if self._service.ownership is None else self._service.ownership.shift

    @property
    def taken_over_ms(self) -> int:
        """The latest log time that came with slots which were taken over."""
        return 0 if self._service.ownership is None else self._service.ownership.now_ms

    @property
    def states(self) -> bytes:
        """For each slot of a partition whether it is served: 0 if not."""
        ownership = self._service.ownership
        return b"" if ownership is None else bytes(ownership.states)

    @property
    def since(self) -> list[int]:
        """For each slot of a partition the revision from which on it has the changes, 0 for all."""
        ownership = self._service.ownership
        return [] if ownership is None else [ownership.since_of(slot) for slot in range(SLOTS)]

    def apply(
        self, payload: bytes, flags: int, *, term: int, position: int, index: int, timestamp_ms: int
    ) -> None:
        """Apply one piece."""
        keys = self._keys
        if self._entry != (position, index):
            self._entry = position, index
            keys.changes.clear()
        keys.position, keys.timestamp_ms = position, timestamp_ms
        command = Command(
            payload, flags, 0, 0, term, position, index, timestamp_ms, wants_reply=False
        )
        ownership = self._service.ownership
        if ownership is not None and SLOTS_COMMAND in payload[:_HEAD_BYTES].upper():
            keys.moving = True
            self._take_step(ownership, command)
            keys.moving = False
        else:
            self._service.apply(command)
        # Nobody watches here, and the service would keep each change until its batch is complete.
        self._service.changes.restart(position)

    def _take_step(self, ownership: Ownership, command: Command) -> None:
        """Apply QUORATE.SLOTS, as far as it concerns this shard."""
        words = commands_of(command.payload)[0]
        match words[1].upper():
            case b"CHUNK" if len(words) == 4 + _ROW_WORDS:
                self._copy(ownership, words)
            case b"PURGE":
                ownership.cleared()  # how far a member walks depends on keys of all shards
            case _:
                self._service.apply(command)
                if words[1].upper() == b"OWN":
                    self._keys.show(ownership.serves)
                if ownership.stale:  # rows that have gone, and nobody sees until they are purged
                    gone = (one for one in self._keys.records if not ownership.serves(one))
                    for key in [one for one in gone if not ownership.holds(one)]:
                        self._keys.delete(key)

    def _copy(self, ownership: Ownership, words: list[bytes]) -> None:
        """Put a row of a chunk, or delete it."""
        move, number, key, value, *numbers, tag = words[2:]
        if not ownership.awaits(int(move), int(number)) >> key_slot(key) & 1:
            return
        if tag == b"-":
            self._keys.delete(key)
        elif tag == b"+":
            if there := self._keys.records.get(key):
                self._keys.copy(key, (there[0] + value, *there[1:]))
        else:
            expires_at_ms, revision = map(int, numbers)
            self._keys.copy(key, (value, expires_at_ms, revision, int(tag)))

    def load(
        self,
        key: bytes,
        record: Record,
        *,
        change: int,
        position: int | None,
        timestamp_ms: int | None,
        moved_in: bool = False,
    ) -> None:
        """Add a version of a key that existed before the first piece."""
        ownership = self._service.ownership
        hidden = ownership is not None and not ownership.serves(key)
        if ownership is None or not hidden or ownership.holds(key):
            self._keys.load(key, record, _Open(change, position, timestamp_ms, moved_in, hidden))

    def take_ended(self) -> list[Version]:
        """Return the versions that have ended since the last call."""
        ended, self._keys.ended = self._keys.ended, []
        return ended

    def still_open(self) -> Iterator[Version]:
        """Yield the versions that have not ended."""
        return self._keys.still_open()
