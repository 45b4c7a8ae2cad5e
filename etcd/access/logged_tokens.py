"""Tokens in the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..messages import rpc_pb2 as rpc
from ..messages.requests import Op

if TYPE_CHECKING:
    from ..backend.backend import Backend
    from ..codes import EtcdError

__all__ = ["LoggedTokens"]


class LoggedTokens:
    """The tokens that all members know, a `tokens.SharedTokens`.

    Args:
        backend: reaches the leader.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def put(self, token: rpc.Token) -> None:
        """Let all members know of a new token; see `SharedTokens`."""
        await self._backend.ask(Op.TOKEN, token.SerializeToString())

    def renew(self, token: rpc.Token) -> None:
        """Let a token live on; see `SharedTokens`."""
        self._backend.submit(Op.TOKEN, token.SerializeToString(), _ignore)

    async def find(self, digest: bytes) -> rpc.TokenFound:
        """Ask the leader whose token it is; see `SharedTokens`."""
        asked = rpc.Token(digest=digest).SerializeToString()
        _, body = await self._backend.ask(Op.TOKEN_KNOWN, asked)
        return rpc.TokenFound.FromString(body)


def _ignore(_reply: bytes | EtcdError) -> None:
    """Take the outcome of a renewal: the next one comes, or the token is over for the others."""
