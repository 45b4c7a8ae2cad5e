"""Tokens: what a client shows with each call in place of its password.

A token is random. The log has its digest, so all members know it, and it lives on when the member
that gave it does not. Each member keeps those that it was shown, so that not each call asks for
them; a token that it does not know it asks the leader for.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final, Protocol

import attrs
import trio

from ..codes import INVALID_TOKEN, EtcdError
from ..keyspace.tokens import LIFE_MS
from ..messages import rpc_pb2 as rpc

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["TOKEN_SECONDS", "SharedTokens", "Tokens"]

TOKEN_SECONDS: Final = 300.0
"""How long a token lives at least since it was last shown, as in etcd. Shorter, and idle clients
have their passwords checked more often; longer, and a lost token is good for longer."""

_KEPT_SECONDS: Final = LIFE_MS / 1000
_RENEWAL_SECONDS: Final = _KEPT_SECONDS - TOKEN_SECONDS
"""Between two renewals in the log. If it were larger, a token that one member was shown could end
early for the others. If it were smaller, renewals would take more of the log: each member writes
one of about 110 bytes in this time for each token that it is shown. With 10,000 tokens, each shown
to one member, that is 170 a second; if each is shown to three, 500."""

_MOST: Final = 65_536
"""Tokens of a member; beyond that the one is forgotten that was shown least recently. Fewer, and
the leader is asked more often; more, and they take more memory (300 bytes each)."""

_TOKEN_BYTES: Final = 16


class SharedTokens(Protocol):
    """What all members know of tokens."""

    async def put(self, token: rpc.Token, /) -> None:
        """Let all members know of a new token.

        Raises:
            EtcdError: no leader has taken it.
        """
        ...

    def renew(self, token: rpc.Token, /) -> None:
        """Let a token live on, without waiting for it."""
        ...

    async def find(self, digest: bytes, /) -> rpc.TokenFound:
        """Ask the leader whose token it is.

        Raises:
            EtcdError: there is no leader, or too many ask at this moment.
        """
        ...


@attrs.define
class _Token:
    name: bytes
    proof: bytes
    until: float
    renew_at: float


class Tokens:
    """The tokens that this member was shown or has given.

    Args:
        random_bytes: returns that many random bytes.
        shared: what all members know.
    """

    def __init__(self, random_bytes: Callable[[int], bytes], shared: SharedTokens) -> None:
        self._random_bytes = random_bytes
        self._shared = shared
        self._tokens: dict[str, _Token] = {}  # the one shown last is the last

    async def make(self, name: bytes, proof: bytes) -> str:
        """Return a new token for a user that has proved to be it.

        Raises:
            EtcdError: no leader has taken it.
        """
        token = self._random_bytes(_TOKEN_BYTES).hex()
        await self._shared.put(rpc.Token(digest=_digest(token), name=name, proof=proof))
        self._keep(token, name, proof, _KEPT_SECONDS)
        return token

    def knows(self, token: str) -> bool:
        """Whether this member knows whose token it is."""
        found = self._tokens.get(token)
        return found is not None and found.until > trio.current_time()

    async def learn(self, token: str) -> None:
        """Ask the leader whose token it is, if this member does not know.

        Raises:
            EtcdError: there is no leader.
        """
        if not self.knows(token):
            found = await self._shared.find(_digest(token))
            if found.left_ms > 0:
                self._keep(token, found.name, found.proof, found.left_ms / 1000)

    def show_untrusted(self, token: str, holds: Callable[[bytes, bytes], bool]) -> bytes:
        """Return the name of the user that has a token, which lives longer by that.

        Args:
            token: as a caller shows it.
            holds: whether a proof still lets the user of a name in.

        Raises:
            EtcdError: the token is unknown here or over, or its user is not let in by it any more.
        """
        found = self._tokens.get(token)
        now = trio.current_time()
        # One that is refused must not live longer by that: its user may be let in again later.
        # It is kept until then, or each further call with it would be a question to the leader.
        if found is None or found.until <= now or not holds(found.name, found.proof):
            raise EtcdError(*INVALID_TOKEN)
        found.until = now + TOKEN_SECONDS
        if found.renew_at <= now:
            found.renew_at = now + _RENEWAL_SECONDS
            shared = rpc.Token(digest=_digest(token), name=found.name, proof=found.proof)
            self._shared.renew(shared)
        self._tokens[token] = self._tokens.pop(token)
        return found.name

    def _keep(self, token: str, name: bytes, proof: bytes, seconds: float) -> None:
        now = trio.current_time()
        while self._tokens:
            oldest = next(iter(self._tokens))
            if len(self._tokens) < _MOST and self._tokens[oldest].until > now:
                break
            del self._tokens[oldest]
        renew_at = now + seconds - TOKEN_SECONDS
        self._tokens[token] = _Token(name, proof, now + min(seconds, TOKEN_SECONDS), renew_at)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
