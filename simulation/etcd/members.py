"""The API of etcd at all simulated members, without sockets: one for each run of a member."""

from __future__ import annotations

import math
from collections import deque
from random import Random
from typing import TYPE_CHECKING, Final, Never, cast

import attrs
import trio

from ...etcd.access.logged_tokens import LoggedTokens
from ...etcd.access.tokens import Tokens
from ...etcd.backend.backend import Backend
from ...etcd.codes import EtcdError
from ...etcd.messages import rpc_pb2 as rpc
from ...etcd.services.call import Call
from ...etcd.services.watch import watch
from ...etcd.state.machine import EtcdState
from ...etcd.watching.hub import WatchHub
from ...node.protocol.signal import Signal
from ..door import Serials
from ..ports.gateway import NumberingGateway
from ..store import Store

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.message import Message

    from ...node import Member, Service
    from ..watching.facts import Fact
    from ..watching.watched import Watched
    from .followed import Followed

FIRST_SERIAL: Final = 1 << 41
"""The numbers of these commands begin here, and so differ from those that doors give."""

SLOW: Final = 0.05
"""Part of the responses for which a client takes up to some seconds."""

ASKING: Final = 0.5
"""Part of the watches whose client asks at once how far they are."""


@attrs.frozen(eq=False)
class _Reader:
    """The outlet of a stream: its client, which reads as fast as it likes."""

    followed: Followed
    ask: Callable[[Message], None]
    rng: Random

    async def send(self, reply: bytes) -> None:
        """See `Outlet`."""
        slow = self.rng.random() < SLOW
        await trio.sleep(self.rng.random() * (3.0 if slow else 0.02))
        if self.followed.ask is self.ask:
            self.followed.take(reply)


@attrs.frozen(eq=False)
class Api:
    """What serves the clients at one member while it runs.

    Args:
        backend: reaches the cluster.
        hub: watches the state.
        tokens: of logins.
        nursery: of the member's process.
        rng: draws how fast clients read.
    """

    backend: Backend
    hub: WatchHub
    tokens: Tokens
    nursery: trio.Nursery
    rng: Random

    def follow(self, followed: Followed) -> None:
        """Serve a watch from now on, until the member ends, or loses its leader."""
        send, receive = trio.open_memory_channel["Message"](math.inf)
        followed.ask = ask = send.send_nowait
        ask(followed.request())
        if self.rng.random() < ASKING:
            # How far it is, before it has caught up.
            ask(rpc.WatchRequest(progress_request=rpc.WatchProgressRequest()))
        self.nursery.start_soon(self._serve, followed, ask, receive)

    async def _serve(
        self,
        followed: Followed,
        ask: Callable[[Message], None],
        receive: trio.MemoryReceiveChannel[Message],
    ) -> None:
        try:
            call = Call(self.backend, self.hub)
            await watch(call, receive, _Reader(followed, ask, self.rng))
        except EtcdError:
            pass  # the member has lost its leader
        finally:
            if followed.ask is ask:
                followed.leave()


class EtcdMembers:
    """The API at all members.

    Args:
        rng: draws what is random in them.
        tell: receives the facts.

    Attributes:
        open: the API of each member that runs.
    """

    def __init__(self, rng: Random, tell: Callable[[Fact], None]) -> None:
        self._rng = rng
        self._tell = tell
        self._serials = Serials()
        self._serials.last = FIRST_SERIAL
        self.open: dict[int, Api] = {}

    async def accompany(self, member: Member, service: Service) -> Never:
        """Serve clients while a member runs, in its process: paused and killed with it."""
        i = member.config.member_id
        store = cast("Watched[Service]", service).service
        assert isinstance(store, Store)
        assert isinstance(store.keyspace, EtcdState)
        later: deque[Callable[[], None]] = deque()
        wake = Signal()
        gateway = NumberingGateway(member, self._serials, self._tell)

        def call_later(call: Callable[[], None]) -> None:
            later.append(call)
            wake.notify()

        gateway.later = call_later
        rng = Random(self._rng.getrandbits(64))
        backend = Backend(gateway, store.keyspace, rng, "simulated")
        try:
            async with trio.open_nursery() as nursery:
                tokens = Tokens(rng.randbytes, LoggedTokens(backend))
                self.open[i] = Api(backend, WatchHub(store.keyspace), tokens, nursery, rng)
                nursery.start_soon(backend.run)
                while True:
                    if not later:
                        await wake.wait()
                    await trio.lowlevel.checkpoint()
                    while later:
                        later.popleft()()
        finally:
            if i in self.open and self.open[i].backend is backend:
                del self.open[i]
