"""What a loss of power leaves of a directory, told from the journal of `forgetful.c`.

A file system owes a process only what was synced: the bytes of a file by its `fsync`, the names in
a directory by the directory's. Everything later may be there or not, in any part and any order. So
a file is made of what it was in the beginning and of all writes in their order, each whole if it
was synced, else cut into sectors of which chance takes some; and a directory of all changes to its
names that were synced, and some of the next ones (file systems keep those in order).
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections import defaultdict
from typing import TYPE_CHECKING, Final

import attrs
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from random import Random

SECTOR_BYTES: Final = 512
"""What a disk writes whole or not at all."""

_HEAD: Final = struct.Struct("<cQQQI")


@attrs.frozen
class Record:
    """One thing that was done; see `forgetful.c`."""

    number: int
    kind: str
    inode: int
    one: int
    two: int
    data: bytes

    @property
    def paths(self) -> list[str]:
        return self.data.decode().split("\0")


def read_journal(path: Path) -> list[Record]:
    """All whole records; the last one may be cut off by a kill."""
    data = path.read_bytes()
    records: list[Record] = []
    at = 0
    while at + _HEAD.size <= len(data):
        kind, inode, one, two, length = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        if at + length > len(data):
            break
        records.append(Record(len(records), kind.decode(), inode, one, two, data[at : at + length]))
        at += length
    return records


@attrs.frozen
class Tree:
    """A directory as it lies there: inodes by path (``.`` is itself), and the bytes of files."""

    inodes: dict[str, int]
    files: dict[str, bytes]

    @classmethod
    def of(cls, directory: Path) -> Tree:
        paths = [directory, *sorted(directory.rglob("*"))]
        names = {str(path.relative_to(directory)): path for path in paths}
        return cls(
            {name: path.stat().st_ino for name, path in names.items()},
            {name: path.read_bytes() for name, path in names.items() if path.is_file()},
        )


@attrs.define(eq=False)
class Chance:
    """What becomes of that which was not synced.

    Args:
        rng: decides.
        sector: how likely a sector of a write is there.
        name: how likely a change of a name is there, if the one before it is.
    """

    rng: Random
    sector: float
    name: float

    @classmethod
    def of(cls, rng: Random) -> Chance:
        """All, nothing, or some."""
        return cls(rng, rng.choice([0.0, 0.1, 0.5, 0.9, 1.0]), rng.choice([0.0, 0.5, 1.0]))


@attrs.define(eq=False)
class PowerLoss:
    """A loss of power.

    Args:
        before: the directory in the beginning; all of it was durable.
        records: what was done until then.
        chance: what becomes of that which was not synced.
        heeded: which kinds of syncs the disk keeps; without one of them it lies.
    """

    before: Tree
    records: Sequence[Record]
    chance: Chance
    heeded: str = "SY"
    _things: list[int] = attrs.field(init=False)
    """What each record is about: an inode, or the number of the record that has made it anew."""
    _synced: dict[int, int] = attrs.field(init=False, factory=lambda: defaultdict[int, int](int))
    _single: set[int] = attrs.field(init=False, factory=set[int])

    def __attrs_post_init__(self) -> None:
        current: dict[int, int] = {}
        self._things = []
        for record in self.records:
            if record.kind in "CK":
                current[record.inode] = -1 - record.number  # an inode may be used again
            thing = current.get(record.inode, record.inode)
            self._things.append(thing)
            if record.kind == "S" and "S" in self.heeded:
                self._synced[thing] = max(self._synced[thing], record.one)
            elif record.kind == "Y" and "Y" in self.heeded:
                self._single.add(record.one)

    def tree(self) -> dict[str, bytes | None]:
        """Everything that is left: the bytes of files, None for directories."""
        contents = self._contents()
        left: dict[str, bytes | None] = {}
        for path, thing in sorted(self._names().items()):
            if _parent(path) in {"", *left}:
                left[path] = contents.get(thing)
        return left

    def unsynced(self) -> list[Record]:
        """The writes of which nobody knows whether they are there."""
        return [
            record
            for record, thing in zip(self.records, self._things, strict=True)
            if record.kind == "W" and not self._durable(record, thing)
        ]

    def _durable(self, record: Record, thing: int) -> bool:
        """Whether a sync of that thing, or of this one write, came after it."""
        return record.number < self._synced[thing] or record.number in self._single

    def _names(self) -> dict[str, int]:
        names = {path: inode for path, inode in self.before.inodes.items() if path != "."}
        directories = {"": self.before.inodes["."]} | names
        ended: set[int] = set()  # directories of which no later change is there
        for record, thing in zip(self.records, self._things, strict=True):
            if record.kind not in "CKRU":
                continue
            path = record.paths[-1]
            if record.kind == "K":
                directories[path] = thing
            parent = directories[_parent(path)]
            if not self._durable(record, parent) and self.chance.rng.random() >= self.chance.name:
                ended.add(parent)
            if parent not in ended:
                _rename(names, record, thing)
        return names

    def _contents(self) -> dict[int, bytes]:
        files = {self.before.inodes[path]: bytearray(b) for path, b in self.before.files.items()}
        for record, thing in zip(self.records, self._things, strict=True):
            durable = self._durable(record, thing)
            match record.kind:
                case "C":
                    files[thing] = bytearray()
                case "W" if thing in files:
                    for at, part in self._parts(record, durable=durable):
                        files[thing].extend(bytes(max(0, at - len(files[thing]))))
                        files[thing][at : at + len(part)] = part
                case "T" if thing in files and (durable or self._lucky()):
                    del files[thing][record.one :]
                    files[thing].extend(bytes(record.one - len(files[thing])))
                case _:
                    pass
        return {thing: bytes(file) for thing, file in files.items()}

    def _parts(self, record: Record, *, durable: bool) -> Iterator[tuple[int, bytes]]:
        """The pieces of a write that are there."""
        if durable:
            yield record.one, record.data
            return
        at, end = record.one, record.one + len(record.data)
        while at < end:
            stop = min(end, (at // SECTOR_BYTES + 1) * SECTOR_BYTES)
            if self._lucky():
                yield at, record.data[at - record.one : stop - record.one]
            at = stop

    def _lucky(self) -> bool:
        return self.chance.rng.random() < self.chance.sector


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _rename(names: dict[str, int], record: Record, thing: int) -> None:
    match record.kind, record.paths:
        case "C" | "K", [path]:
            names[path] = thing
        case "R", [old, new] if old in names:
            names[new] = names.pop(old)
        case "U", [path]:
            names.pop(path, None)
        case _:
            pass


def replace(directory: Path, tree: dict[str, bytes | None], *, but: frozenset[str]) -> None:
    """Make a directory hold just that, and whatever it has under some names."""
    for path in directory.iterdir():
        if path.name in but:
            continue
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name, data in tree.items():
        if name in but:
            continue
        if data is None:
            (directory / name).mkdir(parents=True)
        else:
            (directory / name).write_bytes(data)


def compile_library(source: Path, directory: Path) -> Path:
    """Compile `forgetful.c`; skips the test where there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc), which the library that forgets needs")
    library = directory / "forgetful.so"
    command = [compiler, "-Wall", "-Werror", "-shared", "-fPIC", "-O1"]
    subprocess.run([*command, "-o", str(library), str(source), "-ldl", "-lpthread"], check=True)
    return library
