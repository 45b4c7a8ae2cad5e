"""One LMDB environment in one directory: making it, locking it, growing it, translating its errors.

Durability
----------
LMDB runs with its default sync settings: a commit that has returned is on the disk. A new
environment is made under another name, synced, and renamed into place. A power cut during LMDB's
very first writes can leave a file that LMDB refuses.

Locking
-------
`flock` on a file of its own allows one writer per directory; LMDB alone would let two members write
in turns. LMDB allows a process one handle per environment. So a tool inside the member's own
process is refused as busy; in another process it may read while the member runs.

The map
-------
LMDB maps its file into an address range of fixed size, 1 GiB at first. A transaction that does not
fit is repeated as a whole after the range was doubled. LMDB must not change the range while this
process reads from it, so reads and growth share a lock. Reads are short, also since LMDB reuses no
page that an open reader may see.
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
from .file_check import DATA_FILE, check_file
from .lock import Lock
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
"""The folders in a member's directory. Each may be the root of a volume, or a link to one."""
_NEW_FILE: Final = "data.mdb.new"
_FILES: Final = (DATA_FILE, LOCK_TABLE, LOCK_FILE, "journal")
_OF_FILE_SYSTEM: Final = "lost+found"
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_REFUSED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR})
# LMDB reports a write that was cut short as an input/output error. With less room than this, a full
# disk is the likelier reason.
_LITTLE_ROOM_BYTES: Final = 8 << 20

T = TypeVar("T")


