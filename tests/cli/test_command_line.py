"""The command line explains itself, and tells trouble once, with a status that says its kind."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from quorate import errors
from quorate._version import __version__
from quorate.cli.app import (
    EX_CONFIG,
    EX_IOERR,
    EX_NOINPUT,
    EX_NOPERM,
    EX_OSERR,
    EX_PROTOCOL,
    EX_SOFTWARE,
    EX_TEMPFAIL,
    EX_USAGE,
    INTERRUPTED,
    STATUS,
    run,
)
from quorate.errors import ConfigurationError
from quorate.local.cluster import HOST, free_client_port, lay_out, risky_ports
from quorate.node.config.config import load_config

EXIT_STATUSES = Path(__file__).parents[2] / "docs" / "reference" / "exit-statuses.md"
REPORTING = [
    [verb] for verb in ("status", "is-leader", "transfer", "backup", "restore", "recover", "doctor")
]
SILENT = [
    [verb]
    for verb in (
        *("run", "cluster", "demo", "log", "control", "member", "simulate", "torture"),
        *("support-bundle", "lock", "elect"),
    )
]
VERBS = SILENT + REPORTING
LOG_VERBS = [["log", verb] for verb in ("describe", "verify", "dump", "recovery-plan")]
CONTROL_VERBS = [
    ["control", verb] for verb in ("snapshot", "suspend", "resume", "shutdown", "abort")
]
MEMBER_VERBS = [
    ["member", verb] for verb in ("list", "add", "promote", "demote", "remove", "move", "replace")
]
GROUPED = LOG_VERBS + CONTROL_VERBS + MEMBER_VERBS


def test_help_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"│ {verb} " in text for (verb,) in VERBS)


@pytest.mark.parametrize("verb", VERBS + GROUPED, ids=" ".join)
def test_every_verb_explains_itself(verb: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*verb, "--help"]) == 0
    assert f"Usage: quorate {' '.join(verb)}" in capsys.readouterr().out


@pytest.mark.parametrize("verb", REPORTING + GROUPED, ids=" ".join)
def test_every_verb_that_reports_does_so_for_programs_too(
    verb: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*verb, "--help"]) == 0
    assert "--json" in capsys.readouterr().out


def test_every_exit_status_is_in_its_page_and_in_the_help(
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = EXIT_STATUSES.read_text()
    assert run(["--help"]) == 0
    text = capsys.readouterr().out
    known = {status for _, status in STATUS} | {0, 1, 2, EX_USAGE, EX_SOFTWARE, INTERRUPTED}
    assert [status for status in known if f"| {status} | " not in page] == []
    assert [status for status in known if f"• {status} - " not in text] == []


def test_a_verb_does_not_wait_for_the_imports_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    imported: list[bool] = []
    monkeypatch.setattr("quorate.cli.app._import_verbs", lambda: imported.append(True))
    for words in (["--version"], ["lock"]):
        run(words)
    assert not imported
    run(["log"])
    assert imported


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.strip() == __version__


@pytest.mark.parametrize(
    "arguments",
    [
        ["statsu"],
        ["run"],
        ["cluster"],
        ["status", "--conect", "x"],
        ["cluster", "--dir", "d", "--members", "x"],
    ],
    ids=" ".join,
)
def test_a_wrong_call_is_told_with_its_own_status(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == EX_USAGE
    assert "Error" in capsys.readouterr().err


def test_a_misspelt_verb_is_told_with_a_near_one(capsys: pytest.CaptureFixture[str]) -> None:
    run(["statsu"])
    assert 'Did you mean "status"?' in capsys.readouterr().err


def test_a_wrong_configuration_is_told_line_by_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "node.toml"
    file.write_text('cluster = 7\nmember_id = "x"\n')
    assert run(["run", str(file)]) == EX_CONFIG
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4
    assert lines[0].startswith(f"quorate: {file}: cluster = 7: expected ")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.ConfigurationError("x"), EX_CONFIG),
        (errors.UsageError("x"), EX_USAGE),
        (errors.StoreMismatchError("x"), EX_CONFIG),
        (errors.StoreAccessError("x"), EX_OSERR),
        (errors.LostStoreError("x"), EX_NOINPUT),
        (errors.RemovedError("x"), EX_NOPERM),
        (errors.DamagedRecordError(member_id=0, term=0, position=0, reason="x"), EX_IOERR),
        (errors.StoreBusyError("x"), EX_TEMPFAIL),
        (errors.StoreFullError("x"), EX_IOERR),
        (OSError(98, "address in use"), EX_OSERR),
        (errors.SafetyViolationError("x"), EX_PROTOCOL),
        (ZeroDivisionError("x"), EX_SOFTWARE),
        (ExceptionGroup("g", [errors.StoreBusyError("x")]), EX_TEMPFAIL),
        (ExceptionGroup("g", [errors.StoreBusyError("x"), ValueError("x")]), EX_SOFTWARE),
        (ExceptionGroup("g", [OSError("x"), errors.SafetyViolationError("x")]), EX_PROTOCOL),
        (KeyboardInterrupt(), INTERRUPTED),
        (BaseExceptionGroup("g", [KeyboardInterrupt()]), INTERRUPTED),
    ],
    ids=repr,
)
def test_what_rises_to_the_border_becomes_an_exit_status(
    error: BaseException,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(_directory: Path) -> None:
        raise error

    monkeypatch.setattr("quorate.cli.log.store_of", fail)
    assert run(["log", "describe", "."]) == status
    told = capsys.readouterr().err
    assert ("are a bug in quorate" in told) == (status == EX_SOFTWARE)
    assert ("has stopped, so that no data is lost" in told) == (status == EX_PROTOCOL)
    assert "Errno" not in told


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--version"], 0, ""),
        (["status", "--connect", "127.0.0.1:1"], 2, ""),
        (["status", "--connect", "foo"], EX_USAGE, 'quorate: --connect "foo": expected HOST:PORT'),
        (["cluster", "--dir", "d", "--members", "0"], EX_USAGE, "quorate: --members 0: expected 1"),
        (["torture", "--members", "2"], EX_USAGE, "Must be >= 3"),
        (["simulate", "--scenario", "foo"], EX_USAGE, "expected one of storm, standby, "),
        (["simulate", "--trace", "t"], EX_USAGE, "quorate: --trace: needs --seed"),
        (["restore", "--from", ".", "--to", ".", "--at", "x"], EX_USAGE, 'quorate: --at "x": '),
        (["log", "dump", ".", "--from", "3,26"], EX_USAGE, "expected a log position"),
        (["recover", "a", "b"], EX_USAGE, "quorate: quorate recover takes one configuration"),
        (["pipeline", "audit", ".", "--conf", "x"], EX_USAGE, 'quorate: --conf "x": '),
        (["run", "nowhere.toml"], EX_CONFIG, "quorate: nowhere.toml: cannot be read"),
        (["log", "describe", "nowhere"], EX_CONFIG, "quorate: nowhere: no recording there"),
    ],
    ids=str,
)
def test_a_command_ends_with_the_status_that_readme_gives(
    arguments: list[str], status: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == status
    assert words in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_a_terminal_without_unicode_gets_its_help() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "quorate", "--help"],
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"64 - usage error" in done.stdout


def test_help_and_page_list_every_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    run(["--help"])
    told = {int(found) for found in re.findall(r" (\d+) - ", capsys.readouterr().out)}
    assert told >= {EX_USAGE, EX_TEMPFAIL, EX_PROTOCOL, INTERRUPTED, *(code for _, code in STATUS)}
    rows = re.findall(r"^\| (\d+) \|", EXIT_STATUSES.read_text(), re.MULTILINE)
    assert told <= {int(found) for found in rows}


@pytest.mark.parametrize("arguments", [["--help"], ["status"]], ids=" ".join)
def test_a_closed_pipe_ends_quietly(arguments: list[str]) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    done = subprocess.run(
        [sys.executable, "-m", "quorate", *arguments],
        stdout=theirs,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(theirs)
    assert done.stderr == b""


# Laying out a cluster -------------------------------------------------------------------------


def test_each_member_gets_its_file_and_ports(tmp_path: Path) -> None:
    configs = lay_out(tmp_path, members=5, client_port=7000)
    assert [config.own.client_port for config in configs] == [7000, 7001, 7002, 7003, 7004]
    for i, config in enumerate(configs):
        assert load_config(tmp_path / f"member-{i}" / "node.toml") == config
        assert config.directory == tmp_path / f"member-{i}"
    assert len({(m.member_port, m.client_port) for m in configs[0].members}) == 5
    ports = [member.redirect_port for member in configs[0].members]
    assert ports == [7060, 7061, 7062, 7063, 7064]


def test_a_cluster_laid_out_without_redirect_ports_goes_on_without(tmp_path: Path) -> None:
    for config in lay_out(tmp_path, members=3, client_port=7000):
        members = [attrs.evolve(member, redirect_port=0) for member in config.members]
        old = attrs.evolve(config, members=members, directory=Path())
        (config.directory / "node.toml").write_text(old.to_toml())
    again = lay_out(tmp_path, members=3, client_port=7000)
    assert [config.own.redirect_port for config in again] == [0, 0, 0]


@pytest.mark.parametrize("client_port", [1, 22765, 22766, 32767, 65533])
def test_ports_of_members_stay_below_those_of_outgoing_connections(
    tmp_path: Path, client_port: int
) -> None:
    configs = lay_out(tmp_path, members=3, client_port=client_port)
    ports = [port for m in configs[0].members for port in (m.member_port, m.redirect_port)]
    assert all(1 <= port < 32768 for port in ports) or client_port >= 42768
    assert all(1 <= port <= 65535 for port in ports)


def test_ports_of_clients_among_outgoing_connections_are_risky(tmp_path: Path) -> None:
    assert risky_ports(lay_out(tmp_path / "low", members=3, client_port=22800)) == []
    assert risky_ports(lay_out(tmp_path / "high", members=2, client_port=32767)) == [32768]


def test_a_cluster_that_is_there_is_gone_on_with(tmp_path: Path) -> None:
    first = lay_out(tmp_path, members=3, client_port=7000, profile="aeron")
    assert lay_out(tmp_path, members=3, client_port=7000) == first
    assert lay_out(tmp_path, members=3, client_port=7000, profile="aeron") == first


def test_a_cluster_that_is_there_with_another_profile_is_told(tmp_path: Path) -> None:
    lay_out(tmp_path, members=3, client_port=7000)
    with pytest.raises(ConfigurationError, match=r'node\.toml: profile = "lan", not "aeron": '):
        lay_out(tmp_path, members=3, client_port=7000, profile="aeron")


@pytest.mark.parametrize("verb", ["cluster", "demo"])
def test_a_directory_that_cant_be_made_is_told(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([verb, "--dir", "/proc/here"]) == EX_OSERR
    told = capsys.readouterr().err
    assert told == "quorate: /proc/here/member-0: cannot be created: No such file or directory\n"


def test_a_cluster_that_is_there_with_other_ports_is_told(tmp_path: Path) -> None:
    lay_out(tmp_path, members=3, client_port=7000)
    with pytest.raises(ConfigurationError, match=r"member-0/node\.toml: its members listen .* on "):
        lay_out(tmp_path, members=3, client_port=8000)


@pytest.mark.parametrize(("members", "client_port"), [(0, 7000), (10, 7000), (3, 0), (3, 65534)])
def test_numbers_out_of_range_are_told(tmp_path: Path, members: int, client_port: int) -> None:
    with pytest.raises(
        ConfigurationError, match=f"(--members {members}|--client-port {client_port}): "
    ):
        lay_out(tmp_path, members=members, client_port=client_port)


def test_a_taken_port_is_told_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_client_port(3)
    with socket.create_server((HOST, port + 1)):
        status = run(["cluster", "--dir", str(tmp_path), "--client-port", str(port)])
    assert status == EX_OSERR
    told = capsys.readouterr().err
    assert told == f"quorate: member 1 cannot listen on {HOST}:{port + 1}: Address already in use\n"


@pytest.mark.parametrize("port", ["client_port", "member_port", "redirect_port"])
def test_a_member_says_which_address_is_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], port: str
) -> None:
    (config,) = lay_out(tmp_path, members=1, client_port=free_client_port(1))
    taken = (HOST, getattr(config.own, port))
    with socket.create_server(taken):
        assert run(["run", str(config.directory / "node.toml")]) == EX_OSERR
    told = capsys.readouterr().err.splitlines()[-1]
    assert told == f"quorate: {taken[0]}:{taken[1]}: Address already in use"


def test_the_demo_wants_an_empty_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "something").touch()
    assert run(["demo", "--dir", str(tmp_path)]) == EX_USAGE
    assert "expected a new or an empty directory" in capsys.readouterr().err
