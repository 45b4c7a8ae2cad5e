"""Whatever is done to the tables, they are a dictionary, and the disk is one of a moment ago."""

import tempfile
from pathlib import Path
from typing import cast

import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from quorate.storage.tables.memtable import stored_key
from quorate.storage.tables.tables import Tables
from tests.support.storage_world import running
from tests.support.tables_world import Disk, contents, open_tables, record

KEYS = [b"", b"a", b"b", b"ab", b"c" * 479, b"c" * 480, b"c" * 900, b"\xff"]

keys = st.sampled_from(KEYS)
many = st.lists(st.tuples(keys, st.binary(max_size=4)), max_size=6)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), keys, st.binary(max_size=4), st.integers(0, 3)),
        st.tuples(st.just("put"), keys, st.binary(max_size=4), st.integers(0, 3)),
        st.tuples(st.just("put many"), many),
        st.tuples(st.just("delete"), keys),
        st.tuples(st.just("clear")),
        st.tuples(st.just("advance")),
        st.tuples(st.just("cut")),
        st.tuples(st.just("cut")),
        st.tuples(st.just("flush")),
        st.tuples(st.just("wait"), st.sampled_from([0.1, 0.6])),
        st.tuples(st.just("crash")),
        st.tuples(st.just("reopen")),
        st.tuples(st.just("count")),
        st.tuples(st.just("put"), st.just(b"a"), st.just(b"a"), st.just(0)),
    ),
    max_size=40,
)

Model = dict[bytes, tuple[bytes, int]]


class World:
    """Tables on a disk that takes half a second for each flush, and what should be in them."""

    def __init__(self, directory: Path, *, counting: bool) -> None:
        self.directory = directory
        self.model: Model = {}
        self.settled: Model = {}  # at the last batch boundary
        self.at_position: dict[int, Model] = {0: {}}
        self.position = 0
        self.counting = counting

    async def live(self, rest: list[tuple[object, ...]]) -> None:
        """Do steps until the tables are closed or no steps are left."""
        disk = Disk(latency=0.5)
        async with running(open_tables(self.directory, disk)) as tables:
            self.position = tables.position
            self.settled = self.at_position[tables.position]
            self.model = dict(self.settled)
            self.check(tables)
            async with trio.open_nursery() as nursery:
                while rest:
                    name, *arguments = rest.pop(0)
                    if name in ("crash", "reopen"):
                        if name == "crash":
                            disk.cut_power()
                        break
                    if name in ("cut", "flush"):
                        if name == "cut":
                            self.do(tables, "advance", [])
                        nursery.start_soon(tables.flush)
                        await trio.testing.wait_all_tasks_blocked()
                    elif name == "wait":
                        await trio.sleep(float(str(arguments[0])))
                    else:
                        self.do(tables, str(name), arguments)
                    self.check(tables)
                nursery.cancel_scope.cancel()

    def do(self, tables: Tables, name: str, arguments: list[object]) -> None:
        match name, arguments:
            case "put", [bytes(key), bytes(value), int(deadline)]:
                tables.put(key, record(value, deadline))
                self.model[key] = (value, deadline)
            case "put many", _:
                pairs = cast("list[tuple[bytes, bytes]]", arguments[0])
                for key, value in pairs:
                    tables.put(key, record(value))
                self.model |= {key: (value, 0) for key, value in pairs}
            case "delete", [bytes(key)]:
                tables.delete(key)
                self.model.pop(key, None)
            case "clear", []:
                tables.clear()
                self.model.clear()
            case "advance", []:
                self.position += 32
                self.settled = self.at_position[self.position] = dict(self.model)
                tables.advance(self.position, self.position)
            case _:
                assert len(tables) == len(self.model)

    def check(self, tables: Tables) -> None:
        expected = {key: value for key, (value, _) in self.model.items()}
        if self.counting:
            assert len(tables) == len(expected)
        assert contents(tables) == expected
        assert [key for key, _ in tables.scan(None, 99)] == sorted(expected, key=stored_key)
        deadlines = {key: deadline for key, (_, deadline) in self.model.items() if deadline}
        assert tables.deadlines.by_key == deadlines
        assert tables.deadlines.first() == min(deadlines.values(), default=None)


@given(rest=steps, counting=st.booleans())
def test_tables_are_a_dictionary_and_the_disk_is_at_a_batch_boundary(
    rest: list[tuple[object, ...]], *, counting: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), counting=counting)

        async def main() -> None:
            while rest:
                await world.live(rest)
            async with running(open_tables(world.directory)) as tables:
                assert tables.position in world.at_position
                world.model = dict(world.at_position[tables.position])
                world.check(tables)
                assert len(tables) == len(world.model)

        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def held(tables: Tables) -> list[object]:
    """Everything that changes of what is in memory."""
    layer, deadlines = tables._layer, tables.deadlines  # pyright: ignore[reportPrivateUsage]
    return [
        (layer.present, layer.bytes, list(layer.fresh), list(layer.records.items())),
        (list(deadlines.by_key.items()), deadlines.first()),
        deadlines.take_changes(),
        len(tables),
    ]
