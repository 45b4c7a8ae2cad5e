"""A local cluster in which all prove who they are: its CA, and what that has issued.

All of it is in the folder ``certs`` of the cluster, where `quorate certs` finds it: a rotation can
be tried out there while the members run, since they read their files in it.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Literal

from ..errors import ConfigurationError
from ..node.config.config import NodeConfig, Profile, Security
from ..transport import Purpose
from .certificates import CA_FILE, Authority, file_name, found_authority, identity_of
from .cluster import HOST, lay_out
from .pem import read_certificates

__all__ = ["CERTIFICATES", "CLIENT", "certify", "lay_out_secured", "security_of"]

CERTIFICATES: Final = "certs"
"""The folder of the CA in that of the cluster."""

CLIENT: Final = "default"
"""The user of the certificate for clients: each cluster has it from the beginning."""

_HOSTS: Final = (HOST, "localhost", "::1")

_RENEW_BEFORE: Final = timedelta(days=30)
"""How long before their end certificates are renewed at a start. Shorter: one ends while the
cluster runs. Longer: most starts make new ones."""


def lay_out_secured(
    directory: Path,
    *,
    members: int,
    client_port: int,
    cluster: str = "local",
    profile: Profile | None = None,
    web_port: int | Literal["auto"] | None = None,
    etcd_port: int | None = None,
) -> list[NodeConfig]:
    """Do what :func:`lay_out` does, and make the certificates that are missing.

    Raises:
        UsageError: a number is out of range.
        ConfigurationError: an existing file disagrees, or is of a cluster without certificates.
        OSError: the directory cannot be created.
    """
    configs = lay_out(
        directory,
        members=members,
        client_port=client_port,
        cluster=cluster,
        profile=profile,
        security=security_of,
        tls=True,
        web_port=web_port,
        etcd_port=etcd_port,
    )
    for config in configs:
        if config.security.tls is None:
            raise ConfigurationError(
                f"{config.directory / 'node.toml'}: it has no certificate: expected a cluster that "
                "was made with --tls; leave it out, or use another directory"
            )
    certify(directory, configs[0].cluster, [config.member_id for config in configs])
    return configs


def certify(directory: Path, cluster: str, members: Sequence[int]) -> None:
    """Make the CA of a local cluster, and the certificates that are missing.

    Args:
        directory: of the cluster.
        cluster: its name.
        members: ids of its members, or of its machines.
    """
    folder = directory / CERTIFICATES
    if (folder / CA_FILE).exists():
        authority = Authority.load(folder)
    else:
        authority = found_authority(folder, cluster)
    for member_id in members:
        _certify(authority, Purpose.MEMBER, str(member_id))
    _certify(authority, Purpose.CLIENT, CLIENT)


def security_of(member_id: int) -> Security:
    """Return the table [security] of a member, or of a machine, in a folder of the cluster."""
    certificate = f"../{CERTIFICATES}/{file_name(Purpose.MEMBER, str(member_id))}"
    return Security(
        f"{certificate}.crt",
        f"{certificate}.key",
        f"../{CERTIFICATES}/{CA_FILE}",
        client_certificates="optional",
    )


def _certify(authority: Authority, purpose: Purpose, name: str) -> None:
    """Make a certificate, unless there is one that lasts."""
    file = authority.folder / f"{file_name(purpose, name)}.crt"
    identity = identity_of(authority.cluster, purpose.value, name)
    hosts = _HOSTS if purpose is Purpose.MEMBER else ()
    if not file.exists():
        authority.issue(identity, hosts=hosts)
    elif read_certificates(file)[0].ends < datetime.now(UTC) + _RENEW_BEFORE:
        authority.issue(identity, hosts=hosts, renew=True)
