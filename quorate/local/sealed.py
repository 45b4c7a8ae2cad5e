"""A file that only those with a key can read, and that nobody else can change.

The construction
----------------
STREAM (Hoang, Reyhanitabar, Rogaway, Vizár: "Online Authenticated-Encryption and its Nonce-Reuse
Misuse-Resistance", 2015), as age uses it::

    head    16 bytes that name the format, 32 random bytes (the salt)
    chunk   64 KiB under AES-256-GCM, and its tag; the last one is shorter
    ...

The key of a file comes from the secret and the salt by HKDF-SHA256, so two files never share one,
and nonces may count. A nonce is the number of the chunk and a byte that says whether it is the last
one. So a chunk that was changed, moved, left out or taken from another file does not open, and a
file that was cut off has no last chunk. The head is authenticated with each chunk.

The naive way, one tag over the whole file, would have it all in memory, or yield bytes before they
are known to be right.

What it does not hide
---------------------
The length of the file, and when it was written. A file may be replaced by an older one of the same
secret.
"""

import os
from collections.abc import Iterator
from typing import BinaryIO, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ..errors import StorageError

__all__ = ["CHUNK_BYTES", "HEAD_BYTES", "SealedWriter", "read_sealed_untrusted"]

MAGIC: Final = b"quorate sealed 1"
_SALT_BYTES: Final = 32
HEAD_BYTES: Final = len(MAGIC) + _SALT_BYTES

CHUNK_BYTES: Final = 64 << 10
"""How much is encrypted at once. Smaller: more tags and calls. Larger: more memory, and damage is
found later. It is part of the format."""

TAG_BYTES: Final = 16
_COUNTER_BYTES: Final = 11
_USE: Final = b"quorate sealed file"


class SealedWriter:
    """Encrypts what is written into a file; the end is :meth:`close`.

    Args:
        file: where to.
        secret: 32 random bytes or more.
    """

    def __init__(self, file: BinaryIO, secret: bytes) -> None:
        self._file = file
        self._head = MAGIC + os.urandom(_SALT_BYTES)
        self._cipher = _cipher(secret, self._head)
        self._count = 0
        self._left = bytearray()
        file.write(self._head)

    def write(self, data: bytes) -> int:
        """Encrypt bytes; return how many."""
        self._left += data
        # A full chunk waits for more: it may be the last one, which is marked.
        while len(self._left) > CHUNK_BYTES:
            self._seal(bytes(self._left[:CHUNK_BYTES]), is_last=False)
            del self._left[:CHUNK_BYTES]
        return len(data)

    def flush(self) -> None:
        """Do nothing: what waits is not known to be the last."""

    def close(self) -> None:
        """Write the last chunk; the file stays open."""
        self._seal(bytes(self._left), is_last=True)
        self._left.clear()

    def _seal(self, data: bytes, *, is_last: bool) -> None:
        self._file.write(
            self._cipher.encrypt(_nonce(self._count, is_last=is_last), data, self._head)
        )
        self._count += 1


def read_sealed_untrusted(file: BinaryIO, secret: bytes) -> Iterator[bytes]:
    """Yield what was written, chunk by chunk; each is authentic when it comes.

    That the file is whole is known when the iterator ends. Two chunks are in memory at most.

    Args:
        file: at its beginning.
        secret: that it was written with.

    Raises:
        StorageError: it is no such file, has another secret, was changed, or was cut off.
    """
    head = _read(file, HEAD_BYTES)
    if len(head) < HEAD_BYTES or not head.startswith(MAGIC):
        raise StorageError("this is no archive of this version of quorate")
    cipher, count = _cipher(secret, head), 0
    chunk = _read(file, CHUNK_BYTES + TAG_BYTES)
    while True:
        following = _read(file, CHUNK_BYTES + TAG_BYTES)
        is_last = not following
        data = _open(cipher, count, chunk, head, is_last=is_last)
        if data is None:
            raise StorageError(_why(cipher, count, chunk, head, is_last=is_last))
        yield data
        if is_last:
            return
        chunk, count = following, count + 1


def _open(cipher: AESGCM, count: int, chunk: bytes, head: bytes, *, is_last: bool) -> bytes | None:
    try:
        return cipher.decrypt(_nonce(count, is_last=is_last), chunk, head)
    except InvalidTag:
        return None


def _why(cipher: AESGCM, count: int, chunk: bytes, head: bytes, *, is_last: bool) -> str:
    """Return in words why a chunk does not open."""
    where = f"byte {HEAD_BYTES + count * (CHUNK_BYTES + TAG_BYTES):,}"
    if _open(cipher, count, chunk, head, is_last=not is_last) is not None:
        return (
            "it is cut off: its end is missing" if is_last else f"more follows its end at {where}"
        )
    if count == 0:
        size = f"its first {CHUNK_BYTES:,} bytes are" if len(chunk) > CHUNK_BYTES else "it is"
        return f"it was made with another key, or {size} damaged or cut off"
    return f"it is damaged, or cut off, at {where}"


def _cipher(secret: bytes, head: bytes) -> AESGCM:
    salt = head[len(MAGIC) :]
    return AESGCM(HKDF(algorithm=SHA256(), length=32, salt=salt, info=_USE).derive(secret))


def _nonce(count: int, *, is_last: bool) -> bytes:
    return count.to_bytes(_COUNTER_BYTES, "big") + bytes([is_last])


def _read(file: BinaryIO, size: int) -> bytes:
    """Read that many bytes; fewer only at the end of the file."""
    found = bytearray()
    # A pipe returns less than was asked for.
    while piece := file.read(size - len(found)):
        found += piece
    return bytes(found)
