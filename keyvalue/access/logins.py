"""Logging in: whether a name and a secret are those of a user.

A secret that was right before is recognised without scrypt: the pair of hash and secret is
remembered as an HMAC under a key of this process. So a thousand clients that reconnect cost a
thousand times two microseconds. A remembered pair lets nobody in by itself: the hash must still be
one of the user's.
"""

import hmac
import os
from collections.abc import Callable
from typing import Final

import attrs

from .directory import Directory
from .hashing import MAX_SECRET_BYTES, UNUSABLE, is_slow, matches
from .judges import JUDGED, ClientAuthenticator

__all__ = ["CERTIFICATE", "MAX_REMEMBERED", "NO_PASSWORD", "Logins", "Pending"]

NO_PASSWORD: Final = b"nopass"
"""The proof of a session whose user needs no password."""

CERTIFICATE: Final = b"certificate"
"""The proof of a session that a certificate has named the user of."""

MAX_REMEMBERED: Final = 4096
"""Remembered secrets. With fewer, clients of many users hash anew at each connection; with more,
they take more memory (100 bytes each)."""


@attrs.frozen
class Pending:
    """A check that takes long.

    Args:
        work: for the verifier; returns the hash that the secret has, or nothing.
    """

    work: Callable[[], bytes]


class Logins:
    """Checks secrets against the users.

    Args:
        users: as the port sees them.
        random_bytes: returns that many random bytes.
        authenticator: decides in place of the users' passwords; None for those.
    """

    def __init__(
        self,
        users: Directory,
        random_bytes: Callable[[int], bytes] = os.urandom,
        authenticator: ClientAuthenticator | None = None,
    ) -> None:
        self._users = users
        self._authenticator = authenticator
        self._key = random_bytes(32)
        self._remembered: dict[bytes, None] = {}

    def check(self, name: bytes, secret: bytes) -> bytes | Pending | None:
        """Return the proof if the secret is right; None if it is wrong; or what must be done first.

        The proof is `NO_PASSWORD`, or the hash that the secret has.
        """
        access = self._users.access(name)
        if len(secret) > MAX_SECRET_BYTES:
            return None
        # First: what a program decides by itself is not for `nopass` to decide.
        if (judge := self._authenticator) is not None:
            text = name.decode(errors="replace")
            return Pending(lambda: JUDGED if judge.login(text, secret) else b"")
        if access is not None and access.user.nopass:
            return NO_PASSWORD
        hashes = () if access is None else access.user.hashes
        for word in hashes:
            if self._tag(word, secret) in self._remembered or (
                not is_slow(word) and matches(secret, word)
            ):
                return word
        # A name that does not exist takes as long as a wrong password.
        slow = [word for word in hashes if is_slow(word)] or [UNUSABLE]
        return Pending(lambda: next((word for word in slow if matches(secret, word)), b""))

    @property
    def judged(self) -> bool:
        """Whether a program judges logins, so that passwords and `nopass` mean nothing."""
        return self._authenticator is not None

    def remember(self, secret: bytes, proof: bytes) -> None:
        """Take the result of a pending check: the next time it takes no time."""
        if not proof or proof == JUDGED:  # asked anew each time: what it knows may change
            return
        self._remembered[self._tag(proof, secret)] = None
        if len(self._remembered) > MAX_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]

    def holds(self, name: bytes, proof: bytes, *, remote: bool = False) -> bool:
        """Whether what a session has proved lets it in, or still does.

        Args:
            name: of the user.
            proof: what it has proved.
            remote: it must have proved something, whether its user needs a password or not.
        """
        access = self._users.access(name)
        if access is None:
            return False
        if proof == CERTIFICATE or self.judged:
            return proof in (CERTIFICATE, JUDGED)
        return (access.user.nopass and not remote) or proof in access.user.hashes

    def _tag(self, word: bytes, secret: bytes) -> bytes:
        return hmac.digest(self._key, b"%d %b%b" % (len(word), word, secret), "sha256")
