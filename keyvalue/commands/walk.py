"""Commands that walk over the keys: SCAN, KEYS, RANDOMKEY; and those that count them.

A walk follows the order of the tables, a page at a time. A *place* is a stored key; everything up
to it has been walked over.

Bounds
    A walk is bounded by the keys that this member has to look at. That number differs between
    members, because deleted and expired keys stay until a flush. So near the bound one member may
    answer where another refuses. What a walk is *charged* (:mod:`..limits`) is a lump sum, equal on
    all members.

SCAN
    The cursor is a number, the hash of a place; the member remembers which place it was. So a
    cursor means the same on every member. An unknown cursor, after a change of leader or very many
    other scans, means the beginning. A key that exists throughout is therefore always returned,
    perhaps more than once. Caveat: two SCANs that alternate between members may never end; clients
    do not do that.

RANDOMKEY
    It walks over all keys if they are few, and otherwise draws some (:mod:`.random_key`).
"""

import hashlib
import re
from collections.abc import Iterator
from typing import Final

from ...storage.tables.memtable import stored_key
from ..limits import MATCH_STEPS, MAX_CURSORS, MAX_SCAN_COUNT, MAX_WALKED_KEYS, WALK_WORK
from ..protocol import resp
from ..protocol.resp import CommandError
from ..state.store import KeyStore
from .arguments import SYNTAX_ERROR, integer
from .glob import literal_prefix, matcher
from .random_key import FEW_KEYS, Dice, RandomKey
from .strings import Handler

_DEFAULT_COUNT: Final = 10
_PAGE_KEYS: Final = 1024
_SOME_KEYS: Final = 16  # a page to answer from if every draw fails
_MAX_STEPS: Final = MAX_WALKED_KEYS * MATCH_STEPS
_TOO_FAR: Final = resp.error(
    f"ERR this takes a walk over more than {MAX_WALKED_KEYS} keys, use SCAN"
)
NO_WALK: Final = resp.error(
    "ERR KEYS, SCAN and RANDOMKEY are not allowed inside a transaction that writes"
)
_HARD_PATTERN: Final = resp.error("ERR this pattern takes too long with a key that is here")
_CURSOR_BYTES: Final = 8
_NOTHING: Final = resp.array([resp.bulk(b"0"), resp.EMPTY_ARRAY])
_CURSOR: Final = re.compile(rb"[+-]?[0-9]{1,20}")
_MAX_CURSOR: Final = (1 << 64) - 1
_PREFIX_BYTES: Final = 448  # long keys are stored hashed; up to here they keep their order


class Walker:
    """SCAN and RANDOMKEY, with the cursors and the counter that a member remembers."""

    def __init__(self) -> None:
        self._places: dict[int, bytes] = {}
        self._asked = 0
        self._random = RandomKey()

    def scan(self, store: KeyStore, arguments: list[bytes]) -> bytes:
        """SCAN cursor [MATCH pattern] [COUNT count] [TYPE type]."""
        place = self._place(arguments[1])
        pattern, count, kind = b"*", _DEFAULT_COUNT, b"string"
        options = iter(arguments[2:])
        for option in options:
            value = next(options, None)
            match option.upper():
                case b"MATCH" if value is not None:
                    pattern = value
                case b"COUNT" if value is not None:
                    count = integer(value)
                    if count < 1:
                        return SYNTAX_ERROR
                case b"TYPE" if value is not None:
                    kind = value.lower()
                case _:
                    return SYNTAX_ERROR
        if kind != b"string":
            return _NOTHING
        pages = _Walk(store, pattern).pages(min(count, MAX_SCAN_COUNT), after=place)
        for keys, next_place in pages:
            cursor = 0 if next_place is None else self._cursor(next_place)
            return resp.array([resp.bulk(b"%d" % cursor), resp.bulk_array(keys)])
        return _NOTHING

    def _place(self, text: bytes) -> bytes:
        """Return the place that a cursor stands for; the beginning for an unknown cursor."""
        if not _CURSOR.fullmatch(text) or abs(cursor := int(text)) > _MAX_CURSOR:
            raise CommandError(resp.error("ERR invalid cursor"))
        return self._places.get(cursor, b"")

    def _cursor(self, place: bytes) -> int:
        digest = hashlib.blake2b(place, digest_size=_CURSOR_BYTES).digest()
        cursor = int.from_bytes(digest, "big") >> 1 or 1  # positive in 64 signed bits
        self._places.pop(cursor, None)  # put back at the end: the oldest are dropped first
        self._places[cursor] = place
        if len(self._places) > MAX_CURSORS:
            del self._places[next(iter(self._places))]
        return cursor

    def randomkey(self, store: KeyStore, _arguments: list[bytes]) -> bytes:
        """RANDOMKEY."""
        self._asked += 1
        dice = Dice(b"%d %d" % (store.revision, self._asked))
        found: list[bytes] = []
        hidden = 0 if store.ownership is None else store.ownership.hidden_keys
        few = len(store) + hidden <= FEW_KEYS
        for page, _place in _Walk(store, b"*").pages(FEW_KEYS if few else _SOME_KEYS):
            found += page
            if found and not few:
                break
        if not found:
            return store.null
        drawn = None if few else self._random.pick(store, found[0], dice)
        return resp.bulk(found[dice.below(len(found))] if drawn is None else drawn)


