"""Clients of etcd's keyspace: they put, compare, hold leases, read, compact, watch and log in.

What is right is decided by a model (:mod:`..etcd.book`). Here it is checked that no reply is older
than what somebody was told before, and that a read shows what the model has at its revision.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

import trio

from ...errors import RequestError
from ...etcd.codes import EtcdError
from ...etcd.messages import rpc_pb2 as rpc
from ...etcd.messages.requests import Op
from ..door import PATIENCE
from ..etcd.followed import Followed
from ..etcd.logins import Logins
from ..invariants import ViolationError
from .base import Workload

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

    from google.protobuf.message import Message

    from ...node import Service
    from ..door import Door
    from ..etcd.book import Book
    from ..etcd.members import Api, EtcdMembers
    from ..machines.clock import Clock
    from ..world import World

T = TypeVar("T")

KEYS: Final = tuple(b"/registry/%d" % i for i in range(6))
PREFIX: Final = b"/registry/"
PREFIX_END: Final = b"/registry0"
TTLS: Final = (2, 2, 5, 20)
USERS: Final = (b"anna", b"bert", b"carl")
WATCHES: Final = 6
KEPT_REVISIONS: Final = 40
FINISH_S: Final = 60.0
SEVERAL: Final = 3


class Etcd(Workload):
    """Clients of etcd's keyspace at all members.

    Args:
        world: the cluster.
        members: their APIs.
        book: knows what is right.
    """

    def __init__(self, world: World[Service], members: EtcdMembers, book: Book) -> None:
        super().__init__()
        self._world = world
        self._members = members
        self._book = book
        self._count = 0
        self._several = 0  # how often several puts at one moment were answered
        self._told = 1  # the highest revision that anybody was told
        self._leases: list[int] = []
        self._watches: list[Followed] = []
        self._logins = Logins(book)
        book.true_clocks = lambda: all(_is_right(host.clock) for host in world.hosts.values())

    async def act(self, door: Door) -> None:
        """Execute one operation, or begin or ask a watch."""
        self._check()
        rng = door.rng
        acts: dict[Callable[[Door], Awaitable[None]], float] = {
            self._put: 5,
            self._put_several: 1,
            self._delete: 1,
            self._swap: 4,
            self._grant: 2,
            self._keep_alive: 3,
            self._revoke: 0.5,
            self._read: 4,
            self._compact: 0.3,
            self._watch: 3,
            self._log_in: 0.5,
            self._show: 1,
        }
        await rng.choices([*acts], [*acts.values()])[0](door)
        self._check()

    async def finish(self, door: Door) -> None:
        """Check that all watches see everything in the end."""
        end = trio.current_time() + FINISH_S
        while any(each.behind for each in self._watches):
            if trio.current_time() > end:
                late = next(each for each in self._watches if each.behind)
                raise ViolationError(
                    f"Etcd.Watch: of {late.key!r} is at {late.next_revision}, and not at "
                    f"{self._book.model.revision}; broken: {late.broken}"
                )
            for each in self._watches:
                if each.broken and (api := self._api(door)) is not None:
                    api[1].follow(each)
            await trio.sleep(0.2)
            self._check()
        self._check()
        if self._several >= 10 and not self._book.joined:
            raise ViolationError(f"Etcd.Joined: no puts, of {self._several} times several at once")

    def _check(self) -> None:
        if self._book.trouble:
            raise ViolationError(f"Etcd.{self._book.trouble[0]}")

    # --- operations

    async def _put(self, door: Door) -> None:
        await self._ask(door, Op.PUT, self._drawn_put(door.rng))

    async def _put_several(self, door: Door) -> None:
        """Put at one moment at one member, so that the puts share an entry of the log."""
        told, count = self._told, door.rng.randint(2, 5)
        requests = [self._drawn_put(door.rng) for _ in range(count)]
        revisions: list[int] = []

        async def put(api: Api, request: rpc.PutRequest) -> None:
            with suppress(EtcdError):
                reply = await api.backend.call(Op.PUT, request.SerializeToString())
                revision = rpc.PutResponse.FromString(reply).header.revision
                revisions.append(revision)
                self._check_put(request, revision)

        async def call(api: Api) -> None:
            async with trio.open_nursery() as nursery:
                for request in requests:
                    nursery.start_soon(put, api, request)

        await self._at_some_member(door, call)
        if revisions and min(revisions) < told:
            raise ViolationError(f"Etcd.Stale: puts were answered at {revisions}, below {told}")
        self._told = max([self._told, *revisions])
        # At most a third of them read, which are not joined.
        self._several += len(revisions) >= SEVERAL

    def _check_put(self, request: rpc.PutRequest, revision: int) -> None:
        states = self._book.model.states
        found = states[revision].get(request.key) if revision < len(states) else None
        if found is None or (found.mod_revision, found.value) != (revision, request.value):
            self._book.trouble.append(
                f"Put: {request} was answered at {revision}, there is {found}"
            )

    def _drawn_put(self, rng: Random) -> rpc.PutRequest:
        request = rpc.PutRequest(
            key=rng.choice(KEYS),
            value=self._value(rng),
            prev_kv=rng.random() < 0.3,
            ignore_lease=rng.random() < 0.1,
        )
        if not request.ignore_lease and rng.random() < 0.5:
            request.lease = self._lease(rng)
        return request

    async def _delete(self, door: Door) -> None:
        rng = door.rng
        request = rpc.DeleteRangeRequest(key=rng.choice(KEYS), prev_kv=rng.random() < 0.5)
        if rng.random() < 0.3:
            request.range_end = PREFIX_END
        await self._ask(door, Op.DELETE_RANGE, request)

    async def _swap(self, door: Door) -> None:
        """Put two keys, if the first is as it was read, or is as it was at some time."""
        rng = door.rng
        first, second = sorted(rng.sample(KEYS, 2))
        compare = rpc.Compare(key=first, target=rpc.Compare.MOD)
        reply = await self._ask(door, Op.RANGE, rpc.RangeRequest(key=first))
        if reply is not None:
            kvs = rpc.RangeResponse.FromString(reply).kvs
            compare.mod_revision = kvs[0].mod_revision if kvs else 0
        if rng.random() < 0.3:
            compare = rpc.Compare(key=first, target=rpc.Compare.VERSION, version=0)
            compare.result = rpc.Compare.GREATER
        puts = [rpc.PutRequest(key=key, value=self._value(rng)) for key in (first, second)]
        read = rpc.RangeRequest(key=PREFIX, range_end=PREFIX_END, limit=3)
        request = rpc.TxnRequest(
            compare=[compare],
            success=[rpc.RequestOp(request_put=each) for each in puts],
            failure=[rpc.RequestOp(request_range=read)],
        )
        if rng.random() < 0.3:
            request.failure.add().request_delete_range.key = second
        await self._ask(door, Op.TXN, request)

    async def _read(self, door: Door) -> None:
        rng = door.rng
        request = rpc.RangeRequest(key=rng.choice(KEYS), serializable=rng.random() < 0.4)
        if rng.random() < 0.7:
            request.key, request.range_end = PREFIX, PREFIX_END
        if rng.random() < 0.3:
            request.revision = rng.randint(1, self._told + 1)
        await self._ask(door, Op.RANGE, request)

    async def _compact(self, door: Door) -> None:
        revision = max(self._told - door.rng.randrange(KEPT_REVISIONS), 1)
        await self._ask(door, Op.COMPACT, rpc.CompactionRequest(revision=revision))

    # --- leases

    async def _grant(self, door: Door) -> None:
        request = rpc.LeaseGrantRequest(TTL=door.rng.choice(TTLS))
        began = trio.current_time()
        reply = await self._ask(door, Op.LEASE_GRANT, request)
        if reply is not None:
            granted = rpc.LeaseGrantResponse.FromString(reply)
            self._leases = [*self._leases[-3:], granted.ID]
            self._book.lives(granted.ID, began + granted.TTL)

    async def _keep_alive(self, door: Door) -> None:
        if not self._leases:
            return
        lease, began = door.rng.choice(self._leases), trio.current_time()

        async def renew(api: Api) -> int:
            return await api.backend.keep_alives.begin(lease).ttl()

        ttl = await self._at_some_member(door, renew)
        if ttl:
            self._book.lives(lease, began + ttl)
        elif ttl == 0:
            self._leases = [each for each in self._leases if each != lease]

    async def _revoke(self, door: Door) -> None:
        if self._leases:
            request = rpc.LeaseRevokeRequest(ID=door.rng.choice(self._leases))
            # Whether it is done or not: nobody may count on it any more.
            await self._ask(door, Op.LEASE_REVOKE, request)

    def _lease(self, rng: Random) -> int:
        return rng.choice(self._leases) if self._leases else 0

    # --- watches

    async def _watch(self, door: Door) -> None:
        """Go on with a watch that was broken, ask another one how far it is, or begin one."""
        await trio.lowlevel.checkpoint()
        rng = door.rng
        broken = [each for each in self._watches if each.broken]
        if len(self._watches) < WATCHES:
            self._watches.append(self._new_watch(rng))
        elif broken:
            found = self._api(door)
            if found is not None and not self._world.hosts[found[0]].paused:
                found[1].follow(rng.choice(broken))
        else:
            each = rng.choice(self._watches)
            if each.ask is not None:
                each.ask(rpc.WatchRequest(progress_request=rpc.WatchProgressRequest()))

    def _new_watch(self, rng: Random) -> Followed:
        key, end = (PREFIX, PREFIX_END) if rng.random() < 0.7 else (rng.choice(KEYS), b"")
        return Followed(
            self._book,
            key,
            end,
            puts=rng.random() < 0.8,
            deletes=rng.random() < 0.8,
            prev_kv=rng.random() < 0.5,
            fragment=rng.random() < 0.3,
            next_revision=rng.choice((0, self._told, self._told + 5)),
        )

    # --- logins

    async def _log_in(self, door: Door) -> None:
        name, began = door.rng.choice(USERS), trio.current_time()

        async def log_in(api: Api) -> str:
            return await api.tokens.make(name, b"proof")

        token = await self._at_some_member(door, log_in)
        if token is not None:
            self._logins.give(token, name, began, trio.current_time())

    async def _show(self, door: Door) -> None:
        token = self._logins.draw(door.rng)

        async def show(api: Api) -> None:
            await api.tokens.learn(token)
            now = trio.current_time()
            try:
                name = api.tokens.show_untrusted(token, lambda _name, _proof: True)
            except EtcdError:
                self._logins.judge(token, None, now)
            else:
                self._logins.judge(token, name, now)

        await self._at_some_member(door, show)

    # --- asking

    def _value(self, rng: Random) -> bytes:
        self._count += 1
        return b"%d" % self._count * rng.choice((1, 1, 1, 100))

    def _api(self, door: Door) -> tuple[int, Api] | None:
        i = door.rng.choice(self._world.present)
        api = self._members.open.get(i)
        return None if api is None else (i, api)

    async def _ask(self, door: Door, op: Op, request: Message) -> bytes | None:
        """Ask some member; return its reply, or None if there is none, or an error."""
        told = self._told

        async def call(api: Api) -> bytes:
            return await api.backend.call(op, request.SerializeToString())

        reply = await self._at_some_member(door, call)
        if not isinstance(reply, bytes):
            return None
        revision = rpc.PutResponse.FromString(reply).header.revision
        fresh = not (isinstance(request, rpc.RangeRequest) and request.serializable)
        if fresh:
            if revision < told:
                raise ViolationError(f"Etcd.Stale: {request} was answered at {revision} < {told}")
            self._told = max(self._told, revision)
        if isinstance(request, rpc.RangeRequest):
            self._check_read(request, rpc.RangeResponse.FromString(reply))
        return reply

    def _check_read(self, request: rpc.RangeRequest, reply: rpc.RangeResponse) -> None:
        at = request.revision or reply.header.revision
        if at > (newest := self._book.model.revision):
            raise ViolationError(f"Etcd.Read: {request} was answered at {at}, beyond {newest}")
        reply.ClearField("header")
        expected = self._book.model.read(request, at)
        if reply != expected:
            raise ViolationError(f"Etcd.Read: {request} at {at}: {reply} instead of {expected}")

    async def _at_some_member(self, door: Door, call: Callable[[Api], Awaitable[T]]) -> T | None:
        """Have something asked at some member; None if there was no answer."""
        unit, rng = self._world.setting.timeouts.leader_heartbeat_timeout, door.rng
        found, status, result = self._api(door), "unknown", None
        with trio.move_on_after(rng.choice(PATIENCE) * unit):
            await trio.sleep(self._world.setting.latency * rng.random())
            if found is not None:
                host = self._world.hosts[found[0]]
                await host.awake()
                if self._members.open.get(found[0]) is not found[1]:
                    return None  # the member has ended, or runs anew
                try:
                    result = await call(found[1])
                    await host.awake()
                    status = "ok"
                except (EtcdError, RequestError):
                    status = "fail"
        door.counts[status] += 1
        return result if status == "ok" else None


def _is_right(clock: Clock) -> bool:
    return clock.rate == 1.0 and clock.offset_ms == 0 and clock.furthest_ms == 0
