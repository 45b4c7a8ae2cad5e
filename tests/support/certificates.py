"""A small CA for tests, by the library `cryptography`; its keys are P-256, which are made fast."""

import ssl
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from quorate.transport.identity import Identity, Purpose
from quorate.transport.tls import (
    ClientCertificates,
    Material,
    Minimum,
    TlsFiles,
    load_material,
)

NOW = datetime.now(UTC)
DAY = timedelta(days=1)


def pem_of(key: ec.EllipticCurvePrivateKey, password: str = "") -> bytes:
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password:
        encryption = serialization.BestAvailableEncryption(password.encode())
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
    )


@attrs.frozen
class Authority:
    """A CA."""

    name: str
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def issue(
        self,
        *uris: str,
        begins: datetime = NOW - DAY,
        ends: datetime = NOW + 30 * DAY,
        key: ec.EllipticCurvePrivateKey | None = None,
    ) -> tuple[bytes, bytes]:
        """Return a certificate and its key, as PEM."""
        key = key or ec.generate_private_key(ec.SECP256R1())
        made = builder(self.certificate.subject, "leaf", key, begins, ends)
        if uris:
            names = [x509.UniformResourceIdentifier(uri) for uri in uris]
            made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
        made = made.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        signed = made.sign(self.key, hashes.SHA256())
        return signed.public_bytes(serialization.Encoding.PEM), pem_of(key)

    def write(self, folder: Path, *uris: str, **options: datetime) -> TlsFiles:
        """Write a certificate, its key, and ours into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        return write(folder, *self.issue(*uris, **options), self.pem)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def write(folder: Path, certificate: bytes, key: bytes, ca: bytes) -> TlsFiles:
    files = TlsFiles(folder / "own.crt", folder / "own.key", folder / "ca.crt")
    files.certificate.write_bytes(certificate)
    files.key.touch(0o600)
    files.key.write_bytes(key)
    files.ca.write_bytes(ca)
    return files


def builder(
    issuer: x509.Name,
    name: str,
    key: ec.EllipticCurvePrivateKey,
    begins: datetime,
    ends: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
    )


def authority(name: str = "test CA") -> Authority:
    """Return the CA of this name, made once for each run of the tests."""
    return _authority(name)


@cache
def _authority(name: str) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    made = builder(subject, name, key, NOW - DAY, NOW + 365 * DAY)
    made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return Authority(name, key, made.sign(key, hashes.SHA256()))


@cache
def port_context(
    name: object = 0,
    clients: ClientCertificates = "none",
    *,
    cluster: str = "orders",
    ca: str = "test CA",
    minimum: Minimum = "1.3",
) -> ssl.SSLContext:
    """Return the context of a member's port for clients, made once for each run of the tests."""
    with TemporaryDirectory() as folder:
        files = authority(ca).write(Path(folder), uri(name, cluster=cluster))
        files = attrs.evolve(files, minimum=minimum)
        loaded = load_material(files, cluster=cluster, purposes=(Purpose.MEMBER,), clients=clients)
    assert loaded.port is not None
    return loaded.port


@cache
def client_context(*uris: str, ca: str = "test CA", trusts: str = "test CA") -> ssl.SSLContext:
    """Return the context of a client that trusts our CA; without URIs it has no certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cadata=authority(trusts).pem.decode())
    if uris:
        with TemporaryDirectory() as folder:
            files = authority(ca).write(Path(folder), *filter(None, uris))
            context.load_cert_chain(files.certificate, files.key)
    return context


@cache
def material(name: object = 0, cluster: str = "test", ca: str = "test CA") -> Material:
    """Return what a member of this name has loaded, made once for each run of the tests."""
    with TemporaryDirectory() as folder:
        files = authority(ca).write(Path(folder), uri(name, cluster=cluster))
        return load_material(files, cluster=cluster, purposes=(Purpose.MEMBER,))


def uri(name: object, purpose: Purpose = Purpose.MEMBER, cluster: str = "test") -> str:
    return str(Identity(cluster, purpose, str(name)))
