"""Partitions between which slots move, each a service over a log of its own, and its watches."""

import itertools
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import trio

from quorate.errors import KeyValueError
from quorate.keyvalue.programs.watch import LocalWatch, LocalWatches
from quorate.keyvalue.protocol import resp
from quorate.keyvalue.protocol.payload import PayloadParser
from quorate.keyvalue.service import KeyValueService
from quorate.keyvalue.slots.hashing import key_slot
from quorate.keyvalue.slots.history import PartitionLog
from quorate.keyvalue.state.changes import Change
from quorate.keyvalue.state.ownership import Ownership
from quorate.keyvalue.watches.replays import Replays
from quorate.storage.testing import InlineExecutor
from tests.support.service_world import encode
from tests.support.watch_world import KeptHistory

open_partition = partial(
    KeyValueService.open, cluster="test", member_id=1, executor=InlineExecutor, partition=True
)


@attrs.frozen(eq=False)
class Side:
    """One partition.

    Args:
        kept: its log.
        watches: of its only member.
        replays: for them.
    """

    kept: KeptHistory
    watches: LocalWatches
    replays: Replays

    @property
    def ownership(self) -> Ownership:
        assert self.kept.service.ownership is not None
        return self.kept.service.ownership

    @property
    def position(self) -> int:
        """The revision up to which all is applied."""
        return self.kept.service.changes.position

    def forget(self) -> None:
        """Drop the changes in memory, as a restart of the member does."""
        self.kept.service.changes.restart(self.position)

    def slots_log(self, partition: int) -> PartitionLog:
        """Return what its log says of its slots."""
        found, parse = PartitionLog(partition), PayloadParser().parse_untrusted
        for batch in self.kept.log:
            for command in batch.commands():
                for words in parse(command.payload):
                    at = command.position, command.index, command.timestamp_ms
                    found.apply_untrusted(words, *at)
        return found

    def replayed(self, directory: Path) -> list[Change]:
        """Return all changes of the log, by a service that applies it once more."""
        service = open_partition(directory)
        found: list[Change] = []
        try:
            for batch in self.kept.log:
                before = service.changes.position
                for command in batch.commands():
                    service.apply(command)
                service.advance(batch.header.end, batch.header.timestamp_ms)
                found += service.changes.after(before, b"")
        finally:
            service.close()
        return found


class Moves:
    """Moves slots as a director does, step by step."""

    def __init__(self, sides: Sequence[Side]) -> None:
        self.sides = sides
        self._numbers = itertools.count(1)

    def owner_of(self, slot: int) -> int:
        """Return the partition in which a slot is not foreign."""
        return next(at for at, side in enumerate(self.sides) if side.ownership.states[slot])

    def begin(self, slot: int, target: int, keys: Sequence[str]) -> int:
        """Copy rows, and freeze the slot; return the number of the move."""
        move, source = next(self._numbers), self.sides[self.owner_of(slot)]
        there = self.sides[target].kept
        for _ in range(5):  # of 10,000 keys
            there.batch("QUORATE.SLOTS PURGE 10000")
        there.batch(f"QUORATE.SLOTS IMPORT {move} {slot}")
        words = ["QUORATE.SLOTS", "CHUNK", str(move), "1"]
        reply = source.kept.service.query(encode(["QUORATE.RECORDS", *keys]), 0)
        (rows,) = resp.parse_replies_untrusted(reply)
        assert isinstance(rows, list)
        for key, row in zip(keys, rows, strict=True):
            match row:
                case [bytes(value), int(revision), int(expires_at_ms)]:
                    words += key, value.decode(), str(expires_at_ms), str(revision), "1"
                case _:
                    assert row is None
        there.batch(" ".join(words))
        source.kept.batch(f"QUORATE.SLOTS FREEZE {move} {slot} {target}")
        return move

    def frozen_at(self, slot: int) -> int:
        """Return the revision that froze a slot."""
        tenure = self.sides[self.owner_of(slot)].ownership.tenure_of(slot)
        assert tenure is not None
        assert tenure[2] is not None
        return tenure[2]

    def end(self, slot: int, target: int, move: int) -> None:
        """Hand the slot over."""
        source = self.sides[self.owner_of(slot)]
        words = f"{move} {self.frozen_at(slot)} {source.kept.now} {source.ownership.epoch_of(slot)}"
        self.sides[target].kept.batch(f"QUORATE.SLOTS OWN {words}")
        source.kept.batch(f"QUORATE.SLOTS RELEASE {move} {target} 0")


@asynccontextmanager
async def moving_world(directory: Path, tag: str, count: int = 2) -> AsyncGenerator[Moves]:
    """Run partitions, the first of which owns the slot of a tag."""
    async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
        sides: list[Side] = []
        for at in range(count):
            service = open_partition(directory / f"partition-{at}")
            stack.callback(service.close)
            service.moved = moved_to
            kept, place = KeptHistory(service), directory / f"replay-{at}"
            replays = Replays(
                kept, service.changes, place, open_partition, ownership=service.ownership
            )
            await nursery.start(service.run)
            await nursery.start(replays.run)
            watches = LocalWatches(service.changes, replays, service=service)
            sides.append(Side(kept, watches, replays))
            slots = str(key_slot(tag.encode())) if not at else ""
            kept.batch(f"QUORATE.SLOTS FOUND {slots}")
        yield Moves(sides)
        nursery.cancel_scope.cancel()


def moved_to(_slot: int) -> bytes:
    """Return a reply to commands with a foreign slot."""
    return b"-MOVED %d elsewhere:1\r\n" % _slot


class Follower:
    """Reads a watch, and follows the slot to the partition that has it.

    Args:
        moves: has the partitions.
        prefix: of the keys.
        at: the partition to begin at.
        after: the revision to begin after.
    """

    def __init__(self, moves: Moves, prefix: bytes, at: int = 0, after: int = 0) -> None:
        self.found: list[Change] = []
        self.hops = 0
        self.at, self.place = at, after
        self._moves, self._prefix = moves, prefix

    async def read_until(self, position: int) -> None:
        """Read until the place is there, by a new watch; then leave it."""
        with trio.fail_after(10_000):
            while self.place < position:
                side = self._moves.sides[self.at]
                try:
                    async with side.watches.watch(self._prefix, self.place) as watch:
                        await self._read(watch, position)
                except KeyValueError as error:
                    if error.code != "MOVED":
                        raise
                    self.hops += 1
                    self.at = 1 - self.at
                    await trio.sleep(0.01)

    async def _read(self, watch: LocalWatch, position: int) -> None:
        async def read() -> None:
            async for change in watch:
                self.found.append(change)

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read)
                while watch.position < position:  # noqa: ASYNC110 - virtual time
                    await trio.sleep(0.01)
                nursery.cancel_scope.cancel()
        except* KeyValueError as group:
            raise group.exceptions[0] from None
        finally:
            self.place = watch.position
