"""What etcd promises of watches, under random changes, compactions, snapshots and slow clients.

Ordered, unique, atomic, reliable, resumable, bookmarkable; filters, `prev_kv` and "is create" hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest.mock import patch

import attrs
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from quorate.etcd.messages import rpc_pb2 as rpc
from quorate.etcd.messages.requests import Op, encode_request
from quorate.etcd.state.machine import EtcdState
from quorate.etcd.watching import recent
from quorate.etcd.watching import stream as stream_module
from quorate.keyvalue.protocol.payload import ETCD
from quorate.node.state_machine.service import Command
from tests.support.etcd_world import DictTables, EtcdWorld

from .watcher import Watcher

if TYPE_CHECKING:
    from collections.abc import Sequence

KEYS = st.sampled_from([b"a", b"ab", b"b", b"ba", b"c"])
WRITES = st.tuples(st.sampled_from(["put", "delete"]), KEYS, st.integers(0, 40))
STEPS = st.one_of(
    st.tuples(st.just("write"), st.lists(WRITES, min_size=1, max_size=3, unique_by=lambda w: w[1])),
    st.tuples(
        st.just("watch"),
        st.fixed_dictionaries(
            {
                "key": st.one_of(KEYS, st.just(b"")),
                "range_end": st.sampled_from([b"", b"\0", b"b", b"c"]),
                "start_revision": st.integers(0, 12),
                "prev_kv": st.booleans(),
                "filters": st.sampled_from([[], [0], [1]]),
            }
        ),
    ),
    st.tuples(st.just("read"), st.integers(1, 6)),
    st.tuples(st.just("progress"), st.none()),
    st.tuples(st.just("compact"), st.integers(0, 3)),
    st.tuples(st.just("snapshot"), st.lists(WRITES, max_size=3)),
)


@attrs.define
class Followed:
    """What one watch has sent, and its request."""

    request: rpc.WatchCreateRequest
    start: int
    cancelled: int = 0
    last: int = 0
    events: list[rpc.Event] = attrs.field(factory=list[rpc.Event])


class Run:
    """One random run with a client that is sometimes slow."""

    def __init__(self, world: EtcdWorld, watcher: Watcher, tables: DictTables) -> None:
        self.world = world
        self.watcher = watcher
        self.tables = tables
        self.history: list[rpc.Event] = []  # with prev_kv, as far as it was not compacted
        self.now: dict[bytes, rpc.KeyValue] = {}
        self.asked: list[rpc.WatchCreateRequest] = []
        self.watches: dict[int, Followed] = {}

    async def step(self, name: str, argument: object) -> None:
        await getattr(self, f"do_{name}")(argument)

    async def do_write(self, writes: Sequence[tuple[str, bytes, int]]) -> None:
        self.apply(self.world.member.state, writes)

    async def do_snapshot(self, writes: Sequence[tuple[str, bytes, int]]) -> None:
        # Another member applies something, and its snapshot is loaded here.
        other = EtcdState(self.tables)
        for write in writes:
            self.apply(other, [write])
        self.world.member.state.reload()

    def apply(self, state: EtcdState, writes: Sequence[tuple[str, bytes, int]]) -> None:
        ops: list[rpc.RequestOp] = []
        revision = state.revision + 1
        for kind, key, size in writes:
            before = self.now.get(key)
            if kind == "put":
                put = rpc.PutRequest(key=key, value=b"v" * size)
                ops.append(rpc.RequestOp(request_put=put))
                kv = rpc.KeyValue(key=key, value=put.value, mod_revision=revision)
                kv.create_revision = before.create_revision if before else revision
                kv.version = before.version + 1 if before else 1
                self.history.append(rpc.Event(kv=kv, prev_kv=before))
                self.now[key] = kv
            else:
                delete = rpc.DeleteRangeRequest(key=key)
                ops.append(rpc.RequestOp(request_delete_range=delete))
                if before:
                    kv = rpc.KeyValue(key=key, mod_revision=revision)
                    event = rpc.Event(type=rpc.Event.DELETE, kv=kv, prev_kv=before)
                    self.history.append(event)
                    del self.now[key]
        payload = encode_request(Op.TXN, rpc.TxnRequest(success=ops).SerializeToString())
        now_ms = self.world.member.now_ms()
        state.apply(Command(payload, ETCD, 0, 0, 4, 0, 0, now_ms), now_ms)

    async def do_watch(self, arguments: dict[str, object]) -> None:
        request = rpc.WatchCreateRequest(**arguments)  # type: ignore[arg-type] # drawn
        self.asked.append(request)
        self.watcher.stream.handle(rpc.WatchRequest(create_request=request))

    async def do_progress(self, _nothing: None) -> None:
        self.watcher.progress()

    async def do_compact(self, back: int) -> None:
        state = self.world.member.state
        if (revision := state.revision - back) > state.compacted:
            await self.world.compact(revision)

    async def do_read(self, count: int) -> None:
        for _ in range(count):
            with trio.move_on_after(0.1) as scope:
                response = rpc.WatchResponse.FromString(await anext(self.watcher.stream))
                self.check(response)
            if scope.cancelled_caught:
                break

    def check(self, response: rpc.WatchResponse) -> None:
        revision = response.header.revision
        if response.created:
            request = self.asked.pop(0)
            if not response.canceled:
                start = request.start_revision or revision + 1
                self.watches[response.watch_id] = Followed(request, start)
        elif response.canceled:
            self.watches[response.watch_id].cancelled = response.compact_revision
        elif response.watch_id == -1:
            for watch in self.watches.values():
                self.check_complete(watch, revision)
        else:
            watch = self.watches[response.watch_id]
            assert response.events
            # Atomic and ordered: no revision is in two responses, or after a later one.
            assert response.events[0].kv.mod_revision > watch.last
            watch.events += response.events
            watch.last = response.events[-1].kv.mod_revision
            self.check_complete(watch, revision)

    def check_complete(self, watch: Followed, revision: int) -> None:
        """Check that a watch has sent all that it wants up to a revision, once and in order."""
        if watch.cancelled:
            return
        expected = [event for event in self.history if wants(watch, event, revision)]
        assert len(watch.events) == len(expected)
        for found, event in zip(watch.events, expected, strict=True):
            assert (found.type, found.kv) == (event.type, event.kv)
            if not watch.request.prev_kv:
                assert not found.HasField("prev_kv")
            elif found.HasField("prev_kv") or not self.world.member.state.compacted:
                assert found.prev_kv == event.prev_kv


def wants(watch: Followed, event: rpc.Event, revision: int) -> bool:
    request = watch.request
    key, begin, end = event.kv.key, request.key or b"\0", request.range_end
    inside = key == begin if not end else begin <= key and (end == b"\0" or key < end)
    filtered = (1 if event.type == rpc.Event.DELETE else 0) in request.filters
    return inside and not filtered and watch.start <= event.kv.mod_revision <= revision


@given(st.lists(STEPS, max_size=30), st.sampled_from([50, 400, 1 << 20]))
def test_watches_are_ordered_unique_atomic_and_reliable(
    steps: list[tuple[str, object]], pending: int
) -> None:
    async def main() -> None:
        tables = DictTables()
        async with EtcdWorld.opened(tables) as world:
            with Watcher.opened(world) as watcher:
                run = Run(world, watcher, tables)
                for name, argument in steps:
                    await run.step(name, argument)
                await run.step("progress", None)
                await run.step("read", 200)
                for watch in run.watches.values():
                    run.check_complete(watch, world.member.state.revision)
                assert not run.asked

    with (
        patch.object(stream_module, "PENDING_BYTES", pending),
        patch.object(stream_module, "SLICE_BYTES", pending),
        patch.object(stream_module, "SLICE_REVISIONS", 3),
        patch.object(recent, "RECENT_REVISIONS", 2),
    ):
        trio.run(main, clock=MockClock(autojump_threshold=0))
