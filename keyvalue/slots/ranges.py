"""Sets of slots: integers with a bit for each slot, and texts such as ``0-4095,5000``."""

import re
from collections.abc import Iterable
from typing import Final, TypeAlias

from ...errors import ConfigurationError
from .hashing import SLOTS

__all__ = [
    "ALL_SLOTS",
    "Slots",
    "count_of",
    "parse_slots_untrusted",
    "ranges_of",
    "slots_of",
    "text_of",
]

Slots: TypeAlias = int
"""A set of slots: bit n is slot n. Sets join by ``|``, meet by ``&``, and differ by ``& ~``."""

ALL_SLOTS: Final[Slots] = (1 << SLOTS) - 1

_ONES: Final = re.compile("1+")
_MOST_TEXT: Final = 8 * SLOTS
_RANGE: Final = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")


def slots_of(ranges: Iterable[tuple[int, int]]) -> Slots:
    """Return the set of the slots in ranges, each from its first to its last slot."""
    found = 0
    for first, last in ranges:
        found |= (1 << last + 1) - (1 << first)
    return found


def ranges_of(slots: Slots) -> list[tuple[int, int]]:
    """Return the ranges of a set, ascending: the first and the last slot of each."""
    # As a text of digits: sums of integers this long, a few for each range, take a hundred times as
    # long when there are very many ranges.
    digits = bin(slots)[:1:-1]
    return [(match.start(), match.end() - 1) for match in _ONES.finditer(digits)]


def count_of(slots: Slots) -> int:
    """Return how many slots a set has."""
    return slots.bit_count()


def text_of(slots: Slots) -> str:
    """Return a set as text, ``0-4095,5000``; empty for the empty set."""
    return ",".join(
        f"{first}-{last}" if last > first else f"{first}" for first, last in ranges_of(slots)
    )


def parse_slots_untrusted(text: str, *, what: str = "slots") -> Slots:
    """Return the set that a text such as ``0-4095,5000`` stands for; empty for an empty text.

    Args:
        text: ranges or single slots, joined by commas.
        what: the thing that has it, for the error.

    Raises:
        ConfigurationError: it is none, or names a slot twice.
    """
    expected = f"expected slots from 0 to {SLOTS - 1} such as 0-4095,5000, each once"
    digits = bytearray(b"0") * SLOTS  # that of slot 0 first; see `ranges_of`
    if len(text) > _MOST_TEXT:
        raise ConfigurationError(f"{what} = {text:.60}...: {expected}")
    for part in text.split(",") if text else ():
        match = _RANGE.fullmatch(part)
        first = int(match[1]) if match else 0
        last = int(match[2] or first) if match else -1
        if not first <= last < SLOTS:
            raise ConfigurationError(f"{what} = {text:.60}: {part[:20]!r}: {expected}")
        if digits.find(b"1", first, last + 1) >= 0:
            raise ConfigurationError(f"{what} = {text:.60}: {part[:20]!r} comes twice: {expected}")
        digits[first : last + 1] = b"1" * (last + 1 - first)
    return int(digits[::-1], 2)
