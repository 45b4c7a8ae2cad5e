"""A member inside a program: what a Node offers, and what a state machine of one's own needs."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

import quorate
from quorate.node import Service, SnapshotService
from quorate.objects import open_objects


class Count(quorate.SnapshotStateMachine):
    """How many commands came."""

    count = 0

    def apply(self, command: quorate.Command) -> bytes:
        self.count += 1
        return b"%d" % self.count

    def query(self, payload: bytes, flags: int) -> bytes:
        return b"%d" % self.count

    def dump(self) -> bytes:
        return b"%d" % self.count

    def restore(self, state: bytes) -> None:
        self.count = int(state)


class Echo(quorate.StateMachine):
    """The least that a state machine needs."""

    def apply(self, command: quorate.Command) -> bytes:
        return command.payload


@asynccontextmanager
async def three(directory: Path) -> AsyncGenerator[list[quorate.Node]]:
    async with AsyncExitStack() as stack:
        configs = quorate.local_configs(3, directory, profile="lan")
        yield [
            await stack.enter_async_context(quorate.open_node(config, Count()))
            for config in configs
        ]


def test_base_classes_are_services() -> None:
    for_type_checkers: tuple[Service, SnapshotService] = (Echo(), Count())
    assert for_type_checkers[0].query(b"", 0) == b""
    assert isinstance(Count(), SnapshotService)
    assert not isinstance(Echo(), SnapshotService)
    with pytest.raises(TypeError, match="abstract method"):
        quorate.StateMachine()  # type: ignore[abstract]


async def test_a_snapshot_of_several_pieces_is_loaded() -> None:
    class Text(Count):
        text = b"abc" * 1_000_000

        def dump(self) -> bytes:
            return self.text

        def restore(self, state: bytes) -> None:
            self.text = state

    one, other = Text(), Text()
    pieces = [*await one.save()]
    one.text, other.text = b"changed later", b""
    await other.load(iter(pieces), 0, 0)
    assert len(pieces) == 3
    assert other.text == b"abc" * 1_000_000


async def test_the_verbs_of_an_operator(tmp_path: Path) -> None:
    async with three(tmp_path) as nodes:
        leaders = [await node.wait_for_leader() for node in nodes]
        assert len({*leaders}) == 1
        leader, other, third = leaders[0], (leaders[0] + 1) % 3, (leaders[0] + 2) % 3
        assert await nodes[other].command(b"") == b"1"
        assert 0 < await nodes[other].snapshot() <= nodes[leader].status().snapshot_position
        assert await nodes[other].suspend() > 0
        with pytest.raises(quorate.RefusedError, match="suspended"):
            await nodes[third].command(b"")
        with pytest.raises(quorate.RefusedError, match="suspended already"):
            await nodes[third].suspend()
        assert await nodes[third].resume() > 0
        assert await nodes[third].command(b"") == b"2"
        with pytest.raises(quorate.RefusedError, match="founded already"):
            await nodes[leader].found(without=[other])
        with pytest.raises(quorate.RefusedError, match="transfer to '7'"):
            await nodes[leader].transfer(7)
        await nodes[third].transfer(other)
        with trio.fail_after(10):
            while await nodes[leader].wait_for_leader() != other:  # noqa: ASYNC110 - this node follows the old one, too
                await trio.sleep(0.01)
        async with trio.open_nursery() as nursery:
            for node in nodes:
                nursery.start_soon(node.wait)
            await nodes[leader].shutdown()
        for node in nodes:
            with trio.fail_after(5), pytest.raises(quorate.NoLeaderError, match="been stopped"):
                await node.command(b"+1")


async def test_a_node_says_what_it_is(tmp_path: Path) -> None:
    (config,) = quorate.local_configs(1, tmp_path, cluster="orders", profile="test")
    async with quorate.open_node(config) as node:
        assert await node.wait_for_leader() == 0
        assert repr(node) == "<Node 0 of 'orders': leader, CLOSED, term 0, leader 0>"
        assert repr(node.kv) == "<KeyValue on <Member 0 of 'orders'>>"
        assert {name for name in vars(node) if name[0] != "_"} == {"client_address"}


async def test_wait_for_leader_waits(tmp_path: Path) -> None:
    config = quorate.local_configs(3, tmp_path)[0]
    async with quorate.open_node(config, Echo()) as node:
        with trio.move_on_after(0.5) as scope:
            await node.wait_for_leader()
        assert scope.cancelled_caught


async def test_an_unknown_host_is_one_error(tmp_path: Path) -> None:
    (config,) = quorate.local_configs(1, tmp_path)
    lost = attrs.evolve(config, member_listen_host="no-such-host.invalid")
    with pytest.raises(OSError, match=r"(?i)name|resolution"):
        async with quorate.open_node(lost):
            pytest.fail("it runs")


def test_local_configs_are_found_again(tmp_path: Path) -> None:
    first = quorate.local_configs(3, tmp_path)
    assert quorate.local_configs(3, str(tmp_path)) == first
    assert [config.member_id for config in first] == [0, 1, 2]
    assert quorate.local_configs(3, tmp_path / "other", client_port=7000)[2].own.client_port == 7002
    for count in (0, 10):
        with pytest.raises(quorate.UsageError, match="expected 1 to 9"):
            quorate.local_configs(count, tmp_path / "wrong")


def test_on_asyncio_the_error_says_that_a_member_needs_trio(tmp_path: Path) -> None:
    config = quorate.local_configs(1, tmp_path)[0]

    async def main(opened: AbstractAsyncContextManager[quorate.Node]) -> None:
        async with opened:
            raise AssertionError

    for opened in (quorate.open_node(config), open_objects(config, [])):
        with pytest.raises(quorate.UsageError, match=r"in trio programs only: .* quorate\.connect"):
            asyncio.run(main(opened))
