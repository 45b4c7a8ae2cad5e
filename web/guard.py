"""Who may look: a token, or this machine alone."""

from __future__ import annotations

import base64
import binascii
import hmac
from ipaddress import ip_address
from typing import TYPE_CHECKING

import attrs

from .answers import Answer, text

if TYPE_CHECKING:
    from .answers import Asked


@attrs.frozen
class Guard:
    """Judges requests.

    Args:
        token: that a request has to show; empty for none.
        local: the port is at a loopback address, and nobody elsewhere should reach it.
    """

    token: bytes = attrs.field(default=b"", repr=False)
    local: bool = False

    def knows(self, asked: Asked) -> bool:
        """Whether a request has the token; false at a port without one."""
        # In constant time: the time of a comparison would give away how much of a guess is right.
        shown = shown_untrusted(asked.headers)
        return bool(self.token) and hmac.compare_digest(shown, self.token)

    def refusal(self, asked: Asked) -> Answer | None:
        """Return why a request is not answered; None if it is."""
        if self.token:
            if self.knows(asked):
                return None
            challenge = ("www-authenticate", 'Basic realm="quorate", charset="UTF-8"')
            body = b"expected the token of this port, as a password or a bearer token\n"
            return Answer(401, body, headers=(challenge,))
        host = asked.headers.get("host", "localhost")
        if self.local and not is_local(host):
            # A page from elsewhere may give its own name our address, and then read what we answer.
            return text(421, f"expected localhost or an address as the host, found {host!r:.100}")
        return None


def shown_untrusted(headers: dict[str, str]) -> bytes:
    """Return the token of a request; empty if it has none."""
    way, _, rest = headers.get("authorization", "").partition(" ")
    if way.lower() == "bearer":
        return rest.strip().encode("latin-1", errors="replace")
    if way.lower() == "basic":
        try:
            plain = base64.b64decode(rest.strip(), validate=True)
        except (binascii.Error, ValueError):
            return b""
        return plain.partition(b":")[2]
    return b""


def is_local(host: str) -> bool:
    """Whether the host of a request is an address, or the name that each machine has for itself."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    if name.lower().rstrip(".") == "localhost":
        return True
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