class Environment:
    """An open environment. Any thread may read, one thread at a time may write.

    Attributes:
        directory: where it is.
        raw: LMDB's own handle, for sub-databases and statistics.
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
        """Open the environment in `directory` for writing; if absent, `initialise` makes it.

        Raises:
            StoreBusyError: another handle has it open.
            StoreMismatchError: the data file is not one of LMDB's.
            StoreFullError: there is no room to make it.
        """
        with contextlib.ExitStack() as held, translating_errors(directory):
            make_directory(directory)
            # The lock before anything else: two members that start at once must not both make the
            # store.
            held.enter_context(only_writer(directory, FILE_MODE))
            for place in (directory, *(directory / name for name in _FILES)):
                # Before LMDB opens the file: earlier versions made it readable for everybody.
                make_private(place)
            if not (directory / DATA_FILE).exists():
                _make(directory, max_dbs, initialise, map_bytes)
            # Before LMDB maps the file: it believes what it reads, and a short file ends the
            # process (SIGBUS).
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
            # The exit stack goes to the object: until here an error releases everything, from here
            # on `close` does.
            return cls(directory, raw, held.pop_all())

    @classmethod
    def open_readonly(cls, directory: Path, *, max_dbs: int) -> Self:
        """Open an existing environment for reading only; works where nothing may be written.

        Raises:
            StoreBusyError: this process has it open; or another process has, and this one may not
                write LMDB's lock file.
            StoreMismatchError: there is no environment.
        """
        with contextlib.ExitStack() as held, translating_errors(directory):
            check_file(directory)
            raw, reading = open_for_reading(directory, map_bytes=INITIAL_MAP_BYTES, max_dbs=max_dbs)
            held.callback(raw.close)
            return cls(directory, raw, held.pop_all(), reading)

    @contextlib.contextmanager
    def opening(self) -> Generator[None]:
        """Close the environment if the block fails; for the first look into it.

        Raises:
            StoreMismatchError: as in the block, with the directory added.
        """
        try:
            yield
        except StoreMismatchError as error:
            self.close()
            raise StoreMismatchError(f"{self.directory}: {error}") from error
        except BaseException:
            # LMDB allows one handle per process: one that is left open would make every later try
            # fail as busy.
            self.close()
            raise

    def read(self, fn: Callable[[Transaction], T]) -> T:
        """Return what `fn` returns for one consistent view. Keep `fn` short."""
        # The lock first: `write` must not change the map while a transaction of ours reads from it.
        with self._using_map, translating_errors(self.directory), self._reading():
            try:
                with self.begin_reading() as txn:
                    return fn(txn)
            except lmdb.MapResizedError:  # the member, in another process, has grown it
                # Size 0 takes over the size that the other process has set.
                self.raw.set_mapsize(0)
                with self.begin_reading() as txn:
                    return fn(txn)

    def begin_reading(self) -> Transaction:
        """Begin a read transaction; if all slots are taken, dead readers lose theirs first."""
        try:
            return self.raw.begin()
        except lmdb.ReadersFullError:
            # A process that was killed keeps its slot until somebody frees it.
            self._readers.free_dead()
            return self.raw.begin()

    def begin_writing(self) -> Transaction:
        """Begin a write transaction. It may reuse all pages that no living reader holds back."""
        # Before each write: a dead reader's slot would keep pages from being reused, and the file
        # would grow.
        self._readers.look(self.used_bytes())
        return self.raw.begin(write=True)

    def write(self, fn: Callable[[Transaction], None]) -> None:
        """Make what `fn` does durable as one transaction. `fn` may be called again from scratch.

        Args:
            fn: changes.

        Raises:
            StoreFullError: the disk has no room; nothing was written.
        """
        with translating_errors(self.directory):
            while True:
                try:
                    with self.begin_writing() as txn:
                        fn(txn)
                except lmdb.MapFullError:
                    # The transaction was aborted, so `fn` begins from scratch. That is why it must
                    # change nothing else.
                    with self._using_map:
                        self.raw.set_mapsize(2 * self.raw.info()["map_size"])
                else:
                    break

    def used_bytes(self) -> int:
        """Return how many bytes of the file are in use, or once were."""
        return (self.raw.info()["last_pgno"] + 1) * self.raw.stat()["psize"]

    def databases(self, opened: Callable[[lmdb.Environment], T]) -> T:
        """Return the sub-databases that `opened` opens.

        Raises:
            StoreMismatchError: one of them is missing.
        """
        with translating_errors(self.directory), self._reading():
            try:
                return opened(self.raw)
            except lmdb.NotFoundError:
                raise StoreMismatchError("a store of LMDB, but of other tables") from None

    def close(self) -> None:
        """Close and unlock it; idempotent."""
        self._held.close()


@contextlib.contextmanager
def translating_errors(directory: Path) -> Generator[None]:
    """Raise the errors of LMDB and of the file system as errors of quorate.

    Raises:
        StoreFullError: the disk, a quota or the limit of a file is full.
        StoreMismatchError: the file is not one of quorate's stores.
        StoreBusyError: this process has it open.
        StoreAccessError: the system refuses access.
        StorageError: anything else.
    """
    try:
        yield
    except lmdb.Error as error:
        text = f"{directory}: {error}"
        if error.code in _FULL or (error.code == errno.EIO and _little_room(directory)):
            raise StoreFullError(text) from error
        if isinstance(error, lmdb.InvalidError | lmdb.VersionMismatchError | lmdb.NotFoundError):
            raise StoreMismatchError(f"{text}; expected a store of quorate") from error
        # py-lmdb has no class and no code for this error, only its text.
        if "already open in this process" in str(error):
            raise StoreBusyError(text) from error
        if error.code in _REFUSED:
            raise StoreAccessError(text) from error
        raise StorageError(text) from error
    except PermissionError as error:
        path = Path(os.fsdecode(error.filename)) if error.filename else directory
        raise StoreAccessError(
            f"{path}: {error.strerror}: it belongs to {owner_of(path)}, and this is user {user()}; "
            f"run this as {owner_of(path)}"
        ) from error
    except OSError as error:
        if error.errno in _FULL:
            raise StoreFullError(f"{directory}: {error}") from error
        if error.errno in _REFUSED:
            raise StoreAccessError(f"{directory}: {error}") from error
        raise StorageError(f"{directory}: {error}") from error


def free_bytes(directory: Path) -> int:
    """Return how many bytes the file system leaves to us.

    For a member's directory it is the smallest figure of the directory, its log and its tables,
    which may be on file systems of their own. Snapshots do not count: a member serves without them.
    """
    return _fullest(directory)[0]


def size_bytes(directory: Path) -> int:
    """Return how large the file system is that `free_bytes` is about, without what root keeps."""
    return _fullest(directory)[1]


def _fullest(directory: Path) -> tuple[int, int]:
    """Return the free bytes and the size of the file system that has the fewest free bytes."""
    places = [directory, *(directory / name for name in FOLDERS[:2])]
    return min(_room(place) for place in places if place == directory or place.is_dir())


def _room(place: Path) -> tuple[int, int]:
    system = os.statvfs(place)
    # What is left for users, not `f_bfree`: the file system keeps the rest for root.
    kept = system.f_bfree - system.f_bavail
    return system.f_bavail * system.f_frsize, (system.f_blocks - kept) * system.f_frsize


def _little_room(directory: Path) -> bool:
    """Whether the file system, or this process's limit, leaves hardly any room."""
    if free_bytes(directory) < _LITTLE_ROOM_BYTES:
        return True
    # The process may have a limit of its own, at which a write is cut short as on a full disk.
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (directory / DATA_FILE).stat().st_size
    return limit != resource.RLIM_INFINITY and size + _LITTLE_ROOM_BYTES > limit


