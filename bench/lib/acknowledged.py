"""What was acknowledged, held against what the log says was set (:mod:`checking`)."""

from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from bench.lib.checking import NUMBER, Last, Look, LostError, Sets, told

TOLD: Final = 5
"""So many of what is missing are named."""


def counted(writes: int, value_bytes: int, keys: int) -> Look:
    """Of `redis-benchmark` and `fill`: so many writes, and values of so many bytes."""

    def look(sets: Sets) -> Last:
        count, last = 0, Last()
        for key, value in sets:
            number = key.removeprefix(b"key:")
            if len(key) != 16 or not number.isdigit() or int(number) >= keys:
                raise LostError(f"the log has a key that was not sent: {key!r:.60}")
            if len(value) != value_bytes:
                raise LostError(f"{key!r} has {len(value)} bytes in the log, and not {value_bytes}")
            last[key] = told(value)
            count += 1
        if count != writes:
            raise LostError(f"{writes} writes were acknowledged, and the log has {count}")
        return last

    return look


@attrs.define
class Numbers:
    """What a client that numbers its values knows of its key.

    Args:
        sent: the number that was sent last; the first one is 1.
        open: those that were not acknowledged: whether they were done nobody knows.
        seen: up to here they were looked for already.
    """

    sent: int = 0
    open: set[int] = attrs.field(factory=set[int])
    seen: int = 0

    @property
    def acknowledged(self) -> int:
        """How many were acknowledged since those that were looked for."""
        return self.sent - self.seen - sum(number > self.seen for number in self.open)


def numbered(clients: Mapping[bytes, Numbers], value_bytes: int) -> Look:
    """Of clients that number their values: each number that was acknowledged, and none not sent.

    Args:
        clients: what they know of their keys.
        value_bytes: of each value.
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
    """The number of a value; raises `LostError` for one that nobody has sent."""
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
