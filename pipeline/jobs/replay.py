"""The log's commands applied, in parallel and exactly: every version that every key has had.

What a command makes of a key may hang on what was there (``SET ... NX``, ``INCR``, ``WATCH``), so
the commands are applied by the very state machine that the members run, in the order of the log.
But most of them touch one key and nothing else. So the log is taken apart:

- A command on one key is applied among the commands on that key alone. A command on several keys
  whose effects don't hang together (``MSET``, ``DEL``) becomes one for each key.
- What must see several keys at once (``RENAME``, ``COPY``, ``MSETNX``, a transaction that
  watches), and an entry so large that it may meet the bound on what one request may cost, is
  *coupled*: it is applied whole, and all the keys of all coupled entries are kept in one shard.
- ``FLUSHALL`` goes to every shard.
- What only reads is left out, except in a coupled entry.

The keys are spread over shards by hash, a shard is applied by one task, which holds its keys in
memory. A log in which everything is coupled is applied by one task: right, and no faster than a
member.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final, TypeAlias, cast

import attrs

from ...errors import WireError
from ...keyvalue import limits
from ...keyvalue.commands.table import Kind, keys_of, lookup
from ...keyvalue.protocol.payload import IN_PARTS, TRANSACTION, PayloadParser
from ...keyvalue.protocol.resp import encode_command
from ...keyvalue.service import KeyValueService
from ...node.state_machine.service import Command
from ...storage.tables.notes import Notes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...keyvalue.commands.spec import CommandSpec
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
"""INCRBYFLOAT prints no longer one."""
_PLAIN_SET: Final = 3
"""Words of ``SET key value``."""

_REPLY_BYTES: Final = 64
"""Of a reply that tells no value."""
_RETURN_VALUES: Final = frozenset(
    {"get", "getset", "getdel", "getex", "set", "mget", "getrange", "substr", "keys", "scan"}
)

_PARSER: Final = PayloadParser()


@attrs.frozen
class Sizes:
    """Bounds on the length of the values in a log: of those set whole, and of all appended."""

    longest: int = _LONGEST_NUMBER_BYTES
    appended: int = 0

    def __or__(self, other: Sizes) -> Sizes:
        return Sizes(max(self.longest, other.longest), self.appended + other.appended)

    @property
    def bound(self) -> int:
        """No value is longer."""
        return min(self.longest + self.appended, limits.MAX_VALUE_BYTES)


@attrs.frozen
class Piece:
    """A part of an entry that is applied on its own.

    Args:
        key: whose shard applies it; None: that of the coupled keys.
        everywhere: every shard applies it.
        payload: commands, as RESP.
        flags: of the service.
    """

    key: bytes | None
    everywhere: bool
    payload: bytes
    flags: int


def commands_of(payload: bytes) -> list[list[bytes]]:
    """Return the commands of an entry, none if they make no sense."""
    try:
        return _PARSER.parse_untrusted(payload)
    except WireError:  # the state machine answers with an error, and changes nothing
        return []


def _known(arguments: list[bytes]) -> CommandSpec | None:
    """Return what a command is; None if the state machine answers with an error about its form."""
    spec = lookup(arguments[0])
    return spec if spec is not None and spec.takes(len(arguments)) else None


def sizes(payload: bytes) -> Sizes:
    """Return how long values may become by one entry."""
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


def pieces(payload: bytes, flags: int, bound: int) -> list[Piece]:
    """Take an entry apart; its pieces, in this order, change what the entry changes.

    Args:
        payload: of a COMMAND entry.
        flags: of it.
        bound: no value in the log is longer.
    """
    commands = commands_of(payload)
    if _coupled(commands, flags, bound):
        return [Piece(None, False, payload, flags)]
    alone = flags & ~(TRANSACTION | IN_PARTS)
    found: list[Piece] = []
    for arguments in commands:
        spec = _known(arguments)
        if spec is None or spec.kind is not Kind.WRITE or spec.name == "quorate.session":
            continue  # sessions are known to the driver, see `once`
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


def _coupled(commands: Sequence[list[bytes]], flags: int, bound: int) -> bool:
    """Say whether commands must be applied together."""
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
            continue  # it reads nothing and replies with a word, so no member stops at it
        lookups = max(len(keys), 1)  # a command may look at a key and make another value of it
        work += lookups * (limits.LOOKUP_WORK + 2 * limits.work_of_bytes(bound))
        work += limits.WALK_WORK * (not keys)
        replies += (bound + _REPLY_BYTES) * lookups * (spec.name in _RETURN_VALUES)
    if len(commands) == 1 and len(keys_of_all(commands)) <= 1:
        return False  # the first command of a request is never refused for what it costs
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
    """Return the keys of an entry that is coupled, none of another one."""
    commands = commands_of(payload)
    return keys_of_all(commands) if _coupled(commands, flags, bound) else set()


def shard_of(key: bytes, shards: int) -> int:
    """Return the shard of a key that is not coupled, 1 to `shards`; 0 is for coupled ones."""
    return 1 + zlib.crc32(key) % shards


Version: TypeAlias = tuple[
    bytes, int, int, bytes, int, int, int | None, int | None, int | None, int | None
]
"""Key, revision, place among the key's versions of this revision, value, tag, expiry (ms, 0 for
never), position and time (ms) from which on it was the key's, and those until which, or None."""


