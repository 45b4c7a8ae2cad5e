"""File modes: what members, backups and restores write is for their own user only.

Files get mode 0600 and directories 0700, whatever the umask. What an earlier version made readable
for everybody is closed when it is opened for writing.
"""

from __future__ import annotations

import logging
import os
import pwd
import stat
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from ...log_events import log_event

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger("quorate.storage")

FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700
_OTHERS: Final = 0o077


def open_private(path: Path, mode: str) -> BinaryIO:
    """Open a file of bytes; if that makes it, only its owner may read it."""
    opened = open(path, mode, opener=lambda name, flags: os.open(name, flags, FILE_MODE))  # noqa: SIM115
    return cast("BinaryIO", opened)


def make_private(path: Path) -> None:
    """Take away all rights of other users to a file or directory, if it exists.

    Only its owner can do that. For somebody else's, such as the root of a volume, a log line names
    the mode.
    """
    mode = 0
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & _OTHERS:
            path.chmod(mode & ~_OTHERS)
    except FileNotFoundError:
        return
    except OSError as error:
        log_event(
            log,
            logging.WARNING,
            "open_to_others",
            "%(path)s belongs to %(owner)s, and others can read it (mode %(mode)s): %(why)s",
            path=str(path),
            owner=owner_of(path),
            mode=f"{mode:04o}",
            why=error.strerror,
        )


def user() -> str:
    """Return the name of the user of this process."""
    return _name(os.geteuid())


def owner_of(path: Path) -> str:
    """Return the name of the owner of a file; of its nearest visible parent if it can't be seen."""
    for place in (path, *path.parents):
        try:
            return _name(place.stat().st_uid)
        except OSError:
            continue
    return "unknown"


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
