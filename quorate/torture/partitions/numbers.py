"""Clients that count, and keys that never change.

A client that counts appends the next number to one of its own lists, exactly once by our client. So
it knows each reply in advance, and in the end its lists hold each acknowledged number once, in
order. A number without an answer is there once or not at all, and its list is left alone from then
on.

The keys that never change are many, so moves have something to copy. All of them are there in the
end, unchanged.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

import attrs
import trio

from ...errors import QuorateError
from .clients import opened

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .clients import Load

__all__ = ["BALLAST", "Numbers", "fill"]

COUNTING: Final = 2
LISTS: Final = 12
FIRST_CLIENT: Final = 50
BALLAST: Final = 6000
"""Keys that never change. Fewer, and a move ends before a fault meets it."""
_BALLAST_BYTES: Final = 300
_LIST_NUMBERS: Final = 500
"""A list is left alone after so many numbers: its values get long."""
_AT_ONCE: Final = 50


def ballast(number: int) -> tuple[bytes, bytes]:
    """Return a key that never changes, and its value."""
    return b"ballast-%d" % number, b"%d:" % number + b"b" * _BALLAST_BYTES


async def fill(load: Load) -> None:
    """Write the keys that never change.

    Raises:
        RequestError: a partition does not answer.
    """
    async with opened(load.ports) as kv, trio.open_nursery() as nursery:
        limiter = trio.CapacityLimiter(_AT_ONCE)

        async def put(number: int) -> None:
            async with limiter:
                await kv.set(*ballast(number))

        for number in range(BALLAST):
            nursery.start_soon(put, number)


@attrs.define
class _List:
    """A list: what was acknowledged, and the number that may be there, too."""

    held: bytes = b""
    count: int = 0
    uncertain: bytes = b""


@attrs.define(eq=False)
class Numbers:
    """All clients that count.

    Args:
        load: the other clients; violations are added to theirs.

    Attributes:
        acknowledged: how many numbers were.
        uncertain: how many had no answer.
    """

    load: Load
    acknowledged: int = 0
    uncertain: int = 0
    _lists: dict[bytes, _List] = attrs.field(factory=dict[bytes, _List])

    async def run(self) -> None:
        """Count until the load ends."""
        async with trio.open_nursery() as nursery:
            for number in range(COUNTING):
                nursery.start_soon(self._count, FIRST_CLIENT + number)

    async def _count(self, client: int) -> None:
        rng = random.Random(f"{self.load.seed}/numbers/{client}")  # noqa: S311 - no secret
        generations = [0] * LISTS
        at = 0
        async with opened(self.load.ports) as kv:
            while not self.load.ends.is_set():
                place, at = rng.randrange(LISTS), at + 1
                key = b"numbers-%d-%d-%d" % (client, place, generations[place])
                self.sends(key, b"%d," % at)
                try:
                    reply = await kv.execute("APPEND", key, b"%d," % at)
                except QuorateError:
                    self.uncertain += 1
                    generations[place] += 1
                    continue
                self.answered(key, reply)
                self.load.answered(client)
                generations[place] += self._lists[key].count >= _LIST_NUMBERS

    def sends(self, key: bytes, item: bytes) -> None:
        """Note that a number is being appended to a list."""
        own = self._lists.setdefault(key, _List())
        own.uncertain, own.count = item, own.count + 1

    def expected(self, key: bytes) -> int:
        """Return the reply to the number that is being appended to a list."""
        own = self._lists[key]
        return len(own.held) + len(own.uncertain)

    def answered(self, key: bytes, reply: object) -> None:
        """Note that the number that was being appended has been acknowledged, and how."""
        right, own = self.expected(key), self._lists[key]
        own.held, own.uncertain = own.held + own.uncertain, b""
        self.acknowledged += 1
        if reply != right:
            self.load.violations.append(
                f"{key!r}: number {own.count} was answered with length {reply!r:.20}, expected "
                f"{right}"
            )

    @property
    def keys(self) -> list[bytes]:
        """All keys that were used."""
        return list(self._lists)

    def check(self, found: Mapping[bytes, bytes]) -> list[str]:
        """Return what is wrong with the lists, and with the keys that never change.

        Args:
            found: the last values of all keys.
        """
        wrong = [
            f"{key!r} ends with {found.get(key, b'')[-40:]!r}, expected {own.held[-40:]!r}"
            for key, own in self._lists.items()
            if found.get(key, b"") not in {own.held, own.held + own.uncertain}
        ]
        for number in range(BALLAST):
            key, value = ballast(number)
            if found.get(key) != value:
                wrong.append(f"{key!r}, which was never changed, is {found.get(key)!r:.30}")
        return wrong[:10]
