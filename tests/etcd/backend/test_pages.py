"""A range of many keys is read in pages, and the client gets what one query returns."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from quorate.etcd.backend import pages
from quorate.etcd.codes import Code, EtcdError
from quorate.etcd.messages import rpc_pb2 as rpc
from quorate.etcd.messages.requests import Op, encode_request
from quorate.etcd.services.context import PortContext
from quorate.etcd.state import work
from tests.support.etcd_world import EtcdWorld, in_world

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

R = rpc.RangeRequest
ALL = b"\0"
DESCEND = R.SortOrder.DESCEND


@pytest.fixture(autouse=True)
def short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "PAGE_KEYS", 2)


async def fill(world: EtcdWorld) -> None:
    """Make 7 keys; one was put again, and one is gone."""
    for number in range(8):
        await world.put(b"k%d" % number, b"x" * number)
    await world.put(b"k3", b"again")
    await world.delete(b"k5")


RANGES = [
    R(key=b"k", range_end=b"l"),
    R(key=b"k", range_end=ALL, revision=8),
    R(key=b"k1", range_end=b"k7", limit=3),
    R(key=b"k", range_end=b"l", limit=7),
    R(key=b"k", range_end=b"l", limit=50, keys_only=True),
    R(key=b"k", range_end=b"l", serializable=True, sort_order=R.SortOrder.ASCEND),
    R(key=b"k", range_end=b"l", limit=5, revision=7),
]


@in_world
@pytest.mark.parametrize("request_", RANGES, ids=str)
async def test_pages_are_together_what_one_query_returns(
    world: EtcdWorld, request_: rpc.RangeRequest
) -> None:
    await fill(world)
    state, member = world.member.state, world.member
    payload = encode_request(Op.RANGE, request_.SerializeToString())
    whole = state.query(payload, member.now_ms())[9:]
    before = len(member.queries) + len(member.stale)
    _, body = await world.backend.ask(Op.RANGE, request_.SerializeToString())
    assert body == whole
    assert len(member.queries) + len(member.stale) >= before + 2


@in_world
@pytest.mark.parametrize(
    "request_",
    [
        R(key=b"k1"),
        R(key=b"k", range_end=b"k2"),
        R(key=b"k", range_end=b"l", limit=2),
        R(key=b"k", range_end=b"l", count_only=True),
        R(key=b"k", range_end=b"l", sort_order=DESCEND),
        R(key=b"k", range_end=b"l", sort_target=R.SortTarget.MOD),
        R(key=b"k", range_end=b"l", min_mod_revision=3),
    ],
    ids=str,
)
async def test_what_is_short_or_not_in_order_is_one_query(
    world: EtcdWorld, request_: rpc.RangeRequest
) -> None:
    await fill(world)
    assert not world.backend.is_long(Op.RANGE, request_.SerializeToString())
    assert not world.backend.is_long(Op.PUT, request_.SerializeToString())
    assert not world.backend.is_long(Op.RANGE, b"\xff")


async def ask_and_between(
    world: EtcdWorld, request: rpc.RangeRequest, between: Callable[[], Awaitable[None]]
) -> tuple[int, bytes]:
    """Read a range, and do something behind its first page."""
    asked = 0

    async def ask(op: Op, message: bytes) -> tuple[int, bytes]:
        nonlocal asked
        asked += 1
        if asked == 2:
            await between()
        return await world.backend.ask(op, message)

    return await pages.read_in_pages(ask, request)


@in_world
async def test_what_is_written_between_two_pages_is_not_in_them(world: EtcdWorld) -> None:
    await fill(world)
    request = R(key=b"k", range_end=b"l")
    before = await world.backend.ask(Op.RANGE, request.SerializeToString())

    async def between() -> None:
        await world.delete(b"k6")
        await world.put(b"k7", b"new")
        await world.put(b"k71")

    assert await ask_and_between(world, request, between) == before
    after = rpc.RangeResponse.FromString(
        (await world.backend.ask(Op.RANGE, request.SerializeToString()))[1]
    )
    assert [kv.key for kv in after.kvs][-2:] == [b"k7", b"k71"]


@in_world
@pytest.mark.parametrize("revision", [0, 10])
async def test_a_compaction_between_two_pages_is_seen_only_with_a_revision(
    world: EtcdWorld, revision: int
) -> None:
    await fill(world)
    request = R(key=b"k", range_end=b"l", revision=revision)

    async def between() -> None:
        await world.put(b"k0")
        await world.compact(12)

    if revision:
        with pytest.raises(EtcdError, match="has been compacted"):
            await ask_and_between(world, request, between)
    else:
        revision, body = await ask_and_between(world, request, between)
        assert (revision, rpc.RangeResponse.FromString(body).count) == (12, 7)


@in_world
async def test_a_range_is_bounded_as_if_it_were_one_query(world: EtcdWorld) -> None:
    await fill(world)
    message = R(key=b"k", range_end=b"l").SerializeToString()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(work, "MAX_STEPS", 7 * work.ROW_STEPS - 1)
        with pytest.raises(EtcdError, match="looks at too many keys") as caught:
            await world.backend.ask(Op.RANGE, message)
        assert caught.value.code is Code.RESOURCE_EXHAUSTED
        patch.setattr(work, "MAX_STEPS", 7 * work.ROW_STEPS)
        await world.backend.ask(Op.RANGE, message)
        patch.setattr(work, "MAX_REPLY_BYTES", 100)
        with pytest.raises(EtcdError, match="can read 100 bytes"):
            await world.backend.ask(Op.RANGE, message)


@in_world
async def test_a_call_over_grpc_leaves_a_long_range_to_a_task(world: EtcdWorld) -> None:
    await fill(world)
    context = PortContext(world.backend, world.hub)
    message = R(key=b"k", range_end=b"l").SerializeToString()
    assert world.backend.is_long(Op.RANGE, message)
    call = partial(context.call_direct, Op.RANGE, "", "/etcdserverpb.KV/Range")
    assert len(rpc.RangeResponse.FromString(await call(message)).kvs) == 7
