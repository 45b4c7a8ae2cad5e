"""A partition's state machine, which a test feeds, and a mover that copies slots between two."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import trio

from quorate.keyvalue.protocol import resp
from quorate.keyvalue.protocol.payload import FROZEN
from quorate.keyvalue.slots.hashing import key_slot
from quorate.keyvalue.state.ownership import Ownership
from quorate.node.state_machine.service import Command
from tests.support.service_world import Fed, Line, encode, open_service

ALL = "0-16383"
KEYS = ["a", "b", "c", "{a}1", "{b}2", "e" * 600]
"""Slots of a and {a}1 are the same, those of b and {b}2, too."""


def slot_of(key: str) -> int:
    return key_slot(key.encode())


class PartitionFed(Fed):
    """The service of one member of a partition, fed with its log.

    Args:
        directory: of its tables.
        found: the first slots; None to found nothing yet.
    """

    def __init__(self, directory: Path, found: str | None = ALL) -> None:
        self.directory = directory
        super().__init__(open_service(directory, partition=True))
        if found is not None:
            assert self.slots("FOUND", found) == b"OK"

    @property
    def ownership(self) -> Ownership:
        assert self.service.ownership is not None
        return self.service.ownership

    def slots(self, *words: object) -> Any:
        """Apply a command of QUORATE.SLOTS; return its reply, or the first word of an error."""
        return _reply(self.apply(_line(words)))

    def ask(self, *words: object) -> Any:
        """Send a query of QUORATE.SLOTS; return its reply, or the first word of an error."""
        return _reply(self.query(_line(words)))

    def facts(self) -> dict[str, Any]:
        """Return what STATE says, with the number of keys."""
        found = json.loads(self.ask("STATE"))
        return {**found, "keys": int(self.query("DBSIZE")[1:])}

    def once(self, session: int, sequence: int, *lines: Line, flags: int = 0) -> bytes:
        """Apply commands of a session as one log entry."""
        payload = encode(*lines)
        return self.replay(
            Command(payload, flags, session, sequence, 1, self.position, 0, self.now)
        )

    def restart(self) -> None:
        """Flush the tables, close them, and open them again."""
        trio.run(_flushed, self.service.run)
        self.service.close()
        self.service = open_service(self.directory, partition=True)
        assert self.service.position == self.position

    def close(self) -> None:
        self.service.close()


async def _flushed(run: Any) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(run)
        nursery.cancel_scope.cancel()


def _line(words: Sequence[object]) -> list[str | bytes]:
    return ["QUORATE.SLOTS", *(w if isinstance(w, bytes) else str(w) for w in words)]


def _reply(reply: bytes) -> Any:
    if reply == FROZEN:
        return "FROZEN"
    if reply.startswith(b"-"):
        return reply[1:].split()[0].decode()
    (found,) = resp.parse_replies_untrusted(reply)
    return found


class Mover:
    """Moves slots from one partition to another, as a director does, a step at a time."""

    def __init__(self, move: int, slots: str, source: PartitionFed, target: PartitionFed) -> None:
        self.move, self.slots = move, slots
        self.source, self.target = source, target
        self.after, self.cursor, self.chunk = 0, b"", 0
        self.frozen: list[int] = []
        self.step = self.begin

    def run(self) -> None:
        """Make all steps; some of them are several."""
        for _ in range(1000):
            if not self.step():
                return
        raise AssertionError("a move has no end")

    def begin(self) -> bool:
        if self.target.slots("PURGE", 50):
            return True
        if self.target.slots("IMPORT", self.move, self.slots) != b"OK":
            return self._end(None)
        self.after = self.source.ask("CHANGES", self.slots, -1)[0]
        self.step = self.copy
        return True

    def copy(self) -> bool:
        self.cursor, *rows = self.source.ask("ROWS", self.slots, self.cursor, 2)
        if not self._put(rows):
            return self._end(self.drop)
        if not self.cursor:
            self.step = self.freeze
        return True

    def freeze(self) -> bool:
        if not self._follow():
            return self._end(self.drop)
        frozen = self.source.slots("FREEZE", self.move, self.slots, 1)
        if isinstance(frozen, str):
            return self._end(self.drop)
        self.frozen = frozen
        self.step = self.own
        return True

    def own(self) -> bool:
        if not self._follow():
            return self._end(self.drop)
        keys = self.target.slots("OWN", self.move, *self.frozen)
        if isinstance(keys, str):
            return self._end(self.drop)
        self.keys = keys
        self.step = self.release
        return True

    def release(self) -> bool:
        self.source.slots("RELEASE", self.move, 1, self.keys)
        return self._end(None)

    def drop(self) -> bool:
        """End the move as somebody does who does not copy it."""
        outcome = self.target.slots("DROP", self.move)
        if outcome == b"OWNED":
            self.source.slots("RELEASE", self.move, 1, self.target.slots("OWN", self.move, 0, 0, 0))
        elif outcome == b"DROPPED":
            self.source.slots("THAW", self.move)
        return self._end(None)

    def _follow(self) -> bool:
        """Bring the target up to the source's present."""
        while self.after < self.source.service.changes.position:
            found = self.source.ask("CHANGES", self.slots, self.after)
            if isinstance(found, str) or not self._put(found[1:]):
                return False
            self.after = found[0]
        return True

    def _put(self, rows: list[list[Any]]) -> bool:
        if not rows:
            return True
        self.chunk += 1
        words = [word for row in rows for word in row]
        return bool(self.target.slots("CHUNK", self.move, self.chunk, *words) == b"OK")

    def _end(self, step: Any) -> bool:
        self.step = step or self._nothing
        return step is not None

    def _nothing(self) -> bool:
        return False
