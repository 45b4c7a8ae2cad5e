"""The etcd API in which only the cluster is simulated: state, backend and watches are real.

:class:`EtcdMember` replaces the member's gateway. It applies each request at once to a real
:class:`EtcdState` over tables in a dict. While `parked` is a list it keeps requests instead, like a
member that waits for a leader. Log time follows trio's clock, so leases expire in virtual time.

A script can serve it, too::

    async with EtcdWorld.opened() as world:
        await serve(world.call)  # with world.backend, world.hub

A test in virtual time::

    @in_world
    async def test_a_key_has_a_value(world: EtcdWorld) -> None: ...
"""

from __future__ import annotations

import functools
import inspect
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

import attrs
import trio

from quorate.errors import NoLeaderError, RefusedError
from quorate.etcd.backend.backend import Backend
from quorate.etcd.messages import rpc_pb2 as rpc
from quorate.etcd.messages.requests import Op
from quorate.etcd.services.call import Call
from quorate.etcd.state.machine import EtcdState
from quorate.etcd.watching.hub import WatchHub
from quorate.keyvalue.protocol.payload import ETCD
from quorate.node.requests.journey import Latencies
from quorate.node.requests.request import RequestKind, still_allowed
from quorate.node.requests.status import MemberAddress, NodeStatus, Topology
from quorate.node.state_machine.service import Command

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping

    from google.protobuf.message import Message

    from quorate.errors import RequestError
    from quorate.node.requests.request import Request

    Reply = TypeVar("Reply", bound=Message)

P = ParamSpec("P")

MEMBERS = tuple(MemberAddress(n, f"10.0.0.{n + 1}", 7000 + n, 9000 + n) for n in range(3))
TERM = 4
_START_MS = 1_700_000_000_000


