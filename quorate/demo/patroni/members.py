"""The members of quorate, and how Patroni finds them: open to all, or with TLS and a user."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ...client.resp import RespClient
from ...local.certificates import CA_FILE
from ...local.cluster import HOST, lay_out
from ...local.secured import CERTIFICATES, lay_out_secured
from ...node.config.config import NodeConfig
from ...node.requests.status import MemberAddress
from .nodes import Node
from .programs import Programs

__all__ = ["COUNT", "add_user", "lay_out_members", "lay_out_nodes"]

COUNT: Final = 3
_REST_OFFSET: Final = 60
_USER: Final = "patroni"
_PASSWORD: Final = "a-long-password"  # noqa: S105 - of a cluster that lives for minutes
_RULES: Final = ("on", f">{_PASSWORD}", "~/service/*", "+@read", "+@write", "+quorate.watch")
_REST: Final = ("resetkeys", "-@all", "+quorate.status")
"""What is left to those who do not log in: the demo asks the members who leads."""


def lay_out_members(place: Path, client_port: int, *, secure: bool) -> list[NodeConfig]:
    """Write the configuration of all members.

    Args:
        place: the folder of all.
        client_port: where nine ports are free, and nine more 60 above.
        secure: with certificates, and TLS on the ports for Patroni.
    """
    make = lay_out_secured if secure else lay_out
    port = client_port + COUNT
    return make(place, members=COUNT, client_port=client_port, cluster="demo", etcd_port=port)


def lay_out_nodes(place: Path, programs: Programs, configs: Sequence[NodeConfig]) -> list[Node]:
    """Write the configuration of all nodes."""
    ports = [config.etcd.port for config in configs]
    etcd: dict[str, object] = {"hosts": [f"{HOST}:{port}" for port in ports]}
    if configs[0].etcd.tls:
        authority = place / "ca.crt"  # the folder of the CA is not for PostgreSQL's user
        authority.write_bytes((place / CERTIFICATES / CA_FILE).read_bytes())
        etcd |= {"protocol": "https", "cacert": str(authority)}
        etcd |= {"username": _USER, "password": _PASSWORD}
    nodes: list[Node] = []
    for i, port in enumerate(ports):
        own = port + COUNT, port + COUNT + _REST_OFFSET
        nodes.append(Node(i, place / f"node-{i}", programs, own, etcd))
        nodes[i].lay_out()
    return nodes


async def add_user(address: MemberAddress) -> None:
    """Add the user of Patroni, and take from the user `default` what needs none.

    Raises:
        OSError: the connection to the member is lost.
        RespError: the member refuses.
    """
    client = await RespClient.connect(address.host, address.client_port)
    try:
        await client.call("ACL", "SETUSER", _USER, *_RULES)
        await client.call("ACL", "SETUSER", "default", *_REST)
    finally:
        client.close()
