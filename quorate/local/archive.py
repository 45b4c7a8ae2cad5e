"""An encrypted archive of a backup: one file that may leave the machine.

A backup is a directory that grows, and LMDB needs it as it is, so it can't be encrypted in place.
An archive is made of it as of now: the newest snapshot and the log after it, as a small backup of
their own, which is verified. That is put into one file: a tar of it, compressed by zstandard, and
sealed (:mod:`.sealed`).

To read an archive, all of it is opened first without writing anything. Only then is it unpacked,
next to where the members will be.

For a while the small backup is on a disk without encryption: in the directory of the whole one when
an archive is made, and next to the members when it is read. These disks have the same data anyway.
"""

import io
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Final, cast

import attrs
import zstandard

from ..errors import ConfigurationError, StorageError
from ..storage.tools.restore import NO_MEMBER, RestorePlan, plan_restore, restore
from .sealed import SealedWriter, read_sealed_untrusted

__all__ = ["Archived", "unpacked", "write_archive"]

_LEVEL: Final = 3
_NAME: Final = re.compile(r"(log|snapshots)/[a-z][a-z0-9.-]{0,100}")
_SKIPPED: Final = "lock.mdb"
"""LMDB's list of readers: it is made anew."""

_COPY_BYTES: Final = 1 << 20
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


@attrs.frozen
class Archived:
    """What was written.

    Args:
        plan: what the archive restores to.
        size: of the file, in bytes.
    """

    plan: RestorePlan
    size: int


async def write_archive(source: Path, file: Path, secret: bytes, rng: Random) -> Archived:
    """Write an archive of a backup, or of a member, which may be running.

    Args:
        source: directory of the backup.
        file: must not exist.
        secret: 32 random bytes or more.
        rng: draws the id of the store in it.

    Raises:
        ConfigurationError: the file exists.
        StorageError: something of the source is damaged.
        OSError: it can't be written.
    """
    _check_new(file)
    plan = plan_restore(source)
    # Next to the source: the place of the file may be a disk that others have access to.
    with tempfile.TemporaryDirectory(prefix="archiving-", dir=source) as place:
        small = Path(place)
        await restore(plan, small, cluster=plan.identity.cluster, member_id=NO_MEMBER, rng=rng)
        return Archived(plan, _write(small, file, secret))


def _check_new(file: Path) -> None:
    if file.exists():
        raise ConfigurationError(f"{file}: it exists: expected the name of a new file")


def _write(directory: Path, file: Path, secret: bytes) -> int:
    """Write the archive of a directory; return its size."""
    part = file.with_name(f"{file.name}.part")
    part.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(part, _NEW, 0o600), "wb") as out:
            _pack(directory, SealedWriter(out, secret))
            out.flush()
            os.fsync(out.fileno())
        part.rename(file)
    finally:
        part.unlink(missing_ok=True)
    return file.stat().st_size


def _pack(directory: Path, sealed: SealedWriter) -> None:
    compressor = zstandard.ZstdCompressor(level=_LEVEL)
    # The writer is not closed by what writes into it: a failure must not look like a whole file.
    with (
        compressor.stream_writer(cast("io.BufferedWriter", sealed), closefd=False) as compressed,
        tarfile.open(fileobj=compressed, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        for path in sorted(directory.glob("*/*")):
            if path.name == _SKIPPED:
                continue
            entry = tarfile.TarInfo(str(path.relative_to(directory)))
            entry.size = path.stat().st_size
            with path.open("rb") as content:
                tar.addfile(entry, content)
    sealed.close()


@contextmanager
def unpacked(file: Path, secret: bytes, folder: Path) -> Generator[Path]:
    """Unpack an archive for the length of a block.

    Args:
        file: the archive.
        secret: that it was written with.
        folder: a directory, which is made if it is missing; the backup is in a folder in it.

    Yields:
        The directory of the backup.

    Raises:
        StorageError: it is no archive, has another secret, was changed, or was cut off; nothing
            was written then.
        OSError: it can't be read, or unpacked.
    """
    with file.open("rb") as sealed, ExitStack() as stack:
        try:
            for _ in read_sealed_untrusted(sealed, secret):
                pass
            sealed.seek(0)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            place = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="unpacking-", dir=folder)
            )
            unpack_untrusted(read_sealed_untrusted(sealed, secret), Path(place))
        except StorageError as error:
            raise StorageError(f"{file}: {error}") from error
        yield Path(place)


def unpack_untrusted(chunks: Iterator[bytes], place: Path) -> None:
    """Write the files of a compressed tar into a directory.

    Only the files that a backup has are written, whatever the tar says.

    Raises:
        StorageError: it is something else.
    """
    source = cast("io.BufferedReader", _Chunks(chunks))
    try:
        with (
            zstandard.ZstdDecompressor().stream_reader(source) as plain,
            tarfile.open(fileobj=plain, mode="r|") as tar,
        ):
            for entry in tar:
                # A file with holes can be larger than anything that is in the tar.
                is_plain = entry.isreg() and entry.sparse is None
                if not (is_plain and _NAME.fullmatch(entry.name)):
                    raise StorageError(f"{entry.name!r:.100}: expected files of a backup only")
                path = place / entry.name
                path.parent.mkdir(mode=0o700, exist_ok=True)
                content = tar.extractfile(entry)
                assert content is not None
                with os.fdopen(os.open(path, _NEW, 0o600), "wb") as out:
                    shutil.copyfileobj(content, out, _COPY_BYTES)
    except (tarfile.TarError, zstandard.ZstdError, FileExistsError, EOFError, ValueError) as error:
        raise StorageError(f"what is in it is no backup: {error}") from error


class _Chunks(io.RawIOBase):
    """The chunks of an iterator, as a file to read."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        super().__init__()
        self._chunks = chunks
        self._left = b""

    def readable(self) -> bool:
        """Return that it is."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes; none at the end."""
        while not self._left and (chunk := next(self._chunks, None)) is not None:
            self._left = chunk
        size = len(self._left) if size < 0 else size
        found, self._left = self._left[:size], self._left[size:]
        return found
