"""Certificates and keys in PEM files, read with a bound and checked.

A file may be anything: the wrong one of two, cut off by a full disk, or made by somebody else. So
each is read up to a bound, and all of it that is used later is taken out of it here, where a
malformed part is reported as an error of that file.
"""

import stat
from datetime import datetime
from pathlib import Path
from typing import Final, TypeAlias

import attrs
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes

from ..errors import ConfigurationError

__all__ = ["Certified", "PrivateKey", "encode_key", "read_certificates", "read_key"]

MAX_BYTES: Final = 256 << 10
"""Longest file that is read; a bundle of ten CAs has 20 KiB. Smaller: long chains are refused.
Larger: a wrong path, such as that of a log, is read for longer before it is refused."""

PrivateKey: TypeAlias = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey

_MALFORMED: Final = (
    ValueError,  # most of what is wrong
    TypeError,  # a key that has a password
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)


@attrs.frozen(eq=False)
class Certified:
    """A certificate, and what is used of it.

    Args:
        certificate: as the library has it.
        public_key: its key, as bytes that can be compared.
        uris: among its alternative names.
        hosts: the names and addresses among them.
        is_ca: it may sign others.
        begins: from when it is valid.
        ends: until when.
    """

    certificate: x509.Certificate
    public_key: bytes
    uris: tuple[str, ...]
    hosts: tuple[str, ...]
    is_ca: bool
    begins: datetime
    ends: datetime

    @classmethod
    def of(cls, certificate: x509.Certificate) -> "Certified":
        """Take everything out of a certificate; raises many errors if it is malformed."""
        uris: tuple[str, ...] = ()
        hosts: tuple[str, ...] = ()
        is_ca = False
        for extension in certificate.extensions:
            if isinstance(value := extension.value, x509.SubjectAlternativeName):
                uris = tuple(value.get_values_for_type(x509.UniformResourceIdentifier))
                addresses = map(str, value.get_values_for_type(x509.IPAddress))
                hosts = (*value.get_values_for_type(x509.DNSName), *addresses)
            elif isinstance(value, x509.BasicConstraints):
                is_ca = value.ca
        return cls(
            certificate,
            cls.public_bytes(certificate.public_key()),
            uris,
            hosts,
            is_ca,
            certificate.not_valid_before_utc,
            certificate.not_valid_after_utc,
        )

    @staticmethod
    def public_bytes(key: CertificatePublicKeyTypes) -> bytes:
        """Return a public key as bytes."""
        return key.public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    @property
    def pem(self) -> bytes:
        """The certificate as a file has it."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def name(self) -> str:
        """Its subject, for people."""
        return self.certificate.subject.rfc4514_string()

    @property
    def issuer(self) -> str:
        """Who signed it, for people."""
        return self.certificate.issuer.rfc4514_string()

    def has_signed(self, other: "Certified") -> bool:
        """Whether this is a CA that signed another certificate."""
        if not self.is_ca:
            return False
        try:
            other.certificate.verify_directly_issued_by(self.certificate)
        except (*_MALFORMED, InvalidSignature):
            return False
        return True


def certificates_untrusted(data: bytes) -> tuple[Certified, ...]:
    """Parse the certificates of a file, one at least.

    Raises:
        ValueError: it has none, or a malformed one.
    """
    try:
        return tuple(map(Certified.of, x509.load_pem_x509_certificates(data)))
    except _MALFORMED as error:
        raise ValueError(f"expected certificates in PEM form ({_first_line(error)})") from None


def key_untrusted(data: bytes) -> PrivateKey:
    """Parse a key without a password.

    Raises:
        ValueError: it is no such key.
    """
    try:
        key = serialization.load_pem_private_key(data, None)
    except TypeError:
        raise ValueError("it has a password: expected a key without one") from None
    except _MALFORMED as error:
        raise ValueError(f"expected a key in PEM form ({_first_line(error)})") from None
    if not isinstance(key, PrivateKey):
        kinds = "P-256 or another curve, Ed25519 or RSA"
        raise ValueError(f"{type(key).__name__}: expected a key of {kinds}")  # noqa: TRY004 - input
    return key


def encode_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a key as a file has it, without a password."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def read_certificates(path: Path) -> tuple[Certified, ...]:
    """Read the certificates of a file.

    Raises:
        ConfigurationError: it can't be read, or is something else.
    """
    try:
        return certificates_untrusted(_read(path))
    except ValueError as error:
        raise ConfigurationError(f"{path}: {error}") from None


def read_key(path: Path) -> PrivateKey:
    """Read the key of a file that only its owner may read.

    Raises:
        ConfigurationError: it can't be read, is something else, or others may read it.
    """
    data = _read(path)
    if (mode := stat.S_IMODE(path.stat().st_mode)) & 0o077:
        raise ConfigurationError(
            f"{path}: its mode is {mode:04o}: expected 0600, type: chmod 600 {path}"
        )
    try:
        return key_untrusted(data)
    except ValueError as error:
        raise ConfigurationError(f"{path}: {error}") from None


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"{path}: it cannot be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise ConfigurationError(f"{path}: longer than {MAX_BYTES} bytes: expected a PEM file")
    return data


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0][:100].rstrip(". ")
