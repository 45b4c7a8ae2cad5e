"""A map that nobody's file could have made is refused."""

from typing import Any

import msgspec
import pytest

from quorate.errors import ConfigurationError
from quorate.keyvalue.slots.cluster_map import decode_map_untrusted, encode_map
from quorate.partitions.balance import first_map
from tests.support.partitions_world import machines


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"host": "x\r\n+INJECTED"}, "host"),
        ({"host": ""}, "host"),
        ({"host": "a b"}, "host"),
        ({"host": "[::1]"}, "host"),
        ({"host": "h" * 254}, "host"),
        ({"port": 65_472}, "ports"),
        ({"port": -1}, "ports"),
        ({"tls_port": 70_000}, "ports"),
        ({"member_port": 0}, "ports"),
        ({"member_port": 70_000}, "ports"),
        ({"port": 0}, "no port for clients"),
        ({"rack": "a\r\nb"}, "rack"),
    ],
)
def test_each_machine_has_a_host_and_ports(change: dict[str, Any], complaint: str) -> None:
    first = first_map("orders", machines(3), 2, 3)
    bad = msgspec.structs.replace(first.machines[0], **change)
    data = encode_map(msgspec.structs.replace(first, machines=(bad, *first.machines[1:])))
    with pytest.raises(ConfigurationError, match=f"machine 0 has {complaint}"):
        decode_map_untrusted(data)


def test_addresses_may_be_of_any_kind() -> None:
    first = first_map("orders", machines(3), 2, 3)
    changes: tuple[dict[str, Any], ...] = (
        {"host": "fe80::1%eth0"},
        {"host": "a.example", "port": 65_471, "member_port": 65_400},
        {"port": 0, "tls_port": 7000},
    )
    some = tuple(
        msgspec.structs.replace(machine, **change)
        for machine, change in zip(first.machines, changes, strict=True)
    )
    data = encode_map(msgspec.structs.replace(first, machines=some))
    assert decode_map_untrusted(data).machines == some
