"""TLS of the command line: its files are named by environment variables.

`CA_VARIABLE` turns it on. Then every connection to a client port is a TLS connection: a command
line that falls back to plain would send a password to whoever answers.

A member is known by its certificate, whose URI names a member; no host name is looked at.
"""

import os
import ssl
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, cast

import trio

from ..errors import ConfigurationError, WireError
from ..node.requests.status import MemberAddress
from ..transport import Purpose
from ..transport.identity import Identity, identity_untrusted
from ..transport.tls.connection import describe_tls

__all__ = [
    "CA_VARIABLE",
    "CERTIFICATE_VARIABLE",
    "KEY_VARIABLE",
    "PLAIN_PORT",
    "ClientTls",
    "check_member_certificate",
    "open_tls",
    "port_of",
    "tls_of_environment",
]

CA_VARIABLE: Final = "QUORATE_CA"
CERTIFICATE_VARIABLE: Final = "QUORATE_CERTIFICATE"
KEY_VARIABLE: Final = "QUORATE_KEY"


class ClientTls:
    """What a client needs for TLS.

    Args:
        ca: file of the CAs that are trusted.
        certificate: file of our certificate; empty for none.
        key: file of its key; empty if that is in the same file.
        names: of these three, in errors.

    Attributes:
        context: for our connections.

    Raises:
        ConfigurationError: a file can't be read, or does not fit.
    """

    def __init__(
        self,
        ca: str,
        certificate: str = "",
        key: str = "",
        *,
        names: tuple[str, str, str] = ("ca", "certificate", "key"),
    ) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.context: ssl.SSLContext = context
        context.check_hostname = False  # see `check_member_certificate`
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        for name, path in zip(names, (ca, certificate, key), strict=True):
            _check_readable(name, path)
        try:
            context.load_verify_locations(ca)
        except ssl.SSLError:
            what = "expected certificates of CAs in PEM form"
            raise ConfigurationError(f'{names[0]} = "{ca}": {what}') from None
        if certificate:
            try:
                # A password would be asked for at the terminal, which may not be there.
                context.load_cert_chain(certificate, key or None, password="")
            except ssl.SSLError as error:
                raise ConfigurationError(_why_not(names, certificate, key, error)) from None


@lru_cache(maxsize=8)
def _made(ca: str, certificate: str, key: str) -> ClientTls:
    return ClientTls(ca, certificate, key, names=_NAMES)


def tls_of_environment() -> ClientTls | None:
    """Return what the environment variables name; None if they turn TLS off.

    Raises:
        ConfigurationError: see `ClientTls`.
    """
    ca = os.environ.get(CA_VARIABLE, "")
    return _made(ca, *(os.environ.get(name, "") for name in _OWN)) if ca else None


_OWN: Final = (CERTIFICATE_VARIABLE, KEY_VARIABLE)
_NAMES: Final = (CA_VARIABLE, *_OWN)


def port_of(address: MemberAddress) -> int:
    """Return the port of a member that the command line talks to.

    Addresses that an operator has typed have one port, whatever it speaks.
    """
    if os.environ.get(CA_VARIABLE):
        return address.tls_port or address.client_port
    return address.client_port or address.tls_port


async def open_tls(plain: trio.SocketStream, tls: ClientTls) -> "trio.SSLStream[trio.SocketStream]":
    """Shake hands with a member, and check that it is one.

    Raises:
        OSError: it speaks no TLS, or is not certified.
    """
    stream = trio.SSLStream(plain, tls.context, https_compatible=True)
    try:
        await stream.do_handshake()
    except trio.BrokenResourceError as error:
        raise ConnectionAbortedError(_why(error)) from None
    found = cast("dict[str, Any]", stream.getpeercert() or {})
    check_member_certificate(found.get("subjectAltName", ()))
    return stream


PLAIN_PORT: Final = "is it a port without TLS?"

_NO_TLS: Final = {"WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"}
"""What versions of OpenSSL say of bytes that are no TLS."""


def _why(error: trio.BrokenResourceError) -> str:
    cause = error.__cause__
    if isinstance(cause, ssl.SSLEOFError) or not isinstance(cause, ssl.SSLError):
        return "the connection was closed during the TLS handshake (is it a TLS port?)"
    words = f"TLS: {describe_tls(cause)}"
    if cause.reason in _NO_TLS:
        return f"{words} ({PLAIN_PORT} {CA_VARIABLE} is set, so TLS is spoken)"
    return words


def check_member_certificate(names: Sequence[tuple[str, str]]) -> None:
    """Check that a certificate is that of a member.

    Args:
        names: its alternative names, each with its kind, as Python's `ssl` has them.

    Raises:
        ConnectionAbortedError: it is not.
    """
    uris = [text for kind, text in names if kind == "URI"]
    try:
        found: Identity | None = identity_untrusted(uris)
    except WireError:
        found = None
    # Otherwise every client with a certificate of this CA could answer as a member.
    if found is None or found.purpose is not Purpose.MEMBER:
        raise ConnectionAbortedError(f"its certificate is for {found}: expected that of a member")


def _why_not(names: tuple[str, str, str], certificate: str, key: str, error: ssl.SSLError) -> str:
    """Return in words why a certificate and its key can't be used."""
    _, of_certificate, of_key = names
    if not key and b"PRIVATE KEY-----" not in Path(certificate).read_bytes():
        return (
            f'{of_key} is not set, and {of_certificate} = "{certificate}" has no key in it: '
            f"set {of_key} to the file of its key"
        )
    named = f', {of_key} = "{key}"' if key else ""
    what = f"{describe_tls(error)}: expected a certificate and its key in PEM form"
    return f'{of_certificate} = "{certificate}"{named}: {what}'


def _check_readable(name: str, path: str) -> None:
    if not path:
        return
    try:
        # OpenSSL's own error does not name the file.
        with Path(path).open("rb"):
            pass
    except OSError as error:
        words = f'{name} = "{path}": it cannot be read: {error.strerror}'
        raise ConfigurationError(words) from None
