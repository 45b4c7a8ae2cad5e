"""A client of a watch stream, without a protocol between."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

import trio

from quorate.etcd.messages import rpc_pb2 as rpc
from quorate.etcd.watching.stream import WatchStream

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.support.etcd_world import EtcdWorld


class Watcher:
    """Sends requests and reads responses."""

    def __init__(self, stream: WatchStream) -> None:
        self.stream = stream

    @classmethod
    @contextmanager
    def opened(cls, world: EtcdWorld) -> Generator[Self]:
        """Open a stream."""
        with WatchStream(world.hub, world.backend.header) as stream:
            yield cls(stream)

    def create(self, key: bytes, end: bytes = b"", **more: Any) -> None:
        """Ask for a watch."""
        request = rpc.WatchCreateRequest(key=key, range_end=end, **more)
        self.stream.handle(rpc.WatchRequest(create_request=request))

    def cancel(self, watch_id: int) -> None:
        """End a watch."""
        request = rpc.WatchCancelRequest(watch_id=watch_id)
        self.stream.handle(rpc.WatchRequest(cancel_request=request))

    def progress(self) -> None:
        """Ask how far the stream is."""
        self.stream.handle(rpc.WatchRequest(progress_request=rpc.WatchProgressRequest()))

    async def next(self) -> rpc.WatchResponse:
        """Return the next response."""
        with trio.fail_after(5):
            return rpc.WatchResponse.FromString(await anext(self.stream))

    async def created(self, key: bytes, end: bytes = b"", **more: Any) -> int:
        """Make a watch and return its id."""
        self.create(key, end, **more)
        response = await self.next()
        assert response.created, response
        assert not response.canceled, response
        return response.watch_id

    async def events(self, revision: int) -> list[str]:
        """Return all events up to a revision, in short: `PUT key=value @revision`."""
        found: list[str] = []
        while not found or int(found[-1].split("@")[1].split()[0]) < revision:
            found += short(await self.next())
        return found

    async def is_silent(self) -> bool:
        """Whether there is nothing to read now."""
        with trio.move_on_after(1) as scope:
            await anext(self.stream)
        return scope.cancelled_caught


def short(response: rpc.WatchResponse) -> list[str]:
    """Return the events of a response, in short."""
    return [
        f"{rpc.Event.EventType.Name(event.type)} {event.kv.key.decode()}"
        f"{'=' + event.kv.value.decode() if event.kv.value else ''} @{event.kv.mod_revision}"
        f"{' was ' + event.prev_kv.value.decode() if event.HasField('prev_kv') else ''}"
        for event in response.events
    ]
