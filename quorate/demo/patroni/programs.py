"""Finds the programs that are not ours: Patroni, and the PostgreSQL it runs."""

import os
import pwd
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import attrs
import trio

from ...errors import UsageError

__all__ = ["Programs", "find_programs"]

POSTGRES_USER: Final = "postgres"
_DEBIAN: Final = Path("/usr/lib/postgresql")
"""Debian keeps `initdb` and `postgres` out of the PATH, a folder for each version."""
_NEEDED: Final = ("initdb", "postgres", "psql")
_MAX_WORDS: Final = 1000


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

    async def versions(self, place: Path) -> list[str]:
        """Have each program print its version, started as the demo starts it.

        Args:
            place: the folder of all data, which the user of the programs must reach.

        Returns:
            what Patroni and PostgreSQL print.

        Raises:
            UsageError: a program does not start, or the folder is not reached; says why.
        """
        if (await _run(place, self.user, "/bin/sh", "-c", 'cd "$0"', place)).returncode != 0:
            raise UsageError(
                f"--dir {place}: {_whom(self.user)} cannot reach it; expected a folder below ones "
                "that everyone may pass, such as /var/tmp/demo"
            )
        await _version(self.postgres / "psql", None, place)
        return [
            await _version(self.patroni, self.user, place),
            await _version(self.postgres / "postgres", self.user, place),
        ]


async def _version(program: Path, user: str | None, place: Path) -> str:
    try:
        done = await _run(place, user, program, "--version")
    except OSError as error:
        raise UsageError(
            f"{program} does not start as {_whom(user)}: {error.strerror}; "
            "make it accessible to that user, or give another one with --patroni or --postgres"
        ) from None
    said = done.stdout.decode(errors="replace").strip()[-_MAX_WORDS:]
    if done.returncode != 0:
        raise UsageError(
            f"{program} --version as {_whom(user)}: exit status {done.returncode}; it says: {said}"
        )
    return said


async def _run(
    place: Path, user: str | None, *words: str | Path
) -> subprocess.CompletedProcess[bytes]:
    return await trio.run_process(
        [str(word) for word in words],
        capture_stdout=True,
        stderr=subprocess.STDOUT,
        check=False,
        cwd=place,
        user=user,
        group=user,
        extra_groups=None if user is None else [],
    )


def _whom(user: str | None) -> str:
    return f"user {user}" if user else "this user"


def find_programs(patroni: Path | None, postgres: Path | None) -> Programs:
    """Find all programs.

    Args:
        patroni: that program; None for the one in the PATH.
        postgres: the folder of PostgreSQL's programs; None for the newest one found.

    Raises:
        UsageError: something is not there; says what to install.
    """
    found = patroni or _in_path("patroni")
    if found is None or not _is_file(found):
        raise UsageError(
            f"Patroni is not here ({found or 'patroni'}): on Debian, apt install patroni; "
            "elsewhere, pip install 'patroni[etcd3]' psycopg2-binary, and give --patroni PATH"
        )
    control = found.with_name("patronictl")
    if not _is_file(control):
        raise UsageError(f"{control}: expected the program patronictl next to {found}")
    folder = postgres or _newest_postgres()
    if folder is None or not all(_is_file(folder / name) for name in _NEEDED):
        raise UsageError(
            f"PostgreSQL is not here ({folder or _DEBIAN}): on Debian, apt install postgresql; "
            "elsewhere, give --postgres the folder that has initdb, postgres and psql"
        )
    return Programs(found, control, folder, _user())


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except PermissionError as error:
        raise UsageError(
            f"{path}: {error.strerror}: this user may not look there; "
            "run the demo as one who may, or give --patroni and --postgres"
        ) from None


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
