"""The protected default: no open port at an address that other machines reach.

A member port without TLS and without a key believes everybody. At a loopback address that is what a
first try needs. At any other one, every stranger gets the log, backups and a vote there. So the
member does not start there, unless the file says that the network is closed.

A client port where nobody has to log in is open likewise. Users are in the state, not in the file,
and a new member does not know them yet. So the file says that they are required, and the port holds
to that: until there are users, it serves clients of this machine alone
(:mod:`quorate.keyvalue.port.port_access`).

A web port changes nothing, but shows much. So it has a token, and TLS so that the token stays one.
"""

import errno
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


async def check_client_exposure(config: NodeConfig) -> bool:
    """Refuse to open a port of clients to everybody.

    Returns:
        Whether clients of other machines reach it, and must be users.

    Raises:
        ConfigurationError: it would be open to more than this machine; with the lines to add.
    """
    security, own, host = config.security, config.own, config.client_listen_host
    certified = security.client_certificates == "required" and not own.client_port
    # The stricter line decides: `insecure_network` may be there for the member port alone.
    protected = certified or security.require_users
    if (security.insecure_network and not protected) or await is_loopback(host):
        return False
    if not protected:
        raise ConfigurationError(
            f"client_listen_host = {host!r}: everybody who reaches this address could read and "
            "change everything: expected that clients log in, that they all show a certificate, or "
            f"a word that the network is closed; add one of these three to the member's file:\n"
            f"{CLIENT_LINES}"
        )
    return True


async def check_etcd_exposure(config: NodeConfig) -> bool:
    """Refuse to open a port of etcd's clients to everybody.

    Returns:
        Whether clients of other machines reach it, and must be users.

    Raises:
        ConfigurationError: it would be open to more than this machine; with the lines to add.
        OSError: its host has no address; the error names the key.
    """
    security, etcd, host = config.security, config.etcd, config.etcd_host
    try:
        if not etcd.port or await is_loopback(host):
            return False
    except OSError as error:
        error.filename = f"{'[etcd] host' if etcd.host else 'client_listen_host'} = {host!r}"
        raise
    certified = security.client_certificates == "required" and etcd.tls
    if not (security.require_users or certified or security.insecure_network):
        raise ConfigurationError(
            f"etcd.host = {host!r}: everybody who reaches this address could read and change "
            "everything: expected that clients log in, that they all show a certificate, or a "
            f"word that the network is closed; add one of these three to the member's file:\n"
            f"{ETCD_LINES}"
        )
    return security.require_users


ETCD_LINES = """\
  [security]
  require_users = true                # until there are users, clients of this machine are served
or, with tls = true in [etcd]
  [security]
  client_certificates = "required"    # needs certificate, key and ca
or
  [security]
  insecure_network = true"""

CLIENT_LINES = """\
  [security]
  require_users = true                # until there are users, clients of this machine are served
or, with tls_port, and with client_port = 0
  [security]
  client_certificates = "required"    # needs certificate, key and ca
or
  [security]
  insecure_network = true"""


async def check_web_exposure(config: NodeConfig) -> None:
    """Refuse to show a member to everybody.

    Raises:
        ConfigurationError: its web port would be open to more than this machine; with the lines to
            add.
    """
    web = config.web
    demanded = {"token_file": bool(web.token_file), "tls": web.tls}
    # The stricter line decides: `insecure_network` may be there for the member port alone.
    closed = config.security.insecure_network and not any(demanded.values())
    if not web.port or closed or all(demanded.values()):
        return
    if not await is_loopback(web.host):
        raise ConfigurationError(
            f"web.host = {web.host!r}: everybody who reaches this address could see names of "
            f"members, their load, and what happens to them: {_demanded(demanded)}\n{WEB_LINES}"
        )


def _demanded(demanded: dict[str, bool]) -> str:
    """Return what a web port still needs; parts of it may be there already."""
    if not any(demanded.values()):
        return (
            "expected a token and TLS, or a word that the network is closed; "
            "add one of these two to the member's file:"
        )
    has, needs = sorted(demanded, key=demanded.__getitem__, reverse=True)
    return (
        f"web.{has} is set, so web.{needs} is expected, too, and insecure_network does not stand "
        "for it; add it, or have neither of them and the last line:"
    )


WEB_LINES = """\
  [web]
  token_file = "web.token"            # type: (umask 077; openssl rand -hex 32 > web.token)
  tls = true                          # needs certificate, key and ca in [security]
or
  [security]
  insecure_network = true"""


async def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a host's addresses.

    Raises:
        OSError: they can't be found now. They may be found a moment later, when one is bound.
    """
    try:
        return ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        pass
    try:
        found = await trio.socket.getaddrinfo(host, 0)
    except OSError as error:
        error.filename = host
        raise
    except ValueError as error:  # a name that can't be written in DNS
        raise OSError(errno.EINVAL, str(error), host) from None
    return all(ip_address(str(where[4][0]).partition("%")[0]).is_loopback for where in found)
