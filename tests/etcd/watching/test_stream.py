"""What a watch stream sends, and in which order."""

from unittest.mock import patch

import attrs
import pytest
import trio

from quorate.etcd.codes import EtcdError
from quorate.etcd.messages import rpc_pb2 as rpc
from quorate.etcd.messages.requests import Op
from quorate.etcd.watching import stream
from quorate.etcd.watching.stream import FRAGMENT_BYTES, PENDING_BYTES, PROGRESS_S
from tests.support.etcd_world import DictTables, EtcdWorld, in_world

from .watcher import Watcher, short

ALL = b"\0", b"\0"  # the range of all keys


async def transaction(world: EtcdWorld, *puts: tuple[bytes, bytes]) -> int:
    ops = [rpc.RequestOp(request_put=rpc.PutRequest(key=key, value=value)) for key, value in puts]
    reply = await world.ask(Op.TXN, rpc.TxnRequest(success=ops), rpc.TxnResponse)
    return reply.header.revision


@in_world
async def test_a_watch_gets_changes_from_the_moment_of_its_creation(world: EtcdWorld) -> None:
    await world.put(b"a", b"0")
    with Watcher.opened(world) as watcher:
        watcher.create(b"a")
        created = await watcher.next()
        assert (created.created, created.watch_id, created.header.revision) == (True, 0, 2)
        await world.put(b"a", b"1")
        await world.put(b"b", b"2")
        await world.delete(b"a")
        first = await watcher.next()
        assert (short(first), first.header.revision) == (["PUT a=1 @3"], 3)
        assert first.events[0].kv.create_revision == 2
        assert short(await watcher.next()) == ["DELETE a @5"]
        assert await watcher.is_silent()


@in_world
async def test_a_watch_of_the_past_gets_history_and_then_what_happens(world: EtcdWorld) -> None:
    for n in range(3):
        await world.put(b"a", b"%d" % n)
    with Watcher.opened(world) as watcher:
        await watcher.created(b"a", start_revision=3)
        history = await watcher.next()
        assert (short(history), history.header.revision) == (["PUT a=1 @3", "PUT a=2 @4"], 4)
        await world.put(b"a", b"3")
        assert short(await watcher.next()) == ["PUT a=3 @5"]


@pytest.mark.parametrize("bound", ["MAX_STREAM_WATCHES", "MAX_WATCHES"])
@in_world
async def test_too_many_watches_are_refused(world: EtcdWorld, bound: str) -> None:
    with patch.object(stream, bound, 2), Watcher.opened(world) as watcher:
        first = await watcher.created(b"a")
        await watcher.created(b"a", start_revision=1)
        watcher.create(b"c")
        refused = await watcher.next()
        assert (refused.created, refused.canceled, refused.watch_id) == (True, True, -1)
        assert refused.cancel_reason == "etcdserver: too many watches"
        # One that ends makes room for one.
        watcher.cancel(first)
        assert (await watcher.next()).canceled
        await watcher.created(b"c")
        with Watcher.opened(world) as other:
            other.create(b"d")
            assert (await other.next()).canceled == (bound == "MAX_WATCHES")
    # A stream that ends makes room for all of its own.
    assert world.hub.watches == 0


@in_world
async def test_a_watch_of_the_future_gets_nothing_earlier(world: EtcdWorld) -> None:
    with Watcher.opened(world) as watcher:
        await watcher.created(b"a", start_revision=4)
        for n in range(2, 6):
            await world.put(b"a", b"%d" % n)
        assert await watcher.events(5) == ["PUT a=4 @4", "PUT a=5 @5"]


