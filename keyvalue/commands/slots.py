"""QUORATE.SLOTS: which slots a partition owns, and the steps by which they move.

The director of a cluster sends these commands (:mod:`quorate.partitions`); see
:mod:`..state.ownership` for what they do, and in which order. Each may come again, late, or from
two directors at once: what has been done is not done again, and a move that has ended here stays
so. Sets of slots are texts such as ``0-4095,5000``, moves are numbers.

- ``FOUND slots [user ...]``: own them, unless there were first slots already (``+FOUNDED``). Users
  are lines of ACL LIST; if there are any, the partition has those from then on, and no others.
  They come with the first slots or never, so late ones do not bring back a user that is gone.
- ``STATE``: all about the slots, as JSON
- ``TIME``: log time, by an entry of the log
- source: ``FREEZE move slots target`` (reply: revision, log time, epoch),
  ``THAW move``, ``RELEASE move target keys``
- target: ``IMPORT move slots``, ``CHUNK move number row ...``, ``OWN move revision now-ms epoch``
  (reply: how many keys came), ``DROP move``
- rows: ``ROWS slots cursor count``, ``CHANGES slots after``; and ``PURGE count`` behind a move

A row is five words: key, value, expiry in ms, revision, tag; with the tag ``-`` there is none. With
the tag ``+`` the value is one more piece of that of the row that an earlier chunk has brought: a
value may be as long as a request, so that no chunk could hold it.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from ...errors import ConfigurationError
from ..limits import LOOKUP_WORK
from ..protocol import resp
from ..protocol.resp import CommandError
from ..slots.ranges import Slots, parse_slots_untrusted
from ..state.changes import moved_row
from ..state.ownership import PIECE, ImportedRow, Ownership
from ..state.store import KeyStore
from .arguments import arity_error, integer
from .slot_rows import NO_ROW, changes, rows
from .strings import Handler
from .table import resolve, unknown_subcommand, wrong_arity

__all__ = ["NAME", "handlers", "queries"]

NAME: Final = "quorate.slots"

MOST_PURGED: Final = 10_000
"""Keys that one PURGE looks at: some tens of milliseconds. More would hold up other commands, fewer
would take more entries of the log."""

_NO_PARTITION: Final = resp.error(
    "ERR this cluster has no partitions, or this member is of its metadata group"
)
_FOUNDED: Final = resp.simple(b"FOUNDED")
_NEGATIVE: Final = resp.error("ERR a number is negative, or too large")
_MOST: Final = 1 << 62  # of revisions and times: sums of some stay below 64 bits
_ROW_WORDS: Final = 5
_MOST_TAG: Final = 255
_MORE: Final = b"+"

_Step: TypeAlias = Callable[[Ownership, KeyStore, list[bytes]], bytes]
_SetUsers: TypeAlias = Callable[[KeyStore, list[bytes]], None]


def handlers(ownership: Ownership | None, set_users: _SetUsers) -> dict[str, Handler]:
    """Return the handler for entries of the log.

    Args:
        ownership: None in a cluster without partitions.
        set_users: has the store have users as in ACL LIST, and no others.
    """
    return {NAME: _handler(ownership, _STEPS | _READERS | {b"found": _founding(set_users)})}


def queries(ownership: Ownership | None) -> dict[str, Handler]:
    """Return the handler for queries, which changes nothing."""
    return {NAME: _handler(ownership, _READERS)}


def _handler(ownership: Ownership | None, known: "dict[bytes, _Step]") -> Handler:
    def handle(store: KeyStore, arguments: list[bytes]) -> bytes:
        if len(arguments) < 2:  # noqa: PLR2004 - the container and its subcommand
            return arity_error(NAME)
        if (spec := resolve(arguments)) is None:
            return resp.error(unknown_subcommand(arguments))
        if not spec.takes(len(arguments)):
            return resp.error(wrong_arity(spec))
        if ownership is None:
            return _NO_PARTITION
        step = known.get(arguments[1].lower())
        if step is None:
            return resp.error("ERR a query can't write")
        return step(ownership, store, arguments[2:])

    return handle


# --- any partition


def _founding(set_users: _SetUsers) -> _Step:
    def found(ownership: Ownership, store: KeyStore, words: list[bytes]) -> bytes:
        slots = _slots_untrusted(words[0])
        if ownership.founded:
            return _FOUNDED
        if words[1:]:
            set_users(store, words[1:])
        ownership.found(slots)
        return resp.OK

    return found


def _state(ownership: Ownership, _store: KeyStore, _words: list[bytes]) -> bytes:
    # Without the number of keys: directors ask again and again, and tables that are asked for it
    # count at each write from then on. DBSIZE has it.
    return resp.bulk(msgspec.json.encode(ownership.facts()))


def _time(_ownership: Ownership, store: KeyStore, _words: list[bytes]) -> bytes:
    # By an entry, since log time stands still in a log without entries.
    return resp.integer(store.now)


def _purge(ownership: Ownership, store: KeyStore, words: list[bytes]) -> bytes:
    count = min(max(_number(words[0]), 1), MOST_PURGED)
    if ownership.stale:
        store.left -= LOOKUP_WORK * ownership.purge(count)
    return resp.ONE if ownership.stale else resp.ZERO


# --- the source


def _freeze(ownership: Ownership, store: KeyStore, words: list[bytes]) -> bytes:
    frozen = ownership.freeze(
        _number(words[0]),
        _slots_untrusted(words[1]),
        _number(words[2]),
        store.revision,
        store.now,
    )
    return resp.array(
        [resp.integer(frozen.revision), resp.integer(frozen.now_ms), resp.integer(frozen.epoch)]
    )


def _thaw(ownership: Ownership, _store: KeyStore, words: list[bytes]) -> bytes:
    ownership.thaw(_number(words[0]))
    return resp.OK


def _release(ownership: Ownership, store: KeyStore, words: list[bytes]) -> bytes:
    frozen = ownership.release(*map(_number, words))
    if frozen is not None:
        store.changes.note(*moved_row(frozen.slots, frozen.revision, store.revision))
    return resp.OK


# --- the target


def _import(ownership: Ownership, _store: KeyStore, words: list[bytes]) -> bytes:
    ownership.begin(_number(words[0]), _slots_untrusted(words[1]))
    return resp.OK


def _chunk(ownership: Ownership, store: KeyStore, words: list[bytes]) -> bytes:
    move, number, flat = _number(words[0]), _number(words[1]), words[2:]
    if len(flat) % _ROW_WORDS:
        return resp.error(f"ERR a row has {_ROW_WORDS} words, and there are {len(flat)} in all")
    records = [_row_untrusted(flat[at : at + _ROW_WORDS]) for at in range(0, len(flat), _ROW_WORDS)]
    store.left -= LOOKUP_WORK * ownership.chunk(move, number, records)
    return resp.OK


def _row_untrusted(words: list[bytes]) -> ImportedRow:
    key, value, expires_at_ms, revision, tag = words
    if tag == NO_ROW:
        return key, None
    if tag == _MORE:
        return key, (value, _number(expires_at_ms), _number(revision), PIECE)
    if (kind := _number(tag)) > _MOST_TAG:
        raise CommandError(resp.error(b"ERR %b is no tag of a row" % tag[:20]))
    return key, (value, _number(expires_at_ms), _number(revision), kind)


def _own(ownership: Ownership, store: KeyStore, words: list[bytes]) -> bytes:
    move, since, now_ms, epoch = map(_number, words)
    position = store.revision - ownership.shift
    keys = ownership.own(move, since, epoch, position, now_ms=now_ms, log_ms=store.now)
    store.now = max(store.now, ownership.now_ms)
    store.revision = position + ownership.shift
    return resp.integer(keys)


def _drop(ownership: Ownership, _store: KeyStore, words: list[bytes]) -> bytes:
    return resp.simple(ownership.drop(_number(words[0])).upper().encode())


# --- rows


def _rows(_ownership: Ownership, store: KeyStore, words: list[bytes]) -> bytes:
    return rows(store, _slots_untrusted(words[0]), words[1], integer(words[2]))


def _changes(_ownership: Ownership, store: KeyStore, words: list[bytes]) -> bytes:
    return changes(store, _slots_untrusted(words[0]), integer(words[1]))


# --- arguments


def _slots_untrusted(text: bytes) -> Slots:
    try:
        return parse_slots_untrusted(text.decode("ascii", "replace"))
    except ConfigurationError as error:
        raise CommandError(resp.error(f"ERR {error}")) from None


def _number(text: bytes) -> int:
    number = integer(text)
    if not 0 <= number < _MOST:
        raise CommandError(_NEGATIVE)
    return number


_READERS: Final[dict[bytes, _Step]] = {b"state": _state, b"rows": _rows, b"changes": _changes}
_STEPS: Final[dict[bytes, _Step]] = {
    b"time": _time,
    b"purge": _purge,
    b"freeze": _freeze,
    b"thaw": _thaw,
    b"release": _release,
    b"import": _import,
    b"chunk": _chunk,
    b"own": _own,
    b"drop": _drop,
}
