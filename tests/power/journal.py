"""What a loss of power leaves of a directory, told from the journal of `forgetful.c`.

A file system owes a process only what was synced: the bytes of a file by its `fsync`, the names in
a directory by the directory's. Everything later may be there or not, in any part and any order. So
a file is made of what it was in the beginning and of all writes in their order, each whole if it
was synced, else cut into sectors of which chance takes some; and a directory of all changes to its
names that were synced, and some of the next ones (file systems keep those in order).
"""

from __future__ import annotations

import os
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

    def tree(self) -> dict[str, bytes | None]:
        """Everything that is left: the bytes of files, None for directories."""
        synced: dict[int, int] = defaultdict(int)
        single: set[int] = set()
        for record in self.records:
            if record.kind == "S" and "S" in self.heeded:
                synced[record.inode] = max(synced[record.inode], record.one)
            elif record.kind == "Y" and "Y" in self.heeded:
                single.add(record.one)
        names = self._names(synced)
        contents = self._contents(synced, single)
        left: dict[str, bytes | None] = {}
        for path, inode in sorted(names.items()):
            if os.path.dirname(path) in {"", *left}:  # noqa: PTH120 - these are no paths of here
                left[path] = contents.get(inode)
        return left

    def _names(self, synced: dict[int, int]) -> dict[str, int]:
        names = {path: inode for path, inode in self.before.inodes.items() if path != "."}
        directories = {"": self.before.inodes["."]} | dict(names)
        ended: set[int] = set()  # directories of which no later change is there
        for record in self.records:
            if record.kind not in "CKRU":
                continue
            path = record.paths[-1]
            if record.kind == "K":
                directories[path] = record.inode
            parent = directories[os.path.dirname(path)]  # noqa: PTH120 - as above
            if record.number >= synced[parent] and self.chance.rng.random() >= self.chance.name:
                ended.add(parent)
            if parent not in ended:
                _rename(names, record)
        return names

    def _contents(self, synced: dict[int, int], single: set[int]) -> dict[int, bytes]:
        files = {self.before.inodes[path]: bytearray(b) for path, b in self.before.files.items()}
        for record in self.records:
            if record.kind == "C":
                files[record.inode] = bytearray()
            elif record.kind == "W" and record.inode in files:
                durable = record.number < synced[record.inode] or record.number in single
                for at, part in self._parts(record, durable=durable):
                    file = files[record.inode]
                    file.extend(bytes(max(0, at - len(file))))
                    file[at : at + len(part)] = part
            elif record.kind == "T" and record.inode in files:
                file = files[record.inode]
                if record.number < synced[record.inode] or self._lucky():
                    del file[record.one :]
                    file.extend(bytes(record.one - len(file)))
        return {inode: bytes(file) for inode, file in files.items()}

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


def _rename(names: dict[str, int], record: Record) -> None:
    match record.kind, record.paths:
        case "C" | "K", [path]:
            names[path] = record.inode
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
