"""Who may come in: the judgement of a hello before anything else of it counts.

Three ways
----------
- **Open**: everybody is what it says. For loopback, and networks that are closed otherwise.
- **Certificates**: TLS has proved the identity of both ends; it is compared with the hello here. A
  reader's certificate can't take part in consensus, and member 2's can't speak for member 1.
- **A cluster key**: both ends prove that they know a secret, without sending it. That keeps out
  strangers and accidents, no more: a member with the key can pose as any other one, what is sent is
  not encrypted, and somebody between two members may relay their proofs and change what follows.

The exchange with a key
-----------------------
::

    dialler                                   listener
    Hello(nonce_D)                  ------->
                                    <-------  Challenge(nonce_L, MAC "listener")
    ChallengeResponse(MAC "dialler") ------>
                                    <-------  HelloReply

Each MAC is HMAC-SHA256 over its role, the whole hello with the dialler's nonce, the listener's
nonce and id. The role keeps a listener's MAC from being played back to it; the nonces keep old ones
from being used again. The hello says who dials, what for, and where it can be dialled: nothing of
that can be changed on the way. The listener's comes first, so a dialler never proves anything to an
impostor.

The names are Aeron's (``Authenticator``, ``CredentialsSupplier``, ``AuthorisationService``). An
embedding program may bring its own.
"""

import hmac
import os
import struct
from collections.abc import Callable
from typing import Final, Protocol

import attrs

from ..errors import HandshakeError
from .fields import NULL_VALUE
from .identity import Identity, Purpose
from .messages import BackupQuery, EventsQuery, HeartbeatRequest, Hello, HelloReply, Message
from .strangers import Audit, NoAudit
from .wire import encode

NONCE_BYTES: Final = 32
"""Random bytes of each end. With fewer, one might come twice, and its MAC could be used again."""

MAC_BYTES: Final = 32

SHORTEST_KEY_BYTES: Final = 32
"""Shortest cluster key. Anybody who hears one exchange can try keys against it at leisure."""

_MEMBER: Final = struct.Struct("<i")


@attrs.frozen
class Accept:
    """The dialler is who it says.

    Args:
        principal: its name, for logs and for an `Authoriser`.
    """

    principal: str


@attrs.frozen
class ChallengeWith:
    """The dialler has to answer a challenge first.

    Args:
        challenge: for its `CredentialsSupplier`.
    """

    challenge: bytes


@attrs.frozen
class Reject:
    """The dialler may not come in.

    Args:
        reason: for the dialler, and for our log.
    """

    reason: str


class Authenticator(Protocol):
    """Judges those that call us. Called on the event loop, so it must not block."""

    def connect(self, hello: Hello, identity: Identity | None) -> Accept | ChallengeWith | Reject:
        """Judge a hello; `identity` is what a certificate has proved, None without TLS."""
        ...

    def respond(self, hello: Hello, challenge: bytes, credentials: bytes) -> Accept | Reject:
        """Judge the response to a challenge."""
        ...


class CredentialsSupplier(Protocol):
    """Proves to those that we call who we are, and judges who answers."""

    def check_called(self, hello: Hello, identity: Identity | None) -> None:
        """Check the other end, before the hello is sent to it.

        Raises:
            HandshakeError: its certificate is not that of the member that was called.
        """
        ...

    def credentials(self) -> bytes:
        """Return the credentials of a new hello."""
        ...

    def on_challenge(self, hello: Hello, challenge: bytes) -> bytes:
        """Return the response to a challenge.

        Raises:
            HandshakeError: the challenge is not that of a member.
        """
        ...

    def check_reply(
        self, reply: HelloReply, identity: Identity | None, *, challenged: bool
    ) -> None:
        """Check that the one that answers has proved who it is.

        Raises:
            HandshakeError: it has not.
        """
        ...


class Authoriser(Protocol):
    """Decides which requests a principal may make; the default allows what the seeds allow."""

    def allows(self, principal: str, message: type[Message]) -> bool:
        """Whether a principal may send a message of this class."""
        ...


class ReadersAllowed:
    """Allows every principal that was let in to ask for a backup, and for a sign of life.

    A member may ask for events, too; nobody else is let in for these.
    """

    def allows(self, principal: str, message: type[Message]) -> bool:  # noqa: ARG002
        """See `Authoriser`."""
        return message in {BackupQuery, EventsQuery, HeartbeatRequest}


