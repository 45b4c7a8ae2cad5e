"""A small CA for those who have none: it makes the certificates of members, readers and clients.

A folder is the CA, and holds all that it makes::

    ca.crt              the CA, for everybody; two of them during a rotation
    ca.key              its key, 0600: with it one can pose as any member
    next-ca.key         key of the next CA, during a rotation
    member-0.crt, .key  and reader-NAME, backup-NAME, client-USER: by purpose and name

The certificate of a key in this folder is the one in ``ca.crt`` with the same public key. So no
crash between two writes leaves a CA that does not know which one it is.

Rotation
--------
A CA is replaced while members run, in three steps (:func:`begin_rotation`, new certificates,
:func:`finish_rotation`). In each step, certificates of the step before and after are trusted.

What it does not do
-------------------
No revocation lists, no requests for keys that were made elsewhere, no intermediate CAs, and no
server. An installation that needs these has a CA already, and only has to write the URI of
:mod:`quorate.transport.identity` into its certificates.

All cryptography is that of the library `cryptography`.
"""

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import attrs
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ..errors import ConfigurationError, UsageError, WireError
from ..transport import Identity, Purpose
from ..transport.identity import parse_identity_untrusted
from .pem import Certified, PrivateKey, encode_key, read_certificates, read_key

__all__ = [
    "CA_DAYS",
    "CA_FILE",
    "DAYS",
    "Authority",
    "Issued",
    "begin_rotation",
    "file_name",
    "finish_rotation",
    "found_authority",
    "identity_of",
]

CA_FILE: Final = "ca.crt"
_KEY_FILE: Final = "ca.key"
_NEXT_KEY_FILE: Final = "next-ca.key"

CA_DAYS: Final = 3650
"""How long a CA lasts. Shorter: more rotations by hand. Longer: a stolen key is of use for
longer."""

DAYS: Final = 365
"""How long a certificate lasts. Shorter: it ends before somebody has renewed it. Longer: a stolen
one is of use for longer, since nothing revokes it."""

MAX_DAYS: Final = 20 * 365

_BEFORE: Final = timedelta(hours=1)
"""How much earlier than now a certificate begins. Shorter: machines whose clock is behind refuse a
new one. Longer: an old CA and a new one look alike."""


@attrs.frozen
class Issued:
    """What was made.

    Args:
        certificate: its file.
        key: its file.
        identity: the name in it.
        ends: when it expires.
    """

    certificate: Path
    key: Path
    identity: Identity
    ends: datetime


@attrs.frozen
class Authority:
    """The CA in a folder; during a rotation, the next one.

    Args:
        folder: of the CA.
        own: its certificate.
        key: its key.
    """

    folder: Path
    own: Certified
    key: PrivateKey

    @classmethod
    def load(cls, folder: Path) -> "Authority":
        """Read the CA of a folder.

        Raises:
            ConfigurationError: there is none, or a file of it is not what it should be.
        """
        if not (folder / CA_FILE).exists():
            raise ConfigurationError(
                f"{folder}: no {CA_FILE} there: make a CA by: quorate certs init CLUSTER "
                f"--dir {folder}"
            )
        following = folder / _NEXT_KEY_FILE
        path = following if following.exists() else folder / _KEY_FILE
        key = read_key(path)
        found = _certificate_of(key, read_certificates(folder / CA_FILE))
        if found is None:
            raise ConfigurationError(
                f"{path}: no certificate in {folder / CA_FILE} fits it: expected the files of one "
                "CA, as quorate certs init makes them"
            )
        return cls(folder, found, key)

    @property
    def cluster(self) -> str:
        """Name of the cluster that it issues certificates for.

        Raises:
            ConfigurationError: it was made by another program.
        """
        names = self.own.certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
        if len(names) != 1:
            raise ConfigurationError(
                f"{self.folder / CA_FILE}: it names no cluster: expected a CA of quorate certs init"
            )
        return str(names[0].value)

    def issue(
        self,
        identity: Identity,
        *,
        hosts: Sequence[str] = (),
        days: int = DAYS,
        renew: bool = False,
    ) -> Issued:
        """Make a key, and a certificate for it.

        Args:
            identity: the name in it.
            hosts: names and addresses under which clients reach a member.
            days: how long it lasts; never longer than the CA.
            renew: replace the files that are there, with a new key; their hosts stay if none are
                given.

        Raises:
            ConfigurationError: the files exist, or do not with `renew`; or the CA has ended.
        """
        name = file_name(identity.purpose, identity.name)
        files = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        if renew and not files[0].exists():
            raise ConfigurationError(f"{files[0]}: there is nothing to renew: leave --renew out")
        if files[0].exists() and not renew:
            raise ConfigurationError(
                f"{files[0]}: it exists: to replace it by a new one with a new key, add --renew"
            )
        now = datetime.now(UTC)
        if self.own.ends <= now:
            raise ConfigurationError(
                f"{self.folder / CA_FILE}: the CA ended at {self.own.ends:%Y-%m-%d}: make another "
                "one by: quorate certs rotate"
            )
        if renew and not hosts:
            hosts = read_certificates(files[0])[0].hosts
        key = ec.generate_private_key(ec.SECP256R1())
        ends = min(now + timedelta(days=days), self.own.ends)
        made = _leaf(identity, hosts, key, self, ends).sign(self.key, hashes.SHA256())
        # The key first: a certificate without a key would look complete. A key without a
        # certificate is what a crash has left here, and nobody uses it.
        _write(files[1], encode_key(key), renew=True, mode=0o600)
        _write(files[0], Certified.of(made).pem, renew=renew, mode=0o644)
        return Issued(*files, identity, made.not_valid_after_utc)

    def has_issued(self, certified: Certified) -> bool:
        """Whether a certificate is signed by this CA."""
        return self.own.has_signed(certified)


