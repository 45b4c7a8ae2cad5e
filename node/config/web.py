"""Where a member shows itself to browsers and monitors: the table [web].

::

    [web]
    port = 8001                      # 0: no such port
    host = "127.0.0.1"               # other addresses need the next two lines
    token_file = "web.token"         # a secret of 32 characters or more; its mode is 0600
    tls = true                       # by the member's certificate, see [security]

Without the table there is no such port.
"""

from pathlib import Path
from typing import Final

import attrs

from .settings import Expects, between

__all__ = ["Web"]

_PORT: Final = between(0, 65535, "a port number, or 0 for none")
_HOST: Final = Expects(
    lambda value: isinstance(value, str) and bool(value) and value.isprintable(),
    "a host name or an address, without port or brackets",
)
_FILE: Final = Expects(lambda value: isinstance(value, str), "the path of a file")
_FLAG: Final = Expects(lambda value: isinstance(value, bool), "true or false")


@attrs.frozen
class Web:
    """Where a member shows itself to browsers and monitors.

    It only shows: nobody can change anything there. Paths in a file are relative to the folder of
    the file.

    Args:
        port: TCP port; 0 (the default) for none.
        host: where it listens ("127.0.0.1"). At an address that other machines reach, it needs
            `token_file` and `tls`, or `insecure_network` of `[security]`.
        token_file: file with a secret of 32 characters or more, which nobody but its owner may
            read. Who asks shows it as ``Authorization: Bearer`` or as a password. Empty (the
            default) asks for none. `/healthz` and `/readyz` never ask for it.
        tls: whether to speak TLS, with the certificate of `[security]` (default false).

    Raises:
        ConfigurationError: a value is out of range.
    """

    port: int = attrs.field(default=0, validator=_PORT)
    host: str = attrs.field(default="127.0.0.1", validator=_HOST)
    token_file: str = attrs.field(default="", validator=_FILE)
    tls: bool = attrs.field(default=False, validator=_FLAG)

    def within(self, folder: Path) -> "Web":
        """Return the same with paths relative to a folder."""
        if not self.token_file:
            return self
        return attrs.evolve(self, token_file=str(folder / Path(self.token_file).expanduser()))