class Open:
    """Believes everybody, and proves nothing."""

    def connect(self, hello: Hello, identity: Identity | None) -> Accept:  # noqa: ARG002
        """See `Authenticator`."""
        return Accept(_claimed(hello))

    def respond(self, hello: Hello, challenge: bytes, credentials: bytes) -> Accept | Reject:  # noqa: ARG002
        """See `Authenticator`. Never called: it never challenges."""
        return Reject("there was no challenge")

    def check_called(self, hello: Hello, identity: Identity | None) -> None:
        """See `CredentialsSupplier`."""

    def credentials(self) -> bytes:
        """See `CredentialsSupplier`."""
        return b""

    def on_challenge(self, hello: Hello, challenge: bytes) -> bytes:  # noqa: ARG002
        """See `CredentialsSupplier`."""
        raise HandshakeError(
            f"cluster {hello.cluster!r} has a cluster key, and we have none: "
            "set cluster_key_file in [security]"
        )

    def check_reply(
        self, reply: HelloReply, identity: Identity | None, *, challenged: bool
    ) -> None:
        """See `CredentialsSupplier`."""


@attrs.frozen
class Certificates:
    """Compares the hello with what certificates have proved.

    Args:
        cluster: name of ours.
        accept_plain: believe those that come without TLS, while the cluster is switched to it.
    """

    cluster: str
    accept_plain: bool = False

    def connect(self, hello: Hello, identity: Identity | None) -> Accept | Reject:
        """See `Authenticator`."""
        if identity is None:
            if self.accept_plain:
                return Accept(_claimed(hello))
            return Reject("no certificate: expected TLS")
        if hello.cluster != self.cluster or not identity.is_of(self.cluster):
            return Reject(f"the certificate is for {identity}, expected cluster {self.cluster!r}")
        # Also a member's certificate speaks for its own id only. A tool on the machine of a member
        # may use it and say no id.
        if hello.member_id not in {NULL_VALUE, identity.member_id}:
            expected = Identity.member(self.cluster, hello.member_id)
            return Reject(f"the certificate is for {identity}, expected {expected}")
        if not identity.may_open(hello.purpose):
            what = f"which may not open {hello.purpose.name}"
            return Reject(f"the certificate is for {identity}, {what}")
        return Accept(str(identity))

    def respond(self, hello: Hello, challenge: bytes, credentials: bytes) -> Reject:  # noqa: ARG002
        """See `Authenticator`. Never called: it never challenges."""
        return Reject("there was no challenge")

    def check_called(self, hello: Hello, identity: Identity | None) -> None:
        """See `CredentialsSupplier`."""
        if identity is None:
            if self.accept_plain:
                return
            raise HandshakeError("no certificate: expected TLS")
        called = hello.called_member_id
        if called != NULL_VALUE:
            expected = str(Identity.member(self.cluster, called))
        else:
            expected = f"a member of cluster {self.cluster!r}"
        if (
            not identity.is_of(self.cluster)
            or identity.purpose is not Purpose.MEMBER
            or called not in {NULL_VALUE, identity.member_id}
        ):
            raise HandshakeError(f"the certificate is for {identity}, expected {expected}")

    def credentials(self) -> bytes:
        """See `CredentialsSupplier`."""
        return b""

    def on_challenge(self, hello: Hello, challenge: bytes) -> bytes:  # noqa: ARG002
        """See `CredentialsSupplier`."""
        raise HandshakeError("it asks for a cluster key, and we have a certificate")

    def check_reply(
        self,
        reply: HelloReply,
        identity: Identity | None,
        *,
        challenged: bool,  # noqa: ARG002
    ) -> None:
        """See `CredentialsSupplier`."""
        if identity is None and self.accept_plain:
            return
        # Any member may have been called. It is the one that its certificate names.
        if identity is None or reply.member_id != identity.member_id:
            raise HandshakeError(f"the certificate is for {identity}, not member {reply.member_id}")


