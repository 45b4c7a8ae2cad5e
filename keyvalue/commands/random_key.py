"""RANDOMKEY: return a key, each with nearly the same probability.

Few keys
    All are looked at, and one is picked.

Many keys, the naive way
    The tables are sorted, but cannot find the n-th key. Picking a random place between the first
    and the last key fails. Names like ``user:1234`` use ten of the 256 values of a byte, so nearly
    every place lies in a gap. Only the few keys behind the gaps would ever be found.

Many keys, what we do
    A *draw* goes down the tree of prefixes (:func:`draw`). It extends the prefix by one of the
    bytes that follow it in some key, each with the same probability. When few keys begin with the
    prefix, it picks one of them. So every key can be drawn, but with unequal probability q, which
    is known. It gets the weight 1/q (Knuth, "Estimating the efficiency of backtrack programs",
    1975), and the answer is one of the last draws, picked by weight. More draws come closer to
    uniform.

Determinism
    A draw depends on the log position and on the number of calls on this member, not on the
    machine's randomness. The next call returns another key.
"""

import hashlib
from collections import deque
from collections.abc import Sequence
from typing import Final

from ...storage.tables.memtable import HASHED_BYTES, stored_key
from ..state.store import KeyStore

__all__ = ["FEW_KEYS", "Dice", "RandomKey", "children", "draw"]

FEW_KEYS: Final = 1024
"""Up to this many keys are all looked at. More would take longer than a draw."""

_LEAF_KEYS: Final = 64
_DRAWS: Final = 64
"""Draws that are remembered. Fewer, and keys of rare prefixes are too likely where prefixes have
very different numbers of keys; more, and remembered keys are long deleted."""
_FIRST_DRAWS: Final = 16
_NEXT_DRAWS: Final = 2
_SEEK_KEYS: Final = 16  # one look into the tables takes as long as walking over this many keys
_CHILDREN: Final = 16
"""At most this many of the bytes that follow a prefix are looked up; their number is estimated."""
_SLOTS: Final = 257  # the prefix itself, and the prefix with each byte
_STEPS: Final = 1024
"""Looks into the tables that one draw may take: a few milliseconds. Beyond it the draw takes one of
the next keys, so some keys are less likely than they should be."""


class Dice:
    """Pseudo-random numbers that follow from a text."""

    def __init__(self, text: bytes) -> None:
        self._text, self._rolled = text, 0

    def below(self, end: int) -> int:
        """Return a number from 0 to `end` - 1; `end` is much less than 2**128."""
        self._rolled += 1
        digest = hashlib.blake2b(b"%b %d" % (self._text, self._rolled), digest_size=16).digest()
        return int.from_bytes(digest, "big") * end >> 128


class RandomKey:
    """RANDOMKEY over many keys, with the draws that it remembers."""

    def __init__(self) -> None:
        self._drawn: deque[tuple[bytes, int]] = deque(maxlen=_DRAWS)

    def pick(self, store: KeyStore, first: bytes, dice: Dice) -> bytes | None:
        """Return a random key; None if only deleted keys were found.

        Args:
            store: the keys.
            first: the first of all keys.
            dice: decides.
        """
        drawn, serves = self._drawn, store.filter()
        shared = _shared(stored_key(first), store.tables.last_place())
        for _ in range(_NEXT_DRAWS if drawn else _FIRST_DRAWS):
            if (found := draw(store, dice, shared)) is not None:
                drawn.append(found)
        while drawn:
            place = _weighted([weight for _, weight in drawn], dice)
            key, _ = drawn[place]
            if store.get(key) is not None and (serves is None or serves(key)):
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
    """Draw a key with a prefix; return it with its weight, one over its probability."""
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
    """Return the first keys with a prefix, and whether there may be more."""
    page, place = store.tables.page(_before(prefix), _LEAF_KEYS)
    store.walked += _LEAF_KEYS
    expires_at, now, serves = store.tables.deadlines.by_key, store.now, store.filter()
    keys = [
        key
        for key in (page if serves is None else filter(serves, page))
        if stored_key(key).startswith(prefix) and expires_at.get(key, now + 1) > now
    ]
    return keys, place is not None and place.startswith(prefix)


def _shared(first: bytes, last: bytes) -> bytes:
    """Return the common prefix of two keys."""
    pairs = enumerate(zip(first, last, strict=False))
    return first[: next((at for at, (one, other) in pairs if one != other), len(first))]


def _before(prefix: bytes) -> bytes:
    """Return the place just before all keys with a prefix."""
    if not prefix or not prefix[-1]:
        return prefix[:-1]
    return _behind(prefix[:-1] + bytes((prefix[-1] - 1,)))


def _behind(prefix: bytes) -> bytes:
    """Return the place just behind all keys with a prefix."""
    return prefix.ljust(HASHED_BYTES + 1, b"\xff")


def children(store: KeyStore, prefix: bytes, start: int) -> tuple[list[bytes], int]:
    """Return the prefixes, one byte longer, that occur in keys, and their number.

    Deleted keys count as well until they are flushed. If there are many, the next ones from `start`
    on are returned, and their number is estimated from the range that they cover. If the prefix is
    itself a key, it is among them and stands for that key alone. At least one is returned if there
    are such keys.
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
