"""A file of lines that never grows beyond a bound, by dropping what is oldest.

The file is renamed to ``.1`` when it is full, that to ``.2``, and so on. Calls block, so they
belong on a thread. They are not made at the same time.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_MODE: Final = stat.S_IRUSR | stat.S_IWUSR


class Ring:
    """A file of lines, and older ones with numbers.

    Args:
        path: of the newest file, which only its owner may read.
        file_bytes: size of a file.
        files: number of files that are kept, two or more.
        sync: whether a line is on disk when `write` returns; if not, it survives the end of the
            process, but not of the machine.
        mend: whether half a line, as a crash leaves it, is cut off; if not, it stays a line.

    Attributes:
        begin: lines with which each new file begins.
    """

    def __init__(
        self, path: Path, *, file_bytes: int, files: int, sync: bool = True, mend: bool = False
    ) -> None:
        self.begin = b""
        self._path = path
        self._file_bytes = file_bytes
        self._files = files
        self._sync = sync
        self._mend = mend
        self._fileno = -1

    def write(self, data: bytes) -> None:
        """Append whole lines.

        Raises:
            OSError: the disk can't take them.
        """
        if self._fileno < 0:
            self._open()
        size = os.fstat(self._fileno).st_size
        if size and size + len(data) > self._file_bytes:
            self.turn()
            self._open()
        self._append(data)
        if self._sync:
            os.fdatasync(self._fileno)

    def turn(self) -> None:
        """Have the next line begin a new file; drop the oldest file if there are enough.

        Raises:
            OSError: a file can't be renamed.
        """
        self.close()
        for number in reversed(range(self._files - 1)):
            with suppress(FileNotFoundError):
                numbered(self._path, number).replace(numbered(self._path, number + 1))

    def first_line(self, most: int) -> bytes:
        """Return the first line of the newest file, or its first `most` bytes; empty if none."""
        try:
            with self._path.open("rb") as file:
                return file.readline(most)
        except FileNotFoundError:
            return b""

    def last_line(self, most: int) -> bytes:
        """Return the last whole line of the newest file, if it has at most `most` bytes."""
        try:
            with self._path.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - most))
                whole = file.read(most).rpartition(b"\n")[0]
        except FileNotFoundError:
            return b""
        return whole.rpartition(b"\n")[2]

    def close(self) -> None:
        """Close the file; the next write opens it again."""
        if self._fileno >= 0:
            os.close(self._fileno)
        self._fileno = -1

    def _open(self) -> None:
        """Open the file to append to it, and see to half a line that a crash has left."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._fileno = os.open(self._path, flags, _MODE)
        os.fchmod(self._fileno, _MODE)
        size = os.fstat(self._fileno).st_size
        if size and os.pread(self._fileno, 1, size - 1) != b"\n":
            if self._mend:
                size = _last_end(self._fileno, size)
                os.ftruncate(self._fileno, size)
            else:
                self._append(b"\n")
        if not size:
            self._append(self.begin)

    def _append(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._fileno, data) :]


def numbered(path: Path, number: int) -> Path:
    """Return the path of an older file; 0 is the newest."""
    return path.with_name(f"{path.name}.{number}") if number else path


def files_of(path: Path) -> list[Path]:
    """Return the files of a ring that are there, the oldest first."""
    older = [
        (int(number), file)
        for file in path.parent.glob(f"{path.name}.*")
        if (number := file.name.removeprefix(f"{path.name}.")).isdecimal()
    ]
    files = [file for _, file in sorted(older, reverse=True)]
    return [*files, path] if path.exists() else files


def _last_end(fileno: int, size: int) -> int:
    """Return where the last whole line ends."""
    step = 1 << 16
    for end in range(size, 0, -step):
        start = max(0, end - step)
        found = os.pread(fileno, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
    return 0