@pytest.mark.parametrize(
    ("key", "end", "seen"),
    [
        (b"b", b"", "b"),
        (b"b", b"c", "b ba"),
        (b"b", b"\0", "b ba c"),
        (b"", b"\0", "a b ba c"),
        (b"a", b"ba", "a b"),
    ],
)
@pytest.mark.parametrize("past", [False, True])
@in_world
async def test_a_watch_covers_a_key_or_a_range(
    world: EtcdWorld, key: bytes, end: bytes, seen: str, *, past: bool
) -> None:
    with Watcher.opened(world) as watcher:
        if not past:
            await watcher.created(key, end)
        for each in (b"a", b"b", b"ba", b"c"):
            await world.put(each)
        if past:
            await watcher.created(key, end, start_revision=1)
        watcher.progress()
        found: list[str] = []
        while (response := await watcher.next()).watch_id != -1:
            found += [event.kv.key.decode() for event in response.events]
        assert found == seen.split()


@in_world
async def test_an_empty_range_is_refused_in_one_response(world: EtcdWorld) -> None:
    with Watcher.opened(world) as watcher:
        for key, end in ((b"b", b"a"), (b"b", b"b")):
            watcher.create(key, end)
            refused = await watcher.next()
            assert (refused.created, refused.canceled, refused.watch_id) == (True, True, -1)
            assert refused.cancel_reason == "mvcc: watcher range is empty"
            assert refused.header.revision == 1


@in_world
async def test_ids_count_from_0_and_pass_over_those_of_the_client(world: EtcdWorld) -> None:
    with Watcher.opened(world) as watcher:
        assert await watcher.created(b"a") == 0
        assert await watcher.created(b"a", watch_id=2) == 2
        assert [await watcher.created(b"a") for _ in range(2)] == [1, 3]
        watcher.create(b"a", watch_id=2)
        refused = await watcher.next()
        assert refused.cancel_reason == "mvcc: duplicate watch ID provided on the WatchStream"
        assert (refused.watch_id, refused.created, refused.canceled) == (-1, True, True)
        await world.put(b"a")
        assert [(await watcher.next()).watch_id for _ in range(4)] == [0, 2, 1, 3]


@in_world
async def test_filters_leave_out_puts_or_deletions(world: EtcdWorld) -> None:
    with Watcher.opened(world) as watcher:
        kinds = rpc.WatchCreateRequest
        await watcher.created(b"a", filters=[kinds.NOPUT])
        await watcher.created(b"a", filters=[kinds.NODELETE])
        await watcher.created(b"a", filters=[kinds.NOPUT, kinds.NODELETE])
        await world.put(b"a", b"1")
        await world.delete(b"a")
        watcher.create(b"a", filters=[kinds.NOPUT], start_revision=1, watch_id=7)
        watcher.progress()
        found: list[tuple[int, list[str]]] = []
        while (response := await watcher.next()).watch_id != -1:
            found += [(response.watch_id, short(response))] if response.events else []
        expected = [(1, ["PUT a=1 @2"]), (0, ["DELETE a @3"]), (7, ["DELETE a @3"])]
        assert found == expected


@in_world
async def test_prev_kv_is_what_a_key_was_before(world: EtcdWorld) -> None:
    await world.put(b"a", b"0")
    with Watcher.opened(world) as watcher:
        await watcher.created(b"a", prev_kv=True)
        await world.put(b"a", b"1")
        await world.delete(b"a")
        await world.put(b"a", b"2")
        expected = ["PUT a=1 @3 was 0", "DELETE a @4 was 1", "PUT a=2 @5"]
        assert await watcher.events(5) == expected
        await watcher.created(b"a", prev_kv=True, start_revision=3)
        assert await watcher.events(5) == expected


@in_world
async def test_all_events_of_a_revision_are_in_one_response(world: EtcdWorld) -> None:
    with Watcher.opened(world) as watcher:
        await watcher.created(*ALL)
        await transaction(world, (b"a", b"1"), (b"b", b"2"))
        assert short(await watcher.next()) == ["PUT a=1 @2", "PUT b=2 @2"]


@in_world
async def test_a_watch_below_the_compaction_is_cancelled(world: EtcdWorld) -> None:
    for n in range(4):
        await world.put(b"a", b"%d" % n)
    await world.compact(4)
    with Watcher.opened(world) as watcher:
        await watcher.created(b"a", start_revision=3)
        ended = await watcher.next()
        assert (ended.canceled, ended.compact_revision, ended.created) == (True, 4, False)
        # The client has nothing up to any revision.
        assert (ended.header.revision, bool(ended.header.cluster_id)) == (0, True)
        await watcher.created(b"a", start_revision=4)
        assert await watcher.events(5) == ["PUT a=2 @4", "PUT a=3 @5"]


