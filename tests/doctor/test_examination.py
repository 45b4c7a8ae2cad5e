"""`quorate doctor` finds what is planted: in the file, in the store, at the ports."""

import json
import re
import socket
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

import quorate
from quorate.cli.app import run
from quorate.doctor.examination import Examination, examine
from quorate.doctor.finding import Finding, Level
from quorate.local.cluster import HOST
from quorate.node.config.config import NodeConfig
from quorate.storage.lmdb.file_check import DATA_FILE
from tests.cli.test_log_command import NEEDLE, record
from tests.support.certificates import DAY, NOW, authority, uri

PAGE = 4096
LEAF = 2
"""A flag in the head of a page of LMDB."""


def own_file(folder: Path, **changes: object) -> NodeConfig:
    """Write a member's file, and return what it says."""
    (config,) = quorate.local_configs(1, folder, profile="lan")
    text = config.to_toml()
    for key, value in changes.items():
        text = text.replace(f"{key} = ", f"{key} = {value}\n# ", 1)
    (folder / "node.toml").write_text(text)
    return config


def look(folder: Path) -> Examination:
    return trio.run(partial(examine, folder / "node.toml", probe=False))


def by_check(found: Examination, check: str) -> list[Finding]:
    return [one for one in found.findings if one.check == check]


