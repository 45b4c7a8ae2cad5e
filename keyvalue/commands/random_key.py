"""RANDOMKEY: some key, each as likely as any other.

**Few keys** are all looked at, and one of them is picked.

**Many keys.** The tables are sorted, and can't say which key is the n-th. To pick a place between
the first and the last key by its bytes does not do: names like ``user:1234`` use ten of 256 values
of a byte, so nearly every such place lies in a gap, and the few keys behind the gaps are all that
is ever found. So a *draw* goes down the tree of prefixes (:func:`_draw`): from a prefix to one of
the bytes that follow it in some key, each as likely, until few keys begin like it; of those it
picks one. Every key can be drawn. One that is drawn with the probability q, which is known, gets
the weight 1/q (Knuth, "Estimating the efficiency of backtrack programs", 1975), and the answer is
one of the last draws by their weights. With more draws that comes as near to uniform as one likes.

What is drawn depends on the log's position and on how often this member was asked: there is no
randomness of the machine in it, and whoever asks again gets another key.
"""

import hashlib
from collections import deque
from collections.abc import Sequence
from typing import Final

from ...storage.tables.memtable import HASHED_BYTES, stored_key
from ..state.store import KeyStore

__all__ = ["FEW_KEYS", "Dice", "RandomKey", "children", "draw"]

FEW_KEYS: Final = 1024
"""So many are all looked at: fewer would be picked by draws, more take longer than a draw."""

_LEAF_KEYS: Final = 64
_DRAWS: Final = 64
"""So many are kept. Fewer: where prefixes have very unlike numbers of keys, those of the rare ones
are too likely. More: keys that are long gone."""
_FIRST_DRAWS: Final = 16
_NEXT_DRAWS: Final = 2
_SEEK_KEYS: Final = 16  # one look into the tables takes as long as to walk over so many keys
_CHILDREN: Final = 16
"""So many of the bytes that follow a prefix are looked up; how many there are is then estimated."""
_SLOTS: Final = 257  # the prefix itself, and the prefix with each byte
_STEPS: Final = 1024
"""So often a draw looks into the tables at most (a few milliseconds); the key is then one of the
next ones, and some others are less likely than they should be."""


class Dice:
    """Numbers that follow from a text as if they were random."""

    def __init__(self, text: bytes) -> None:
        self._text, self._rolled = text, 0

    def below(self, end: int) -> int:
        """Return a number from 0 up to `end`, exclusively; `end` is much less than 2**128."""
        self._rolled += 1
        digest = hashlib.blake2b(b"%b %d" % (self._text, self._rolled), digest_size=16).digest()
        return int.from_bytes(digest, "big") * end >> 128


class RandomKey:
    """The command's answers when there are many keys, with the draws that it remembers."""

    def __init__(self) -> None:
        self._drawn: deque[tuple[bytes, int]] = deque(maxlen=_DRAWS)

    def pick(self, store: KeyStore, first: bytes, dice: Dice) -> bytes | None:
        """Return some key of those from the first on; None if only deleted ones were met."""
        drawn = self._drawn
        shared = _shared(stored_key(first), store.tables.last_place())
        for _ in range(_NEXT_DRAWS if drawn else _FIRST_DRAWS):
            if (found := draw(store, dice, shared)) is not None:
                drawn.append(found)
        while drawn:
            place = _weighted([weight for _, weight in drawn], dice)
            key, _ = drawn[place]
            if store.get(key) is not None:
                return key
            del drawn[place]
        return None


def _weighted(weights: Sequence[int], dice: Dice) -> int:
    """Pick an index by weights."""
    left = dice.below(sum(weights))
    for place, weight in enumerate(weights):
        left -= weight
        if left < 0:
            return place
    raise AssertionError("the weights are more than their sum")


def draw(store: KeyStore, dice: Dice, prefix: bytes) -> tuple[bytes, int] | None:
    """Draw a key that begins like a prefix, and return it with one over its probability."""
    weight, steps = 1, 0
    while True:
        keys, more = _leaf(store, prefix)
        if not more or steps > _STEPS:
            return (keys[dice.below(len(keys))], weight * len(keys)) if keys else None
        found, count = children(store, prefix, dice.below(_SLOTS))
        steps += len(found)
        weight *= count
        child = found[dice.below(len(found))]
        if child == prefix:
            return child, weight
        prefix = child


def _leaf(store: KeyStore, prefix: bytes) -> tuple[list[bytes], bool]:
    """Return the first keys that begin like a prefix, and whether there may be more of them."""
    page, place = store.tables.page(_before(prefix), _LEAF_KEYS)
    store.walked += _LEAF_KEYS
    expires_at, now = store.tables.deadlines.by_key, store.now
    keys = [
        key
        for key in page
        if stored_key(key).startswith(prefix) and expires_at.get(key, now + 1) > now
    ]
    return keys, place is not None and place.startswith(prefix)


def _shared(first: bytes, last: bytes) -> bytes:
    """Return what both begin like."""
    pairs = enumerate(zip(first, last, strict=False))
    return first[: next((at for at, (one, other) in pairs if one != other), len(first))]


def _before(prefix: bytes) -> bytes:
    """Return a place below all keys that begin like a prefix, and above all that are less."""
    if not prefix or not prefix[-1]:
        return prefix[:-1]
    return _behind(prefix[:-1] + bytes((prefix[-1] - 1,)))


def _behind(prefix: bytes) -> bytes:
    """Return a place above all keys that begin like a prefix, and below all that are greater."""
    return prefix.ljust(HASHED_BYTES + 1, b"\xff")


def children(store: KeyStore, prefix: bytes, start: int) -> tuple[list[bytes], int]:
    """Return prefixes, one byte longer, that keys or deleted keys begin like, and their number.

    If they are many, it is the next ones from a start on, and their number is estimated by the room
    that those take. The prefix itself is among them if it is a key, and stands for that key alone.
    At least one is returned if there are such keys.
    """
    found: list[bytes] = []
    place = _before(prefix + bytes((start - 1,)) if start else prefix)
    passed, taken = 0, 1
    while len(found) < _CHILDREN:
        page, end = store.tables.page(place, 1)
        store.walked += _SEEK_KEYS
        next_place = stored_key(page[0]) if page else end
        if next_place is None or not next_place.startswith(prefix):
            if passed:
                return found, len(found)
            passed, place = _SLOTS, _before(prefix)
            continue
        child = next_place[: len(prefix) + 1]
        slot = passed + (0 if child == prefix else child[-1] + 1)
        if slot >= start + _SLOTS:
            return found, len(found)
        found.append(child)
        place = child if child == prefix else _behind(child)
        taken = slot - start + 1
    return found, max(_CHILDREN * _SLOTS // taken, _CHILDREN)
