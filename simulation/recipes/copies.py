"""Copies of keys that programs keep: each key only moves forward, to values that it once had."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...recipes.cache import Cache
    from .tenures import Tenures

PREFIX = b"copied:"


class Copies:
    """What programs saw in their copies."""

    def __init__(self) -> None:
        self._seen: list[dict[bytes, list[bytes]]] = []
        self._values = 0

    def new(self) -> dict[bytes, list[bytes]]:
        """Begin a copy: for each key, the values that are seen one after the other."""
        seen: dict[bytes, list[bytes]] = {}
        self._seen.append(seen)
        return seen

    def value(self) -> bytes:
        """Return a value that no key has had."""
        self._values += 1
        return b"value-%d" % self._values

    def judge(self, tenures: Tenures) -> Iterator[str]:
        """Yield which keys went back, or had a value that they never had, by the log."""
        had = {
            (key, tenure.value): place
            for key, of_it in tenures.of.items()
            if key.startswith(PREFIX)
            for place, tenure in enumerate(of_it)
        }
        for seen in self._seen:
            for name, values in seen.items():
                places = [had.get((PREFIX + name, value), -1) for value in values]
                if places != sorted(places) or -1 in places:
                    yield f"Recipes.Copy: {name!r} was seen as {values}: {places}"


def look(copy: Cache, seen: dict[bytes, list[bytes]]) -> None:
    """Note what is in a copy now."""
    for name, value in copy.items():
        if seen.setdefault(name, [])[-1:] != [value]:
            seen[name].append(value)
