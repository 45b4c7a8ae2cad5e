"""One LMDB environment in one directory: making, locking, growing, and errors told in our words.

LMDB runs with its default sync settings: a commit that has returned is on the disk. A new
environment is made under another name, synced and renamed into place, since a power cut during
LMDB's very first writes can leave a file that it refuses. The directory is locked with `flock`
on a file of its own: LMDB alone would let two members write in turns.

The map (address space) starts at 1 GiB and doubles when a transaction does not fit, which is
then repeated as a whole. LMDB must not change the map while this process reads from it, so
reads and growth share a lock. Reads are short, also because pages that a reader may still see
can't be reused and the file would grow. Read-only environments are for tools; the member may run
in another process meanwhile. LMDB allows a process one handle on an environment, so within the
process of the member a tool is refused as busy.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import lmdb

from ...errors import (
    StorageError,
    StoreAccessError,
    StoreBusyError,
    StoreFullError,
    StoreMismatchError,
)
from ..writing.group_commit import Lock
from .file_check import DATA_FILE, check_file
from .private import DIRECTORY_MODE, FILE_MODE, make_private, owner_of, user
from .readers import LOCK_FILE, LOCK_TABLE, MAX_READERS, ReaderWatch, only_writer, open_for_reading

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Self, TypeAlias

    from .readers import Guard

    Transaction: TypeAlias = lmdb.Transaction[bytes]
    Cursor: TypeAlias = lmdb.Cursor[bytes]

INITIAL_MAP_BYTES: Final = 1 << 30
FOLDERS: Final = ("log", "tables", "snapshots")
"""What a member's directory holds; each may be the root of a volume, or a link to one."""
_NEW_FILE: Final = "data.mdb.new"
_FILES: Final = (DATA_FILE, LOCK_TABLE, LOCK_FILE, "journal")
_OF_FILE_SYSTEM: Final = "lost+found"
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_REFUSED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR})
# With less room than this, an input/output error is LMDB's word for a write that was cut short.
_LITTLE_ROOM_BYTES: Final = 8 << 20

T = TypeVar("T")


class Environment:
    """An open environment; reads may come from any thread, writes from one at a time.

    Attributes:
        directory: where it is.
        raw: LMDB's own handle, for opening sub-databases and asking for statistics.
    """

    def __init__(
        self,
        directory: Path,
        raw: lmdb.Environment,
        held: contextlib.ExitStack,
        reading: Guard = contextlib.nullcontext,
    ) -> None:
        self.directory = directory
        self.raw = raw
        self._held = held
        self._reading = reading
        self._readers = ReaderWatch(directory, raw)
        self._using_map = Lock()

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        max_dbs: int,
        initialise: Callable[[lmdb.Environment], None],
        map_bytes: int = INITIAL_MAP_BYTES,
    ) -> Self:
        """Open the environment in `directory` for writing; make it, by `initialise`, when absent.

        Raises:
            StoreBusyError: another handle holds it.
            StoreMismatchError: the data file is none of LMDB's.
            StoreFullError: there is no room to make it.
        """
        with contextlib.ExitStack() as held, told(directory):
            make_directory(directory)
            held.enter_context(only_writer(directory, FILE_MODE))
            for place in (directory, *(directory / name for name in _FILES)):
                make_private(place)
            if not (directory / DATA_FILE).exists():
                _make(directory, max_dbs, initialise, map_bytes)
            check_file(directory)
            raw = lmdb.open(
                str(directory),
                map_size=map_bytes,
                create=False,
                max_dbs=max_dbs,
                max_readers=MAX_READERS,
                mode=FILE_MODE,
            )
            held.callback(raw.close)
            return cls(directory, raw, held.pop_all())

    @classmethod
    def open_readonly(cls, directory: Path, *, max_dbs: int) -> Self:
        """Open an existing environment for reading only; also where nothing may be written.

        Raises:
            StoreBusyError: this very process has it open; or another one, and this one may not
                write LMDB's lock file.
            StoreMismatchError: there is none.
        """
        with contextlib.ExitStack() as held, told(directory):
            check_file(directory)
            raw, reading = open_for_reading(directory, map_bytes=INITIAL_MAP_BYTES, max_dbs=max_dbs)
            held.callback(raw.close)
            return cls(directory, raw, held.pop_all(), reading)

    @contextlib.contextmanager
    def opening(self) -> Generator[None]:
        """Look into it for the first time: if that fails, it is closed.

        Raises:
            StoreMismatchError: as in the block, with the directory in front.
        """
        try:
            yield
        except StoreMismatchError as error:
            self.close()
            raise StoreMismatchError(f"{self.directory}: {error}") from error
        except BaseException:
            self.close()
            raise

    def read(self, fn: Callable[[Transaction], T]) -> T:
        """Return what `fn` makes of one consistent view. Keep it short."""
        with self._using_map, told(self.directory), self._reading():
            try:
                with self.begin_reading() as txn:
                    return fn(txn)
            except lmdb.MapResizedError:  # the member has grown it
                self.raw.set_mapsize(0)
                with self.begin_reading() as txn:
                    return fn(txn)

    def begin_reading(self) -> Transaction:
        """Begin a transaction for reading, for which dead readers make room if need be."""
        try:
            return self.raw.begin()
        except lmdb.ReadersFullError:
            self._readers.free_dead()
            return self.raw.begin()

    def begin_writing(self) -> Transaction:
        """Begin a transaction for writing, which may use all that no living reader holds back."""
        self._readers.look(self.used_bytes())
        return self.raw.begin(write=True)

    def write(self, fn: Callable[[Transaction], None]) -> None:
        """Make what `fn` does durable as one transaction. `fn` may be called again from scratch.

        Args:
            fn: changes.

        Raises:
            StoreFullError: the disk has no room; nothing was written.
        """
        with told(self.directory):
            while True:
                try:
                    with self.begin_writing() as txn:
                        fn(txn)
                except lmdb.MapFullError:
                    with self._using_map:
                        self.raw.set_mapsize(2 * self.raw.info()["map_size"])
                else:
                    break

    def used_bytes(self) -> int:
        """Return how many bytes of the file are in use, or were."""
        return (self.raw.info()["last_pgno"] + 1) * self.raw.stat()["psize"]

    def databases(self, opened: Callable[[lmdb.Environment], T]) -> T:
        """Return the sub-databases that `opened` opens.

        Raises:
            StoreMismatchError: one of them is missing.
        """
        with told(self.directory), self._reading():
            try:
                return opened(self.raw)
            except lmdb.NotFoundError:
                raise StoreMismatchError("a store of LMDB, but of other tables") from None

    def close(self) -> None:
        """Close and unlock it; idempotent."""
        self._held.close()


