"""Secrets become hashes, and are compared with them.

Two forms, each a word of a user's rules:

- ``$scrypt$ln=14,r=8,p=1$salt$hash``, base64 without padding. We make this one. It takes 80 ms and
  16 MiB on purpose, so that a stolen backup does not give up its passwords. It must run off the
  event loop (:mod:`.verifier`).
- ``#`` with the 64 hexadecimal digits of a SHA-256, as in Redis's files. It is accepted, and it is
  weak: a graphics card tries thousands of millions of passwords in a second.

Comparisons take the same time wherever the two differ.
"""

import base64
import hashlib
import hmac
import re
from typing import Final

__all__ = [
    "MAX_SECRET_BYTES",
    "SALT_BYTES",
    "UNUSABLE",
    "hash_secret",
    "is_hash",
    "is_slow",
    "matches",
    "shown",
]

MAX_SECRET_BYTES: Final = 1024
"""A password. A longer one is wrong: hashing megabytes would hold up the event loop."""

SALT_BYTES: Final = 16

_LN: Final = 14
"""Logarithm of scrypt's cost. With one less, an attacker tries twice as many passwords; with one
more, each login takes 160 ms of a processor and 32 MiB."""
_R: Final = 8
_P: Final = 1
_HASH_BYTES: Final = 32
_MAX_MEMORY: Final = 128 << 20
_MOST_LN: Final = 16  # hashes of other programs; more would let one login take the member's memory
_MOST_P: Final = 4

_SHA256: Final = re.compile(rb"#[0-9a-f]{64}")
_SCRYPT: Final = re.compile(
    rb"\$scrypt\$ln=([0-9]{1,2}),r=8,p=([0-9])\$([A-Za-z0-9+/]{11,64})\$([A-Za-z0-9+/]{43})"
)


def hash_secret(secret: bytes, salt: bytes) -> bytes:
    """Return the hash of a secret, in the form with ``$``; takes 80 ms."""
    found = _scrypt(secret, salt, _LN, _P)
    return b"$scrypt$ln=%d,r=%d,p=%d$%b$%b" % (_LN, _R, _P, _encode(salt), _encode(found))


def is_hash(word: bytes) -> bool:
    """Whether a word is a hash that `matches` can use."""
    if _SHA256.fullmatch(word):
        return True
    found = _SCRYPT.fullmatch(word)
    if found is None:
        return False
    # Canonical only: two spellings of one hash would be two passwords of a user.
    canonical = all(_encode(_decode(text)) == text for text in (found[3], found[4]) if _whole(text))
    whole = _whole(found[3]) and _whole(found[4])
    return whole and canonical and 1 <= int(found[1]) <= _MOST_LN and 1 <= int(found[2]) <= _MOST_P


def is_slow(word: bytes) -> bool:
    """Whether comparing with this hash must not be done on the event loop."""
    return word.startswith(b"$")


def matches(secret: bytes, word: bytes) -> bool:
    """Whether a secret has this hash; `is_hash` is true for it. May take 80 ms, see `is_slow`."""
    if len(secret) > MAX_SECRET_BYTES:
        return False
    found = _SCRYPT.fullmatch(word)
    if found is None:
        return hmac.compare_digest(b"#" + hashlib.sha256(secret).hexdigest().encode(), word)
    made = _scrypt(secret, _decode(found[3]), int(found[1]), int(found[2]))
    return hmac.compare_digest(made, _decode(found[4]))


def shown(word: bytes) -> bytes:
    """How ACL GETUSER shows a hash: as Redis does, without its ``#``."""
    return word.removeprefix(b"#")


def _scrypt(secret: bytes, salt: bytes, ln: int, p: int) -> bytes:
    return hashlib.scrypt(
        secret, salt=salt, n=1 << ln, r=_R, p=p, maxmem=_MAX_MEMORY, dklen=_HASH_BYTES
    )


def _whole(text: bytes) -> bool:
    return len(text) % 4 != 1  # no number of bytes has an encoding of that length


def _encode(data: bytes) -> bytes:
    return base64.b64encode(data).rstrip(b"=")


def _decode(text: bytes) -> bytes:
    return base64.b64decode(text + b"=" * (-len(text) % 4))


UNUSABLE: Final = b"$scrypt$ln=%d,r=%d,p=%d$%b$%b" % (
    _LN,
    _R,
    _P,
    _encode(bytes(SALT_BYTES)),
    _encode(bytes(_HASH_BYTES)),
)
"""A hash that no secret has. Logins of unknown users are compared with it: otherwise the time of
the answer would show which names exist."""
