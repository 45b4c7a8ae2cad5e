"""Fake members: listeners that answer the torture's clients from a dictionary, right or wrong."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import hiredis
import trio

from quorate.histories.specification import Strings
from quorate.local.cluster import HOST
from quorate.node.requests.status import MemberAddress

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from quorate.histories.history import Value

STRINGS = Strings()


class FakeStore:
    """A linearizable store of strings. A subclass breaks it.

    Args:
        state: keys and values.
    """

    def __init__(self, state: dict[bytes, bytes] | None = None) -> None:
        self.state = state or {}
        self.commands: int = 0

    def execute(self, name: str, key: bytes, args: list[bytes]) -> Value:
        """Execute a command as the specification says."""
        state, result = STRINGS.apply(self.state.get(key), name, tuple(args))
        if state is None:
            self.state.pop(key, None)
        else:
            self.state[key] = state
        return result

    async def answer(self, connection: FakeConnection, command: list[bytes]) -> bytes:
        """Return the reply to a command."""
        self.commands += 1
        match command:
            case [b"WATCH", key]:
                connection.watched.setdefault(key, self.state.get(key))
                return b"+OK\r\n"
            case [b"UNWATCH"]:
                connection.watched.clear()
                return b"+OK\r\n"
            case [b"MULTI"]:
                connection.queued = []
                return b"+OK\r\n"
            case [b"EXEC"]:
                return self._exec(connection)
            case [b"DBSIZE"]:
                return b":%d\r\n" % len(self.state)
            case [name, key, *args] if connection.queued is None:
                return encode(self.execute(name.decode().lower(), key, args))
            case [*_] if connection.queued is not None:
                connection.queued.append(command)
                return b"+QUEUED\r\n"
            case _:
                return b"+OK\r\n"

    def _exec(self, connection: FakeConnection) -> bytes:
        queued, connection.queued = connection.queued or [], None
        watched, connection.watched = connection.watched, {}
        if any(self.changed(key, value) for key, value in watched.items()):
            return b"*-1\r\n"
        replies = [self.execute(name.decode().lower(), k, args) for name, k, *args in queued]
        return b"*%d\r\n" % len(replies) + b"".join(map(encode, replies))

    def changed(self, key: bytes, value: bytes | None) -> bool:
        """Return whether a watched key has another value now."""
        return self.state.get(key) != value


class FakeConnection:
    """The state that a store keeps for one client."""

    def __init__(self) -> None:
        self.watched: dict[bytes, bytes | None] = {}
        self.queued: list[list[bytes]] | None = None


def encode(value: Value) -> bytes:
    match value:
        case None:
            return b"$-1\r\n"
        case int():
            return b":%d\r\n" % value
        case b"OK":
            return b"+OK\r\n"
        case _:
            return b"$%d\r\n%b\r\n" % (len(value), value)


@asynccontextmanager
async def serving(store: FakeStore) -> AsyncGenerator[MemberAddress]:
    """Serve a store as a member."""

    async def serve(stream: trio.SocketStream) -> None:
        reader = hiredis.Reader()
        connection = FakeConnection()
        try:
            async for data in stream:
                reader.feed(bytes(data))
                while (command := reader.gets()) is not False:
                    await stream.send_all(await store.answer(connection, command))
        except trio.BrokenResourceError:
            pass

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host=HOST)
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        yield MemberAddress(0, HOST, listener.socket.getsockname()[1])
        nursery.cancel_scope.cancel()
