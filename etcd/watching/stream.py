"""The watches of one client, and what waits to be sent to it.

A stream has any number of watches. What they are to send waits in one queue, from which the client
is served as fast as it reads. Rules, most of them etcd's:

**Order.** A watch sends the events of its keys in the order of revisions, each one once, none left
out. Between two watches of a stream there is no order.

**Atomic.** All events of a revision that a watch wants are in one response. Only a watch that has
asked for `fragment` gets large ones in parts. All of these except the last are marked.

**In step, or behind.** A watch that is in step gets the events from the hub at the moment they are
applied. A watch that begins in the past is behind; so is one whose events found the queue full. It
leaves the hub and is served from history: a slice at a time, in turn with the other watches that
are behind, and only when the queue is empty. So a client that does not read costs the member
`PENDING_BYTES`, however much it misses, and delays nobody. Once it has everything, it is in step.

**Compaction.** A watch that is behind and needs what is compacted is cancelled.

**Progress.** A response without events says that the client has everything up to its revision. It
goes through the queue like events, so it overtakes none; and a watch that is behind gets none.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final, Self

import trio

from ...node.protocol.signal import Signal
from ..messages import rpc_pb2 as rpc
from ..messages.wire import varint
from .watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .hub import WatchHub

__all__ = ["PENDING_BYTES", "PROGRESS_S", "SLICE_BYTES", "SLICE_REVISIONS", "WatchStream"]

PENDING_BYTES: Final = 1 << 20
"""Bytes that wait for one client before its watches fall behind. If smaller, short pauses of a
client cost reads of history; if larger, slow clients cost more memory."""

SLICE_BYTES: Final = 256 * 1024
"""Bytes of events after which a read of history ends; at least a revision is read. If smaller,
catching up takes more turns; if larger, each turn holds up other tasks."""

SLICE_REVISIONS: Final = 256
"""Revisions after which it ends as well, about a millisecond; the same trade-off."""

MAX_STREAM_WATCHES: Final = 10_000
"""Watches of one stream. If smaller, clients with many keys need more streams; if larger, one
client costs more memory, about 1 KB each."""

MAX_WATCHES: Final = 100_000
"""Watches of one member. If smaller, fewer clients can watch; if larger, they cost more memory, and
a change that all of them want holds up the member for longer, about 2 s for each million."""

FRAGMENT_BYTES: Final = 1536 * 1024
"""Size above which a response is split if the client allows it, as in etcd."""

PROGRESS_S: Final = 600.0
"""Seconds after which a watch that asked for it gets a sign of life, as in etcd."""

_RESPONSE_BYTES: Final = 128
"""What a response takes in the queue beside its bytes. Without it, a client that asks for progress
and never reads could have a hundred thousand wait, of eleven bytes each."""

_NO_ID: Final = -1  # of a watch that was not made, and of progress of a whole stream
_WATCH_ID: Final = b"\x10"  # tags of a response's fields
_FRAGMENT: Final = b"\x38\x01"
_EMPTY_RANGE: Final = "mvcc: watcher range is empty"
_TOO_MANY: Final = "etcdserver: too many watches"
_ID_IN_USE: Final = "mvcc: duplicate watch ID provided on the WatchStream"


class WatchStream:
    """The watches of one client. Leave its block to end them all.

    Iterate over it for the encoded responses, headers included; it never ends by itself.

    Args:
        hub: of the state that is watched.
        header: encodes a header from a revision, see `Backend.header`.

    Attributes:
        pending_bytes: that the responses take which wait.
    """

    def __init__(self, hub: WatchHub, header: Callable[[int], bytes]) -> None:
        self._hub = hub
        self._state = hub.state
        self._header = header
        self._watches: dict[int, Watch] = {}
        self._next_id = 0
        # Revision and body. The header is made last: its term must not be older than what the
        # client has seen in other replies.
        self._pending: deque[tuple[int, bytes]] = deque()
        self.pending_bytes = 0
        self._behind: OrderedDict[Watch, None] = OrderedDict()  # in the order of their turns
        self._progress_requested = False
        self._progress_at = trio.current_time() + PROGRESS_S
        self._filled = Signal()
        self._drained = Signal()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for watch in self._watches.values():
            self._hub.remove(watch)
        self._hub.watches -= len(self._watches)
        self._watches.clear()
        self._behind.clear()

    # --- requests

    def handle(self, request: rpc.WatchRequest) -> None:
        """Take a request of the client; what there is to say goes into the queue."""
        match request.WhichOneof("request_union"):
            case "create_request":
                self._create(request.create_request)
            case "cancel_request":
                self._cancel(request.cancel_request.watch_id)
            case "progress_request":
                self._progress_requested = True
                self._answer_progress()
            case None:
                pass

    def refuse(self, reason: str) -> None:
        """Answer a request for a watch that is not made."""
        response = rpc.WatchResponse(
            watch_id=_NO_ID, created=True, canceled=True, cancel_reason=reason
        )
        self._push(self._state.revision, response.SerializeToString())

    async def room(self) -> None:
        """Wait until there is room in the queue; call it before `handle`."""
        while self.pending_bytes >= PENDING_BYTES:
            await self._drained.wait()

    def _create(self, request: rpc.WatchCreateRequest) -> None:
        key, end = request.key or b"\0", request.range_end
        if end not in {b"", b"\0"} and end <= key:
            self.refuse(_EMPTY_RANGE)
            return
        if request.watch_id in self._watches and request.watch_id:
            self.refuse(_ID_IN_USE)
            return
        if len(self._watches) >= MAX_STREAM_WATCHES or self._hub.watches >= MAX_WATCHES:
            self.refuse(_TOO_MANY)
            return
        filters = request.filters
        revision = self._state.revision
        watch_id = request.watch_id or self._free_id()
        watch = Watch(
            watch_id,
            _WATCH_ID + varint(watch_id % 2**64) if watch_id else b"",
            key,
            None if end == b"\0" else end,
            request.start_revision or revision + 1,
            self._take,
            self._lag,
            puts=rpc.WatchCreateRequest.NOPUT not in filters,
            deletes=rpc.WatchCreateRequest.NODELETE not in filters,
            prev_kv=request.prev_kv,
            fragment=request.fragment,
            progress=request.progress_notify,
        )
        self._watches[watch.watch_id] = watch
        self._hub.watches += 1
        response = rpc.WatchResponse(watch_id=watch.watch_id, created=True)
        self._push(revision, response.SerializeToString())
        if watch.next_revision > revision:
            self._hub.add(watch)
        else:
            self._behind[watch] = None

    def _free_id(self) -> int:
        while self._next_id in self._watches:
            self._next_id += 1
        self._next_id += 1
        return self._next_id - 1

    def _cancel(self, watch_id: int) -> None:
        watch = self._watches.get(watch_id)
        # As in etcd, nothing is said of a watch that is not there.
        if watch is not None:
            self._end(watch)
            response = rpc.WatchResponse(watch_id=watch_id, canceled=True)
            self._push(self._state.revision, response.SerializeToString())
            self._answer_progress()

    def _end(self, watch: Watch) -> None:
        del self._watches[watch.watch_id]
        self._hub.watches -= 1
        self._hub.remove(watch)
        self._behind.pop(watch, None)

    # --- responses

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        while not self._pending:
            if self._behind and self._state.halted:
                await self._hub.readable()
            elif self._behind:
                self._read_history(next(iter(self._behind)))
                # Other tasks come between two slices, as other watches of this stream do.
                await trio.lowlevel.checkpoint()
            elif not await self._filled.wait(self._progress_at):
                self._send_progress()
        revision, body = self._pending.popleft()
        self.pending_bytes -= len(body) + _RESPONSE_BYTES
        self._drained.notify()
        return self._header(revision) + body

    def _push(self, revision: int, body: bytes) -> None:
        self._pending.append((revision, body))
        self.pending_bytes += len(body) + _RESPONSE_BYTES
        self._filled.notify()

    def _push_events(self, watch: Watch, revision: int, events: list[bytes]) -> None:
        watch.quiet = False
        parts = [*_split(events)] if watch.fragment else [events]
        for part in parts:
            mark = b"" if part is parts[-1] else _FRAGMENT
            self._push(revision, b"".join((watch.encoded_id, mark, *part)))

    # --- in step

    def _take(self, watch: Watch, revision: int, events: list[bytes]) -> None:
        # This runs while a batch is applied. What is large is put together later, in our own time.
        if self.pending_bytes + sum(map(len, events)) > PENDING_BYTES:
            self._lag(watch, revision)
        else:
            self._push_events(watch, revision, events)

    def _lag(self, watch: Watch, revision: int) -> None:
        self._hub.remove(watch)
        watch.next_revision = revision
        self._behind[watch] = None
        self._filled.notify()

    # --- behind

    def _read_history(self, watch: Watch) -> None:
        """Read a slice of history for the first watch that is behind."""
        self._behind.move_to_end(watch)
        if watch.next_revision < self._state.compacted:
            self._end(watch)
            # Below a negative revision nothing is compacted; etcd shows -1 then.
            compacted = self._state.compacted or -1
            response = rpc.WatchResponse(
                watch_id=watch.watch_id, canceled=True, compact_revision=compacted
            )
            # Without a revision, as in etcd: the client has nothing up to any.
            self._push(0, response.SerializeToString())
        else:
            events = self._slice(watch)
            in_step = watch.next_revision > self._state.revision
            if events:
                self._push_events(watch, watch.next_revision - 1, events)
            if in_step:
                del self._behind[watch]
                self._hub.add(watch)
        self._answer_progress()

    def _slice(self, watch: Watch) -> list[bytes]:
        """Return the next events of a watch, and move it on."""
        events: list[bytes] = []
        size, hub, revision = 0, self._hub, watch.next_revision
        stop = min(self._state.revision + 1, revision + SLICE_REVISIONS)
        while revision < stop and size < SLICE_BYTES:
            for change in hub.recent.of(revision):
                if watch.covers(change.key) and watch.wants(change):
                    events.append(hub.event(change, prev_kv=watch.prev_kv))
                    size += len(events[-1])
            revision += 1
        watch.next_revision = revision
        return events

    # --- progress

    def _answer_progress(self) -> None:
        if self._progress_requested and not self._behind:
            self._progress_requested = False
            response = rpc.WatchResponse(watch_id=_NO_ID)
            self._push(self._state.revision, response.SerializeToString())

    def _send_progress(self) -> None:
        """Send a sign of life to watches that have sent nothing for long."""
        self._progress_at = trio.current_time() + PROGRESS_S
        revision = self._state.revision
        for watch in self._watches.values():
            # One that begins in the future has not everything up to now, but nothing to have.
            if watch.progress and watch.quiet and watch not in self._behind:
                response = rpc.WatchResponse(watch_id=watch.watch_id)
                self._push(revision, response.SerializeToString())
            watch.quiet = True


def _split(events: list[bytes]) -> Iterator[list[bytes]]:
    """Split the events of a response into parts of `FRAGMENT_BYTES` with at least one event."""
    part: list[bytes] = []
    size = 0
    for event in events:
        if part and size + len(event) > FRAGMENT_BYTES:
            yield part
            part, size = [], 0
        part.append(event)
        size += len(event)
    if part:
        yield part
