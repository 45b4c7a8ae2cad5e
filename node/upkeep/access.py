"""How this process proves who it is to members, and judges them: by certificates or a key.

Certificates expire, so their files are replaced while a member runs. Every few seconds the files
are looked at. New ones are loaded and checked first; if anything is wrong with them, the old ones
stay in use, and `status` says why. Afterwards the member dials its links again, one after the
other, so that they use the new certificate.

A CA that is taken out of the file is trusted no more. So connections from other members and readers
that may rest on it are closed, too; those with a certificate of another CA dial again.

A file is taken once it has stayed the same between two looks: certificate and key are two files,
and one of them is written first.
"""

import logging
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

import attrs
import trio

from ...errors import ConfigurationError
from ...log_events import log_event
from ...transport import (
    NULL_VALUE,
    Audit,
    Certificates,
    ClusterKey,
    Links,
    Network,
    NoAudit,
    PeerSecurity,
    Purpose,
)
from ...transport.authentication import SHORTEST_KEY_BYTES
from ...transport.tls import (
    Material,
    Stamp,
    SwitchingNetwork,
    TlsFiles,
    TlsNetwork,
    load_material,
)
from ..config.config import NodeConfig
from ..config.security import Security

log = logging.getLogger("quorate.node")

POLL_SECONDS: Final = 5.0
"""How often the files are looked at. Shorter: an idle member wakes up more often. Longer: a new
certificate is used later."""

REDIAL_PAUSE_SECONDS: Final = 1.0
"""Pause between two links that are dialled again. Shorter: two followers may lose the live log at
the same time. Longer: old certificates stay in use for longer."""

REDIAL_AFTER_SECONDS: Final = 24 * 3600.0
"""Age at which links are dialled again. A key of AES-GCM should not encrypt without end, and
OpenSSL never changes it by itself. Shorter: more followers have to join again. Longer: more is
encrypted with one key."""

WARN_BEFORE_MS: Final = 14 * 24 * 3600 * 1000
"""How long before its end a certificate is warned of. Shorter: nobody is at work. Longer: nobody
reads it any more."""

LONGEST_KEY_BYTES: Final = 4096
"""Longest file of a secret. Smaller: keys of other tools are refused. Larger: a wrong path is read
for longer before it is refused."""


class CertificateFiles:
    """Takes new certificates into use when it is asked to look.

    Args:
        files: to look at.
        load: loads and checks them.
        network: uses what was loaded.
        audit: takes note of new certificates.

    Attributes:
        trouble: why the present files are not used, in words; empty if they are.
    """

    def __init__(
        self,
        files: TlsFiles,
        load: Callable[[], Material],
        network: TlsNetwork,
        *,
        audit: Audit | None = None,
    ) -> None:
        self.trouble = ""
        self._audit = audit or NoAudit()
        self._files = files
        self._load = load
        self._network = network
        self._seen: Stamp = network.material.stamp
        self._judged: Stamp = network.material.stamp  # taken into use, or refused

    def look(self, *, asked: bool = False) -> bool:
        """Look at the files; return whether new ones are in use from now on."""
        stamp = self._files.stamp()
        settled, self._seen = stamp == self._seen or asked, stamp
        if stamp == self._judged or not settled:
            return False
        self._judged = stamp
        try:
            material = self._load()
        except ConfigurationError as error:
            self.trouble = str(error)
            words = "the new certificate is not used, the old one stays: %(why)s"
            log_event(log, logging.WARNING, "certificate_refused", words, why=self.trouble)
            self._audit.note("certificate_refused", reason=self.trouble)
            return False
        self.trouble = ""
        # Connections that are open keep theirs.
        self._network.material = material
        words = "a new certificate is in use: %(identity)s; trusted CAs: %(authorities)s"
        identity, authorities = str(material.identity), ", ".join(material.fingerprints)
        log_event(
            log,
            logging.INFO,
            "certificate_used",
            words,
            identity=identity,
            authorities=authorities,
        )
        self._audit.note("certificate_used", identity=identity, authorities=authorities)
        return True