@attrs.frozen
class _Open:
    """A version that has not ended."""

    change: int
    position: int | None
    timestamp_ms: int | None


class _Keys:
    """What the state machine takes for its tables: the keys of one shard, in memory.

    Attributes:
        records: what is there; those that have expired, too, until something takes their place.
        position: of the batch that is being applied.
        timestamp_ms: its time.
        changes: how many values each key got by the entry that is being applied.
        ended: versions that have ended since they were last taken.
        notes: rows beside the keys.
    """

    def __init__(self) -> None:
        self.records: dict[bytes, Record] = {}
        self.position = 0
        self.timestamp_ms = 0
        self.ended: list[Version] = []
        self.changes: dict[bytes, int] = {}
        self.notes = Notes({})
        self._open: dict[bytes, _Open] = {}

    def get(self, key: bytes) -> Record | None:
        return self.records.get(key)

    def put(self, key: bytes, record: Record) -> None:
        self._end(key)
        change = self.changes.get(key, 0)
        self.changes[key] = change + 1
        self.records[key] = record
        self._open[key] = _Open(change, self.position, self.timestamp_ms)

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
        if (begun := self._open.pop(key, None)) is not None:
            self.ended.append(self._version(key, begun, self.position, self.timestamp_ms))

    def _version(
        self, key: bytes, begun: _Open, position: int | None, timestamp_ms: int | None
    ) -> Version:
        value, expires_at_ms, revision, tag = self.records[key]
        return (
            *(key, revision, begun.change, value, tag, expires_at_ms),
            *(begun.position, begun.timestamp_ms, position, timestamp_ms),
        )

    def load(self, key: bytes, record: Record, begun: _Open) -> None:
        """Take a version that was there before."""
        self.records[key] = record
        self._open[key] = begun

    def still_open(self) -> Iterator[Version]:
        """Yield the versions that have not ended."""
        for key, begun in self._open.items():
            yield self._version(key, begun, None, None)


class Machine:
    """Applies the pieces of one shard, in the order of the log."""

    def __init__(self) -> None:
        self._keys = _Keys()
        self._entry = (-1, -1)
        # the part of Tables that commands of the log use
        self._service = KeyValueService(cast("Tables", self._keys))

    def apply(
        self, payload: bytes, flags: int, *, term: int, position: int, index: int, timestamp_ms: int
    ) -> None:
        """Apply one piece."""
        keys = self._keys
        if self._entry != (position, index):
            self._entry = position, index
            keys.changes.clear()
        keys.position, keys.timestamp_ms = position, timestamp_ms
        self._service.apply(
            Command(payload, flags, 0, 0, term, position, index, timestamp_ms, wants_reply=False)
        )

    def load(
        self,
        key: bytes,
        record: Record,
        *,
        change: int,
        position: int | None,
        timestamp_ms: int | None,
    ) -> None:
        """Begin with a version of a key that was there before."""
        self._keys.load(key, record, _Open(change, position, timestamp_ms))

    def take_ended(self) -> list[Version]:
        """Return the versions that have ended since the last call."""
        ended, self._keys.ended = self._keys.ended, []
        return ended

    def still_open(self) -> Iterator[Version]:
        """Yield the versions that have not ended."""
        return self._keys.still_open()