def file_name(purpose: Purpose, name: str) -> str:
    """Return the name of a certificate's files, without ``.crt`` and ``.key``."""
    return f"{purpose.value}-{name}"


def identity_of(cluster: str, purpose: str, name: str) -> Identity:
    """Return an identity by what an operator has typed.

    Raises:
        UsageError: a part of it can't be in a certificate.
    """
    try:
        return parse_identity_untrusted(f"quorate://{cluster}/{purpose}/{name}")
    except WireError:
        kind = "a member id, such as 0" if purpose == Purpose.MEMBER.value else "a name"
        raise UsageError(
            f"{purpose} {name!r} of cluster {cluster!r}: expected {kind}; names have 1 to 64 "
            "letters, digits, '.', '_' or '-'"
        ) from None


def found_authority(folder: Path, cluster: str, *, days: int = CA_DAYS) -> Authority:
    """Make a CA in a folder, which is made if it is missing.

    Args:
        folder: for the CA and what it issues.
        cluster: whose certificates it issues.
        days: how long it lasts.

    Raises:
        ConfigurationError: there is a CA.
        UsageError: the name of the cluster can't be in a certificate.
    """
    identity_of(cluster, Purpose.MEMBER.value, "0")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in (CA_FILE, _KEY_FILE, _NEXT_KEY_FILE):
        if (folder / name).exists():
            raise ConfigurationError(
                f"{folder / name}: it exists, and is not replaced: all certificates are of this "
                "CA; for a new one type: quorate certs rotate"
            )
    key = ec.generate_private_key(ec.SECP256R1())
    own = _own_certificate(cluster, key, days)
    _write(folder / _KEY_FILE, encode_key(key), mode=0o600)
    _write(folder / CA_FILE, own.pem, mode=0o644)
    return Authority(folder, own, key)


def begin_rotation(folder: Path, *, days: int = CA_DAYS) -> Authority:
    """Make the next CA, which issues from now on; ``ca.crt`` has both.

    Raises:
        ConfigurationError: a rotation has begun already, or there is no CA.
    """
    path = folder / _NEXT_KEY_FILE
    present = read_certificates(folder / CA_FILE) if (folder / CA_FILE).exists() else ()
    if path.exists():
        key = read_key(path)
        if _certificate_of(key, present) is not None:
            raise ConfigurationError(
                f"{path}: a rotation has begun: renew all certificates, then type: "
                "quorate certs rotate --finish"
            )
        # A crash came between the key and its certificate.
        cluster = _load_old(folder).cluster
    else:
        cluster = Authority.load(folder).cluster
        key = ec.generate_private_key(ec.SECP256R1())
        _write(path, encode_key(key), mode=0o600)
    own = _own_certificate(cluster, key, days)
    both = b"".join(each.pem for each in (*present, own))
    _write(folder / CA_FILE, both, renew=True, mode=0o644)
    return Authority(folder, own, key)


