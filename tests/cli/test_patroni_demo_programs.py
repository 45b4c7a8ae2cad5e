"""The Patroni demo says which program it cannot use, and why."""

import os
from pathlib import Path

import pytest

from quorate.demo.patroni.programs import Programs, find_programs
from quorate.errors import UsageError

WORKS = "#!/bin/sh\n"


def program(file: Path, text: str = WORKS, mode: int = 0o755) -> Path:
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    file.chmod(mode)
    return file


def laid_out(place: Path) -> Programs:
    """Return programs that work, run by the user of this process."""
    for name in ("initdb", "postgres", "psql"):
        program(place / "postgres" / name)
    for name in ("patroni", "patronictl"):
        program(place / name)
    return Programs(place / "patroni", place / "patronictl", place / "postgres", None)


async def test_programs_that_start_print_their_versions(tmp_path: Path) -> None:
    programs = laid_out(tmp_path)
    program(programs.patroni, "#!/bin/sh\necho patroni 4.1.5\n")
    program(programs.postgres / "postgres", "#!/bin/sh\necho postgres 15.18\n")
    assert await programs.versions(tmp_path) == ["patroni 4.1.5", "postgres 15.18"]


@pytest.mark.parametrize("name", ["patroni", "postgres/postgres", "postgres/psql"])
async def test_a_program_that_may_not_be_executed_is_named(tmp_path: Path, name: str) -> None:
    programs = laid_out(tmp_path)
    (tmp_path / name).chmod(0o644)
    with pytest.raises(UsageError, match=f"{name} does not start as this user.*Permission denied"):
        await programs.versions(tmp_path)


async def test_a_program_that_fails_is_quoted(tmp_path: Path) -> None:
    programs = laid_out(tmp_path)
    program(programs.patroni, "#!/bin/sh\necho No module named psycopg2 >&2\nexit 3\n")
    with pytest.raises(UsageError, match="exit status 3; it says: No module named psycopg2"):
        await programs.versions(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts programs as another user")
async def test_a_folder_that_the_user_of_postgresql_cannot_reach_is_named(tmp_path: Path) -> None:
    found = laid_out(tmp_path)
    programs = Programs(found.patroni, found.patronictl, found.postgres, "daemon")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(UsageError, match=f"--dir {closed}: user daemon cannot reach it"):
        await programs.versions(closed)


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    programs = laid_out(tmp_path)
    (programs.postgres / "postgres").unlink()
    with pytest.raises(UsageError, match="PostgreSQL is not here"):
        find_programs(programs.patroni, programs.postgres)
    with pytest.raises(UsageError, match="Patroni is not here"):
        find_programs(tmp_path / "none", programs.postgres)


def test_a_folder_that_may_not_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    programs = laid_out(tmp_path)
    monkeypatch.setattr(Path, "is_file", refuse)  # root may look everywhere
    with pytest.raises(UsageError, match="patroni: Permission denied: this user may not look"):
        find_programs(programs.patroni, programs.postgres)
