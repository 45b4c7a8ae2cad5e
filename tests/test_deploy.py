"""What deploys a cluster fits the code: images, compose files and units know no types."""

import configparser
import re
from pathlib import Path

import attrs

from quorate.cli import app
from quorate.local.cluster import STOP_SECONDS
from quorate.node.config.config import load_config

ROOT = Path(__file__).parent.parent
COMPOSE = (ROOT / "compose.yaml").read_text()
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def test_the_members_of_the_compose_file_agree_with_each_other_and_with_it() -> None:
    configs = [load_config(ROOT / f"deploy/compose/member-{one}.toml") for one in range(3)]
    assert [config.member_id for config in configs] == [0, 1, 2]
    first = configs[0]
    assert all(attrs.evolve(config, member_id=0) == first for config in configs)
    services = re.findall(r"^  (member-\d):\n    <<: \*member\n", COMPOSE, re.MULTILINE)
    assert services == [member.host for member in first.members]
    published = re.findall(r'ports: \["127\.0\.0\.1:\d+:(\d+)"\]', COMPOSE)
    assert [int(port) for port in published] == [member.client_port for member in first.members]
    mounted = re.findall(r"- \./(\S+):/etc/quorate/node\.toml:ro\n", COMPOSE)
    assert mounted == [f"deploy/compose/{name}.toml" for name in services]
    assert COMPOSE.count(f":{first.directory}\n") == len(services)


def test_the_image_has_the_ports_and_the_directory_of_the_compose_file() -> None:
    first = load_config(ROOT / "deploy/compose/member-0.toml")
    assert f"VOLUME {first.directory}\n" in DOCKERFILE
    assert f"EXPOSE {first.own.client_port} {first.own.member_port}\n" in DOCKERFILE


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
