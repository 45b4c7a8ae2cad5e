"""Calls of services without a protocol between."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio
from google.protobuf.message import Message

from quorate.etcd.services.table import STREAMS

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from tests.support.etcd_world import EtcdWorld


class Stream:
    """A call whose requests and replies are streams.

    Attributes:
        error: with which it has ended, if it has.
        ended: it has ended.
    """

    def __init__(self, world: EtcdWorld, path: str, kind: type[Message]) -> None:
        self._world = world
        self._path = path
        self._kind = kind
        self._requests, self._served = trio.open_memory_channel[Message](100)
        self._sent, self._replies = trio.open_memory_channel[bytes](0)
        self.error: Exception | None = None
        self.ended = trio.Event()

    async def run(self) -> None:
        """Serve the call."""
        try:
            await STREAMS[self._path](self._world.call, self._served, self)
        except Exception as error:  # noqa: BLE001 - a test looks at it
            self.error = error
        self.ended.set()

    async def send(self, reply: bytes) -> None:
        """Take a reply; it is the outlet."""
        await self._sent.send(reply)

    def ask(self, request: Message) -> None:
        """Send a request."""
        self._requests.send_nowait(request)

    def half_close(self) -> None:
        """Send no more requests."""
        self._requests.close()

    async def next(self) -> Message:
        """Return the next reply."""
        with trio.fail_after(60):
            return self._kind.FromString(await self._replies.receive())
