"""ACL SETUSER as a client sends it, with secrets, becomes the command of the log, without any.

``>secret`` becomes the hash that the user has for this secret already, or a new one. So a command
that is sent twice adds one password. ``<secret`` becomes ``!`` and the hash to remove.
"""

from collections.abc import Callable, Sequence
from typing import Final

from .hashing import MAX_SECRET_BYTES, SALT_BYTES, hash_secret, is_hash, matches
from .rules import RuleError

__all__ = ["MAX_SECRETS", "has_secrets", "without_secrets"]

MAX_SECRETS: Final = 16
"""Secrets of one command. Each may be compared with each hash, at 80 ms."""

_TOO_MANY: Final = f"One command may have {MAX_SECRETS} passwords"
_TOO_LONG: Final = f"A password may have {MAX_SECRET_BYTES} bytes"
_NO_SUCH: Final = "The password you are trying to remove from the user does not exist"
_FORGET: Final = frozenset((b"nopass", b"resetpass", b"reset"))


def has_secrets(words: Sequence[bytes]) -> bool:
    """Whether there is anything to hash among the words of a user."""
    return any(word[:1] in (b">", b"<") for word in words)


def without_secrets(
    words: Sequence[bytes], hashes: Sequence[bytes], random_bytes: Callable[[int], bytes]
) -> list[bytes]:
    """Replace secrets by hashes; takes long, so not for the event loop.

    Args:
        words: of the command.
        hashes: that the user has now.
        random_bytes: returns that many random bytes.

    Raises:
        RuleError: a secret is too long, or is to be removed and does not exist.
    """
    if sum(word[:1] in (b">", b"<") for word in words) > MAX_SECRETS:
        raise RuleError(b">", _TOO_MANY)
    held, made = list(hashes), list[bytes]()
    for word in words:
        if word[:1] in (b">", b"<") and len(word) - 1 > MAX_SECRET_BYTES:
            raise RuleError(word, _TOO_LONG)
        match word[:1]:
            case b">":
                found = _find(word[1:], held) or hash_secret(word[1:], random_bytes(SALT_BYTES))
                held.append(found)
                made.append(found)
            case b"<":
                found = _find(word[1:], held)
                if not found:
                    raise RuleError(word, _NO_SUCH)
                held = [one for one in held if one != found]
                made.append(b"!" + found.removeprefix(b"#"))
            case _:
                if word.lower() in _FORGET:
                    held.clear()
                elif is_hash(word):
                    held.append(word)
                made.append(word)
    return made


def _find(secret: bytes, hashes: Sequence[bytes]) -> bytes:
    return next((word for word in hashes if matches(secret, word)), b"")
