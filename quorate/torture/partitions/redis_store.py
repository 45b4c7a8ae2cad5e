"""redis-py's cluster client, as it comes, but for sending commands again."""

# redis-py has only partial types
# mypy: disable-error-code="no-untyped-call"
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import redis
import trio
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import (
    ClusterDownError,
    ClusterError,
    MaxConnectionsError,
    RedisClusterException,
    ResponseError,
    TryAgainError,
)
from redis.retry import Retry

from ...local.cluster import HOST
from .stores import RefusedOperationError, UnknownOperationError, WrongReplyError, refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...histories.history import Value

__all__ = ["RedisStore"]

ANSWER_SECONDS: Final = 5.0
FAILURES: Final = 3
"""After so many failures one after the other the client is made anew, as programs do that are
started again."""


class RedisStore:
    """A client that runs in threads, one operation at a time.

    Args:
        ports: client ports of some members.
    """

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = ports
        self._client: RedisCluster | None = None
        self._failures = 0

    async def run(self, op: str, key: bytes, args: tuple[bytes, ...]) -> Value:
        """Do an operation; see `clients.Store`."""
        try:
            found = await trio.to_thread.run_sync(self._run, op, key, args)
        except (RefusedOperationError, UnknownOperationError):
            self._failures += 1
            if self._failures >= FAILURES:
                await self.close()
            raise
        self._failures = 0
        return found

    def _run(self, op: str, key: bytes, args: tuple[bytes, ...]) -> Value:
        try:
            if self._client is None:
                self._client = self._opened()
        except (redis.RedisError, RedisClusterException, OSError) as error:
            raise RefusedOperationError from error
        words = ["QUORATE.CAS", key, "EQUALS", args[0], "SET", args[1]] if op == "cas" else None
        try:
            reply: object = self._client.execute_command(*(words or [op.upper(), key, *args]))
        except MaxConnectionsError as error:
            raise RefusedOperationError from error
        except (ClusterDownError, ClusterError) as error:  # of too many redirections, too
            raise RefusedOperationError from error
        except TryAgainError as error:
            raise RefusedOperationError from error
        except ResponseError as error:
            code = type(error).__name__.removesuffix("Error").upper()
            text = str(error)
            raise refusal(
                "TRYAGAIN" if code == "TRYAGAIN" else text.split(" ", maxsplit=1)[0], text
            ) from error
        except (redis.RedisError, RedisClusterException, OSError) as error:
            raise UnknownOperationError from error
        return _value(op, reply)

    def _opened(self) -> RedisCluster:
        nodes = [ClusterNode(HOST, port) for port in self._ports]
        # Without attempts of its own: what it sends twice may be applied twice.
        return RedisCluster(
            startup_nodes=nodes,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=ANSWER_SECONDS,
            socket_connect_timeout=ANSWER_SECONDS,
        )

    async def close(self) -> None:
        """Close all connections."""
        client, self._client = self._client, None
        self._failures = 0
        if client is not None:
            await trio.to_thread.run_sync(client.close)


def _value(op: str, reply: object) -> Value:
    """Return a reply as the history has it."""
    match op, reply:
        case "set", True:
            return b"OK"
        case "cas", int():
            return min(1, reply)
        case _, bytes() | int() | None:
            return reply
        case _:
            raise WrongReplyError(f"unexpected reply to {op}: {reply!r:.60}")
