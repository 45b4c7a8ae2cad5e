"""How a member proves who it is, and what it asks of others: the table [security].

::

    [security]
    certificate = "member-2.crt"     # with the next two: TLS between members
    key = "member-2.key"             # its mode is 0600, or it is refused
    ca = "ca.crt"                    # may hold several CAs, so that one can be replaced
    cluster_key_file = "cluster.key" # instead of these three: keeps strangers out, no more
    other_cluster_key_file = ""      # a second one, while the key is replaced
    client_certificates = "none"     # "optional" or "required", on TLS ports of clients
    tls_minimum = "1.3"              # or "1.2"
    require_users = false            # true: clients from elsewhere log in, always
    accept_plain = false             # true: members without TLS, too, while it is turned on
    insecure_network = false         # true: plain ports at other addresses than loopback
    stale_auth = false               # true: a member without a leader goes by the users it knows
    audit_log = "auto"               # or "off", or the path of a file

Without the table everybody is believed, and only loopback addresses are listened at.
"""

from pathlib import Path
from typing import Final, cast, get_args

import attrs

from ...errors import ConfigurationError
from ...transport.tls import ClientCertificates, Minimum, TlsFiles
from .settings import Expects, read_tables, structure

__all__ = ["ClientCertificates", "Security", "load_security"]

AUTO: Final = "auto"
OFF: Final = "off"
_FILE: Final = Expects(lambda value: isinstance(value, str), "the path of a file")
_AUDIT: Final = Expects(
    lambda value: isinstance(value, str) and bool(value), '"auto", "off" or the path of a file'
)
_FLAG: Final = Expects(lambda value: isinstance(value, bool), "true or false")


def _one_of(*names: str) -> Expects:
    return Expects(
        lambda value: isinstance(value, str) and value in names,
        "one of " + ", ".join(f'"{name}"' for name in names),
    )


@attrs.frozen
class Security:
    """How a member proves who it is, and what it asks of others.

    Paths in a file are relative to the folder of the file. Files are read again when they change,
    except the cluster key.

    Args:
        certificate: file of this member's certificate, in PEM form, with those between it and the
            CA. Its URI is ``quorate://CLUSTER/member/ID``. With `key` and `ca` it turns on TLS for
            the member port, and every other member has to have a certificate, too.
        key: file of the certificate's key, in PEM form, without a password. Nobody but its owner
            may read it.
        ca: file of the CAs that are trusted, in PEM form.
        cluster_key_file: file with 32 bytes or more that all members and readers share, instead of
            certificates. It keeps out strangers and accidents, but nobody that listens in.
        other_cluster_key_file: file of a second key that is accepted, too, while the key is
            replaced step by step.
        client_certificates: whether clients on a TLS port show a certificate: "none" (the default),
            "optional" or "required". Its URI, ``quorate://CLUSTER/client/USER``, names their user.
        tls_minimum: oldest version of TLS that is spoken: "1.3" (the default) or "1.2".
        require_users: whether clients from other machines have to log in (default false).
            A user that needs no password is for clients of this machine then. With it, or with
            `client_certificates = "required"`, clients may be listened for at other addresses than
            loopback.
        accept_plain: whether members without TLS are let in and dialled, too (default false), while
            the cluster is switched to TLS. It takes the protection of TLS away, so it needs
            `insecure_network`.
        insecure_network: whether to listen without all this at other addresses than loopback
            (default false). Everybody who reaches such a port can do everything, unless another
            line protects it.
        stale_auth: whether a member that can't reach the leader goes on to serve users by the rules
            that it knows (default false). A removed user may then read there for as long as the
            member is cut off.
        audit_log: file of logins, refusals and what operators did: "auto" (the default) is
            ``audit.jsonl`` in the member's directory if there are certificates or a cluster key;
            "off" is none.

    Raises:
        ConfigurationError: some of the three files of TLS are missing, or both ways are set.
    """

    certificate: str = attrs.field(default="", validator=_FILE)
    key: str = attrs.field(default="", validator=_FILE)
    ca: str = attrs.field(default="", validator=_FILE)
    cluster_key_file: str = attrs.field(default="", validator=_FILE)
    other_cluster_key_file: str = attrs.field(default="", validator=_FILE)
    client_certificates: ClientCertificates = attrs.field(
        default="none", validator=_one_of(*get_args(ClientCertificates))
    )
    tls_minimum: Minimum = attrs.field(default="1.3", validator=_one_of(*get_args(Minimum)))
    accept_plain: bool = attrs.field(default=False, validator=_FLAG)
    insecure_network: bool = attrs.field(default=False, validator=_FLAG)
    require_users: bool = attrs.field(default=False, validator=_FLAG)
    stale_auth: bool = attrs.field(default=False, validator=_FLAG)
    audit_log: str = attrs.field(default=AUTO, validator=_AUDIT)

    def __attrs_post_init__(self) -> None:
        files = {name: cast("str", getattr(self, name)) for name in ("certificate", "key", "ca")}
        missing = [name for name, path in files.items() if not path]
        if missing and len(missing) < len(files):
            raise ConfigurationError(f"{' and '.join(missing)}: missing: TLS needs all three files")
        if self.cluster_key_file and not missing:
            raise ConfigurationError(
                "cluster_key_file: expected either this or the files of TLS, which prove more"
            )
        if self.other_cluster_key_file and not self.cluster_key_file:
            raise ConfigurationError(
                "other_cluster_key_file: expected cluster_key_file, too: this one is only accepted"
            )
        if self.accept_plain and (missing or not self.insecure_network):
            raise ConfigurationError(
                "accept_plain: expected certificate, key and ca, which members are switched to, "
                "and insecure_network = true, since until then the network protects them"
            )
        if self.client_certificates != "none" and missing:
            raise ConfigurationError(
                "client_certificates: expected certificate, key and ca, by which clients are judged"
            )

    @property
    def tls(self) -> TlsFiles | None:
        """The files of TLS; None if it is not turned on."""
        if not self.certificate:
            return None
        files = (Path(self.certificate), Path(self.key), Path(self.ca))
        return TlsFiles(*files, self.tls_minimum)

    def audit_path(self, directory: Path) -> Path | None:
        """Return the file of the audit log of a member with this directory; None for none."""
        if self.audit_log == AUTO:
            secured = self.certificate or self.cluster_key_file
            return directory / "audit.jsonl" if secured else None
        return None if self.audit_log == OFF else Path(self.audit_log)

    def within(self, folder: Path) -> "Security":
        """Return the same with paths relative to a folder."""

        def at(path: str) -> str:
            return str(folder / Path(path).expanduser()) if path else ""

        return attrs.evolve(
            self,
            certificate=at(self.certificate),
            key=at(self.key),
            ca=at(self.ca),
            cluster_key_file=at(self.cluster_key_file),
            other_cluster_key_file=at(self.other_cluster_key_file),
            audit_log=self.audit_log if self.audit_log in {AUTO, OFF} else at(self.audit_log),
        )


@attrs.frozen
class _OnlySecurity:
    """What is read of a file by those that are no members."""

    security: Security = attrs.field(factory=Security)


def load_security(path: Path) -> Security:
    """Read the table [security] of a file, which may be a member's file or have that table only.

    Raises:
        ConfigurationError: the file cannot be read, is not TOML, has no such table, or has wrong
            values in it.
    """
    tables = read_tables(path)
    if "security" not in tables:
        raise ConfigurationError(f"{path}: security: missing: expected a table [security]")
    found = structure({"security": tables["security"]}, _OnlySecurity, path)
    return found.security.within(path.parent)
