"""Watches of a member of one's own program: through its restarts, by replays of its log."""

from pathlib import Path

import attrs
import pytest
import trio

from quorate import Change, NodeConfig, SnapshotPolicy, WatchLostError, local_configs, open_node

WITHIN = 20.0


async def first(config: NodeConfig, after: int, count: int) -> list[Change]:
    """Return the first changes after a position, by a watch of a member that has just started."""
    async with open_node(config) as node, node.kv.watch("", after=after) as changes:
        return [await anext(changes) for _ in range(count)]


async def test_a_watch_resumes_after_a_restart_of_its_member(tmp_path: Path) -> None:
    (config,) = local_configs(1, tmp_path)
    with trio.fail_after(WITHIN):
        async with open_node(config) as node, node.kv.watch("a/") as changes:
            began = changes.position
            for i in range(20):
                await node.kv.set(f"a/{i % 3}", b"%d" % i)
            seen = [await anext(changes) for _ in range(20)]
        assert [change.value for change in seen] == [b"%d" % i for i in range(20)]
        assert await first(config, began, 20) == seen
        assert await first(config, seen[4].position, 15) == seen[5:]
    assert not (config.directory / "replay").exists()


async def test_a_watch_resumes_from_the_oldest_snapshot_on(tmp_path: Path) -> None:
    (config,) = local_configs(1, tmp_path)
    policy = SnapshotPolicy(keep=1, margin_bytes=0)
    config = attrs.evolve(config, snapshot=policy)
    with trio.fail_after(WITHIN):
        async with open_node(config) as node:
            for i in range(10):
                await node.kv.increment("n", i)
            oldest = await node.snapshot()
            await node.kv.increment("n", 100)
        assert [change.value for change in await first(config, oldest, 1)] == [b"145"]
        with pytest.raises(WatchLostError) as lost:
            await first(config, 0, 1)
        assert (lost.value.after, lost.value.oldest) == (0, oldest)


async def test_the_first_watch_of_a_member_misses_nothing(tmp_path: Path) -> None:
    (config,) = local_configs(1, tmp_path)
    with trio.fail_after(WITHIN):
        async with open_node(config) as node:
            for i in range(5):
                await node.kv.set("a", b"%d" % i)
            async with node.kv.watch("", after=0) as all_of_it, node.kv.watch("") as later:
                await node.kv.set("a", b"5")
                assert [(await anext(all_of_it)).value for _ in range(6)] == [
                    b"%d" % i for i in range(6)
                ]
                assert (await anext(later)).value == b"5"
