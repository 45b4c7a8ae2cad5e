"""The file of a machine: what it says, and how its mistakes are reported."""

from functools import partial
from pathlib import Path

import attrs
import pytest

from quorate.errors import ConfigurationError, UsageError
from quorate.local.secured import security_of
from quorate.machine.config import MachineConfig, MachineEntry, is_machine_file, load_machine
from quorate.machine.layout import lay_out_machines
from quorate.machine.maps import map_of_file
from quorate.node.config.config import Etcd, Security, Timeouts, Web

MACHINES = tuple(MachineEntry(n, f"10.0.0.{n}", 7000, 17000, rack="ab"[n % 2]) for n in range(3))
EXPECTED_PORT = "expected 0 for none, or a port number up to 65471"
GOOD = MachineConfig("orders", 1, MACHINES, 4)


def load(tmp_path: Path, text: str) -> MachineConfig:
    file = tmp_path / "machine.toml"
    file.write_text(text)
    return load_machine(file)


def mistakes(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, text)
    prefix = f"{tmp_path / 'machine.toml'}: "
    return [line.removeprefix(prefix) for line in str(caught.value).splitlines()]


@pytest.mark.parametrize(
    "config", [GOOD, attrs.evolve(GOOD, replicas=1, web=Web(9000), etcd=Etcd(2379))]
)
def test_a_file_that_was_written_is_read_back_as_it_was(
    tmp_path: Path, config: MachineConfig
) -> None:
    assert load(tmp_path, config.to_toml()) == attrs.evolve(config, directory=tmp_path)
    assert is_machine_file(tmp_path / "machine.toml")


def test_the_tables_of_the_members_are_read(tmp_path: Path) -> None:
    more = '[timeouts]\nleader_lease = 0.2\n[security]\ncluster_key_file = "k"\n'
    more += '[log]\nformat = "json"\n'
    config = load(tmp_path, GOOD.to_toml() + more)
    assert config.timeouts == attrs.evolve(Timeouts.of("lan"), leader_lease=0.2)
    assert config.security == Security(cluster_key_file=str(tmp_path / "k"))
    assert config.log.format == "json"


def test_all_mistakes_of_a_file_are_reported_at_once(tmp_path: Path) -> None:
    text = (
        GOOD.to_toml()
        .replace('"orders"', '"or ders"')
        .replace("partitions = 4", "partitons = 4")
        .replace("port = 7000", "port = 70000", 1)
        .replace('rack = "b"', "rack = 7")
    )
    assert mistakes(tmp_path, text) == [
        "cluster = \"or ders\": expected a name of 1 to 59 letters, digits, '.', '_' or '-'",
        f"machines[0].port = 70000: {EXPECTED_PORT}",
        "machines[1].rack = 7: expected a name of up to 64 characters",
        "partitions: missing: expected a number of partitions, 1 to 64",
        "partitons: unknown key: did you mean 'partitions'?",
    ]


def test_the_values_fit_together() -> None:
    for changes, words in (
        ({"machine_id": 9}, r"machine_id = 9: expected one of machines \[0, 1, 2\]"),
        ({"machines": MACHINES[::-1]}, r"machines: ids \[2, 1, 0\]: expected 1 to 64, ascending"),
        ({"replicas": 4}, "replicas = 4: expected 3 at most, the number of machines"),
        ({"machines": MACHINES[1:2], "join": True}, "join = true: machines: no other one"),
        (
            {"machines": [attrs.evolve(each, tls_port=9000) for each in MACHINES]},
            "tls_port = 9000: expected 0, or certificate, key and ca in the table",
        ),
    ):
        with pytest.raises(ConfigurationError, match=words):
            attrs.evolve(GOOD, **changes)


def test_ranges_of_ports_do_not_meet() -> None:
    here = [attrs.evolve(each, host="127.0.0.1") for each in MACHINES]
    apart = [attrs.evolve(each, port=7000 + 65 * n) for n, each in enumerate(here)]
    apart = [attrs.evolve(each, member_port=17000 + 65 * n) for n, each in enumerate(apart)]
    attrs.evolve(GOOD, machines=apart)
    near = [attrs.evolve(each, port=7000 + 64 * n) for n, each in enumerate(apart)]
    words = r"machines\[1\].port = 7064: expected 65 ports of 127.0.0.1 that are not those of"
    with pytest.raises(ConfigurationError, match=words):
        attrs.evolve(GOOD, machines=near)
    with pytest.raises(ConfigurationError, match=r"web.port = 7010: expected 65 ports of"):
        attrs.evolve(GOOD, machines=apart, web=Web(7010))
    with pytest.raises(ConfigurationError, match=r"etcd.port = 7010: expected a port of"):
        attrs.evolve(GOOD, machines=apart, etcd=Etcd(7010))


def test_a_local_cluster_with_certificates_stays_one(tmp_path: Path) -> None:
    lay_out = partial(lay_out_machines, machines=3, partitions=2, client_port=7000)
    made = lay_out(tmp_path / "secured", security=security_of)
    assert [each.own.tls_port for each in made] == [10000, 10100, 10200]
    certs = tmp_path / "secured" / "certs"
    assert Path(made[1].security.certificate).resolve() == certs.resolve() / "member-1.crt"
    assert lay_out(tmp_path / "secured") == made
    lay_out(tmp_path / "plain")
    with pytest.raises(ConfigurationError, match="it has no certificate: expected a cluster that"):
        lay_out(tmp_path / "plain", security=security_of)


def test_a_machine_that_joins_asks_the_others_for_the_map() -> None:
    assert map_of_file(GOOD).metadata == (0, 1, 2)
    assert map_of_file(attrs.evolve(GOOD, join=True)).metadata == (0, 2)


def test_a_local_cluster_is_laid_out_once(tmp_path: Path) -> None:
    made = lay_out_machines(tmp_path, machines=3, partitions=2, client_port=7000)
    assert [each.own.port for each in made] == [7000, 7100, 7200]
    assert [each.own.member_port for each in made] == [17000, 17100, 17200]
    assert lay_out_machines(tmp_path, machines=3, partitions=2, client_port=7000) == made
    with pytest.raises(ConfigurationError, match=r"machine-0/machine.toml: partitions: this clust"):
        lay_out_machines(tmp_path, machines=3, partitions=4, client_port=7000)
    with pytest.raises(UsageError, match="--machines 0: expected 1 to 9"):
        lay_out_machines(tmp_path, machines=0, partitions=2, client_port=7000)
    with pytest.raises(UsageError, match="--client-port 30000: expected 1 to"):
        lay_out_machines(tmp_path, machines=3, partitions=2, client_port=30000)
