"""Slow and full disks for real members, without privileges.

*Slow*: a small library is compiled from ``slow_disk.c`` by the machine's C compiler and preloaded
into the members. It waits before each sync for the time that a file names.

*Full*: the files of a member may not grow beyond a limit, which is set on its process from outside
(RLIMIT_FSIZE). The next write beyond it fails with EFBIG, as it would with ENOSPC on a full disk,
perhaps after a part was written.
"""

import os
import resource
import shutil
import subprocess
from collections.abc import Mapping
from importlib.resources import as_file, files
from pathlib import Path
from typing import Final

from ..local.cluster import MemberProcess

__all__ = [
    "DiskError",
    "empty",
    "environment",
    "fill",
    "preloadable",
    "preloading",
    "slow_down",
    "slow_library",
    "speed_up",
]

ROOM_BYTES: Final = 4 << 10
"""Bytes that a disk still accepts when it becomes full."""

_SOURCE: Final = "slow_disk.c"
_CONTROL: Final = "slow-disk"
_COMPILE_SECONDS: Final = 60.0


class DiskError(Exception):
    """This machine cannot slow down disks."""


def slow_library(directory: Path) -> Path:
    """Compile the library for slow disks into a directory.

    Raises:
        DiskError: there is no C compiler, or it fails.
    """
    with as_file(files("quorate.torture").joinpath(_SOURCE)) as source:
        return preloadable(source, directory)


def preloadable(source: Path, directory: Path) -> Path:
    """Compile a C file into a library of the same name that can be preloaded.

    Raises:
        DiskError: there is no C compiler, or it fails.
    """
    compiler = os.environ.get("CC") or shutil.which("cc")
    if not compiler:
        raise DiskError("no C compiler (cc): expected one to compile the library for slow disks")
    library = directory / source.with_suffix(".so").name
    command = [*compiler.split(), "-shared", "-fPIC", "-O1", "-o", str(library), str(source)]
    try:
        subprocess.run(  # noqa: S603 - a fixed command
            [*command, "-ldl"],
            capture_output=True,
            text=True,
            check=True,
            timeout=_COMPILE_SECONDS,
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise DiskError(f"{command[0]}: {said.strip().splitlines()[0]}") from error
    return library


def environment(library: Path, member: MemberProcess) -> Mapping[str, str]:
    """Return the environment of a member with a disk that can be slowed down."""
    return {**preloading(library), "QUORATE_SLOW_DISK": str(_control(member))}


def preloading(library: Path) -> Mapping[str, str]:
    """Return the environment variable that preloads a library, in addition to those set already."""
    before = os.environ.get("LD_PRELOAD")
    return {"LD_PRELOAD": f"{before}:{library}" if before else str(library)}


def _control(member: MemberProcess) -> Path:
    return member.config.directory.resolve() / _CONTROL


def slow_down(member: MemberProcess, milliseconds: int) -> None:
    """Delay each sync of a member by some milliseconds."""
    aside = _control(member).with_suffix(".new")
    aside.write_text(f"{milliseconds}\n", encoding="ascii")
    aside.rename(_control(member))


def speed_up(member: MemberProcess) -> None:
    """End the delay of syncs."""
    _control(member).unlink(missing_ok=True)


def fill(member: MemberProcess) -> None:
    """Let no file of a running member grow beyond its largest file's size plus `ROOM_BYTES`."""
    if member.pid is None:
        return
    sizes = [file.stat().st_size for file in member.config.directory.rglob("*") if file.is_file()]
    _limit(member.pid, max(sizes) + ROOM_BYTES)


def empty(member: MemberProcess) -> None:
    """Remove the limit from a member, if it still runs."""
    if member.pid is not None:
        _limit(member.pid, resource.RLIM_INFINITY)


def _limit(pid: int, size: int) -> None:
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    bounded = hard != resource.RLIM_INFINITY and not 0 <= size < hard
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard if bounded else size, hard))