class ClusterKey:
    """Both ends prove that they know the cluster's key.

    While a key is replaced there are two. A listener proves that it has the first one; a dialler
    answers with the key that the listener has used; and a listener accepts either. So the keys can
    be in any order on any member, as long as each has those that the others put first.

    Args:
        key: at least `SHORTEST_KEY_BYTES`.
        member_id: of this member; -1 for a reader.
        random: returns that many random bytes, which nobody can guess.
        other: a second key that is accepted; empty for none.
    """

    def __init__(
        self,
        key: bytes,
        member_id: int,
        random: Callable[[int], bytes] = os.urandom,
        *,
        other: bytes = b"",
    ) -> None:
        self._keys = [each for each in (key, other) if each]
        self._member_id = member_id
        self._random = random

    def __repr__(self) -> str:
        return f"<ClusterKey of member {self._member_id}>"  # never the key

    def connect(self, hello: Hello, identity: Identity | None) -> ChallengeWith | Reject:  # noqa: ARG002
        """See `Authenticator`."""
        if len(hello.credentials) != NONCE_BYTES:
            return Reject("no cluster key: set cluster_key_file in its [security]")
        nonce = self._random(NONCE_BYTES)
        return ChallengeWith(nonce + self._mac(b"listener", hello, self._member_id, nonce))

    def respond(self, hello: Hello, challenge: bytes, credentials: bytes) -> Accept | Reject:
        """See `Authenticator`."""
        nonce = challenge[:NONCE_BYTES]
        for key in self._keys:
            expected = self._mac(b"dialler", hello, self._member_id, nonce, key)
            # In constant time: the time of a comparison would give away how much of a guess is
            # right.
            if hmac.compare_digest(credentials, expected):
                return Accept(_claimed(hello))
        return Reject("another cluster key than ours")

    def check_called(self, hello: Hello, identity: Identity | None) -> None:
        """See `CredentialsSupplier`. The proof comes with the challenge."""

    def credentials(self) -> bytes:
        """See `CredentialsSupplier`."""
        return self._random(NONCE_BYTES)

    def on_challenge(self, hello: Hello, challenge: bytes) -> bytes:
        """See `CredentialsSupplier`."""
        nonce, mac = challenge[:NONCE_BYTES], challenge[NONCE_BYTES:]
        called = hello.called_member_id
        for key in self._keys if len(nonce) == NONCE_BYTES else ():
            if hmac.compare_digest(mac, self._mac(b"listener", hello, called, nonce, key)):
                return self._mac(b"dialler", hello, called, nonce, key)
        raise HandshakeError("it has another cluster key, or is another member")

    def check_reply(
        self,
        reply: HelloReply,  # noqa: ARG002
        identity: Identity | None,  # noqa: ARG002
        *,
        challenged: bool,
    ) -> None:
        """See `CredentialsSupplier`."""
        if not challenged:
            raise HandshakeError(
                "it has not proved that it has the cluster key: set cluster_key_file on both ends"
            )

    def _mac(
        self, role: bytes, hello: Hello, listener: int, nonce: bytes, key: bytes = b""
    ) -> bytes:
        """Return the MAC of one end.

        Args:
            role: of that end.
            hello: of this connection, with the dialler's nonce.
            listener: id of the listener; -1 if the dialler calls any member.
            nonce: of the listener.
            key: of the cluster; the one that is put first if left out.
        """
        # A dialler that calls any member does not know the id yet, so neither end counts it.
        called = NULL_VALUE if hello.called_member_id == NULL_VALUE else listener
        parts = (role, encode(hello), nonce, _MEMBER.pack(called))
        # With lengths: no two lists of parts have the same bytes.
        data = b"".join(struct.pack("<I", len(part)) + part for part in parts)
        return hmac.digest(key or self._keys[0], data, "sha256")


@attrs.frozen
class PeerSecurity:
    """What links and streams use to judge others, and to prove who we are.

    Args:
        authenticator: judges those that call us.
        supplier: proves who we are to those that we call, and judges them.
        authoriser: decides what those that were let in may ask for.
        audit: takes note of who was refused, and which readers came in.
    """

    authenticator: Authenticator = attrs.field(factory=Open)
    supplier: CredentialsSupplier = attrs.field(factory=Open)
    authoriser: Authoriser = attrs.field(factory=ReadersAllowed)
    audit: Audit = attrs.field(factory=NoAudit)

    @classmethod
    def by(cls, proof: Open | Certificates | ClusterKey) -> "PeerSecurity":
        """Use one kind of proof in both directions."""
        return cls(proof, proof)


def _claimed(hello: Hello) -> str:
    """Return the name by which a dialler that has no certificate is known."""
    return f"member {hello.member_id}" if hello.member_id != NULL_VALUE else "a reader"
