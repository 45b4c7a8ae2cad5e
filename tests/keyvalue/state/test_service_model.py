"""The service is a dictionary with expiries; and two members that are fed the same are equal.

One member is never flushed. The other is flushed, ended, and killed at any moment, and catches up
from its log. Their replies, contents and revisions are those of the model and of each other.
"""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from quorate.keyvalue.service import KeyValueService
from quorate.node.state_machine.service import Command
from quorate.storage.tables.tables import FlushJob
from quorate.storage.testing import InlineExecutor
from quorate.storage.writing.executor import nothing
from tests.support.service_world import BATCH_BYTES, START_MS, encode

KEYS = ["a", "b", "c", "key" * 300]
key = st.sampled_from(KEYS)
value = st.sampled_from(["1", "41", "text", "x" * 50])
milliseconds = st.sampled_from(["0", "1", "30", "1000"])

command = st.one_of(
    st.builds("SET {} {}".format, key, value),
    st.builds("SET {} {} PX {}".format, key, value, milliseconds.filter(lambda ms: ms != "0")),
    st.builds("SET {} {} NX".format, key, value),
    st.builds("SET {} {} XX KEEPTTL".format, key, value),
    st.builds("GET {}".format, key),
    st.builds("DEL {} {}".format, key, key),
    st.builds("INCRBY {} 7".format, key),
    st.builds("APPEND {} z".format, key),
    st.builds("PEXPIRE {} {}".format, key, milliseconds),
    st.builds("PERSIST {}".format, key),
    st.builds("PTTL {}".format, key),
    st.builds("RENAME {} {}".format, key, key),
    st.builds("EXISTS {}".format, key),
    st.just("DBSIZE"),
    st.just("FLUSHALL"),
)
step = st.one_of(
    st.tuples(st.just("batch"), st.lists(st.lists(command, min_size=1, max_size=3), max_size=3)),
    st.tuples(st.just("batch"), st.lists(st.lists(command, min_size=1, max_size=3), max_size=3)),
    st.tuples(st.just("time"), st.sampled_from([1, 30, 1000])),
    st.tuples(st.sampled_from(["flush", "wait", "crash", "reopen"]), st.none()),
)


class Model:
    """A dictionary of values and expiries, and the replies that follow from it."""

    def __init__(self) -> None:
        self.keys: dict[str, tuple[str, int]] = {}
        self.now = START_MS

    def expire(self) -> None:
        self.keys = {key: held for key, held in self.keys.items() if not 0 < held[1] <= self.now}

    def do(self, line: str) -> bytes:
        self.expire()
        name, *rest = line.split(" ")
        old = self.keys.get(rest[0]) if rest else None
        reply: str | int | None
        match name, rest:
            case "SET", [key, new, *options]:
                reply = None if ("NX" in options and old) or ("XX" in options and not old) else "OK"
                if reply:
                    kept = old[1] if old and "KEEPTTL" in options else 0
                    self.keys[key] = (new, self.now + int(options[1]) if "PX" in options else kept)
                return b"+OK\r\n" if reply else b"$-1\r\n"
            case "GET", _:
                return b"$%d\r\n%b\r\n" % (len(old[0]), old[0].encode()) if old else b"$-1\r\n"
            case "DEL", _:
                reply = sum(self.keys.pop(key, None) is not None for key in rest)
            case "INCRBY", [key, by]:
                if old and not old[0].isdigit():
                    return b"-ERR value is not an integer or out of range\r\n"
                reply = int(old[0] if old else "0") + int(by)
                self.keys[key] = (str(reply), old[1] if old else 0)
            case "APPEND", [key, more]:
                self.keys[key] = (old[0] + more, old[1]) if old else (more, 0)
                reply = len(self.keys[key][0])
            case _:
                return self.do_expiry(name, rest, old)
        return b":%d\r\n" % reply

    def do_expiry(self, name: str, rest: list[str], old: tuple[str, int] | None) -> bytes:
        match name, rest:
            case "PEXPIRE", [key, ms]:
                if old:
                    self.keys[key] = (old[0], self.now + int(ms))
                reply = int(old is not None)
            case "PERSIST", [key]:
                if old:
                    self.keys[key] = (old[0], 0)
                reply = int(old is not None and old[1] > 0)
            case "PTTL", _:
                reply = (old[1] - self.now if old[1] else -1) if old else -2
            case "RENAME", [source, target]:
                if not old:
                    return b"-ERR no such key\r\n"
                del self.keys[source]
                self.keys[target] = old
                return b"+OK\r\n"
            case "EXISTS", _:
                reply = int(old is not None)
            case "FLUSHALL", _:
                self.keys.clear()
                return b"+OK\r\n"
            case _:
                reply = len(self.keys)
        return b":%d\r\n" % reply


