"""A full disk: the error says so, and nothing is lost."""

from pathlib import Path

import pytest
import trio

from quorate.errors import StoreFullError
from quorate.storage import ExecutorFactory, NodeState, ThreadExecutor, Write, verify
from quorate.storage.testing import InlineExecutor
from tests.support.storage_world import (
    batch_at,
    begin_term,
    files_limited_to,
    fill,
    open_store,
    running,
)

both = pytest.mark.parametrize("executor", [ThreadExecutor, InlineExecutor])


@both
async def test_a_full_disk_ends_the_run_and_loses_nothing(
    tmp_path: Path, executor: ExecutorFactory[Write]
) -> None:
    durable: list[int] = []
    store = open_store(tmp_path, executor)
    store.on_durable = durable.append
    with files_limited_to(1 << 20), pytest.RaisesGroup(StoreFullError, flatten_subgroups=True):
        async with running(store):
            await begin_term(store, 0)
            await store.save_node_state(NodeState(3, 1))
            while True:
                store.append(batch_at(store.submitted_position, size=50_000))
                await store.append_durably(batch_at(store.submitted_position, size=50_000))
    report = verify(tmp_path)
    assert report.ok
    assert report.bytes == store.append_position == durable[-1] > 500_000
    async with running(open_store(tmp_path)) as again:
        assert again.append_position == report.bytes
        assert again.node_state == NodeState(3, 1)
        await fill(again, 100)


async def test_a_full_disk_can_not_make_a_store(tmp_path: Path) -> None:
    with files_limited_to(4096), pytest.raises(StoreFullError):
        open_store(tmp_path)
    open_store(tmp_path).close()


async def test_waiting_for_a_write_ends_when_the_disk_is_full(tmp_path: Path) -> None:
    store = open_store(tmp_path, ThreadExecutor)
    outcomes: list[str] = []

    async def wait() -> None:
        try:
            await store.append_durably(batch_at(store.submitted_position, size=2 << 20))
        except trio.Cancelled:
            outcomes.append("cancelled")
            raise

    with files_limited_to(1 << 20), pytest.RaisesGroup(StoreFullError, flatten_subgroups=True):
        async with running(store), trio.open_nursery() as nursery:
            await begin_term(store, 0)
            nursery.start_soon(wait)
    assert outcomes == ["cancelled"]
    assert len(list(open_store(tmp_path).scan(0))) == 1
