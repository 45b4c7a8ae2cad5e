"""Compares acknowledged writes with the writes in the log (see :mod:`checking`)."""

from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from bench.lib.checking import NUMBER, Last, Look, LostError, Sets, told

TOLD: Final = 5
"""At most this many missing writes are named in an error."""


def counted(writes: int, value_bytes: int, keys: int) -> Look:
    """Return a check for `redis-benchmark` and `fill`: number of writes and length of values."""

    def look(sets: Sets) -> Last:
        count, last = 0, Last()
        for key, value in sets:
            number = key.removeprefix(b"key:")
            if len(key) != 16 or not number.isdigit() or int(number) >= keys:
                raise LostError(f"the log has a key that was not sent: {key!r:.60}")
            if len(value) != value_bytes:
                raise LostError(
                    f"{key!r} has {len(value)} bytes in the log, expected {value_bytes}"
                )
            last[key] = told(value)
            count += 1
        if count != writes:
            raise LostError(f"{writes} writes were acknowledged, and the log has {count}")
        return last

    return look


@attrs.define
class Numbers:
    """What a client that numbers its values knows about its key.

    Args:
        sent: the last number that was sent; the first one is 1.
        open: numbers that were not acknowledged, so their outcome is unknown.
        seen: numbers up to this one were checked already.
    """

    sent: int = 0
    open: set[int] = attrs.field(factory=set[int])
    seen: int = 0

    @property
    def acknowledged(self) -> int:
        """Return how many writes were acknowledged since the last check."""
        return self.sent - self.seen - sum(number > self.seen for number in self.open)


def numbered(clients: Mapping[bytes, Numbers], value_bytes: int) -> Look:
    """Return a check for clients that number values: all acknowledged numbers, and no unsent one.

    Args:
        clients: the clients' numbers, by key.
        value_bytes: length of each value.
    """

    def look(sets: Sets) -> Last:
        marks = {key: bytearray(numbers.sent + 1) for key, numbers in clients.items()}
        last = Last()
        for key, value in sets:
            number = _number_untrusted(key, value, clients, value_bytes)
            marks[key][number] = 1
            last[key] = told(value)
        missing: list[str] = []
        for key, numbers in clients.items():
            wanted = range(numbers.seen + 1, numbers.sent + 1)
            lost = [n for n in wanted if not marks[key][n] and n not in numbers.open]
            missing += [f"{key.decode()} number {number}" for number in lost]
        if missing:
            raise LostError(f"acknowledged, and not in the log: {_some(missing)}")
        return last

    return look


def _number_untrusted(
    key: bytes, value: bytes, clients: Mapping[bytes, Numbers], value_bytes: int
) -> int:
    """Return the number of a value; raise `LostError` if no client has sent it."""
    if key not in clients:
        raise LostError(f"the log has a key that was not sent: {key!r:.60}")
    digits = value[NUMBER]
    if len(value) != value_bytes or not digits.isdigit():
        raise LostError(f"{key!r} has a value that was not sent: {value!r:.60}")
    if not 1 <= (number := int(digits)) <= clients[key].sent:
        raise LostError(f"{key!r} has number {number}; {clients[key].sent} was the last one sent")
    return number


def _some(words: Sequence[str]) -> str:
    more = f" and {len(words) - TOLD} more" if len(words) > TOLD else ""
    return ", ".join(words[:TOLD]) + more
