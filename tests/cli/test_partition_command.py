"""`quorate partition` says what is wrong before it asks anybody."""

from pathlib import Path

import pytest

from quorate.cli.app import run
from quorate.local.cluster import free_client_port


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["move", "99999", "--to", "1"], 64, "expected slots from 0 to 16383"),
        (["move", "", "--to", "1"], 64, "none given"),
        (["replicas", "0", "--to", "a"], 64, "expected ids of machines"),
        (["list", "--connect", "nowhere"], 64, "expected HOST:PORT"),
    ],
)
def test_a_wrong_argument_is_named(
    words: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["partition", *words]) == status
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("words", [["partition", "list", "--connect"], ["status"]])
def test_a_folder_without_a_machine_is_a_usage_error(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*words, str(tmp_path)]) == 64
    assert "expected the file of a machine" in capsys.readouterr().err


def test_a_cluster_that_does_not_run_is_no_bug(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_client_port(9)
    assert run(["partition", "split", "--connect", f"127.0.0.1:{port}"]) == 2
    assert "connection refused" in capsys.readouterr().err
    (tmp_path / "map.json").write_text("{}")
    assert run(["partition", "list", "--connect", str(tmp_path / "map.json")]) == 1
    assert "expected one that quorate wrote" in capsys.readouterr().err


def test_a_backup_is_of_one_log_or_of_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = ["--to", str(tmp_path / "backup")]
    assert run(["backup", *to, "--consistent"]) == 64
    assert run(["backup", *to, "--all-partitions", "--follow"]) == 64
    assert "give one of them" in capsys.readouterr().err


def test_a_manifest_needs_the_name_of_a_new_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    words = ["restore", "--from", str(tmp_path), "--to", str(tmp_path / "new")]
    assert run(words) == 64
    assert "--new-cluster NAME" in capsys.readouterr().err
    assert run([*words, "--new-cluster", "other"]) == 78
    assert run([*words, "--at", "7"]) == 64
