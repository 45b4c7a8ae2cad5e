"""A message of a client becomes a request of the member, and its reply gets a header."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import trio
from google.protobuf.message import DecodeError

from ...errors import RequestError
from ...keyvalue.protocol.payload import ETCD
from ...node.requests.request import COMMAND, CONFIRM, QUERY
from ...node.requests.task_calls import Calls
from ..codes import TOO_LARGE, EtcdError
from ..messages import rpc_pb2 as rpc
from ..messages.requests import Op, decode_reply
from .caller import ANYBODY, LEADER_WAIT_S, Caller
from .catching_up import CatchingUp
from .contact import LeaderContact
from .identity import Identity
from .joining import MAX_ENTRY_BYTES, SMALL_BYTES, Joining
from .keep_alives import KeepAlives
from .member_errors import error_of
from .pages import is_long, read_in_pages
from .routing import Where, route_untrusted
from .submission import Load, Submission
from .turn_end import TurnEnd

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from ...node.requests.gateway import Gateway
    from ...node.requests.request import Request, RequestKind
    from ..state.machine import EtcdState
    from .routing import Route

    Done: TypeAlias = Callable[[bytes | EtcdError], None]

__all__ = ["MAX_MESSAGE_BYTES", "Backend"]

MAX_MESSAGE_BYTES: Final = 1536 * 1024
"""A message that goes into the log, as etcd has it by default. If larger, one client holds up the
others for longer; if smaller, requests fail that etcd takes."""


class Backend:
    """Reaches the cluster and the state for the methods of the API.

    Args:
        gateway: of the member.
        state: of the keyspace, as this member has applied it.
        rng: draws the ids of leases.
        cluster: what distinguishes the cluster from others; clients get a number made from it.
        max_request_bytes: the largest request that the member takes.

    Attributes:
        cluster_id: the cluster's number for clients, u64.
        keep_alives: renews leases.
        turn_end: calls what is left to do at the end of a turn of the event loop.
    """

    def __init__(
        self,
        gateway: Gateway,
        state: EtcdState,
        rng: Random,
        cluster: str,
        *,
        max_request_bytes: int = MAX_ENTRY_BYTES,
    ) -> None:
        self.gateway = gateway
        self.state = state
        self._rng = rng
        self._identity = Identity(cluster)
        self.cluster_id = self._identity.cluster_id
        self.turn_end = TurnEnd()
        self._joining = Joining(gateway.submit_all, self.turn_end, max_request_bytes)
        self._calls = Calls(gateway.submit)
        self._joined_calls = Calls(self._joining.add)
        self._contact = LeaderContact(partial(self._calls.ask, CONFIRM, b"", 0, sign=ANYBODY.sign))
        self._catching_up = CatchingUp(state, self._contact)
        self.keep_alives = KeepAlives(self.ask)
        self._load = Load()

    async def run(self) -> None:
        """Look after the leader, the leases, replies that are held, and ends of turns, for ever."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._contact.run)
            nursery.start_soon(self._catching_up.run)
            nursery.start_soon(self.keep_alives.run)
            nursery.start_soon(self.turn_end.run)

    # --- who we are

    def header(self, revision: int) -> bytes:
        """Encode the header of a reply: put it in front of an encoded message without one.

        Args:
            revision: of the keyspace when it was answered; 0 leaves it out.
        """
        topology = self.gateway.topology
        return self._identity.header(topology.own_id, revision, self.raft_term)

    @property
    def raft_term(self) -> int:
        """The term of leadership for clients; 0 if this member knows none."""
        # Our first term is 0, and a client takes 0 for none: Patroni then notices no old leader.
        return self.gateway.topology.term + 1

    def member_id_of(self, own: int) -> int:
        """Return etcd's number for a member, u64 and never 0, from our number."""
        return self._identity.member_id(own)

    @property
    def has_leader(self) -> bool:
        """Whether this member is in touch with a leader, as far as it knows."""
        return not self._contact.lost

    async def wait_without_leader(self) -> None:
        """Wait until this member has been out of touch with a leader for some seconds."""
        await self._contact.wait_lost()

    async def wait_for_leader(self) -> None:
        """Wait until this member is in touch with a leader; for as long as a request waits."""
        with trio.move_on_after(LEADER_WAIT_S):
            await self._contact.wait_found()

    # --- requests

    def submit(
        self, op: Op, message: bytes, done: Done, *, caller: Caller = ANYBODY
    ) -> Request | None:
        """Submit a client's message.

        Args:
            op: what it asks for.
            message: as the client sent it; it is checked here.
            done: callback, called once with the encoded reply and its header, or with the error;
                perhaps before this returns. It must neither block nor raise.
            caller: who asks.

        Returns:
            The request, whose `cancel` keeps `done` from being called; None if it is over.
        """
        try:
            route = self._route_untrusted(op, message)
            here = self._read_here(route) if route.where is Where.HERE else None
            if here is None:
                self._load.add(len(route.payload))
        except EtcdError as error:
            done(error)
            return None
        if here is not None:
            done(here)
            return None
        kind, payload = _kind(route), route.payload
        request = Submission(
            kind, payload, done, self.header, self._load, catching_up=self._catching_up
        )
        caller.sign(request)
        (self._joining.add if _joins(route) else self.gateway.submit)(request)
        return request

    async def call(self, op: Op, message: bytes, *, caller: Caller = ANYBODY) -> bytes:
        """Submit a message and wait for the encoded reply with its header.

        Raises:
            EtcdError: the reply is an error.
        """
        revision, body = await self.ask(op, message, caller=caller)
        return self.header(revision) + body

    async def ask(self, op: Op, message: bytes, *, caller: Caller = ANYBODY) -> tuple[int, bytes]:
        """Submit a message; return the revision and the encoded reply without a header.

        Raises:
            EtcdError: the reply is an error.
        """
        if self.is_long(op, message):
            request = rpc.RangeRequest.FromString(message)
            # Each page may wait: there may be many, and all would be read again for the last one.
            patient = caller._replace(deadline=0.0)
            return await read_in_pages(partial(self._ask_once, caller=patient), request)
        return await self._ask_once(op, message, caller=caller)

    def is_long(self, op: Op, message: bytes) -> bool:
        """Say whether a message asks for a range of many keys: then a task must `call`."""
        if op is not Op.RANGE or len(message) > MAX_MESSAGE_BYTES:
            return False
        try:
            request = rpc.RangeRequest.FromString(message)
        except DecodeError:
            return False
        return is_long(self.state, request)

    async def _ask_once(self, op: Op, message: bytes, *, caller: Caller) -> tuple[int, bytes]:
        route = self._route_untrusted(op, message)
        if route.where is Where.HERE:
            await trio.lowlevel.checkpoint()
            return decode_reply(self._stale(route.payload))
        kind, size = _kind(route), len(route.payload)
        self._load.add(size)
        try:
            calls = self._joined_calls if _joins(route) else self._calls
            reply = await calls.ask(kind, route.payload, ETCD, sign=caller.sign)
            revision, body = decode_reply(reply)
            await self._catching_up.applied(revision, len(body))
        except RequestError as error:
            raise error_of(error, kind) from error
        finally:
            self._load.remove(size)
        return revision, body

    def _route_untrusted(self, op: Op, message: bytes) -> Route:
        if len(message) > MAX_MESSAGE_BYTES:
            raise EtcdError(*TOO_LARGE)
        return route_untrusted(op, message, self._rng)

    def _read_here(self, route: Route) -> bytes:
        revision, body = decode_reply(self._stale(route.payload))
        return self.header(revision) + body

    def _stale(self, payload: bytes) -> bytes:
        try:
            return self.gateway.stale_query(payload, ETCD)
        except RequestError as error:
            raise error_of(error, QUERY) from error


def _kind(route: Route) -> RequestKind:
    return COMMAND if route.where is Where.LOG else QUERY


def _joins(route: Route) -> bool:
    return route.joins and len(route.payload) <= SMALL_BYTES