@contextlib.contextmanager
def told(directory: Path) -> Generator[None]:
    """Turn the errors of LMDB and of the file system into ours."""
    try:
        yield
    except lmdb.Error as error:
        text = f"{directory}: {error}"
        if error.code in _FULL or (error.code == errno.EIO and _little_room(directory)):
            raise StoreFullError(text) from error
        if isinstance(error, lmdb.InvalidError | lmdb.VersionMismatchError | lmdb.NotFoundError):
            raise StoreMismatchError(f"{text}; expected a store of quorate") from error
        if "already open in this process" in str(error):
            raise StoreBusyError(text) from error
        if error.code in _REFUSED:
            raise StoreAccessError(text) from error
        raise StorageError(text) from error
    except PermissionError as error:
        path = Path(os.fsdecode(error.filename)) if error.filename else directory
        raise StoreAccessError(
            f"{path}: {error.strerror}: it belongs to {owner_of(path)}, and this is user {user()}"
        ) from error
    except OSError as error:
        if error.errno in _FULL:
            raise StoreFullError(f"{directory}: {error}") from error
        if error.errno in _REFUSED:
            raise StoreAccessError(f"{directory}: {error}") from error
        raise StorageError(f"{directory}: {error}") from error


def free_bytes(directory: Path) -> int:
    """Return how many bytes the file system leaves to us: for a member's directory the least.

    Its log and its tables may be on file systems of their own. One for snapshots does not count: a
    member serves without them.
    """
    places = [directory, *(directory / name for name in FOLDERS[:2])]
    return min(_free(place) for place in places if place == directory or place.is_dir())


def _free(place: Path) -> int:
    system = os.statvfs(place)
    return system.f_bavail * system.f_frsize


def _little_room(directory: Path) -> bool:
    """Say whether the file system, or this process's limit, leaves hardly any room."""
    if free_bytes(directory) < _LITTLE_ROOM_BYTES:
        return True
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (directory / DATA_FILE).stat().st_size
    return limit != resource.RLIM_INFINITY and size + _LITTLE_ROOM_BYTES > limit


def make_directory(directory: Path) -> None:
    """Make the directory and the missing ones above it, durably.

    Raises:
        StorageError: it is a link to a directory that is not there.
        StoreAccessError: the system refuses to make it.
    """
    if not directory.is_dir():
        if directory.is_symlink():
            raise StorageError(
                f"{directory}: a link to {directory.readlink()}, where no directory is; "
                "is its volume mounted?"
            )
        make_directory(directory.parent)
        try:
            directory.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        except OSError as error:
            if error.errno in _FULL:
                raise
            text = f"{directory}: can't be made: {error.strerror}"
            raise StoreAccessError(text) from error
        sync_directory(directory.parent)


def content_of(directory: Path) -> list[Path]:
    """Return what lies in a directory; what a file system keeps in its root does not count."""
    return sorted(path for path in directory.iterdir() if path.name != _OF_FILE_SYSTEM)


def _make(
    directory: Path, max_dbs: int, initialise: Callable[[lmdb.Environment], None], map_bytes: int
) -> None:
    """Make a new environment aside, sync it, and rename it into place."""
    new, lock = directory / _NEW_FILE, directory / f"{_NEW_FILE}-lock"
    new.unlink(missing_ok=True)  # left by one that was interrupted
    with lmdb.open(
        str(new), map_size=map_bytes, subdir=False, max_dbs=max_dbs, mode=FILE_MODE
    ) as raw:
        initialise(raw)
        raw.sync(True)
    lock.unlink(missing_ok=True)
    # It may be of an environment that is gone and that a tool still reads: not slots of ours.
    (directory / LOCK_TABLE).unlink(missing_ok=True)
    new.rename(directory / DATA_FILE)
    sync_directory(directory)


def remove_environment(directory: Path) -> None:
    """Remove the environment in a directory, durably; it counts as gone with the first file.

    The directory and whatever else is in it stay: it may be the root of a volume, or a link.

    Raises:
        StoreBusyError: a handle holds it.
    """
    with told(directory), only_writer(directory, FILE_MODE):
        for name in (DATA_FILE, LOCK_TABLE, _NEW_FILE, f"{_NEW_FILE}-lock"):
            (directory / name).unlink(missing_ok=True)
        sync_directory(directory)


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
