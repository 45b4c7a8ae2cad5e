"""Certificates and keys in files: loaded, checked, and noticed when they change.

A mistake in a file must be found when the file is loaded, not when a link breaks at night. So after
OpenSSL has loaded the files, the two contexts shake hands with each other in memory. That checks by
the code that is used later: the key, the chain up to a CA, the times, and the uses that the
certificate allows at both ends. It also yields the certificate's name and its last day, which the
standard library has no other call for.
"""

import hashlib
import ssl
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, cast

import attrs

from ...errors import ConfigurationError, WireError
from ..identity import Identity, Purpose, identity_untrusted
from .connection import certificate_untrusted, describe_tls, uris_of

Minimum: TypeAlias = Literal["1.2", "1.3"]

VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}

ClientCertificates: TypeAlias = Literal["none", "optional", "required"]
"""Whether clients of the client port show a certificate."""

VERIFY_MODES: Final[dict[ClientCertificates, ssl.VerifyMode]] = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}

CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2, where it is spoken: forward secrecy, and encryption that is authenticated."""

Stamp: TypeAlias = tuple[tuple[int, int, int] | None, ...]
"""Time of change, size and number of each file; None for a file that is not there."""


@attrs.frozen
class TlsFiles:
    """Where certificate, key and CAs are.

    Args:
        certificate: PEM; our certificate, and then those between it and the CA, if any.
        key: PEM, without a password; only its owner may read it.
        ca: PEM; the CAs that are trusted. With two of them a CA can be replaced step by step.
        minimum: the oldest version of TLS that is spoken.
    """

    certificate: Path
    key: Path
    ca: Path
    minimum: Minimum = "1.3"

    def stamp(self) -> Stamp:
        """Return what differs after any of the files has changed."""
        return tuple(_stamp(path) for path in (self.certificate, self.key, self.ca))


@attrs.frozen(eq=False)
class Material:
    """What TLS needs, loaded and checked.

    Args:
        server: context of connections that were opened to us.
        client: context of connections that we open.
        identity: who our certificate says that we are.
        expires_ms: when it expires, milliseconds since the epoch.
        stamp: of the files.
        authorities: the CAs that are trusted, each as DER.
        port: context of the client port; None if it was not asked for.
        web: context of the web port, which asks for no certificate.
        etcd: context of the port of etcd's clients; None if it was not asked for.
    """

    server: ssl.SSLContext
    client: ssl.SSLContext
    identity: Identity
    expires_ms: int
    stamp: Stamp
    authorities: frozenset[bytes] = frozenset()
    port: ssl.SSLContext | None = None
    web: ssl.SSLContext | None = None
    etcd: ssl.SSLContext | None = None

    @property
    def fingerprints(self) -> list[str]:
        """The first bytes of the SHA-256 of each CA that is trusted, sorted."""
        return sorted(hashlib.sha256(each).hexdigest()[:16] for each in self.authorities)


def load_material(
    files: TlsFiles,
    *,
    cluster: str,
    purposes: tuple[Purpose, ...],
    name: str | None = None,
    clients: ClientCertificates | None = None,
    web: bool = False,
    etcd: ClientCertificates | None = None,
) -> Material:
    """Load the files, and check that they fit each other, and us.

    Args:
        files: to load.
        cluster: that the certificate must be for.
        purposes: it must be for one of them.
        name: that it must have; None for any.
        clients: whether clients show a certificate; None without a port for clients with TLS.
        web: whether there is a web port with TLS.
        etcd: whether clients of etcd show a certificate; None without a port for them with TLS.

    Raises:
        ConfigurationError: a file can't be read, or something does not fit; with what to do.
    """
    # Before the files are read: if one changes in this moment, it is loaded again.
    stamp = files.stamp()
    try:
        _check_readable(files)
        _check_mode(files.key)
        server = _context(ssl.PROTOCOL_TLS_SERVER, files)
        client = _context(ssl.PROTOCOL_TLS_CLIENT, files)
        port = None if clients is None else _port_context(files, clients)
        browsers = _port_context(files, "none") if web else None
        grpc = None if etcd is None else _port_context(files, etcd, _PROTOCOLS)
    except OSError as error:
        # Somebody replaces them in this moment, and one was gone for an instant.
        path = error.filename or files.certificate
        raise ConfigurationError(f"{path}: {error.strerror}, while it was read") from None
    # All contexts have the same files then, and what is checked of two holds for the others.
    if files.stamp() != stamp:
        what = "certificate, key or ca was replaced while it was read: try again"
        raise ConfigurationError(f"{files.certificate}: {what}")
    certificate = _shake_hands(server, client, files)
    identity = _identity_of(certificate, files)
    _check_fits(identity, files, cluster, purposes, name)
    expires = ssl.cert_time_to_seconds(cast("str", certificate["notAfter"]))
    authorities = frozenset(server.get_ca_certs(binary_form=True))
    expires_ms = int(expires * 1000)
    return Material(server, client, identity, expires_ms, stamp, authorities, port, browsers, grpc)


def _check_fits(
    identity: Identity,
    files: TlsFiles,
    cluster: str,
    purposes: tuple[Purpose, ...],
    name: str | None,
) -> None:
    fits = identity.purpose in purposes and name in {None, identity.name}
    if not identity.is_of(cluster) or not fits:
        wanted = " or ".join(str(Identity(cluster, each, name or "NAME")) for each in purposes)
        what = f"it is for {identity}: expected one for {wanted}"
        raise _wrong("certificate", files.certificate, what)


def _identity_of(certificate: dict[str, Any], files: TlsFiles) -> Identity:
    try:
        return identity_untrusted(uris_of(certificate))
    except WireError as error:
        raise _wrong("certificate", files.certificate, str(error)) from None


_PROTOCOLS: Final = ("http/1.1", "h2")
"""What the port of etcd's clients speaks, the preferred one first. Clients of gRPC offer h2 alone,
and refuse a connection without it. curl and browsers offer both, and get pages and JSON by HTTP/1.1
only."""


def _port_context(
    files: TlsFiles, clients: ClientCertificates, protocols: Sequence[str] = ()
) -> ssl.SSLContext:
    """Return the context of a port for others than members, which agrees on a protocol."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, files)
    context.verify_mode = VERIFY_MODES[clients]
    if protocols:
        context.set_alpn_protocols(protocols)
    return context


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _check_readable(files: TlsFiles) -> None:
    for key in ("certificate", "key", "ca"):
        path = cast("Path", getattr(files, key))
        try:
            # OpenSSL's own error does not say which of the files it is.
            with path.open("rb"):
                pass
        except OSError as error:
            raise _wrong(key, path, f"it cannot be read: {error.strerror}") from None


