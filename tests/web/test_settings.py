"""The table [web], and the web ports of a local cluster."""

from pathlib import Path
from typing import Any

import attrs
import pytest

from quorate.errors import ConfigurationError, UsageError
from quorate.local.cluster import lay_out
from quorate.node.config.config import MemberConfig, NodeConfig, Security, Web, load_config

GOOD = NodeConfig("orders", 0, Path(), (MemberConfig(0, "127.0.0.1", 7100, 7000),))
SECURE = Security("own.crt", "own.key", "ca.crt")


def test_the_table_is_written_and_read(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    web = Web(8001, "10.0.0.1", "web.token", tls=True)
    file.write_text(attrs.evolve(GOOD, web=web, security=SECURE).to_toml())
    read = load_config(file).web
    assert read == attrs.evolve(web, token_file=str(tmp_path / "web.token"))
    file.write_text(GOOD.to_toml())
    assert load_config(file).web == Web()
    assert "web" not in GOOD.to_toml()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"port": 70_000}, "port = 70000: expected a port number, or 0 for none"),
        ({"host": ""}, "host = "),
        ({"token_file": 5}, "token_file = 5: expected the path of a file"),
        ({"tls": "yes"}, 'tls = "yes": expected true or false'),
    ],
)
def test_wrong_values_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Web(**values)


def test_the_port_is_one_of_its_own_and_tls_has_a_certificate() -> None:
    with pytest.raises(ConfigurationError, match=r"web.port = 7000: .* than that of members\[0\]"):
        attrs.evolve(GOOD, web=Web(7000))
    with pytest.raises(ConfigurationError, match=r"web.tls = true: expected certificate, key and"):
        attrs.evolve(GOOD, web=Web(8001, tls=True))
    attrs.evolve(GOOD, web=Web(8001, tls=True), security=SECURE)


def test_the_members_of_a_local_cluster_have_web_ports(tmp_path: Path) -> None:
    def ports(name: str, **options: Any) -> list[int]:
        configs = lay_out(tmp_path / name, members=3, client_port=7000, **options)
        return [config.web.port for config in configs]

    assert ports("none") == [0, 0, 0]
    assert ports("usual", web_port="auto") == [8001, 8002, 8003]
    assert ports("usual", web_port="auto") == ports("usual", web_port=8001)
    assert ports("usual") == [8001, 8002, 8003]  # what the files say
    assert ports("other", web_port=9000) == [9000, 9001, 9002]
    assert ports("other", web_port="auto") == [9000, 9001, 9002]
    for port in (0, 9001):
        with pytest.raises(ConfigurationError, match=f"port = 9000, not {port}: write"):
            ports("other", web_port=port)
    for port in (-1, 65_534):
        with pytest.raises(UsageError, match="--web-port"):
            ports("wrong", web_port=port)