class CertificateWatch(CertificateFiles):
    """Looks at the files of a member from time to time, and has its links use new ones.

    Args:
        files: to watch.
        load: loads and checks them.
        network: uses what was loaded.
        clock_ms: milliseconds since the epoch.
        rng: for the pause before links are dialled again.
        audit: takes note of new certificates.
    """

    def __init__(
        self,
        files: TlsFiles,
        load: Callable[[], Material],
        network: TlsNetwork,
        clock_ms: Callable[[], int],
        rng: Random,
        *,
        audit: Audit | None = None,
    ) -> None:
        super().__init__(files, load, network, audit=audit)
        self._clock_ms = clock_ms
        self._rng = rng
        self._asked = trio.Event()
        self._warned_at = float("-inf")

    @property
    def material(self) -> Material:
        """What is in use."""
        return self._network.material

    @property
    def expires_ms(self) -> int:
        """When the certificate in use expires, milliseconds since the epoch."""
        return self._network.material.expires_ms

    def look_now(self) -> None:
        """Look at the files at once, and take them even if they have changed just now."""
        self._asked.set()

    async def run(self, links: Links) -> None:
        """Watch the files until cancelled.

        Args:
            links: are dialled again when there is a new certificate, and once a day.
        """
        dialled_at = trio.current_time()
        while True:
            self._warn_of_the_end()
            with trio.move_on_after(POLL_SECONDS):
                await self._asked.wait()
            asked, self._asked = self._asked.is_set(), trio.Event()
            is_old = trio.current_time() >= dialled_at + REDIAL_AFTER_SECONDS
            renewed = self.look(asked=asked)
            if renewed:
                self._warned_at = float("-inf")
            if renewed or is_old:
                await self._redial(links)
                await self._close_doubtful()
                dialled_at = trio.current_time()

    def _warn_of_the_end(self) -> None:
        """Warn once a day that the certificate ends soon."""
        left_ms, now = self.expires_ms - self._clock_ms(), trio.current_time()
        if left_ms < WARN_BEFORE_MS and now >= self._warned_at + REDIAL_AFTER_SECONDS:
            self._warned_at = now
            what = f"ends in {left_ms // 3_600_000} hours" if left_ms > 0 else "has ended"
            log_event(
                log,
                logging.WARNING,
                "certificate_ends",
                f"the certificate %(path)s {what}",
                path=str(self._files.certificate),
                seconds=left_ms // 1000,
            )

    async def _redial(self, links: Links) -> None:
        """Close our links one after the other; each is dialled again at once."""
        # Files are often replaced on all members at the same time.
        await trio.sleep(self._rng.uniform(0.0, REDIAL_PAUSE_SECONDS))
        for member in links.peers:
            if links.connected(member):
                links.disconnect(member)
                await trio.sleep(REDIAL_PAUSE_SECONDS)

    async def _close_doubtful(self) -> None:
        """Close connections that may rest on a CA that is trusted no more, one after the other."""
        for connection in self._network.doubtful():
            words = "closing the connection of %(address)s, which may be of a former CA"
            log_event(log, logging.DEBUG, "connection_closed", words, address=connection.peer)
            connection.close()
            await trio.sleep(REDIAL_PAUSE_SECONDS)


@attrs.frozen
class Access:
    """How a process reaches members, and they it.

    Args:
        network: with TLS if there are certificates.
        security: proves who we are, and judges others.
        watch: of the certificates; None without any.
        audit: takes note of what matters for security.
    """

    network: Network
    security: PeerSecurity = attrs.field(factory=PeerSecurity)
    watch: CertificateWatch | None = None
    audit: Audit = attrs.field(factory=NoAudit)


def _warn_of_plain() -> None:
    log_event(
        log,
        logging.WARNING,
        "accept_plain",
        "accept_plain=true: members without TLS are let in; once all members have certificates, "
        "remove the line and restart them one after the other",
    )


def open_access(
    config: NodeConfig,
    network: Network,
    clock_ms: Callable[[], int],
    rng: Random,
    audit: Audit | None = None,
) -> Access:
    """Load what a member proves by who it is.

    Args:
        config: of the member; its table [security] names the files.
        network: carries what is sent, encrypted or not.
        clock_ms: milliseconds since the epoch.
        rng: for pauses.
        audit: takes note of what matters for security.

    Raises:
        ConfigurationError: a file can't be read, or something in it is wrong.
    """
    audit = audit or NoAudit()
    if config.security.tls is not None:
        files = config.security.tls
        return _by_certificates(config, files, network, clock_ms=clock_ms, rng=rng, audit=audit)
    if config.own.tls_port:
        raise ConfigurationError(
            f"tls_port = {config.own.tls_port}: expected certificate, key and ca in the table "
            "[security], by which clients know this member"
        )
    proof = _by_key(config.security, config.member_id)
    return Access(network, attrs.evolve(proof, audit=audit), audit=audit)


