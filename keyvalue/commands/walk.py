"""Commands that walk over the keys: SCAN, KEYS, RANDOMKEY, DBSIZE.

The walk goes in the order of the tables, a page at a time; a *place* is a stored key, and what
lies behind it has been walked over.

How far a walk goes is bounded by what this member has to look at, which is not the same on all:
deleted keys and expired ones lie about until a flush. So near the bound one member may answer and
another refuse. What a walk is *charged* (:mod:`.limits`) is the same everywhere, a lump sum.

**SCAN** answers with a cursor, a number, that stands for a place: a hash of it. The member
remembers which place it was. So a cursor means the same on every member, and one that is not
remembered, after a change of leader or very many others, means the beginning: a key that is there
throughout is always returned, perhaps more than once. Two SCANs that alternate between members
may go on for ever; clients don't do that.

**RANDOMKEY** walks over all keys if they are few; else it draws some: :mod:`.random_key`.
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
_SOME_KEYS: Final = 16  # to have one, if a draw finds none
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
_PREFIX_BYTES: Final = 448  # of a key that is stored hashed, so much keeps the order


class Walker:
    """The commands, with the cursors and the counter that they remember."""

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
        """Return the place that a cursor stands for; the beginning for one that is not known."""
        if not _CURSOR.fullmatch(text) or abs(cursor := int(text)) > _MAX_CURSOR:
            raise CommandError(resp.error("ERR invalid cursor"))
        return self._places.get(cursor, b"")

    def _cursor(self, place: bytes) -> int:
        digest = hashlib.blake2b(place, digest_size=_CURSOR_BYTES).digest()
        cursor = int.from_bytes(digest, "big") >> 1 or 1  # positive in 64 signed bits
        self._places.pop(cursor, None)
        self._places[cursor] = place
        if len(self._places) > MAX_CURSORS:
            del self._places[next(iter(self._places))]
        return cursor

    def randomkey(self, store: KeyStore, _arguments: list[bytes]) -> bytes:
        """RANDOMKEY."""
        self._asked += 1
        dice = Dice(b"%d %d" % (store.revision, self._asked))
        found: list[bytes] = []
        few = len(store) <= FEW_KEYS
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
    """DBSIZE: the keys that have not expired."""
    return resp.integer(len(store))


def expiring(store: KeyStore, _arguments: list[bytes]) -> bytes:
    """QUORATE.EXPIRING: the keys that have an expiry and have not expired."""
    deadlines = store.tables.deadlines
    return resp.integer(len(deadlines.by_key) - deadlines.count_due(store.now))


class _Walk:
    """The keys that exist and match a pattern. Only what begins like the pattern is looked at.

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
        """Yield the keys page by page, each page with the place to go on, None at the end.

        Raises:
            CommandError: the request has walked far enough.
        """
        store, prefix, matches = self._store, self._prefix, self._matches
        expires_at, now = store.tables.deadlines.by_key, store.now
        place: bytes | None = max(after, _just_before(prefix))
        while place is not None:
            if store.walked >= MAX_WALKED_KEYS:
                raise CommandError(_TOO_FAR)
            page, place = self._cut(*store.tables.page(place, limit))
            store.walked += limit
            if place is not None and place[: len(prefix)] > prefix:
                place = None
            yield (
                [key for key in page if matches(key) and expires_at.get(key, now + 1) > now],
                place,
            )

    def _cut(self, page: list[bytes], place: bytes | None) -> tuple[list[bytes], bytes | None]:
        """Cut a page where to match its keys would take too long; one at least is left."""
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
    """Return a place before every key that begins with `prefix`."""
    if not prefix:
        return b""
    return prefix[:-1] + bytes((prefix[-1] - 1,)) if prefix[-1] else prefix[:-1]


def _only_asked(handler: Handler) -> Handler:
    """Refuse a command in what the log holds.

    What a walk finds, and whether it goes too far, depends on what this member has flushed; the
    writes behind it would then find room on one member and none on another.
    """

    def asked(store: KeyStore, arguments: list[bytes]) -> bytes:
        return NO_WALK if store.applying else handler(store, arguments)

    return asked


def handlers() -> dict[str, Handler]:
    """Return the commands by name, with cursors of their own."""
    walker = Walker()
    return {
        "dbsize": dbsize,
        "quorate.expiring": expiring,
        "keys": _only_asked(keys),
        "randomkey": _only_asked(walker.randomkey),
        "scan": _only_asked(walker.scan),
    }
