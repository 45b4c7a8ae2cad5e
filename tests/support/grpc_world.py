"""The server of gRPC over a stream in memory, in front of a backend that a test scripts."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import attrs
import trio
import trio.testing

from quorate.etcd.backend.caller import ANYBODY, Caller
from quorate.etcd.codes import EtcdError
from quorate.etcd.grpc.server import serve
from quorate.etcd.messages.requests import Op, is_command
from quorate.etcd.services.context import PortContext, Users
from quorate.etcd.services.stopping import Stopping
from quorate.node.requests.request import COMMAND, QUERY, RequestKind

from .grpc_client import GrpcClient

__all__ = ["GrpcWorld", "ScriptedBackend", "Submitted"]


@attrs.define
class Submitted:
    """A request that has reached the backend."""

    op: Op
    message: bytes
    done: Callable[[bytes | EtcdError], None]
    principal: int
    kind: RequestKind
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True
        self.done = lambda _result: None


class ScriptedBackend:
    """Answers at once by `reply`, or keeps requests until a test answers them."""

    def __init__(self) -> None:
        self.has_leader = True
        self.requests: list[Submitted] = []
        self.reply: Callable[[Op, bytes], bytes | EtcdError] | None = lambda _op, message: message

    def submit(
        self,
        op: Op,
        message: bytes,
        done: Callable[[bytes | EtcdError], None],
        *,
        caller: Caller = ANYBODY,
    ) -> Submitted | None:
        if self.reply is not None:
            done(self.reply(op, message))
            return None
        kind = COMMAND if is_command(op) else QUERY
        self.requests.append(Submitted(op, message, done, caller.principal, kind))
        return self.requests[-1]

    async def call(self, op: Op, message: bytes, *, caller: Caller) -> bytes:
        """Answer with the message, and who has sent it."""
        del op
        await trio.lowlevel.checkpoint()
        return b"%b of %d" % (message, caller.principal)


@attrs.define
class GrpcWorld:
    client: GrpcClient
    backend: ScriptedBackend
    stop: Callable[[], None]
    stopping: Stopping
    sends: list[int]
    """Length of each piece that the server has sent."""

    @classmethod
    @asynccontextmanager
    async def opened(cls, users: Users | None = None) -> AsyncGenerator["GrpcWorld"]:
        near, far = trio.testing.memory_stream_pair()
        backend, sends = ScriptedBackend(), list[int]()
        context = PortContext(cast("Any", backend), cast("Any", None))
        if users is not None:
            context = attrs.evolve(context, users=users)
        send_all = far.send_all

        async def counted(data: bytes | bytearray | memoryview) -> None:
            sends.append(len(data))
            await send_all(data)

        far.send_all = counted  # type: ignore[method-assign]
        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()

            async def run() -> None:
                with scope:
                    await serve(far, context)
                await far.aclose()

            nursery.start_soon(run)
            world = cls(GrpcClient(near), backend, scope.cancel, context.stopping, sends)
            await world.client.turn()
            yield world
            nursery.cancel_scope.cancel()
