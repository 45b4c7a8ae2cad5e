"""The load of `quorate torture`: clients that work all the time and record each outcome.

Each client has one operation in flight and one connection to a member. There are three kinds of
keys, and few keys of each kind, so that clients conflict:

- registers: ``get``, ``set`` to a value that is never written again, ``cas`` (WATCH, GET and
  MULTI/EXEC), ``del``;
- counters: ``incr``, ``get``; they reveal a write that is applied twice;
- lists: ``append`` of a value that is never written again, ``get``; all later reads reveal a write
  that was lost or out of order.

A key is retired after some operations, so that neither values nor histories of keys grow without
bound. At the end every key is read once more.

An operation is *ok*, *failed* (the member replied that it has no effect) or *unknown* (the
connection broke, no answer in time, ``-UNKNOWN``). Any other reply is a violation by itself.
"""

import itertools
import random
import time
from collections import Counter
from collections.abc import Sequence
from typing import Final

import attrs
import trio

from ..client.resp import Reply, RespClient, RespError
from ..histories.history import HistoryWriter, Operation, Status, Value
from ..node.requests.status import MemberAddress

__all__ = ["CLIENTS", "Clients", "read_keys"]

CLIENTS: Final = 6
ANSWER_SECONDS: Final = 5.0
STAY_OPERATIONS: Final = 60
"""A client changes to another member after about this many operations. Smaller: mostly new
connections are tested. Larger: clients gather at few members."""
KEY_OPERATIONS: Final = 400
"""A key is retired after this many operations. Larger: checking its history takes too long.
Smaller: too few conflicts for each key."""
_RETRY_SECONDS: Final = 0.01
_PADDING_BYTES: Final = 2048
_READ_AT_ONCE: Final = 256
_REFUSED: Final = frozenset({"CLUSTERDOWN", "EXECABORT"})
_UNKNOWN: Final = "UNKNOWN"

_KINDS: Final[dict[str, tuple[int, dict[str, int]]]] = {
    "register": (6, {"get": 8, "set": 5, "cas": 4, "del": 1}),
    "counter": (2, {"incr": 2, "get": 1}),
    "list": (3, {"append": 3, "get": 2}),
}
"""For each kind: number of keys in use at a time, and the weight of each operation."""


class _UnknownOutcomeError(Exception):
    """The outcome of a command is not known."""


class _RefusedError(Exception):
    """The command has no effect."""


@attrs.define(eq=False)
class Clients:
    """All clients, and their shared state.

    Args:
        addresses: the members.
        history: records the operations.
        seed: seed of the clients' choices.

    Attributes:
        keys: every key that was used.
        outcomes: number of operations by outcome.
        violations: replies that no member may give.
        longest_pause: the longest time between two operations that were ok, in seconds.
    """

    addresses: Sequence[MemberAddress]
    history: HistoryWriter
    seed: int
    keys: dict[bytes, None] = attrs.field(factory=dict[bytes, None])
    outcomes: Counter[Status] = attrs.field(factory=Counter["Status"])
    violations: list[str] = attrs.field(factory=list[str])
    longest_pause: float = 0.0
    _last_ok_ns: int = 0
    _used: Counter[str] = attrs.field(factory=Counter[str])

    async def run(self) -> None:
        """Work until cancelled; then every operation that began is in the history."""
        async with trio.open_nursery() as nursery:
            for number in range(CLIENTS):
                rng = random.Random(f"{self.seed}/client/{number}")  # noqa: S311 - no secret
                nursery.start_soon(_Client(self, number, rng).run)

    async def read_all(self) -> list[Reply]:
        """Read every key once more, record the reads, and return the values.

        Raises:
            OSError, RespError: as :func:`read_keys`.
        """
        keys = list(self.keys)
        start_ns = time.monotonic_ns()
        found = await read_keys(keys, self.addresses[0], own=False)
        end_ns = time.monotonic_ns()
        for key, reply in zip(keys, found, strict=True):
            assert not isinstance(reply, list)
            self.ended(Operation(CLIENTS, "get", key, (), reply, start_ns, end_ns, "ok"))
        return found

    def key(self, kind: str, slot: int) -> bytes:
        """Return the key that a slot of this kind uses now."""
        name = f"{kind}-{slot}"
        self._used[name] += 1
        key = f"{name}-{self._used[name] // KEY_OPERATIONS}".encode()
        self.keys[key] = None
        return key

    def ended(self, operation: Operation) -> None:
        """Record an operation."""
        self.history.append(operation)
        self.outcomes[operation.status] += 1
        if operation.status == "ok":
            last_ns = self._last_ok_ns or operation.end_ns
            self._last_ok_ns = operation.end_ns
            self.longest_pause = max(self.longest_pause, (operation.end_ns - last_ns) / 1e9)