def finish_rotation(folder: Path) -> list[Path]:
    """Forget the old CA; return the certificates of it that are left, and then forget nothing.

    Raises:
        ConfigurationError: no rotation has begun.
    """
    path = folder / _NEXT_KEY_FILE
    if not path.exists():
        raise ConfigurationError(
            f"{path}: missing: no rotation has begun; type: quorate certs rotate"
        )
    following = Authority.load(folder)
    left = [
        file
        for file in sorted(folder.glob("*-*.crt"))
        if not following.has_issued(read_certificates(file)[0])
    ]
    if not left:
        _write(folder / CA_FILE, following.own.pem, renew=True, mode=0o644)
        path.replace(folder / _KEY_FILE)
    return left


def _load_old(folder: Path) -> Authority:
    key = read_key(folder / _KEY_FILE)
    own = _certificate_of(key, read_certificates(folder / CA_FILE))
    if own is None:
        raise ConfigurationError(f"{folder / _KEY_FILE}: no certificate in {CA_FILE} fits it")
    return Authority(folder, own, key)


def _certificate_of(key: PrivateKey, among: Sequence[Certified]) -> Certified | None:
    own = Certified.public_bytes(key.public_key())
    return next((each for each in among if each.public_key == own), None)


def _own_certificate(
    cluster: str, key: ec.EllipticCurvePrivateKey | PrivateKey, days: int
) -> Certified:
    now = datetime.now(UTC)
    # With a name of its own: two CAs of one name would look alike in a log line.
    name = f"quorate CA {now:%Y-%m-%d} {os.urandom(3).hex()}"
    subject = _subject(cluster, name)
    public = key.public_key()
    made = (
        _builder(subject, subject, key, now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )
    return Certified.of(made.sign(key, hashes.SHA256()))


def _leaf(
    identity: Identity,
    hosts: Sequence[str],
    key: ec.EllipticCurvePrivateKey,
    authority: Authority,
    ends: datetime,
) -> x509.CertificateBuilder:
    # A client's certificate can't serve: somebody who stole it can't pose as a member to clients
    # that look at no names. Members and readers show theirs in both directions.
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if identity.purpose is not Purpose.CLIENT:
        uses.append(ExtendedKeyUsageOID.SERVER_AUTH)
    names = [x509.UniformResourceIdentifier(str(identity)), *map(_host, hosts)]
    subject = _subject(identity.cluster, identity.name)
    issuer = authority.own.certificate
    return (
        _builder(subject, issuer.subject, key, ends)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        # Verifiers that are strict (Python 3.13's default for clients) want the issuer's key named.
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()),
            critical=False,
        )
    )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey | PrivateKey,
    ends: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - _BEFORE)
        .not_valid_after(ends)
    )


def _subject(cluster: str, name: str) -> x509.Name:
    pairs = ((NameOID.ORGANIZATION_NAME, cluster), (NameOID.COMMON_NAME, name))
    return x509.Name([x509.NameAttribute(kind, text) for kind, text in pairs])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _host(text: str) -> x509.GeneralName:
    """Return a host as certificates have it.

    Raises:
        UsageError: it is neither a name nor an address.
    """
    try:
        return x509.IPAddress(ip_address(text))
    except ValueError:
        pass
    try:
        return x509.DNSName(text)
    except ValueError:
        raise UsageError(f"--host {text!r}: expected a host name in ASCII, or an address") from None


def _write(path: Path, data: bytes, *, mode: int, renew: bool = False) -> None:
    """Write a file that must not exist, or replace it as a whole."""
    place = path.with_name(f"{path.name}.new") if renew else path
    if renew:
        place.unlink(missing_ok=True)
    # O_EXCL: between a look and this, somebody may have made one, or a link to another place.
    made = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with os.fdopen(made, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    if renew:
        place.replace(path)
