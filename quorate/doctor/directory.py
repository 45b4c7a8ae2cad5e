"""The member's directory: its owner, its file system, and the room on it."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ..errors import StorageError
from ..local.words import size
from ..node.config.config import NodeConfig
from ..storage.lmdb.environment import FOLDERS, free_bytes
from ..storage.lmdb.private import owner_of, user
from .finding import Finding, ok, problem, unknown, warning

__all__ = ["check_directory", "existing", "file_system"]

_NETWORK: Final = frozenset(
    [
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "ceph",
        "fuse.sshfs",
        "fuse.glusterfs",
        "9p",
        "afs",
        "lustre",
        "gpfs",
        "beegfs",
        "virtiofs",
        "fuse.s3fs",
    ]
)
"""File systems of other machines. LMDB maps its file, and needs locks that hold."""

_MEMORY: Final = frozenset(("tmpfs", "ramfs"))
_COPY: Final = frozenset(("btrfs", "zfs"))


def check_directory(config: NodeConfig) -> Iterator[Finding]:
    """Look at the directory of a member, or at where it would be made."""
    directory = config.directory
    try:
        there = existing(directory)
        yield _access(directory, there)
        yield from _private(directory)
        seen: set[str] = set()
        # Each folder may be on a file system of its own.
        for place in (there, *(directory / name for name in FOLDERS)):
            if place.is_dir() and (kind := file_system(place)) not in seen:
                seen.add(kind)
                yield _judge_kind(place, kind)
        yield _room(there, config.limits.reserve_bytes)
    except OSError as error:
        what = f"{error.filename or directory}: {error.strerror}"
        yield unknown("directory", what, f"a directory that {user()} may look into")


def existing(directory: Path) -> Path:
    """Return a directory, or its nearest parent that exists."""
    return next(place for place in (directory, *directory.absolute().parents) if place.is_dir())


def file_system(place: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """Return the kind of the file system that a directory is on; empty if the system hides it.

    Args:
        place: exists.
        mounts: as Linux shows them: proc(5), `/proc/pid/mountinfo`.
    """
    device = place.stat().st_dev
    number, path = f"{os.major(device)}:{os.minor(device)}", str(place.resolve())
    best, kind = -1, ""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    for line in lines:
        before, _, behind = line.partition(" - ")
        words, root = before.split(), before.split()[4]
        # Of two mounts at one place the later one covers the earlier. btrfs has other numbers in
        # stat than here, so the place decides, and the number only between equals.
        inside = root in {"/", path} or path.startswith(f"{root}/")
        rank = 2 * len(root) + (words[2] == number)
        if inside and rank >= best:
            best, kind = rank, behind.split()[0]
    return kind


def _access(directory: Path, there: Path) -> Finding:
    if directory.exists() and not directory.is_dir():
        what = "a directory, or nothing"
        return problem("directory", f"{directory} is a file", what, f"mv {directory} elsewhere")
    owner, who = owner_of(there), user()
    if not os.access(there, os.R_OK | os.W_OK | os.X_OK, effective_ids=True):
        if os.statvfs(there).f_flag & os.ST_RDONLY:
            found = f"{there} is on a file system that is mounted read-only"
            return problem("directory", found, "one that can be written", "mount -o remount,rw ...")
        found = f"{there} belongs to {owner}, and {who} may not write there"
        return problem("directory", found, f"a directory of {who}", f"chown {who} {there}")
    if there != directory:
        return ok("directory", f"{directory} is not there yet; {who} can make it in {there}")
    if owner != who:
        found = f"{directory} belongs to {owner}, and this is {who}"
        remedy = f"run this, and the member, as {owner}"
        return warning("directory", found, "one user for the directory and the member", remedy)
    return ok("directory", f"{directory} belongs to {owner}")


def _private(directory: Path) -> Iterator[Finding]:
    for place in (directory, *(directory / name for name in FOLDERS)):
        mode = stat.S_IMODE(place.stat().st_mode) if place.is_dir() else 0
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            found = f"{place} has mode {mode:04o}: other users of this machine may look into it"
            yield warning("directory", found, "mode 0700", f"chmod 700 {place}")


def _judge_kind(place: Path, kind: str) -> Finding:
    figures = {"directory": str(place), "kind": kind}
    name = f"{place} is on {kind or 'a file system that the system hides'}"
    remedy = "put the directory on a disk of this machine"
    if kind in _MEMORY:
        what = "a disk: after a restart of the machine nothing is left here"
        return warning("file system", name, what, remedy, **figures)
    if kind in _NETWORK:
        what = "a disk of this machine: LMDB's map and its locks need one"
        return warning("file system", name, what, remedy, **figures)
    if kind in _COPY:
        what = "ext4 or xfs, where a sync costs less"
        return warning("file system", name, what, f"chattr +C {place}, or: {remedy}", **figures)
    return ok("file system", name, **figures)


def _room(there: Path, reserve: int) -> Finding:
    try:
        free = free_bytes(there)
    except StorageError as error:
        return unknown("free space", str(error), "a file system that answers")
    found, figures = f"{size(free)} are free", {"free_bytes": free, "reserve_bytes": reserve}
    if free < reserve:
        what = f"{size(reserve)}, below which the member appends nothing"
        return problem("free space", found, what, "make room on that disk", **figures)
    # Snapshots and the log between them are kept twice for a while.
    if free < 2 * reserve:
        what = f"{size(2 * reserve)}, twice the reserve of the file"
        return warning("free space", found, what, "make room on that disk", **figures)
    return ok("free space", f"{found}, the member stops at {size(reserve)}", **figures)