class _Client:
    """One client: one operation at a time, at one member."""

    def __init__(self, clients: Clients, number: int, rng: random.Random) -> None:
        self._clients = clients
        self._number = number
        self._rng = rng
        self._resp: RespClient | None = None
        self._serials = itertools.count()

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            while True:
                if self._resp is None:
                    await self._connect()
                elif self._rng.randrange(STAY_OPERATIONS) == 0:
                    self._disconnect()
                else:
                    await self._operate(self._resp)
        finally:
            self._disconnect()

    async def _connect(self) -> None:
        address = self._rng.choice(self._clients.addresses)
        with trio.move_on_after(ANSWER_SECONDS):
            try:
                self._resp = await RespClient.connect(address.host, address.client_port)
            except OSError:
                await trio.sleep(_RETRY_SECONDS)

    def _disconnect(self) -> None:
        if self._resp:
            self._resp.close()
            self._resp = None

    async def _operate(self, resp: RespClient) -> None:
        rng = self._rng
        (kind,) = rng.choices(list(_KINDS), [slots for slots, _ in _KINDS.values()])
        slots, weights = _KINDS[kind]
        key = self._clients.key(kind, rng.randrange(slots))
        (op,) = rng.choices(list(weights), list(weights.values()))
        match op:
            case "cas":
                await self._compare_and_set(resp, key)
            case "set":
                value = self._fresh()
                await self._record(key, op, (value,), resp, [(b"SET", key, value)])
            case "append":
                value = b"%d.%d," % (self._number, next(self._serials))
                await self._record(key, op, (value,), resp, [(b"APPEND", key, value)])
            case _:
                await self._record(key, op, (), resp, [(op.upper().encode(), key)])

    def _fresh(self) -> bytes:
        """Return a value that was never written before; sometimes a large one."""
        value = b"%d.%d" % (self._number, next(self._serials))
        return value + b"." * self._rng.choice([0, 0, 0, self._rng.randrange(_PADDING_BYTES)])

    async def _compare_and_set(self, resp: RespClient, key: bytes) -> None:
        """Read a key, and replace the value unless another client has changed it.

        The key is read both before and after WATCH. No value is ever written twice. So if both
        reads agree, the value was current in between, and how an absent key is watched does not
        matter.

        No earlier WATCH without EXEC may be left on the connection. It might have watched the key
        while it was absent, and watching a key again does not replace that.
        """
        before, status = await self._record(key, "get", (), resp, [(b"GET", key)])
        if status != "ok" or before is None:
            return
        watched = [(b"UNWATCH",), (b"WATCH", key), (b"GET", key)]
        found, status = await self._record(key, "get", (), resp, watched)
        if status != "ok" or found != before or not isinstance(found, bytes):
            return
        value = self._fresh()
        commands = [(b"MULTI",), (b"SET", key, value), (b"EXEC",)]
        await self._record(key, "cas", (found, value), resp, commands)

    async def _record(
        self,
        key: bytes,
        op: str,
        args: tuple[Value, ...],
        resp: RespClient,
        commands: Sequence[tuple[bytes, ...]],
    ) -> tuple[Value, Status]:
        """Send the commands of one operation; record and return the result of the last command."""
        result: Value = None
        status: Status = "unknown"  # stays so if the client is cancelled
        start_ns = time.monotonic_ns()
        try:
            result = self._result(op, await self._call(resp, commands))
            status = "ok"
        except _RefusedError:
            status = "fail"
        except _UnknownOutcomeError:
            pass
        finally:
            end_ns = time.monotonic_ns()
            self._clients.ended(
                Operation(self._number, op, key, args, result, start_ns, end_ns, status)
            )
        return result, status

    def _result(self, op: str, reply: Reply) -> Value:
        """Return the result of an operation, from the reply to its last command."""
        match op, reply:
            case "cas", None:  # another client changed the key, or EXEC failed spuriously
                raise _RefusedError
            case "cas", [b"OK"]:
                return 1
            case _, bytes() | int() | None:
                return reply
            case _:
                self._clients.violations.append(f"unexpected reply to {op}: {reply!r:.60}")
                raise _UnknownOutcomeError

    async def _call(self, resp: RespClient, commands: Sequence[tuple[bytes, ...]]) -> Reply:
        """Send commands and return the last reply; raise an error if any command failed."""
        try:
            with trio.fail_after(ANSWER_SECONDS):
                replies = await resp.pipeline(commands)
        except (OSError, trio.TooSlowError) as error:
            self._disconnect()
            raise _UnknownOutcomeError from error
        *_, last = replies
        for reply in [last, *replies]:
            if isinstance(reply, RespError):
                if reply.code not in {*_REFUSED, _UNKNOWN}:
                    asked = b" ".join(commands[-1])
                    self._clients.violations.append(f"error to {asked!r:.60}: {reply}")
                self._disconnect()  # this also ends every WATCH
                raise (_RefusedError if reply.code in _REFUSED else _UnknownOutcomeError) from reply
        assert not isinstance(last, RespError)
        return last


async def read_keys(keys: Sequence[bytes], address: MemberAddress, *, own: bool) -> list[Reply]:
    """Read keys at a member, all linearizably or all from its own state.

    Raises:
        OSError: the connection is lost.
        RespError: the member refuses a command.
    """
    client = await RespClient.connect(address.host, address.client_port)
    try:
        if own:
            await client.call("READONLY")
        found: list[Reply] = []
        for start in range(0, len(keys), _READ_AT_ONCE):
            part = keys[start : start + _READ_AT_ONCE]
            for reply in await client.pipeline([(b"GET", key) for key in part]):
                if isinstance(reply, RespError):
                    raise reply
                found.append(reply)
        return found
    finally:
        client.close()
