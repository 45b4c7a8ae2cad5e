"""The ports that the member listens at: free, or its own already."""

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ..node.config.config import NodeConfig
from ..transport import Address
from .finding import Finding, ok, problem, unknown, warning

__all__ = ["check_ports", "outgoing_ports"]

_FIRST_OUTGOING: Final = 32_768
_LAST_OUTGOING: Final = 60_999

_HOST_SETTINGS: Final = {
    "member_port": "member_listen_host",
    "web.port": "web.host",
    "etcd.port": "etcd.host",
}
"""Where a port is listened at; client_listen_host for all ports of clients."""


def check_ports(config: NodeConfig, process: str | None) -> Iterator[Finding]:
    """Try to bind each port of a member for a moment.

    Args:
        config: of the member.
        process: id of its process if it runs: then the ports are its own.
    """
    first, last = outgoing_ports()
    for name, host, port in _listened(config):
        yield _bindable(name, host, port, process)
        if first <= port <= last:
            yield warning(
                "ports",
                f"{name} = {port}: outgoing connections of this machine may take it",
                f"a port outside of {first} to {last}",
                f"another {name}, or: sysctl net.ipv4.ip_local_reserved_ports={port}",
            )


def outgoing_ports(
    file: Path = Path("/proc/sys/net/ipv4/ip_local_port_range"),
) -> tuple[int, int]:
    """Return the first and last port that the system gives to outgoing connections."""
    try:
        first, last = file.read_text(encoding="ascii").split()
        return int(first), int(last)
    except (OSError, ValueError):
        return _FIRST_OUTGOING, _LAST_OUTGOING


def _listened(config: NodeConfig) -> Iterator[tuple[str, str, int]]:
    own, host = config.own, config.client_listen_host
    yield "member_port", config.member_listen_host, own.member_port
    for name in ("client_port", "redirect_port", "tls_port"):
        if port := int(getattr(own, name)):
            yield name, host, port
    if config.web.port:
        yield "web.port", config.web.host, config.web.port
    if config.etcd.port:
        yield "etcd.port", config.etcd_host, config.etcd.port


def _bindable(name: str, host: str, port: int, process: str | None) -> Finding:
    where = f"{name} {Address(host, port)}"
    try:
        _bind(host, port)
    except socket.gaierror as error:
        words = f"{where}: {(error.strerror or 'unknown').lower()}"
        return problem("ports", words, "a name or address of this machine", "put it into DNS")
    except OSError as error:
        return _refused(where, host, error, process)
    if process is not None:
        words = f"{where}: nobody listens there, but process {process} has the store open"
        remedy = (
            f"wait until it has opened; did its file change? kill -TERM {process}, and start it"
        )
        return warning("ports", words, "the member listening there", remedy)
    return ok("ports", f"{where} is free")


def _refused(where: str, host: str, error: OSError, process: str | None) -> Finding:
    match error.errno:
        case errno.EADDRINUSE if process is not None:
            return ok("ports", f"{where} is in use; this member runs, as process {process}")
        case errno.EADDRINUSE:
            what, remedy = (
                "a free port",
                f"ss -ltnp: end that program, or change {where.split(maxsplit=1)[0]}",
            )
            return problem("ports", f"{where} is in use by another program", what, remedy)
        case errno.EADDRNOTAVAIL:
            what = "an address of this machine, or a listen host that is one"
            setting = _HOST_SETTINGS.get(where.split(maxsplit=1)[0], "client_listen_host")
            remedy = f"ip address; then another {setting} instead of {host}"
            return problem("ports", f"{where}: no address of this machine", what, remedy)
        case errno.EACCES:
            what = "a port from 1024 on, or the right to use it"
            return problem("ports", f"{where}: permission denied", what, "a larger port")
        case _:
            words = f"{where}: {os.strerror(error.errno or 0).lower()}"
            return unknown("ports", words, "a port that can be tried")


def _bind(host: str, port: int) -> None:
    """Bind a port for a moment, at all addresses of a host.

    Raises:
        OSError: it can't be bound.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, kind, number, _, address in found:
        with socket.socket(family, kind, number) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind(address)
