"""Tokens in the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..codes import TOO_MANY_REQUESTS, EtcdError
from ..messages import rpc_pb2 as rpc
from ..messages.requests import Op

if TYPE_CHECKING:
    from ..backend.backend import Backend

__all__ = ["MAX_LOOKUPS", "LoggedTokens"]

MAX_LOOKUPS: Final = 10_000
"""Tokens that a member asks for at one moment; there are not more. If larger, strangers who make up
tokens fill the queue in which the requests of users wait for a leader; if smaller, many clients of
a member that has just ended are refused by the next one."""


class LoggedTokens:
    """The tokens that all members know, a `tokens.SharedTokens`.

    Args:
        backend: reaches the leader.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._lookups = 0

    async def put(self, token: rpc.Token) -> None:
        """Let all members know of a new token; see `SharedTokens`."""
        await self._backend.ask(Op.TOKEN, token.SerializeToString())

    def renew(self, token: rpc.Token) -> None:
        """Let a token live on; see `SharedTokens`."""
        self._backend.submit(Op.TOKEN, token.SerializeToString(), _ignore)

    async def find(self, digest: bytes) -> rpc.TokenFound:
        """Ask the leader whose token it is; see `SharedTokens`."""
        if self._lookups >= MAX_LOOKUPS:
            raise EtcdError(*TOO_MANY_REQUESTS)
        asked = rpc.Token(digest=digest).SerializeToString()
        self._lookups += 1
        try:
            _, body = await self._backend.ask(Op.TOKEN_KNOWN, asked)
        finally:
            self._lookups -= 1
        return rpc.TokenFound.FromString(body)


def _ignore(_reply: bytes | EtcdError) -> None:
    """Take the outcome of a renewal: the next one comes, or the token is over for the others."""
