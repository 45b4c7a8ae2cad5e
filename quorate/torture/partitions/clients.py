"""The load: clients that work all the time, on keys of all slots, and record each outcome.

Some are ours (`quorate.connect`, each write exactly once), the others are redis-py's cluster
client. It sends a command again by itself when a reply is lost, which would be applied twice, so
here it may not. Each client has one operation in flight. The kinds of keys, and what an outcome is,
are those of :mod:`..clients`.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs
import trio

from ...client.connect import connect
from ...errors import KeyValueError, NoLeaderError, QuorateError, UnknownOutcomeError
from ...histories.history import HistoryWriter, Operation, Status, Value
from ...local.cluster import HOST
from .redis_store import RedisStore
from .stores import RefusedOperationError, UnknownOperationError, WrongReplyError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from ...keyvalue.programs.client import KeyValue
    from .stores import Store

__all__ = ["Load", "opened"]

OURS: Final = 3
THEIRS: Final = 3
READER: Final = 99
"""The number of the client that reads all keys in the end."""

KEY_OPERATIONS: Final = 300
"""A key is retired after about so many operations: checking long histories takes long."""
SESSION_SECONDS: Final = 3600.0
LONG_SECONDS: Final = 10.0
_PAUSE_SECONDS: Final = 0.02
_PADDING_BYTES: Final = 1024

_KINDS: Final[dict[str, tuple[int, dict[str, int]]]] = {
    "register": (10, {"get": 8, "set": 5, "cas": 3, "del": 1}),
    "counter": (6, {"incr": 2, "get": 1}),
    "list": (8, {"append": 3, "get": 2}),
}
"""For each kind: number of keys in use at a time, and the weight of each operation."""

Outcome: TypeAlias = tuple[Value, Status]


def opened(ports: Sequence[int]) -> AbstractAsyncContextManager[KeyValue]:
    """Connect our client, with all that it promises."""
    members = [(HOST, port) for port in ports]
    return connect(members, session_timeout_s=SESSION_SECONDS)


class OwnStore:
    """Our client."""

    def __init__(self, kv: KeyValue) -> None:
        self._kv = kv

    async def run(self, op: str, key: bytes, args: tuple[bytes, ...]) -> Value:
        """Do an operation; see `Store`."""
        try:
            match op:
                case "get":
                    return await self._kv.get(key)
                case "set":
                    await self._kv.set(key, args[0])
                    return b"OK"
                case "cas":
                    return min(1, await self._kv.compare_and_set(key, args[0], args[1]))
                case _:
                    reply = await self._kv.execute(op.upper(), key, *args)
                    assert isinstance(reply, int)
                    return reply
        except NoLeaderError as error:
            raise RefusedOperationError from error
        except UnknownOutcomeError as error:
            raise UnknownOperationError from error
        except KeyValueError as error:
            raise WrongReplyError(str(error)) from error


@attrs.define(eq=False)
class Load:
    """All clients, and what they share.

    Args:
        ports: client ports of members.
        history: records the operations.
        seed: of the clients' choices.
        tell: called with a line about each long wait.

    Attributes:
        keys: every key that was used.
        outcomes: number of operations by outcome.
        violations: what no member may do.
        last_ok: when each client was last answered, by the clock of trio.
        longest_pause: the longest time for which some client had no answer, in seconds.
        ends: set to have it end.
    """

    ports: Sequence[int]
    history: HistoryWriter
    seed: int
    tell: Callable[[str], None]
    keys: dict[bytes, None] = attrs.field(factory=dict[bytes, None])
    outcomes: Counter[Status] = attrs.field(factory=Counter["Status"])
    violations: list[str] = attrs.field(factory=list[str])
    last_ok: dict[int, float] = attrs.field(factory=dict[int, float])
    longest_pause: float = 0.0
    ends: trio.Event = attrs.field(factory=trio.Event)
    _used: Counter[str] = attrs.field(factory=Counter[str])

    async def run(self) -> None:
        """Work until `ends` is set; then each client ends its operation."""
        async with trio.open_nursery() as nursery:
            for number in range(OURS):
                nursery.start_soon(self._run_ours, number)
            for number in range(OURS, OURS + THEIRS):
                nursery.start_soon(self._run_theirs, number)

    async def _run_ours(self, number: int) -> None:
        async with opened(self.ports) as kv:
            await _Client(self, number, OwnStore(kv)).run()

    async def _run_theirs(self, number: int) -> None:
        store = RedisStore(self.ports)
        try:
            await _Client(self, number, store).run()
        finally:
            with trio.CancelScope(shield=True):
                await store.close()

    def key(self, kind: str, place: int) -> bytes:
        """Return the key that a place of this kind uses now."""
        name = f"{kind}-{place}"
        self._used[name] += 1
        key = f"{name}-{self._used[name] // KEY_OPERATIONS}".encode()
        self.keys[key] = None
        return key

    def answered(self, number: int) -> None:
        """Note that a client was answered just now."""
        now = trio.current_time()
        pause = now - self.last_ok.get(number, now)
        self.longest_pause = max(self.longest_pause, pause)
        if pause > LONG_SECONDS:
            self.tell(f"client {number} has waited for {pause:.1f} s")
        self.last_ok[number] = now

    def ended(self, operation: Operation) -> None:
        """Record an operation."""
        self.history.append(operation)
        self.outcomes[operation.status] += 1

    async def read_all(self, kv: KeyValue) -> dict[bytes, bytes]:
        """Read every key once more, record that, and return those that exist.

        Raises:
            RequestError: a partition does not answer.
        """
        keys = list(self.keys)
        start_ns = time.monotonic_ns()
        found = await kv.get_many(keys)
        end_ns = time.monotonic_ns()
        for key in keys:
            self.ended(Operation(READER, "get", key, (), found.get(key), start_ns, end_ns, "ok"))
        return found


class _Client:
    """One client: one operation at a time."""

    def __init__(self, load: Load, number: int, store: Store) -> None:
        self._load, self._number, self._store = load, number, store
        self._rng = random.Random(f"{load.seed}/client/{number}")  # noqa: S311 - no secret
        self._serials = itertools.count()

    async def run(self) -> None:
        """Work until the load ends."""
        while not self._load.ends.is_set():
            await self._operate()
            await trio.lowlevel.checkpoint()

    async def _operate(self) -> None:
        rng = self._rng
        (kind,) = rng.choices(list(_KINDS), [places for places, _ in _KINDS.values()])
        places, weights = _KINDS[kind]
        key = self._load.key(kind, rng.randrange(places))
        (op,) = rng.choices(list(weights), list(weights.values()))
        match op:
            case "cas":
                await self._compare_and_set(key)
            case "set":
                await self._record(key, op, self._fresh())
            case "append":
                await self._record(key, op, b"%d.%d," % (self._number, next(self._serials)))
            case _:
                await self._record(key, op)

    def _fresh(self) -> bytes:
        """Return a value that was never written before; sometimes a large one."""
        value = b"%d.%d" % (self._number, next(self._serials))
        return value + b"." * self._rng.choice([0, 0, 0, self._rng.randrange(_PADDING_BYTES)])

    async def _compare_and_set(self, key: bytes) -> None:
        found, status = await self._record(key, "get")
        if status == "ok" and isinstance(found, bytes):
            await self._record(key, "cas", found, self._fresh())

    async def _record(self, key: bytes, op: str, *args: bytes) -> Outcome:
        """Do one operation, record it, and return its outcome."""
        result: Value = None
        status: Status = "unknown"  # stays so if the client is cancelled
        start_ns = time.monotonic_ns()
        try:
            result = await self._store.run(op, key, args)
            status = "ok"
            self._load.answered(self._number)
        except RefusedOperationError:
            status = "fail"
        except UnknownOperationError:
            pass
        except (WrongReplyError, QuorateError) as error:
            self._load.violations.append(f"client {self._number}: {op} {key!r}: {error!r:.200}")
        finally:
            end_ns = time.monotonic_ns()
            self._load.ended(
                Operation(self._number, op, key, args, result, start_ns, end_ns, status)
            )
        if status != "ok":
            await trio.sleep(_PAUSE_SECONDS)
        return result, status