def _by_certificates(
    config: NodeConfig,
    files: TlsFiles,
    network: Network,
    *,
    clock_ms: Callable[[], int],
    rng: Random,
    audit: Audit,
) -> Access:
    security, cluster = config.security, config.cluster
    load = partial(
        load_material,
        files,
        cluster=cluster,
        purposes=(Purpose.MEMBER,),
        name=str(config.member_id),
        clients=security.client_certificates if config.own.tls_port else None,
        web=config.web.tls,
        etcd=security.client_certificates if config.etcd.tls else None,
    )
    encrypted = TlsNetwork(network, load(), audit=audit)
    watch = CertificateWatch(files, load, encrypted, clock_ms, rng, audit=audit)
    proof = PeerSecurity.by(Certificates(cluster, security.accept_plain))
    proof = attrs.evolve(proof, audit=audit)
    if not security.accept_plain:
        return Access(encrypted, proof, watch, audit)
    _warn_of_plain()
    return Access(SwitchingNetwork(network, encrypted), proof, watch, audit)


READERS: Final = (Purpose.READER, Purpose.BACKUP, Purpose.MEMBER)
"""Whose certificates a reader may use. A tool on the machine of a member has that member's."""


def open_reader_access(security: Security, *, cluster: str, network: Network) -> Access:
    """Load what a reader proves by who it is; errors as `open_access`.

    Certificates that are replaced are used from the next dial on.

    Args:
        security: names the files.
        cluster: whose members are read from.
        network: carries what is sent, encrypted or not.
    """
    if (files := security.tls) is not None:

        def load() -> Material:
            return load_material(files, cluster=cluster, purposes=READERS)

        encrypted = TlsNetwork(network, load())
        present = CertificateFiles(files, load, encrypted)
        encrypted.before_dial = lambda: present.look(asked=True)
        return Access(encrypted, PeerSecurity.by(Certificates(cluster)))
    return Access(network, _by_key(security, NULL_VALUE))


def _by_key(security: Security, member_id: int) -> PeerSecurity:
    if not security.cluster_key_file:
        return PeerSecurity()
    key, *other = read_cluster_keys(security)
    return PeerSecurity.by(ClusterKey(key, member_id, other=b"".join(other)))


def read_cluster_keys(security: Security) -> list[bytes]:
    """Read the cluster key, and the other one if there is one; errors as `read_secret`."""
    named = {
        "cluster_key_file": security.cluster_key_file,
        "other_cluster_key_file": security.other_cluster_key_file,
    }
    return [
        read_secret(Path(path), f'security.{setting} = "{path}"')
        for setting, path in named.items()
        if path
    ]


MAKE_KEY: Final = "head -c 32 /dev/urandom"


def read_secret(path: Path, name: str, make: str = MAKE_KEY) -> bytes:
    """Read a key of random bytes.

    Args:
        path: of its file.
        name: of the setting or option, for an error.
        make: the command whose output is a good one.

    Raises:
        ConfigurationError: it can't be read, is too short or too long, or others may read it.
    """
    try:
        with path.open("rb") as file:
            mode, key = stat.S_IMODE(path.stat().st_mode), file.read(LONGEST_KEY_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"{name}: it cannot be read: {error.strerror}") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        what = f"its mode is {mode:04o}: expected 0600, type: chmod 600 {path}"
        raise ConfigurationError(f"{name}: {what}")
    if len(key) > LONGEST_KEY_BYTES:
        raise ConfigurationError(
            f"{name}: more than {LONGEST_KEY_BYTES} bytes: expected {SHORTEST_KEY_BYTES}"
        )
    if len(key) < SHORTEST_KEY_BYTES:
        raise ConfigurationError(
            f"{name}: {len(key)} bytes: expected {SHORTEST_KEY_BYTES} or more, type: "
            f"{make} > {path}"
        )
    return key
