"""Registers with compare-and-set, append lists and counters, in the key-value store.

They are checked twice: by their log positions during the run, and afterwards by a checker that
knows only what the clients saw.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...errors import RequestError
from ...histories.linearizability import Verdict, check
from ...keyvalue.protocol.payload import TRANSACTION
from ..invariants import ViolationError
from .base import Workload, decode, encode, value_of

if TYPE_CHECKING:
    from ...histories.history import Value
    from ..door import Door

KEYS: Final = 3


class Strings(Workload):
    """Clients read, write, compare and set, append and count."""

    def __init__(self) -> None:
        super().__init__()
        self.undecided = 0
        self._serial = 0

    async def act(self, door: Door) -> None:
        """Execute one operation on one key."""
        kind = door.rng.choice(("register", "register", "list", "counter"))
        key = b"%b-%d-%d" % (kind.encode(), self.round, door.rng.randrange(KEYS))
        self._serial += 1
        value = b"%d" % self._serial
        chance = door.rng.random()
        if chance < 0.4:
            await self.record(door, "get", key, (), _get(door, key))
        elif kind == "list":
            await self.record(door, "append", key, (value + b",",), _append(door, key, value))
        elif kind == "counter":
            await self.record(door, "incr", key, (), _increment(door, key))
        elif chance < 0.7:
            await self.record(door, "set", key, (value,), _set(door, key, value))
        else:
            await self._compare_and_set(door, key, value)

    async def _compare_and_set(self, door: Door, key: bytes, value: bytes) -> None:
        """Read a register, and replace the value if it has not changed, as with WATCH and EXEC."""
        try:
            reply = await door.query(encode(b"WATCH", key) + encode(b"GET", key))
        except RequestError:
            return
        revisions, found = decode(reply)
        assert isinstance(revisions, list)
        assert found is None or isinstance(found, bytes)
        revision = value_of(revisions[0])
        assert isinstance(revision, int)
        run = _exchange(door, key, revision, value)
        await self.record(door, "cas", key, (found, value), run)

    async def finish(self, door: Door) -> None:
        """Read every key once more, and search for an order that explains all operations."""
        for key in sorted({each.key for each in self.history}):
            await self.record(door, "get", key, (), _get(door, key))
        report = check(self.history)
        if report.verdict is Verdict.VIOLATED:
            found = [each for each in report.trouble if each.verdict is Verdict.VIOLATED]
            raise ViolationError(f"Linearizability: {found[0]}")
        self.undecided += len(report.trouble)
        self.history.clear()


async def _get(door: Door, key: bytes) -> Value:
    return value_of(decode(await door.query(encode(b"GET", key)))[0])


async def _set(door: Door, key: bytes, value: bytes) -> Value:
    return value_of(decode(await door.command(encode(b"SET", key, value)))[0])


async def _append(door: Door, key: bytes, value: bytes) -> Value:
    return value_of(decode(await door.command(encode(b"APPEND", key, value + b",")))[0])


async def _increment(door: Door, key: bytes) -> Value:
    return value_of(decode(await door.command(encode(b"INCR", key)))[0])


async def _exchange(door: Door, key: bytes, revision: int, value: bytes) -> Value:
    body = encode(b"WATCH", key, revision) + encode(b"SET", key, value)
    (reply,) = decode(await door.command(body, TRANSACTION))
    return int(reply is not None)