@in_world
async def test_a_watch_from_a_negative_revision_is_cancelled(world: EtcdWorld) -> None:
    with Watcher.opened(world) as watcher:
        await watcher.created(b"a", start_revision=-5)
        ended = await watcher.next()
        assert (ended.canceled, ended.compact_revision) == (True, -1)


@in_world
async def test_a_cancelled_watch_says_so_and_is_silent(world: EtcdWorld) -> None:
    with Watcher.opened(world) as watcher:
        await watcher.created(b"a")
        await world.put(b"a", b"1")
        watcher.cancel(0)
        watcher.cancel(5)
        assert short(await watcher.next()) == ["PUT a=1 @2"]
        ended = await watcher.next()
        assert (ended.canceled, ended.watch_id, ended.header.revision) == (True, 0, 2)
        await world.put(b"a", b"2")
        assert await watcher.is_silent()
        assert world.hub.count == 0


@in_world
async def test_a_slow_client_gets_everything_once_with_bounded_memory(world: EtcdWorld) -> None:
    value = b"x" * 10_000
    with Watcher.opened(world) as watcher, Watcher.opened(world) as quick:
        await watcher.created(b"k", b"l")
        await quick.created(b"k")
        for n in range(1, 400):
            await world.put(b"k", b"%d " % n + value)
            assert watcher.stream.pending_bytes <= PENDING_BYTES + len(value)
            assert (await quick.next()).header.revision == n + 1
        seen: list[int] = []
        while len(seen) < 399:
            response = await watcher.next()
            seen += [event.kv.mod_revision for event in response.events]
            assert response.header.revision >= seen[-1]
        assert seen == [*range(2, 401)]
        await world.put(b"k", b"last")
        assert short(await watcher.next()) == ["PUT k=last @401"]


@in_world
async def test_a_client_that_asks_for_progress_and_never_reads_waits(world: EtcdWorld) -> None:
    with Watcher.opened(world) as watcher:
        asked = 0
        with trio.move_on_after(0):
            while asked < 20_000:
                await watcher.stream.room()
                watcher.progress()
                asked += 1
        assert 1000 < asked < 10_000


@in_world
async def test_watches_that_are_behind_take_turns(world: EtcdWorld) -> None:
    for n in range(100):
        await world.put(b"k", b"%d " % n + b"x" * 20_000)
    with Watcher.opened(world) as watcher:
        for _ in range(3):
            watcher.create(b"k", start_revision=2)
        turns = [(await watcher.next()).watch_id for _ in range(3 + 9)]
        assert turns[3:] == [0, 1, 2] * 3


@in_world
async def test_a_compaction_ends_a_watch_that_is_too_far_behind(world: EtcdWorld) -> None:
    with Watcher.opened(world) as watcher:
        await watcher.created(b"k")
        for _ in range(130):
            await world.put(b"k", b"x" * 10_000)
        await world.compact(131)
        while not (response := await watcher.next()).canceled:
            assert response.events
        assert response.compact_revision == 131


@in_world
async def test_progress_comes_after_all_events(world: EtcdWorld) -> None:
    await world.put(b"k", b"1")
    with Watcher.opened(world) as watcher:
        watcher.create(b"k", start_revision=1)
        watcher.create(b"j")
        watcher.progress()
        await world.put(b"j", b"2")
        for _ in range(2):
            assert (await watcher.next()).created
        assert short(await watcher.next()) == ["PUT j=2 @3"]
        assert short(await watcher.next()) == ["PUT k=1 @2"]
        progress = await watcher.next()
        assert (progress.watch_id, progress.header.revision) == (-1, 3)
        assert not progress.events


