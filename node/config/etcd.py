"""Where a member serves clients of etcd: the table [etcd].

::

    [etcd]
    port = 2379                               # 0: no such port
    host = "10.0.0.1"                         # as `client_listen_host`, unless given
    advertise = "https://db1.example:2379"    # what clients are told; made of host and port
    tls = true                                # by the member's certificate, see [security]

Without the table there is no such port. A table without `port` would serve nothing, and is refused.
"""

import re
from typing import Final

import attrs

from .settings import Expects, between

__all__ = ["Etcd"]

_PORT: Final = between(0, 65535, "a port number, or 0 for none")
_HOST: Final = Expects(
    lambda value: isinstance(value, str) and (not value or value.isprintable()),
    "a host name or an address, without port or brackets",
)
_URL: Final = re.compile(r"https?://[^\s/?#@]+:\d{1,5}")
_ADVERTISE: Final = Expects(
    lambda value: isinstance(value, str) and (not value or bool(_URL.fullmatch(value))),
    "a URL as http://HOST:PORT or https://HOST:PORT",
)
_FLAG: Final = Expects(lambda value: isinstance(value, bool), "true or false")


@attrs.frozen
class Etcd:
    """Where a member serves clients of etcd, such as etcdctl and Patroni.

    Args:
        port: TCP port; 0 for none, as without the table. A witness has none, since it has no
            tables. With partitions, the members of partition 0 have it.
        host: where it listens; `client_listen_host` unless given. At an address that other machines
            reach, it needs what the port of other clients needs there.
        advertise: the URL that other members' clients are sent to, if they ask for the members. If
            left out, it is made of the member's `host`, this port and `tls`.
        tls: whether to speak TLS, with the certificate of `[security]` (default false).

    Raises:
        ConfigurationError: a value is out of range.
    """

    port: int = attrs.field(validator=_PORT)
    host: str = attrs.field(default="", validator=_HOST)
    advertise: str = attrs.field(default="", validator=_ADVERTISE)
    tls: bool = attrs.field(default=False, validator=_FLAG)

    def url(self, host: str) -> str:
        """Return what clients are told of a member.

        Args:
            host: of the member.
        """
        if self.advertise:
            return self.advertise
        shown = f"[{host}]" if ":" in host else host
        return f"{'https' if self.tls else 'http'}://{shown}:{self.port}"
