"""Finds the programs that are not ours: Patroni, and the PostgreSQL it runs."""

import os
import pwd
import re
import shutil
from pathlib import Path
from typing import Final

import attrs

from ...errors import UsageError

__all__ = ["Programs", "find_programs"]

POSTGRES_USER: Final = "postgres"
_DEBIAN: Final = Path("/usr/lib/postgresql")
"""Debian keeps `initdb` and `postgres` out of the PATH, a folder for each version."""


@attrs.frozen
class Programs:
    """What the demo runs.

    Args:
        patroni: the program of a node.
        patronictl: the one of operators, of the same version.
        postgres: the folder with `initdb`, `postgres` and `psql`.
        user: who runs them; None for the user of this process.
    """

    patroni: Path
    patronictl: Path
    postgres: Path
    user: str | None

    def own(self, path: Path) -> None:
        """Give a file or a folder to the user of the programs."""
        if self.user is not None:
            shutil.chown(path, self.user)


def find_programs(patroni: Path | None, postgres: Path | None) -> Programs:
    """Find all programs.

    Args:
        patroni: that program; None for the one in the PATH.
        postgres: the folder of PostgreSQL's programs; None for the newest one found.

    Raises:
        UsageError: something is not there; says what to install.
    """
    found = patroni or _in_path("patroni")
    if found is None or not found.is_file():
        raise UsageError(
            f"Patroni is not here ({found or 'patroni'}): on Debian, apt install patroni; "
            "elsewhere, pip install 'patroni[etcd3]' psycopg2-binary, and give --patroni PATH"
        )
    control = found.with_name("patronictl")
    if not control.is_file():
        raise UsageError(f"{control}: expected the program patronictl next to {found}")
    folder = postgres or _newest_postgres()
    if folder is None or not all((folder / name).is_file() for name in ("initdb", "psql")):
        raise UsageError(
            f"PostgreSQL is not here ({folder or _DEBIAN}): on Debian, apt install postgresql; "
            "elsewhere, give --postgres the folder that has initdb and psql"
        )
    return Programs(found, control, folder, _user())


def _in_path(name: str) -> Path | None:
    found = shutil.which(name)
    return Path(found) if found else None


def _newest_postgres() -> Path | None:
    """Return the folder of Debian's newest version, or that of the `initdb` in the PATH."""
    usual = _in_path("initdb")
    found = [path for path in _DEBIAN.glob("*/bin") if re.fullmatch("[0-9]+", path.parent.name)]
    newest = max(found, key=lambda path: int(path.parent.name), default=None)
    return newest or (usual and usual.resolve().parent)


def _user() -> str | None:
    """Return who runs PostgreSQL, which refuses to run as root."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam(POSTGRES_USER).pw_name
    except KeyError:
        raise UsageError(
            f"PostgreSQL does not run as root, and there is no user {POSTGRES_USER}: run this as "
            f"another user, or useradd --system {POSTGRES_USER}"
        ) from None