@in_world
async def test_quiet_watches_give_a_sign_of_life_if_asked_to(world: EtcdWorld) -> None:
    with Watcher.opened(world) as watcher:
        await watcher.created(b"a", progress_notify=True)
        await watcher.created(b"b", progress_notify=True)
        await watcher.created(b"c")
        await world.put(b"b", b"1")
        assert short(await watcher.next()) == ["PUT b=1 @2"]
        began = trio.current_time()
        with trio.fail_after(2 * PROGRESS_S):
            raw = await anext(watcher.stream)
        sign = rpc.WatchResponse.FromString(raw)
        assert trio.current_time() - began == pytest.approx(PROGRESS_S)
        assert (sign.watch_id, sign.header.revision, len(sign.events)) == (0, 2, 0)
        assert await watcher.is_silent()


@in_world
async def test_a_large_revision_is_split_for_those_that_ask_for_it(world: EtcdWorld) -> None:
    keys = [b"k%d" % n for n in range(5)]
    for key in keys:
        await world.put(key, b"x" * 1_000_000)
    with Watcher.opened(world) as watcher:
        await watcher.created(b"k", b"l", prev_kv=True, fragment=True)
        await watcher.created(b"k", b"l", prev_kv=True)
        await world.delete(b"k", b"l")
        parts = [await watcher.next() for _ in range(6)]
        assert [(each.watch_id, each.fragment) for each in parts] == [
            *[(0, True)] * 4,
            (0, False),
            (1, False),
        ]
        assert all(each.ByteSize() < FRAGMENT_BYTES for each in parts[:5])
        assert [event.kv.key for part in parts[:5] for event in part.events] == keys
        assert [event.kv.key for event in parts[5].events] == keys


@in_world
async def test_requests_wait_while_the_client_does_not_read(world: EtcdWorld) -> None:
    with Watcher.opened(world) as watcher:
        await watcher.created(b"k")
        await watcher.stream.room()
        for _ in range(3):
            await world.put(b"k", b"x" * 400_000)
            watcher.stream.refuse("x" * 400_000)
        with trio.move_on_after(1) as scope:
            await watcher.stream.room()
        assert scope.cancelled_caught
        for _ in range(3):
            await watcher.next()
        with trio.fail_after(1):
            await watcher.stream.room()


@in_world
async def test_a_term_is_told_as_of_the_sending(world: EtcdWorld) -> None:
    with Watcher.opened(world) as watcher:
        await watcher.created(b"k")
        await world.put(b"k")
        world.member.topology = attrs.evolve(world.member.topology, term=9)
        assert (await watcher.next()).header.raft_term == 10, "ours and one more"


@in_world
async def test_a_closed_stream_leaves_nothing_in_the_hub(world: EtcdWorld) -> None:
    with Watcher.opened(world) as watcher:
        await watcher.created(b"k")
        await watcher.created(b"k", b"l")
        await watcher.created(b"k", b"\0")
        assert world.hub.count == 3
    assert world.hub.count == 0


@in_world
async def test_nothing_is_read_while_a_snapshot_is_loaded(world: EtcdWorld) -> None:
    await world.put(b"k", b"1")
    with Watcher.opened(world) as watcher:
        await watcher.created(b"k", start_revision=2)
        tables = world.member.state._tables  # pyright: ignore[reportPrivateUsage]
        assert isinstance(tables, DictTables)
        rows = dict(tables.rows_by_key)
        world.member.state.halt()
        # As in the midst of a load: the index is the old one, and the rows are gone.
        tables.rows_by_key.clear()
        read = rpc.RangeRequest(key=b"k", serializable=True)
        with pytest.raises(EtcdError, match="loading a snapshot"):
            await world.ask(Op.RANGE, read, rpc.RangeResponse)
        with pytest.raises(EtcdError, match="loading a snapshot"):
            world.member.state.changes_of(2)
        watcher.progress()
        with trio.move_on_after(3) as scope:
            await anext(watcher.stream)
        assert scope.cancelled_caught
        tables.rows_by_key.update(rows)
        world.member.state.reload()
        assert await watcher.events(2) == ["PUT k=1 @2"]
        assert (await world.ask(Op.RANGE, read, rpc.RangeResponse)).count == 1