class DictTables:
    """The tables of a state, in memory; implements `StateTables`."""

    def __init__(self) -> None:
        self.rows_by_key: dict[bytes, bytes] = {}
        self.notes = Notes()
        self.timestamp_ms = _START_MS

    def put_note(self, key: bytes, row: bytes) -> None:
        """Set a note."""
        assert 1 <= len(key) <= 64
        self.notes.by_key[key] = row

    def delete_note(self, key: bytes) -> None:
        """Delete a note that exists."""
        del self.notes.by_key[key]

    def get_row(self, key: bytes) -> bytes | None:
        """Return a row, or None."""
        return self.rows_by_key.get(key)

    def put_row(self, key: bytes, row: bytes) -> None:
        """Set a row."""
        assert 1 <= len(key) <= 64
        self.rows_by_key[key] = row

    def delete_row(self, key: bytes) -> None:
        """Delete a row; does nothing if there is none."""
        self.rows_by_key.pop(key, None)

    def all_rows(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield all rows in the order of their keys."""
        yield from sorted(self.rows_by_key.items())


class Notes:
    """The notes of tables."""

    def __init__(self) -> None:
        self.by_key: dict[bytes, bytes] = {}

    @property
    def rows(self) -> Mapping[bytes, bytes]:
        """All notes."""
        return self.by_key


class EtcdMember:
    """A gateway that applies every request at once.

    Attributes:
        state: of the keyspace.
        topology: what the member says of the cluster; a test may replace it.
        parked: a list keeps requests until `release`; None applies them.
        error: fails every request, if it is set.
        commands: payloads of applied commands; `queries` and `stale` are those of reads.
        principals: those of the applied commands.
    """

    def __init__(self, tables: DictTables | None = None) -> None:
        self.state = EtcdState(tables or DictTables())
        self.topology = Topology(MEMBERS, leader_id=0, term=TERM, own_id=0, is_leader=True)
        self.parked: list[Request] | None = None
        self.error: RequestError | None = None
        self.commands: list[bytes] = []
        self.principals: list[int] = []
        self.queries: list[bytes] = []
        self.stale: list[bytes] = []
        self.position = 0
        self.applied_ms = 0
        self._began = trio.current_time()
        self._applied = trio.Event()
        self.state.begin_term(self.now_ms())

    def submit(self, request: Request) -> None:
        """Answer, fail or keep a request."""
        if self.error is not None:
            request.done(self.error)
        elif self.parked is not None:
            self.parked.append(request)
        else:
            for each in still_allowed((request,)):
                self.answer(each)

    def submit_all(self, requests: list[Request]) -> None:
        """Answer, fail or keep the requests of one turn."""
        for request in requests:
            self.submit(request)

    def answer(self, request: Request) -> None:
        """Apply or read, and reply, unless the request was cancelled."""
        if request.cancelled:
            return
        if request.kind is RequestKind.CONFIRM:
            request.done(b"")
            return
        assert request.flags == ETCD
        if request.kind is RequestKind.QUERY:
            self.queries.append(request.payload)
            request.done(self.state.query(request.payload, self.now_ms()))
            return
        self.commands.append(request.payload)
        self.principals.append(request.principal)
        now_ms = self.now_ms()
        command = Command(request.payload, ETCD, 0, 0, TERM, self.position, 0, now_ms)
        command.principal = request.principal
        reply = self.state.apply(command, now_ms)
        self.position += 64 + len(request.payload)
        self._advance(now_ms)
        request.done(reply)

    def release(self) -> None:
        """Answer the parked requests, as if a leader had been found."""
        parked, self.parked = self.parked or [], None
        for request in still_allowed(parked):
            self.answer(request)

    def lose_leader(self) -> None:
        """Fail the parked requests and those to come, until `error` is reset."""
        self.error = NoLeaderError("no leader took it in time")
        parked, self.parked = self.parked or [], None
        for request in still_allowed(parked):
            request.done(self.error)

    def _advance(self, now_ms: int) -> None:
        self.applied_ms = now_ms
        self.state.advance(now_ms)
        self._applied.set()

    async def run(self) -> None:
        """Let log time go on when the state asks for it, until cancelled."""
        while True:
            due = self.state.next_deadline_ms()
            leads = self.parked is None and self.error is None
            # Without a leader it looks again; without a deadline it waits for something to happen.
            wait = 1.0 if due else 3600.0
            if due and leads:
                wait = (max(due, self.applied_ms + 1) - self.now_ms()) / 1000
            with trio.move_on_after(wait) as scope:
                await self._applied.wait()
            self._applied = trio.Event()
            if scope.cancelled_caught and due and leads:
                self._advance(self.now_ms())

    def stale_query(self, payload: bytes, flags: int) -> bytes:
        """Read the applied state."""
        assert flags == ETCD
        self.stale.append(payload)
        return self.state.query(payload, self.applied_ms)

    def now_ms(self) -> int:
        """Return log time, which follows trio's clock."""
        return _START_MS + round((trio.current_time() - self._began) * 1000)

    def own_order(self, words: bytes) -> bytes:
        """Refuse."""
        raise RefusedError(words.decode())

    def recent(self, since: int) -> dict[str, Any]:
        """Return what a test can recognise."""
        return {"steps": [], "step_count": since}

    def latencies(self) -> Latencies:
        """Return none."""
        return Latencies()

    def status(self) -> NodeStatus:
        """Return plausible figures."""
        topology = self.topology
        return NodeStatus(
            member_id=topology.own_id,
            cluster="orders",
            role="leader" if topology.is_leader else "follower",
            state="CLOSED",
            state_age_s=2.5,
            term=topology.term,
            leader_id=topology.leader_id,
            log_term=topology.term,
            start_position=0,
            append_position=self.position,
            commit_position=self.position,
            applied_position=self.position,
            elections=1,
            uptime_s=100.5,
            timestamp_ms=self.applied_ms,
            parked=len(self.parked or ()),
            forwarded=0,
            incarnation=77,
            snapshot_position=-1,
            snapshot_activity="",
            suspended=False,
            disk_full=False,
            damage="",
            standing="member",
            not_heard=(),
            entries=len(self.commands),
            batches=len(self.commands),
            commits=len(self.commands),
            lease_s=0.0,
            clock_skew_ms=0,
            peers=(),
        )


@attrs.frozen
class EtcdWorld:
    """A member with its backend and its watches.

    Attributes:
        call: what a method gets.
    """

    member: EtcdMember
    backend: Backend
    hub: WatchHub
    call: Call

    @classmethod
    @asynccontextmanager
    async def opened(cls, tables: DictTables | None = None) -> AsyncGenerator[Self]:
        """Open a world, whose tasks run until it is left."""
        member = EtcdMember(tables)
        backend = Backend(member, member.state, Random(1), "orders")
        hub = WatchHub(member.state)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(member.run)
            nursery.start_soon(backend.run)
            yield cls(member, backend, hub, Call(backend, hub))
            nursery.cancel_scope.cancel()

    async def ask(self, op: Op, request: Message, kind: type[Reply]) -> Reply:
        """Send a request and return the reply, with its header."""
        return kind.FromString(await self.backend.call(op, request.SerializeToString()))

    async def put(self, key: bytes, value: bytes = b"", lease: int = 0) -> int:
        """Put a key and return the revision."""
        request = rpc.PutRequest(key=key, value=value, lease=lease)
        return (await self.ask(Op.PUT, request, rpc.PutResponse)).header.revision

    async def delete(self, key: bytes, range_end: bytes = b"") -> int:
        """Delete keys and return how many there were."""
        request = rpc.DeleteRangeRequest(key=key, range_end=range_end)
        return (await self.ask(Op.DELETE_RANGE, request, rpc.DeleteRangeResponse)).deleted

    async def get(self, key: bytes) -> bytes | None:
        """Return a value, or None."""
        reply = await self.ask(Op.RANGE, rpc.RangeRequest(key=key), rpc.RangeResponse)
        return reply.kvs[0].value if reply.kvs else None

    async def grant(self, ttl: int, lease: int = 0) -> int:
        """Grant a lease and return its id."""
        request = rpc.LeaseGrantRequest(TTL=ttl, ID=lease)
        return (await self.ask(Op.LEASE_GRANT, request, rpc.LeaseGrantResponse)).ID

    async def compact(self, revision: int) -> None:
        """Compact the history up to a revision."""
        request = rpc.CompactionRequest(revision=revision)
        await self.ask(Op.COMPACT, request, rpc.CompactionResponse)


def in_world(
    body: Callable[Concatenate[EtcdWorld, P], Awaitable[None]],
) -> Callable[..., Awaitable[None]]:
    """Make a test of a function that takes a world with an empty keyspace, in virtual time."""

    @functools.wraps(body)
    async def test(autojump_clock: object, *args: P.args, **kwargs: P.kwargs) -> None:
        async with EtcdWorld.opened() as world:
            await body(world, *args, **kwargs)

    clock = inspect.Parameter("autojump_clock", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    of_its_own = list(inspect.signature(body).parameters.values())[1:]
    vars(test)["__signature__"] = inspect.Signature([clock, *of_its_own])
    return test