def test_before_a_first_start_all_is_well_and_nothing_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own_file(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert run(["doctor", str(tmp_path / "node.toml"), "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["verdict"] == "well"
    checks = {one["check"] for one in plain["findings"]}
    assert checks >= {"python", "libraries", "clock", "directory", "disk sync", "memory", "ports"}
    assert checks >= {"certificates", "exposure", "process", "store", "cluster", "open files"}
    assert sorted(tmp_path.rglob("*")) == before


def test_without_a_file_only_the_machine_is_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--json"]) in {0, 2}  # 2 in a container that hides its clock
    plain = json.loads(capsys.readouterr().out)
    assert {one["check"] for one in plain["findings"]} >= {"python", "libraries", "clock"}


def test_every_mistake_of_a_file_has_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own_file(tmp_path, cluster='"a b"', profile='"fast"')
    assert run(["doctor", str(tmp_path / "node.toml")]) == 1
    text = capsys.readouterr().out
    assert text.count("PROBLEM  configuration") == 2
    assert 'profile = "fast"' in text
    assert 'expected: one of "lan", "aeron", "test"' in text


def test_what_is_no_members_file_is_said_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bytes.toml").write_bytes(b"\x80\xff")
    for name, words in (
        ("absent.toml", "absent.toml: cannot be read: No such file or directory"),
        ("", "cannot be read: Is a directory"),
        ("bytes.toml", "bytes.toml: not a TOML file"),
    ):
        assert run(["doctor", str(tmp_path / name)]) == 1
        text = capsys.readouterr().out
        assert words in text
        assert "no such line" not in text
        assert "name a member's file" in text


def test_nobody_at_a_named_address_is_no_verdict(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["doctor", "--connect", f"{HOST}:1"]) == 2
    assert "UNKNOWN  cluster" in capsys.readouterr().out


@pytest.fixture
def store(tmp_path: Path) -> NodeConfig:
    """A member whose store is that of member 2 of another cluster."""
    config = own_file(tmp_path)
    trio.run(record, config.directory / "log")
    return config


def test_the_store_of_another_member_is_a_problem(store: NodeConfig, tmp_path: Path) -> None:
    found = look(tmp_path)
    (named, *_) = by_check(found, "store")
    assert named.level is Level.PROBLEM
    assert named.found == 'it is that of member 2 of cluster "orders"'
    (records,) = by_check(found, "records")
    assert records.level is Level.OK


def test_damage_is_found_and_the_way_out_is_named(store: NodeConfig, tmp_path: Path) -> None:
    data = store.directory / "log" / DATA_FILE
    data.write_bytes(data.read_bytes().replace(NEEDLE + b" 1", NEEDLE + b" 7"))
    found = look(tmp_path)
    (records,) = by_check(found, "records")
    assert records.level is Level.PROBLEM
    assert "quorate log verify" in records.remedy


def test_what_is_no_store_is_a_problem(store: NodeConfig, tmp_path: Path) -> None:
    (store.directory / "log" / DATA_FILE).write_bytes(b"no store" * 4096)
    found = look(tmp_path)
    assert by_check(found, "store")[0].level is Level.PROBLEM


def test_a_page_that_crashes_its_reader_does_not_end_the_doctor(
    store: NodeConfig, tmp_path: Path
) -> None:
    data = store.directory / "log" / DATA_FILE
    pages = bytearray(data.read_bytes())
    for at in range(2 * PAGE, len(pages), PAGE):
        if pages[at + 10] & LEAF:
            # Rows that lie far behind the end of the file.
            pages[at + 16 : at + PAGE] = b"\xff" * (PAGE - 16)
    data.write_bytes(pages)
    found = by_check(look(tmp_path), "store")
    assert found[-1].level is Level.PROBLEM
    assert re.search("ends the process with SIG(SEGV|BUS|ABRT)", found[-1].found)
    assert "quorate restore" in found[-1].remedy


async def test_members_that_answer_are_judged(tmp_path: Path) -> None:
    """One member runs: the doctor of another one, with the right file and with wrong ones."""
    configs = quorate.local_configs(2, tmp_path, profile="lan")
    running = NodeConfig("local", 1, tmp_path / "alone", (configs[1].own,))
    async with quorate.open_node(running) as node:
        await node.wait_for_leader()
        for change, level, words in (
            ("", Level.OK, "answers, protocol"),
            ('cluster = "other"', Level.PROBLEM, "expected 'local'"),
            ("member_id = 7", Level.PROBLEM, "is member 1"),
        ):
            found = await examine(_file(tmp_path, configs[0], change), probe=False)
            (member,) = by_check(found, "member ports")
            assert (member.level, words in member.found) == (level, True), member
            (client, *_) = by_check(found, "client ports")
            assert client.level is level
            (skew, *_) = by_check(found, "clocks")
            assert skew.level is Level.OK


def _file(folder: Path, config: NodeConfig, change: str) -> Path:
    """Write the file of member 0, with the cluster or the other member's id changed."""
    text, path = config.to_toml(), folder / "node.toml"
    if change.startswith("cluster"):
        text = text.replace('cluster = "local"', change)
    elif change:
        head, _, last = text.rpartition("member_id = 1")
        text = f"{head}{change}{last}"
    path.write_text(text)
    return path


def test_a_web_port_that_is_taken_or_elsewhere_is_a_problem(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for host, remedy in (("127.0.0.1", "change web.port"), ("192.0.2.1", "another web.host")):
            own_file(tmp_path)
            with (tmp_path / "node.toml").open("a") as file:
                file.write(f'[web]\nport = {port}\nhost = "{host}"\ntoken_file = "token"\n')
            ports = by_check(look(tmp_path), "ports")
            (found,) = (one for one in ports if one.level is Level.PROBLEM)
            assert f"web.port {host}:{port}" in found.found
            assert remedy in found.remedy


def test_a_web_port_is_looked_at_too(tmp_path: Path) -> None:
    own_file(tmp_path)
    with (tmp_path / "node.toml").open("a") as file:
        file.write('[web]\nport = 18001\nhost = "0.0.0.0"\ntoken_file = "token"\n')
    found = look(tmp_path)
    assert any("web.port 0.0.0.0:18001" in one.found for one in by_check(found, "ports"))
    (exposed,) = by_check(found, "exposure")
    assert exposed.level is Level.PROBLEM
    assert "web.host = '0.0.0.0'" in exposed.found
    assert "[web]" in exposed.remedy


def test_a_certificate_that_has_ended_is_a_problem(tmp_path: Path) -> None:
    config = own_file(tmp_path)
    named = uri(0, cluster=config.cluster)
    files = authority().write(tmp_path, named, begins=NOW - 9 * DAY, ends=NOW - DAY)
    text = (tmp_path / "node.toml").read_text()
    security: dict[str, Any] = {"certificate": files.certificate, "key": files.key, "ca": files.ca}
    lines = [f'{name} = "{path}"' for name, path in security.items()]
    (tmp_path / "node.toml").write_text("\n".join((text, "[security]", *lines)))
    found = look(tmp_path)
    wrong = [one for one in by_check(found, "certificates") if one.level is Level.PROBLEM]
    assert any("ended at" in one.found for one in wrong)
