"""All links of one member.

There is one connection for each ordered pair of members: A dials B, and what A says to B goes
only there, in order. B's connection to A is another. So each direction has one owner, who dials it,
and a break of one says nothing about the other.

Sending is synchronous and never waits: a slow or dead peer fills its own queue and holds up nobody.
Receiving is one task per connection. Idle links whose other end vanished are noticed by TCP's
keepalive, after about 11 s; who needs to know sooner sends heartbeats and watches for them.

Whatever the network does (refused and broken connections, timeouts, bytes that are no frames)
ends a connection at most. A bug in the handler ends `Links.run`.
"""

from collections.abc import Mapping
from functools import partial
from random import Random
from typing import Never

import trio

from ..errors import ConfigurationError
from .fields import MAX_STRING_BYTES, NULL_VALUE, PROTOCOL_VERSION, StreamPurpose
from .incoming import LinkHandler, Reception
from .limits import LinkLimits
from .messages import Hello, Message
from .network import Address, Network
from .outgoing import OutgoingLink
from .streams import FrameStream, open_stream
from .wire import encode


class Links:
    """All links of one member to and from its peers.

    Args:
        cluster: name of the cluster, at most 256 bytes.
        member_id: who we are.
        incarnation: random unsigned 64-bit number, drawn once at the start of the process.
        bind: where to listen.
        peers: where the other members listen; an entry for ourselves is ignored.
        network: how to reach them.
        handler: gets what comes.
        rng: for the pauses between dials.
        limits: see `LinkLimits`.
        history: of the cluster, 0 if it is not known yet; who knows another one is refused.
        service: the kind of our service; members with another one are refused.

    Raises:
        ConfigurationError: the cluster's name is too long.
    """

    def __init__(
        self,
        *,
        cluster: str,
        member_id: int,
        incarnation: int,
        bind: Address,
        peers: Mapping[int, Address],
        network: Network,
        handler: LinkHandler,
        rng: Random,
        limits: LinkLimits | None = None,
        history: int = 0,
        service: str = "",
    ) -> None:
        if len(cluster.encode()) > MAX_STRING_BYTES:
            raise ConfigurationError(f"cluster: a name of at most {MAX_STRING_BYTES} bytes")
        self._cluster = cluster
        self._member_id = member_id
        self._incarnation = incarnation
        self._bind = bind
        self._peers = {member: peers[member] for member in sorted(peers) if member != member_id}
        self._network = network
        self._limits = limits or LinkLimits()
        self._history = history
        self._service = service
        self._reception = Reception(
            cluster=cluster,
            member_id=member_id,
            incarnation=incarnation,
            peers=self._peers,
            handler=handler,
            on_dialled=self._nudge,
            limits=self._limits,
            history=history,
            service=service,
        )
        self._links = {
            member: OutgoingLink(
                address=address,
                network=network,
                hello=self._hello(member, StreamPurpose.CONSENSUS),
                on_up=partial(handler.on_link_up, member),
                limits=self._limits,
                rng=Random(rng.getrandbits(64)),  # noqa: S311 - one each, so none disturbs another
            )
            for member, address in self._peers.items()
        }

    async def run(
        self, *, task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED
    ) -> Never:
        """Listen, and keep a link to every peer up. Started with the address really bound.

        Raises:
            OSError: the address can't be bound.
        """
        async with trio.open_nursery() as nursery:
            serve = partial(self._network.serve, self._bind, self._reception.handle)
            bound: Address = await nursery.start(serve)
            for link in self._links.values():
                nursery.start_soon(link.run)
            task_status.started(bound)
        raise AssertionError("none of its tasks ends")  # pragma: no cover - never reached

    def send(self, member: int, message: Message) -> bool:
        """Send a message to a peer, without waiting.

        Returns:
            False if there is no link to it, or its queue is full: the message is dropped.
        """
        link = self._links[member]
        return link.connected and link.send(encode(message))

    def send_frame(self, member: int, frame: bytes) -> bool:
        """Send a frame that is encoded already and may not be missed, without waiting.

        Returns:
            False if there is no link to the peer, or its queue is full: then the link is closed,
            so that the peer never sees a gap.
        """
        link = self._links[member]
        sent = link.send(frame)
        if not sent:
            link.close("its queue is full, and what does not fit may not be missed")
        return sent

    def has_room(self, member: int) -> bool:
        """Tell whether there is a link to the peer on which less than half a queue of bulk waits.

        Who makes bulk asks before the work; what is finished `send_bulk` takes up to a whole queue.
        """
        return self._links[member].has_room

    def send_bulk(self, member: int, message: Message) -> bool:
        """Send a message behind all others, without waiting: it neither delays nor displaces them.

        Returns:
            False if there is no link to the peer, or a whole queue of bulk waits for it: the
            message is dropped.
        """
        link = self._links[member]
        return link.connected and link.send_bulk(encode(message))

    def broadcast(self, message: Message) -> None:
        """Send a message to every peer that there is a link to, in ascending order of ids."""
        frame = encode(message)
        for link in self._links.values():
            link.send(frame)

    def connected(self, member: int) -> bool:
        """Tell whether our link to the peer is up."""
        return self._links[member].connected

    def refused(self, member: int) -> bool:
        """Tell whether the peer's process is gone.

        The last dial was refused, and no link from it is open.
        """
        return self._links[member].refused and not self._reception.has_link(member)

    def trouble(self, member: int) -> str:
        """Say why there is no link to the peer; empty if there is one, or none was tried yet."""
        return self._links[member].trouble

    def disconnect(self, member: int) -> None:
        """Close our link to the peer, which is then dialled anew."""
        self._links[member].close("closed by ourselves")

    async def flush(self) -> None:
        """Wait until the network has taken all that waits for peers that there is a link to.

        A peer that does not read holds it up: the caller says how long.
        """
        for link in self._links.values():
            await link.flush()

    async def open_stream(
        self,
        member: int | Address,
        *,
        purpose: StreamPurpose,
        log_session_id: int = NULL_VALUE,
        join_position: int = NULL_VALUE,
    ) -> FrameStream:
        """Open a catch-up or replay stream to a peer, or to whoever listens at an address.

        Raises:
            HandshakeError: we were refused, or the other end is not the member that was called.
            WireError: it does not speak our protocol.
            OSError: it could not be reached; ConnectionRefusedError if nobody listens.
            trio.BrokenResourceError: the connection broke, or ended before the answer.
            trio.TooSlowError: connecting or the answer took too long.
        """
        called, address = NULL_VALUE, member
        if isinstance(address, int):
            called, address = address, self._peers[address]
        hello = self._hello(
            called, purpose, log_session_id=log_session_id, join_position=join_position
        )
        return await open_stream(self._network, address, hello, self._limits)

    def set_history(self, history: int) -> None:
        """The history of the cluster is known now, and with it who does not belong to it."""
        self._history = history
        self._reception.know_history(history)
        for member, link in self._links.items():
            link.hello = self._hello(member, StreamPurpose.CONSENSUS)

    def dial_anew(self) -> None:
        """Close our links; the new ones tell the peers what they could not know, our history."""
        for link in self._links.values():
            link.close("dialled anew, to tell the history")

    def _nudge(self, member: int) -> None:
        self._links[member].nudge()

    def _hello(
        self,
        called: int,
        purpose: StreamPurpose,
        *,
        log_session_id: int = NULL_VALUE,
        join_position: int = NULL_VALUE,
    ) -> Hello:
        return Hello(
            cluster=self._cluster,
            member_id=self._member_id,
            protocol_version=PROTOCOL_VERSION,
            incarnation=self._incarnation,
            purpose=purpose,
            log_session_id=log_session_id,
            join_position=join_position,
            called_member_id=called,
            history=self._history,
            service=self._service,
        )
