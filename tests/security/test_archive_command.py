"""`quorate archive` and `quorate restore --key-file`: the same state, or nothing."""

import json
import os
from pathlib import Path

import pytest

from quorate.cli.app import EX_CONFIG, EX_IOERR, EX_USAGE, run
from quorate.local.cluster import free_client_port
from quorate.simulation.ledger import open_ledgers
from quorate.simulation.machines import scheduler
from quorate.storage import open_readonly

SECRET = b"a value that is in no archive"


async def _begin(directory: Path) -> None:
    async with open_ledgers(directory) as world:
        await world.start()
        for _ in range(3):
            assert await world.attempt(await world.settled(), SECRET)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a key and with the stores of members in it."""
    (tmp_path / "there").mkdir()
    scheduler.run(_begin, tmp_path / "there", seed=1)
    for name in ("key", "other"):
        (tmp_path / name).touch(0o600)
        (tmp_path / name).write_bytes(os.urandom(32))
    return tmp_path


def archive(place: Path, *words: str, source: str = "there/member-0") -> int:
    given = ["--from", str(place / source), "--to", str(place / "archive")]
    return run(["archive", *given, "--key-file", str(place / "key"), *words])


def restore(place: Path, *words: str, key: str = "key") -> int:
    given = ["--from", str(place / "archive"), "--key-file", str(place / key)]
    to = ["--to", str(place / "new"), "--new-cluster", "fresh"]
    port = ["--client-port", str(free_client_port(3))]
    return run(["restore", *given, *to, *port, *words])


def test_an_archive_restores_what_was_archived(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert archive(place, "--json") == 0
    made = json.loads(capsys.readouterr().out)
    data = (place / "archive").read_bytes()
    assert made["bytes"] == len(data)
    assert SECRET not in data
    assert (place / "archive").stat().st_mode & 0o777 == 0o600
    assert not [*place.rglob("archiving-*")]
    assert restore(place, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["from"] == str(place / "archive")
    assert said["position"] == made["position"]
    assert not [*place.rglob("unpacking-*")]
    for member in range(3):
        with open_readonly(place / f"new/member-{member}/log") as store:
            batches = list(store.scan(0, made["position"]))
        with open_readonly(place / "there/member-0/log") as store:
            assert list(store.scan(0, made["position"])) == batches
        assert any(SECRET in batch for batch in batches)


def test_a_point_of_an_archive_is_restored(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert archive(place) == 0
    assert restore(place, "--at", "1000000") == 1
    assert not [*place.rglob("unpacking-*")]
    assert restore(place, "--at", "0") == 0
    assert "write a table [security] into each node.toml" in capsys.readouterr().out


def test_what_does_not_open_writes_nothing(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert archive(place) == 0
    assert restore(place, key="other") == EX_IOERR
    assert "it was made with another key, or it is damaged or cut off" in capsys.readouterr().err
    whole = (place / "archive").read_bytes()
    for changed in (whole[:-1], whole[:100] + b"x" + whole[101:], b"", whole + b"x"):
        (place / "archive").write_bytes(changed)
        assert restore(place) == EX_IOERR
    assert not (place / "new").exists()


def test_arguments_that_do_not_fit_are_refused(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert archive(place) == 0
    assert archive(place) == EX_CONFIG
    assert "it exists" in capsys.readouterr().err
    (place / "archive").unlink()
    (place / "key").chmod(0o644)
    assert archive(place) == EX_CONFIG
    assert "chmod 600" in capsys.readouterr().err
    (place / "key").chmod(0o600)
    (place / "key").write_bytes(b"short")
    assert archive(place) == EX_CONFIG
    assert "head -c 32 /dev/urandom" in capsys.readouterr().err
    assert not (place / "archive").exists()
    (place / "archive").write_bytes(b"")
    source = ["restore", "--from", str(place / "archive"), "--to", str(place / "new")]
    assert run(source) == EX_USAGE
    assert "expected --key-file" in capsys.readouterr().err
    source[2] = str(place / "there/member-0")
    assert run([*source, "--key-file", str(place / "key")]) == EX_USAGE