def keys(store: KeyStore, arguments: list[bytes]) -> bytes:
    """KEYS pattern."""
    found: list[bytes] = []
    for page, _place in _Walk(store, arguments[1]).pages(_PAGE_KEYS):
        found += page
    return resp.bulk_array(found)


def dbsize(store: KeyStore, _arguments: list[bytes]) -> bytes:
    """DBSIZE: the number of keys that have not expired."""
    return resp.integer(len(store))


def expiring(store: KeyStore, _arguments: list[bytes]) -> bytes:
    """QUORATE.EXPIRING: the number of keys with an expiry that have not expired.

    Hidden keys of a partition count as well if there are very many.
    """
    deadlines, ownership = store.tables.deadlines, store.ownership
    if ownership is not None and ownership.hides and len(deadlines.by_key) <= MAX_WALKED_KEYS:
        left = deadlines.by_key.items()
        return resp.integer(sum(at > store.now and ownership.serves(key) for key, at in left))
    return resp.integer(len(deadlines.by_key) - deadlines.count_due(store.now))


class _Walk:
    """The existing keys that match a pattern; it looks only at keys with the pattern's prefix.

    Raises:
        CommandError: the pattern is too long.
    """

    def __init__(self, store: KeyStore, pattern: bytes) -> None:
        store.left -= WALK_WORK
        self._store = store
        self._matches = matcher(pattern)
        prefix = literal_prefix(pattern)
        self._prefix = prefix[:_PREFIX_BYTES]
        self._steps_per_byte = max(len(pattern) - len(prefix), 1)  # at worst

    def pages(
        self, limit: int, *, after: bytes = b""
    ) -> Iterator[tuple[list[bytes], bytes | None]]:
        """Yield pages of keys, each with the place to continue from; None at the end.

        Raises:
            CommandError: the request has walked over too many keys.
        """
        store, prefix, matches = self._store, self._prefix, self._matches
        expires_at, now = store.tables.deadlines.by_key, store.now
        serves = store.filter()
        place: bytes | None = max(after, _just_before(prefix))
        while place is not None:
            if store.walked >= MAX_WALKED_KEYS:
                raise CommandError(_TOO_FAR)
            page, place = self._cut(*store.tables.page(place, limit))
            store.walked += limit
            if place is not None and place[: len(prefix)] > prefix:
                place = None
            if serves is not None:
                page = [key for key in page if serves(key)]
            yield (
                [key for key in page if matches(key) and expires_at.get(key, now + 1) > now],
                place,
            )

    def _cut(self, page: list[bytes], place: bytes | None) -> tuple[list[bytes], bytes | None]:
        """Shorten a page so that matching its keys does not take too long; one key is left."""
        steps = sum(map(len, page)) * self._steps_per_byte
        if steps > _MAX_STEPS:
            steps = 0
            for count, key in enumerate(page):
                steps += len(key) * self._steps_per_byte
                if steps > _MAX_STEPS:
                    if not count:
                        raise CommandError(_HARD_PATTERN)
                    page, place = page[:count], stored_key(page[count - 1])
                    break
        self._store.walked += steps // MATCH_STEPS
        return page, place


def _just_before(prefix: bytes) -> bytes:
    """Return a place before all keys that begin with `prefix`."""
    if not prefix:
        return b""
    return prefix[:-1] + bytes((prefix[-1] - 1,)) if prefix[-1] else prefix[:-1]


def _query_only(handler: Handler) -> Handler:
    """Refuse a command that comes from the log; as a query it is allowed."""
    # What a walk finds, and whether it goes too far, depends on what this member has flushed. In a
    # log entry, the writes behind it could then run on one member and be refused on another.

    def query_only(store: KeyStore, arguments: list[bytes]) -> bytes:
        return NO_WALK if store.applying else handler(store, arguments)

    return query_only


def handlers() -> dict[str, Handler]:
    """Return the handlers by command name, with cursors of their own."""
    walker = Walker()
    return {
        "dbsize": dbsize,
        "quorate.expiring": expiring,
        "keys": _query_only(keys),
        "randomkey": _query_only(walker.randomkey),
        "scan": _query_only(walker.scan),
    }
