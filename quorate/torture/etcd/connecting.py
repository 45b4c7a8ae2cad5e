"""Connections of clients of etcd, over either protocol."""

import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

import trio

from ...local.etcd_client import GatewayClient
from .grpc_client import GrpcClient

__all__ = ["ANSWER_S", "Client", "connected"]

ANSWER_S: Final = 5.0
"""How long a client waits for a connection, or for an answer."""

Client: TypeAlias = GatewayClient | GrpcClient
_KINDS: Final = (GatewayClient, GrpcClient)


@asynccontextmanager
async def connected(url: str, rng: random.Random) -> AsyncGenerator[Client]:
    """Connect to a member, over gRPC or the gateway.

    Raises:
        TransportError, trio.TooSlowError: that fails.
    """
    client = rng.choice(_KINDS)(url)
    with trio.fail_after(ANSWER_S):
        await client.__aenter__()
    try:
        yield client
    finally:
        await client.__aexit__(None, None, None)
