"""The protected default: no open port of members at an address that other machines reach.

A member port without TLS and without a key believes everybody. At a loopback address that is what a
first try needs. At any other one, every stranger gets the log, backups and a vote there. So the
member does not start there, unless the file says that the network is closed.
"""

from ipaddress import ip_address

import trio

from ...errors import ConfigurationError
from ..config.config import NodeConfig


async def check_exposure(config: NodeConfig) -> None:
    """Refuse to open a port to everybody.

    Raises:
        ConfigurationError: it would be open to more than this machine; with the lines to add.
    """
    security = config.security
    if security.tls or security.cluster_key_file or security.insecure_network:
        return
    host = config.member_listen_host
    if not await is_loopback(host):
        raise ConfigurationError(
            f"member_listen_host = {host!r}: everybody who reaches this address could read and "
            "change everything: expected TLS, a cluster key, or a word that the network is "
            f"closed; add one of these three to the member's file:\n{LINES}"
        )


LINES = """\
  [security]
  certificate = "member.crt"
  key = "member.key"
  ca = "ca.crt"
or
  [security]
  cluster_key_file = "cluster.key"
or
  [security]
  insecure_network = true"""


async def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a host's addresses; also if it has none."""
    try:
        return ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        pass
    try:
        found = await trio.socket.getaddrinfo(host, 0)
    except OSError:
        return True  # it can't be bound, which is reported by the one who tries
    return all(ip_address(str(where[4][0]).partition("%")[0]).is_loopback for where in found)
