"""What deploys a cluster fits the code: images, compose files and units know no types."""

import configparser
import re
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from quorate.cli import app
from quorate.local.certificate_check import check
from quorate.local.child import STOP_SECONDS
from quorate.node.config.config import Security, load_config
from quorate.transport import Purpose
from quorate.transport.tls import TlsFiles, load_material

ROOT = Path(__file__).parent.parent
COMPOSE = (ROOT / "compose.yaml").read_text()
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def test_the_members_of_the_compose_file_agree_with_each_other_and_with_it() -> None:
    configs = [load_config(ROOT / f"deploy/compose/member-{one}.toml") for one in range(3)]
    assert [config.member_id for config in configs] == [0, 1, 2]
    first = configs[0]
    assert all(
        attrs.evolve(config, member_id=0, security=first.security) == first for config in configs
    )
    for config in configs:
        name = f"/certificates/member-{config.member_id}"
        expected = Security(f"{name}.crt", f"{name}.key", "/certificates/ca.crt")
        assert config.security == attrs.evolve(expected, client_certificates="required")
    assert COMPOSE.count("- certificates:/certificates:ro\n") == len(configs)
    services = re.findall(r"^  (member-\d):\n    <<: \*member\n", COMPOSE, re.MULTILINE)
    assert services == [member.host for member in first.members]
    published = re.findall(
        r'ports: \["127\.0\.0\.1:\d+:(\d+)", "127\.0\.0\.1:\d+:(\d+)"\]', COMPOSE
    )
    ports = [(member.tls_port, first.web.port) for member in first.members]
    assert [(int(port), int(web)) for port, web in published] == ports
    assert f"https://127.0.0.1:{first.web.port}/readyz" in COMPOSE
    mounted = re.findall(r"- \./(\S+):/etc/quorate/node\.toml:ro\n", COMPOSE)
    assert mounted == [f"deploy/compose/{name}.toml" for name in services]
    assert COMPOSE.count(f":{first.directory}\n") == len(services) + 1  # and the certificates


def test_the_certificates_of_the_compose_file_fit_its_members(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "quorate"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m quorate "$@"\n')
    program.chmod(0o755)
    script = (ROOT / "deploy/compose/make-certificates.sh").read_text()
    place = tmp_path / "certificates"
    place.mkdir()
    script = script.replace("/var/lib/quorate", str(place))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for _ in range(2):  # the second time it changes nothing
        subprocess.run(["/bin/sh", "-c", script], check=True, stdout=subprocess.DEVNULL)
    for member in range(3):
        config = load_config(ROOT / f"deploy/compose/member-{member}.toml")
        files = config.security.tls
        assert files is not None
        paths = [place / path.name for path in (files.certificate, files.key, files.ca)]
        there = TlsFiles(paths[0], paths[1], paths[2])
        load_material(there, cluster=config.cluster, purposes=(Purpose.MEMBER,), name=str(member))
    token = place / Path(load_config(ROOT / "deploy/compose/member-0.toml").web.token_file).name
    assert token.stat().st_mode & 0o777 == 0o600
    assert len(token.read_text().strip()) >= 32
    (default,) = check(place / "client-default.crt")
    assert not default.problems


def test_the_image_has_the_ports_and_the_directory_of_the_compose_file() -> None:
    first = load_config(ROOT / "deploy/compose/member-0.toml")
    assert f"VOLUME {first.directory}\n" in DOCKERFILE
    ports = f"{first.own.tls_port} {first.web.port} {first.own.member_port}"
    assert f"EXPOSE {ports}\n" in DOCKERFILE


def test_the_build_of_the_image_gets_all_that_the_package_needs() -> None:
    allowed = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"
    }
    linked = {item.readlink().name for item in (ROOT / "quorate").iterdir() if item.is_symlink()}
    assert allowed == linked | {
        *("quorate", "pyproject.toml", "requirements.lock", "README.md", "LICENSE"),
        *(file.name for file in ROOT.glob("*.c")),
    }


def test_systemd_does_not_restart_a_member_that_needs_an_operator() -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(ROOT / "deploy/quorate@.service")
    service = unit["Service"]
    statuses = {app.EX_USAGE, app.EX_NOINPUT, app.EX_PROTOCOL, app.EX_NOPERM, app.EX_CONFIG}
    assert {int(one) for one in service["RestartPreventExitStatus"].split()} == statuses
    assert float(service["TimeoutStopSec"]) > STOP_SECONDS
    grace = re.search(r"stop_grace_period: (\d+)s", COMPOSE)
    assert grace is not None
    assert float(grace[1]) > STOP_SECONDS
