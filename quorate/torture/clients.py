"""The load of `quorate torture`: clients that do something all the time and write down the outcome.

Each client has one operation under way and one connection, to some member. Its keys are of three
kinds, few enough that the clients get into each other's way:

- registers: ``get``, ``set`` to a value that is never written again, ``cas`` (WATCH, GET and
  MULTI/EXEC), ``del``;
- counters: ``incr``, ``get``; they show a write that is applied twice;
- lists: ``append`` of something that is never written again, ``get``; a write that is lost or out
  of its order shows for ever after.

A key is used for some operations and never again, so no value and no key's history grows without
bound. At the end every key is read once more.

An operation is *ok*, *failed* (the member said that it has no effect) or *unknown* (the connection
broke, no answer in time, ``-UNKNOWN``); anything else that a member says is a violation by itself.
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
"""After about so many operations a client goes to another member."""
KEY_OPERATIONS: Final = 400
"""After so many a key is not used any more."""
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
"""For each kind how many keys are in use at a time, and how often each operation comes."""


class _UnknownOutcomeError(Exception):
    """Nobody knows what became of a command."""


class _RefusedError(Exception):
    """The command has no effect."""


@attrs.define(eq=False)
class Clients:
    """All clients, and what they have in common.

    Args:
        addresses: the members.
        history: where operations are written down.
        seed: of their choices.

    Attributes:
        keys: every key that was used.
        outcomes: how many operations ended how.
        violations: replies that no member may give.
        longest_pause: the longest time without an operation that was ok, after the first; seconds.
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
        """Work until cancelled; every operation that began is then in the history."""
        async with trio.open_nursery() as nursery:
            for number in range(CLIENTS):
                rng = random.Random(f"{self.seed}/client/{number}")  # noqa: S311 - no secret
                nursery.start_soon(_Client(self, number, rng).run)

    async def read_all(self) -> list[Reply]:
        """Read every key once more, and write that down; returns what was found.

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
        """The key that is in use in a slot of its kind."""
        name = f"{kind}-{slot}"
        self._used[name] += 1
        key = f"{name}-{self._used[name] // KEY_OPERATIONS}".encode()
        self.keys[key] = None
        return key

    def ended(self, operation: Operation) -> None:
        """Write down an operation."""
        self.history.append(operation)
        self.outcomes[operation.status] += 1
        if operation.status == "ok":
            last_ns = self._last_ok_ns or operation.end_ns
            self._last_ok_ns = operation.end_ns
            self.longest_pause = max(self.longest_pause, (operation.end_ns - last_ns) / 1e9)


class _Client:
    """One client: one operation at a time, at some member."""

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
        """A value that nobody has written before; now and then a large one."""
        value = b"%d.%d" % (self._number, next(self._serials))
        return value + b"." * self._rng.choice([0, 0, 0, self._rng.randrange(_PADDING_BYTES)])

    async def _compare_and_set(self, resp: RespClient, key: bytes) -> None:
        """Read a key, and change what was read unless somebody else did meanwhile.

        The key is read before WATCH, too: a value found twice was there in between, since none
        comes back, so nothing hangs on how an absent key is watched. And nothing may be watched
        from an earlier time that ended without EXEC: that the key was absent then would hold, for
        who watches a key again watches it as it was at first.
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
        """Send commands that are one operation; write down and return what came of the last."""
        result: Value = None
        status: Status = "unknown"  # a client that is cancelled never knows
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
        """What an operation came to, from the reply to its last command."""
        match op, reply:
            case "cas", None:  # somebody may have come between, or only seem to
                raise _RefusedError
            case "cas", [b"OK"]:
                return 1
            case _, bytes() | int() | None:
                return reply
            case _:
                self._clients.violations.append(f"unexpected reply to {op}: {reply!r:.60}")
                raise _UnknownOutcomeError

    async def _call(self, resp: RespClient, commands: Sequence[tuple[bytes, ...]]) -> Reply:
        """Send commands and return the reply to the last; each that goes wrong spoils them all."""
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
                self._disconnect()  # whatever it watches is over, too
                raise (_RefusedError if reply.code in _REFUSED else _UnknownOutcomeError) from reply
        assert not isinstance(last, RespError)
        return last


async def read_keys(keys: Sequence[bytes], address: MemberAddress, *, own: bool) -> list[Reply]:
    """Read keys at a member, all linearizable or all from its own state; no errors are expected.

    Raises:
        OSError: the connection is lost.
        RespError: the member refuses.
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