def _check_mode(path: Path) -> None:
    """Raise ConfigurationError if others than its owner may read a file."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise _wrong("key", path, f"its mode is {mode:04o}: expected 0600, type: chmod 600 {path}")


def _context(kind: int, files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(kind)
    # The names of members are in the URI, which the hello is compared with; no host is looked at.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = VERSIONS[files.minimum]
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_ciphers(CIPHERS)
    if kind == ssl.PROTOCOL_TLS_SERVER:
        # A ticket would let a peer come back without its certificate, after its CA is gone.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
    try:
        context.load_verify_locations(files.ca)
    except (ssl.SSLError, ValueError):
        raise _wrong("ca", files.ca, "expected certificates of CAs in PEM form") from None
    try:
        context.load_cert_chain(files.certificate, files.key, password=_no_password)
    except _EncryptedKeyError:
        raise _wrong("key", files.key, "it has a password: expected a key without one") from None
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            what = f"it is not the key of {files.certificate}"
            raise _wrong(
                "key", files.key, f"{what}: expected the key that was made with it"
            ) from None
        what = f"with key {files.key}: {describe_tls(error)}: expected both in PEM form"
        raise _wrong("certificate", files.certificate, what) from None
    return context


class _EncryptedKeyError(Exception):
    """OpenSSL asks for the password of a key."""


def _no_password() -> str:
    # Without this, OpenSSL would ask at the terminal, and wait.
    raise _EncryptedKeyError


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, files: TlsFiles) -> dict[str, Any]:
    """Connect the two contexts in memory; return our certificate, as the other end sees it.

    Raises:
        ConfigurationError: an end refuses our certificate.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    # Three rounds are enough; one more changes nothing.
    for end in ends * 4:
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLError as error:
            raise _wrong(
                "certificate",
                files.certificate,
                f"{describe_tls(error)}: expected a valid one, signed by a CA of {files.ca}",
            ) from None
    try:
        return certificate_untrusted(ends[1])
    except WireError as error:
        raise _wrong("certificate", files.certificate, str(error)) from None


def _wrong(key: str, path: Path, what: str) -> ConfigurationError:
    return ConfigurationError(f'security.{key} = "{path}": {what}')