@attrs.frozen
class Batch:
    """A batch of the log: where it begins, when it was, and its commands."""

    position: int
    timestamp_ms: int
    commands: list[list[str]]

    def feed(self, service: KeyValueService) -> list[bytes]:
        replies = [
            service.apply(
                Command(encode(*lines), 0, 0, 0, 1, self.position, index, self.timestamp_ms)
            )
            for index, lines in enumerate(self.commands)
        ]
        service.advance(self.position + BATCH_BYTES, self.timestamp_ms)
        return replies


def view(service: KeyValueService) -> bytes:
    return service.query(
        encode("WATCH " + " ".join(KEYS), "MGET " + " ".join(KEYS), "DBSIZE", "KEYS *")
        + encode(*(f"PEXPIRETIME {key}" for key in KEYS)),
        0,
    )


class World:
    """The member that nothing happens to, the one that everything happens to, and the log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.steady = KeyValueService.open(
            folder / "steady", cluster="test", member_id=1, executor=InlineExecutor
        )
        self.model = Model()
        self.log: list[Batch] = []

    async def live(self, rest: list[tuple[str, list[list[str]] | int | None]]) -> None:
        executors: list[InlineExecutor[FlushJob]] = []

        def executor(
            write: Callable[[Sequence[FlushJob]], None],
            *,
            delivered: Callable[[], None],
            idle: Callable[[], None] = nothing,
        ) -> InlineExecutor[FlushJob]:
            executors.append(InlineExecutor(write, delivered=delivered, idle=idle, latency=0.5))
            return executors[0]

        service = KeyValueService.open(
            self.folder / "tried", cluster="test", member_id=1, executor=executor
        )
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(service.run)
                for batch in self.log:
                    if batch.position >= service.position:
                        batch.feed(service)
                self.compare(service)
                while rest and rest[0][0] not in ("crash", "reopen"):
                    await self.do(service, *rest.pop(0), nursery=nursery)
                if rest and rest.pop(0)[0] == "crash":
                    executors[0].cut_power()
                nursery.cancel_scope.cancel()
        finally:
            service.close()

    async def do(
        self,
        service: KeyValueService,
        name: str,
        argument: list[list[str]] | int | None,
        *,
        nursery: trio.Nursery,
    ) -> None:
        if name == "flush":
            nursery.start_soon(service.flush)
            await trio.testing.wait_all_tasks_blocked()
        elif name == "wait":
            await trio.sleep(1)
        elif isinstance(argument, int):
            self.model.now += argument
            self.record([], service)
        elif argument is not None:
            self.record(argument, service)

    def record(self, commands: list[list[str]], service: KeyValueService) -> None:
        batch = Batch(32 + len(self.log) * BATCH_BYTES, self.model.now, commands)
        self.log.append(batch)
        expected = [b"".join(map(self.model.do, lines)) for lines in commands]
        assert batch.feed(self.steady) == expected
        assert batch.feed(service) == expected
        self.compare(service)

    def compare(self, service: KeyValueService) -> None:
        self.model.expire()
        seen = view(self.steady)
        assert view(service) == seen
        assert service.next_deadline_ms() == self.steady.next_deadline_ms()
        values = [self.model.do(f"GET {key}") for key in KEYS]
        assert b"*%d\r\n%b" % (len(KEYS), b"".join(values)) in seen
        assert b":%d\r\n*%d\r\n" % (len(self.model.keys), len(self.model.keys)) in seen


@settings(max_examples=30)
@given(rest=st.lists(step, max_size=25))
def test_members_that_are_fed_the_same_are_equal(
    rest: list[tuple[str, list[list[str]] | int | None]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))

        async def main() -> None:
            while rest:
                await world.live(rest)
            await world.live([])

        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
        world.steady.close()
