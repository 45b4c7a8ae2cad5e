"""Tokens: what a client shows with each call in place of its password.

A token is random, and this member alone knows it. A client that goes to another member, or whose
token is over, gets `invalid auth token`; clients of etcd then authenticate again by themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import trio

from ..codes import INVALID_TOKEN, EtcdError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["TOKEN_SECONDS", "Tokens"]

TOKEN_SECONDS: Final = 300.0
"""How long a token lives since it was last shown, as in etcd. Shorter, and idle clients have their
passwords checked more often; longer, and a lost token is good for longer."""

_MOST: Final = 65_536
"""Tokens of a member; beyond that the one is forgotten that was shown least recently. Fewer, and
clients of a large installation push out each other; more, and they take more memory (300 bytes
each)."""

_TOKEN_BYTES: Final = 16


@attrs.define
class _Token:
    name: bytes
    proof: bytes
    until: float


class Tokens:
    """The tokens of one member.

    Args:
        random_bytes: returns that many random bytes.
    """

    def __init__(self, random_bytes: Callable[[int], bytes]) -> None:
        self._random_bytes = random_bytes
        self._tokens: dict[str, _Token] = {}  # the one shown last is the last

    def make(self, name: bytes, proof: bytes) -> str:
        """Return a new token for a user that has proved to be it."""
        while self._tokens:
            oldest = next(iter(self._tokens))
            if len(self._tokens) < _MOST and self._tokens[oldest].until > trio.current_time():
                break
            del self._tokens[oldest]
        token = self._random_bytes(_TOKEN_BYTES).hex()
        self._tokens[token] = _Token(name, proof, trio.current_time() + TOKEN_SECONDS)
        return token

    def show_untrusted(self, token: str) -> tuple[bytes, bytes]:
        """Return name and proof of the user that has a token, which lives longer by that.

        Raises:
            EtcdError: the token is unknown or over.
        """
        found = self._tokens.pop(token, None)
        now = trio.current_time()
        if found is None or found.until <= now:
            raise EtcdError(*INVALID_TOKEN)
        found.until = now + TOKEN_SECONDS
        self._tokens[token] = found
        return found.name, found.proof
