"""The table [etcd], and the ports for clients of etcd of a local cluster."""

import socket
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from quorate.errors import ConfigurationError, UsageError
from quorate.local.cluster import lay_out
from quorate.node.config.config import (
    Etcd,
    MemberConfig,
    NodeConfig,
    PartitionSettings,
    Security,
    load_config,
)
from quorate.node.upkeep.exposure import check_etcd_exposure

OWN = MemberConfig(0, "127.0.0.1", 7100, 7000)
GOOD = NodeConfig("orders", 0, Path(), (OWN,))
SECURE = Security("own.crt", "own.key", "ca.crt")


def test_the_table_is_written_and_read(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    etcd = Etcd(2379, "10.0.0.1", "https://db.example:2379", tls=True)
    file.write_text(attrs.evolve(GOOD, etcd=etcd, security=SECURE).to_toml())
    assert load_config(file).etcd == etcd
    assert "etcd" not in GOOD.to_toml()


def test_a_table_without_port_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text(GOOD.to_toml() + '[etcd]\nhost = "10.0.0.1"\n')
    with pytest.raises(ConfigurationError, match=r"etcd\.port: missing: expected a port number"):
        load_config(file)
    closed = attrs.evolve(GOOD, etcd=Etcd(0, "10.0.0.1"))
    file.write_text(closed.to_toml())
    assert load_config(file).etcd == closed.etcd


@pytest.mark.parametrize(
    "failure",
    [
        socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
        UnicodeError("label too long"),
    ],
)
async def test_a_host_that_is_none_is_named(
    failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def getaddrinfo(*_args: object) -> list[Any]:
        await trio.lowlevel.checkpoint()
        raise failure

    monkeypatch.setattr(trio.socket, "getaddrinfo", getaddrinfo)
    for etcd, name in ((Etcd(2379, "db"), r"\[etcd\] host"), (Etcd(2379), "client_listen_host")):
        config = attrs.evolve(GOOD, etcd=etcd, client_listen_host="db")
        with pytest.raises(OSError, match=f"{failure.args[-1]}: .{name} = 'db'"):
            await check_etcd_exposure(config)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"port": 70_000}, "port = 70000: expected a port number, or 0 for none"),
        ({"host": "\n"}, "host = "),
        ({"advertise": "db.example:2379"}, "advertise = .* expected a URL as http://HOST:PORT"),
        ({"advertise": "http://db.example/"}, "advertise = "),
        ({"tls": "yes"}, 'tls = "yes": expected true or false'),
    ],
)
def test_wrong_values_are_refused(values: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"port": 2379, **values}
    with pytest.raises(ConfigurationError, match=message):
        Etcd(**given)


def test_the_port_is_one_of_its_own_with_a_certificate_and_tables() -> None:
    with pytest.raises(ConfigurationError, match=r"etcd.port = 7000: .* than that of members\[0\]"):
        attrs.evolve(GOOD, etcd=Etcd(7000))
    with pytest.raises(ConfigurationError, match=r"etcd.tls = true: expected certificate, key and"):
        attrs.evolve(GOOD, etcd=Etcd(2379, tls=True))
    witness = attrs.evolve(OWN, witness=True)
    others = (attrs.evolve(OWN, member_id=n, client_port=7000 + n, member_port=7100 + n)
              for n in (1, 2))  # fmt: skip
    with pytest.raises(ConfigurationError, match="0, since a witness has no tables"):
        attrs.evolve(GOOD, members=(witness, *others), etcd=Etcd(2379))


def test_with_partitions_only_partition_0_has_it() -> None:
    attrs.evolve(GOOD, etcd=Etcd(2379), partition=PartitionSettings(0))
    for other in (-1, 1):
        with pytest.raises(ConfigurationError, match=r"etcd.port = 2379: .* partition 0 has"):
            attrs.evolve(GOOD, etcd=Etcd(2379), partition=PartitionSettings(other))


def test_clients_are_told_a_url() -> None:
    assert Etcd(2379).url("db.example") == "http://db.example:2379"
    assert Etcd(2379, tls=True).url("::1") == "https://[::1]:2379"
    assert Etcd(2379, advertise="http://x:1").url("db.example") == "http://x:1"


OPEN = Etcd(2379, "0.0.0.0")


@pytest.mark.parametrize(
    ("etcd", "security", "protected"),
    [
        (Etcd(2379), Security(), False),
        (Etcd(0, "0.0.0.0"), Security(), False),
        (OPEN, Security(insecure_network=True), False),
        (OPEN, Security(require_users=True), True),
        (
            attrs.evolve(OPEN, tls=True),
            attrs.evolve(SECURE, client_certificates="required"),
            False,
        ),
    ],
)
async def test_a_port_at_other_addresses_needs_a_line(
    etcd: Etcd, security: Security, *, protected: bool
) -> None:
    config = attrs.evolve(GOOD, etcd=etcd, security=security)
    assert await check_etcd_exposure(config) is protected


async def test_an_open_port_is_refused_with_the_lines_to_add() -> None:
    for security in (Security(), attrs.evolve(SECURE, client_certificates="required")):
        config = attrs.evolve(GOOD, etcd=OPEN, security=security)
        with pytest.raises(ConfigurationError, match=r"etcd.host = '0.0.0.0'") as caught:
            await check_etcd_exposure(config)
        assert "require_users = true" in str(caught.value)


def test_the_members_of_a_local_cluster_have_ports_if_asked(tmp_path: Path) -> None:
    def ports(name: str, etcd_port: int | None = None) -> list[int]:
        made = lay_out(tmp_path / name, members=3, client_port=7000, etcd_port=etcd_port)
        return [config.etcd.port for config in made]

    assert ports("none") == [0, 0, 0]
    assert ports("some", 2379) == ports("some") == [2379, 2380, 2381]
    with pytest.raises(ConfigurationError, match=r"has port = 2379, not 0: .* --etcd-port"):
        ports("some", 0)
    with pytest.raises(UsageError, match="--etcd-port"):
        ports("wrong", 65_534)