def make_directory(directory: Path) -> None:
    """Make the directory and missing ones above it, durably.

    Raises:
        StorageError: it is a link, and where that leads there is no directory.
        StoreAccessError: the system refuses to make it.
    """
    if not directory.is_dir():
        # Most likely its volume is not mounted. `mkdir` would only say that the file exists.
        if directory.is_symlink():
            raise StorageError(
                f"{directory}: a link to {directory.readlink()}, where there is no directory; "
                "mount its volume, or remove the link"
            )
        make_directory(directory.parent)
        try:
            directory.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        except OSError as error:
            if error.errno in _FULL:
                raise
            text = f"{directory}: can't be made: {error.strerror}"
            raise StoreAccessError(text) from error
        # A name is durable once the directory that holds it is synced, not the new directory
        # itself.
        sync_directory(directory.parent)


def content_of(directory: Path) -> list[Path]:
    """Return what is in a directory, except for what a file system keeps in its root."""
    return sorted(path for path in directory.iterdir() if path.name != _OF_FILE_SYSTEM)


def _make(
    directory: Path, max_dbs: int, initialise: Callable[[lmdb.Environment], None], map_bytes: int
) -> None:
    """Make a new environment under another name, sync it, and rename it into place."""
    new, lock = directory / _NEW_FILE, directory / f"{_NEW_FILE}-lock"
    new.unlink(missing_ok=True)  # left by a process that was killed
    with lmdb.open(
        str(new), map_size=map_bytes, subdir=False, max_dbs=max_dbs, mode=FILE_MODE
    ) as raw:
        initialise(raw)
        raw.sync(True)
    lock.unlink(missing_ok=True)
    # A lock table may be left from an environment that was removed and that a tool still reads.
    (directory / LOCK_TABLE).unlink(missing_ok=True)
    # The name comes last: what has it is whole, and durable (see "Durability").
    new.rename(directory / DATA_FILE)
    sync_directory(directory)


def remove_environment(directory: Path) -> None:
    """Remove the environment in a directory, durably; it counts as gone with its first file.

    The directory and other files in it stay: it may be the root of a volume, or a link.

    Raises:
        StoreBusyError: a handle has it open.
    """
    with translating_errors(directory), only_writer(directory, FILE_MODE):
        # The data file first: after a crash in between, what is left counts as no environment.
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
