"""`quorate cluster --tls`: everything that a cluster with certificates needs is made, once."""

from datetime import timedelta
from pathlib import Path

import pytest

from quorate.cli.app import EX_CONFIG, EX_USAGE, run
from quorate.local.certificate_check import check
from quorate.local.certificates import Authority, begin_rotation, finish_rotation, identity_of
from quorate.local.cluster import free_client_port, lay_out
from quorate.local.pem import read_certificates
from quorate.local.secured import lay_out_secured
from quorate.storage.lmdb.file_check import DATA_FILE
from tests.support.certificates import NOW


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def problems(directory: Path) -> list[str]:
    """What is wrong with the files that the members name, and with the rest."""
    paths = [*directory.glob("member-*/node.toml"), directory / "certs"]
    return [line for path in paths for found in check(path) for line in found.problems]


def test_all_that_is_needed_is_made_once(tmp_path: Path) -> None:
    configs = lay_out_secured(tmp_path, members=3, client_port=7000)
    assert all(config.security.tls for config in configs)
    names = {f"member-{member}" for member in range(3)} | {"client-default"}
    there = contents(tmp_path / "certs")
    assert {*there} == {"ca.crt", "ca.key"} | {
        f"{n}.{end}" for n in names for end in ("crt", "key")
    }
    assert not problems(tmp_path)
    assert lay_out_secured(tmp_path, members=3, client_port=7000) == configs
    assert contents(tmp_path / "certs") == there
    # What is missing after a crash is made, and the rest stays.
    (tmp_path / "certs/member-2.crt").unlink()
    lay_out_secured(tmp_path, members=3, client_port=7000)
    assert contents(tmp_path / "certs").items() >= {
        item for item in there.items() if not item[0].startswith("member-2")
    }
    assert not problems(tmp_path)


def test_what_ends_soon_is_renewed_at_a_start(tmp_path: Path) -> None:
    lay_out_secured(tmp_path, members=1, client_port=7000)
    folder = tmp_path / "certs"
    authority = Authority.load(folder)
    authority.issue(identity_of("local", "member", "0"), hosts=["localhost"], days=29, renew=True)
    before = contents(folder)
    lay_out_secured(tmp_path, members=1, client_port=7000)
    after = contents(folder)
    assert {name for name in after if after[name] != before[name]} == {
        "member-0.crt",
        "member-0.key",
    }
    (own,) = read_certificates(folder / "member-0.crt")
    assert own.ends > NOW + timedelta(days=300)
    assert not problems(tmp_path)


def test_a_cluster_goes_on_during_and_after_a_rotation(tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    lay_out_secured(tmp_path, members=1, client_port=7000)
    begin_rotation(folder)
    lay_out_secured(tmp_path, members=1, client_port=7000)
    assert not problems(tmp_path)
    for left in finish_rotation(folder):
        left.unlink()
        left.with_suffix(".key").unlink()
    assert not finish_rotation(folder)
    lay_out_secured(tmp_path, members=1, client_port=7000)
    assert not problems(tmp_path)


def test_a_plain_cluster_stays_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = free_client_port(1)
    lay_out(tmp_path, members=1, client_port=port)
    words = ["cluster", "--dir", str(tmp_path), "--members", "1", "--client-port", str(port)]
    assert run([*words, "--tls"]) == EX_CONFIG
    assert "made with --tls" in capsys.readouterr().err
    assert not (tmp_path / "certs").exists()


@pytest.mark.parametrize("place", [".", "log"])
def test_a_backup_gets_no_members(
    tmp_path: Path, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / place).mkdir(exist_ok=True)
    (tmp_path / place / DATA_FILE).touch()
    before = sorted(tmp_path.rglob("*"))
    assert run(["cluster", "--dir", str(tmp_path), "--tls"]) == EX_USAGE
    assert "a store of a member or a backup lies there; expected" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before
