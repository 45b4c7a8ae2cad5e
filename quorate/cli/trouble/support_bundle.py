"""`quorate support-bundle`: one archive that can be sent to somebody who helps."""

import errno
import os
import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ...errors import UsageError
from ...local.words import size
from ...support.archive import ENDINGS, MANIFEST, Part, write_archive
from ...support.collecting import collect
from ..params import Addresses, parse_address

__all__ = ["support_bundle"]


async def support_bundle(
    file: Annotated[Path | None, Parameter(show_default=False)] = None,
    /,
    *,
    to: Annotated[Path | None, Parameter(show_default=False)] = None,
    connect: Addresses = (),
    log: Annotated[Path | None, Parameter(show_default=False)] = None,
) -> int:
    """Put what somebody needs who helps into one archive: no keys, values, passwords or hashes.

    It holds versions, settings, the status of all members, the terms of the log, log lines,
    recordings of elections, the findings of `quorate doctor`, and facts of the system. Names of
    hosts and users are in it, and paths. Each file is listed before it is written. It works while
    the member is down or damaged.

    Args:
        file: The member's configuration (TOML). Without it the member's own files are left out.
        to: The archive, with .tar.zst or .tar.gz at its end; must not exist. If left out, the
            files are only listed.
        connect: Client port of a member, HOST:PORT; it names the other members. May be given
            several times. The members of the file if left out.
        log: File with the member's log lines; if left out, member.log in its directory, where
            `quorate cluster` writes it. With systemd: journalctl -u quorate@0 > FILE.
    """
    if to is not None and not to.name.endswith(ENDINGS):
        raise UsageError(f'--to "{to}": expected a name with {" or ".join(ENDINGS)} at its end')
    # One that is damaged is what somebody needs help with. One that is not there is a typing error.
    if file is not None and (not file.exists() or file.is_dir()):
        what = "it is a directory" if file.is_dir() else "there is no such file"
        raise UsageError(
            f"{file}: {what}: expected a member's node.toml; leave it out for a bundle without one"
        )
    if to is not None:
        _check_place(to)
    parts = await collect(file, [parse_address(text) for text in connect], log_file=log)
    _list(parts)
    if to is None:
        print("\nNothing was written: --to FILE.tar.zst writes these files.")
        return 0
    write_archive(to, parts, time.time())
    about = size(to.stat().st_size)
    print(f"\n{to}: {len(parts) + 1} files, {about}. Look into it before you send it: its list is")
    print(f"{MANIFEST}, and names of hosts, users and paths are in it.")
    return 0


def _check_place(to: Path) -> None:
    """Check that the archive can be made there, before all is gathered for a minute.

    Raises:
        OSError: it is there already, or its directory is not.
    """
    if os.path.lexists(to):
        words = "there is a file already: expected a new name after --to"
        raise FileExistsError(errno.EEXIST, words, str(to))
    if not to.parent.is_dir():
        words = f"there is no directory {to.parent}: make it, or give another place after --to"
        raise FileNotFoundError(errno.ENOENT, words, str(to))


def _list(parts: list[Part]) -> None:
    width = max(len(part.name) for part in parts)
    for part in parts:
        print(f"{part.name:<{width}}  {size(len(part.data)):>10}  {part.what}")
