"""All links of one member.

The idea
--------
There is one connection per *ordered* pair of members. A dials B; what A says to B goes over that
connection only, in order. B's connection to A is another one::

    member A                                member B
    OutgoingLink(B)  ---- messages, log ---->  Reception
    Reception        <--- messages, log -----  OutgoingLink(A)

So each direction has one owner, which dials it and has its queue.

The naive way, and why it fails
-------------------------------
TCP could carry both directions over one connection. Then a rule must say which member dials. If
both dial at the same moment, each side may keep another one of the two connections. Here each
direction has one dialler, and a break of one says nothing about the other.

Sending
-------
Sending never waits and is synchronous: a leader hands a batch to all followers without a task
switch. A slow or dead peer fills its own queue and holds up nobody. What does not fit is treated by
its kind (see `outgoing`): messages are dropped, since senders repeat them; a gap in the live log
closes the link; bulk is refused.

Receiving
---------
Receiving is one task per connection (see `incoming`). TCP's keepalive notices an idle link whose
other end has vanished after about 11 s. Members that need to know sooner send heartbeats, and watch
for them.

Whatever the network does (refused and broken connections, timeouts, invalid frames) ends at most a
connection. A bug in the handler ends `Links.run`.

Peers come and go
-----------------
The owner lists the peers, and may list other ones at any time (`Links.set_peers`). A member that is
in no list but whose hello is admitted gets a link, too, for as long as its own link to us lasts.
`peer_links` says why. Which members are admitted is for the handler to decide (`admits`): only it
knows what the log says about a member. When it has learned more, it has the open links judged again
(`Links.judge_anew`).

The naive way is a list that never changes. Then each change of the cluster needs a restart of every
member, one after the other. Until the last restart, members disagree about the quorum.

What we do not do
-----------------
There is no acknowledgement and no resending on a link: TCP has both, and the protocol repeats what
matters. There is no encryption here either: that is a network's, see the room `tls`.
"""

from functools import partial
from random import Random
from typing import Never

import trio

from ..errors import ConfigurationError, HandshakeError
from .authentication import PeerSecurity
from .fields import MAX_STRING_BYTES, NULL_VALUE, PROTOCOL_VERSION, StreamPurpose
from .incoming import LinkHandler, Reception
from .limits import LinkLimits
from .messages import Hello, Message
from .network import Address, Network
from .outgoing import OutgoingLink, Tap
from .peer_links import PeerAddresses, PeerLinks
from .streams import CONNECTION_ERRORS, FrameStream, open_stream
from .wire import encode


class Links:
    """All links of one member to and from its peers.

    Args:
        cluster: name of the cluster, at most 256 bytes.
        member_id: of this member.
        incarnation: random unsigned 64-bit number, drawn once per process.
        instance: of this member's store.
        bind: address to listen at.
        peers: the first list of other members, each with its address, or with several ones in the
            order in which to try them; an entry for this member is ignored.
        network: makes the connections.
        handler: gets what arrives.
        rng: for the pauses between dials.
        limits: see `LinkLimits`.
        history: fingerprint of the cluster's founding, 0 while unknown. A member with another one
            is refused.
        service: kind of our service; a member with another one is refused.
        advertised: where other members can dial us, as our hello says; None for nowhere.
        security: judges others, and proves who we are; open unless given.

    Attributes:
        tap: shows messages as they are sent and heard.

    All methods run on trio's thread, and those that are synchronous may be called from a callback
    of the handler. A method that takes a member also takes one that has no link: nothing is sent
    then, and what it returns says so.

    Raises:
        ConfigurationError: the cluster's name, or the advertised host, is too long.
    """

    def __init__(
        self,
        *,
        cluster: str,
        member_id: int,
        incarnation: int,
        instance: int,
        bind: Address,
        peers: PeerAddresses,
        network: Network,
        handler: LinkHandler,
        rng: Random,
        limits: LinkLimits | None = None,
        history: int = 0,
        service: str = "",
        advertised: Address | None = None,
        security: PeerSecurity | None = None,
    ) -> None:
        _check_length("cluster", cluster)
        _check_length("host", advertised.host if advertised else "")
        self._cluster = cluster
        self._member_id = member_id
        self._incarnation = incarnation
        self._instance = instance
        self._bind = bind
        self._network = network
        self._handler = handler
        self._rng = rng
        self._limits = limits or LinkLimits()
        self._security = security or PeerSecurity()
        self._history = history
        self._service = service
        self._advertised = advertised
        self.tap = Tap(incarnation)
        self._peers = PeerLinks(member_id, peers, make=self._outgoing, on_change=handler.on_peers)
        self._reception = Reception(
            cluster=cluster,
            member_id=member_id,
            incarnation=incarnation,
            peers=self._peers,
            handler=handler,
            limits=self._limits,
            authenticator=self._security.authenticator,
            audit=self._security.audit,
            history=history,
            service=service,
            tap=self.tap,
        )

    def _outgoing(self, member: int, addresses: tuple[Address, ...]) -> OutgoingLink:
        """Return a new link to a peer."""
        return OutgoingLink(
            addresses=addresses,
            network=self._network,
            hello=self._hello(member, StreamPurpose.CONSENSUS),
            on_up=partial(self._handler.on_link_up, member),
            on_removed=partial(self._handler.on_removed, member),
            limits=self._limits,
            security=self._security,
            rng=Random(self._rng.getrandbits(64)),  # noqa: S311 - one each: draw independently
            tap=self.tap,
        )

    @property
    def peers(self) -> tuple[int, ...]:
        """All members that we have a link to, up or not, in ascending order of ids."""
        return tuple(self._peers.links)

    def set_peers(self, peers: PeerAddresses) -> None:
        """Replace the list of peers; may be called before `run`, too.

        A new peer is dialled at once. A peer that is listed no more loses its link, unless its own
        link to us is up; then it loses it at the end of that one. A peer with other addresses than
        before keeps its connection, and is dialled at the new ones when that has ended.
        `LinkHandler.on_peers` is called if this changes `peers`.
        """
        # The connection is kept, because its hello has proved at which member it ends.
        self._peers.set_peers(peers)

    def judge_anew(self) -> None:
        """Ask `LinkHandler.admits` again about each link to us; close those that it refuses now.

        The other end dials again, and is refused with the reason.
        """
        self._reception.judge_anew()

    async def run(
        self, *, task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED
    ) -> Never:
        """Listen, and keep a link to every peer up; `started` with the address that was bound.

        Raises:
            OSError: the address can't be bound.
        """
        # One nursery for all: a bug in a handler ends every link, and `run` raises it.
        async with trio.open_nursery() as nursery:
            serve = partial(self._network.serve, self._bind, self._reception.handle)
            # Listen before the first dial: a peer that we dial dials back at once.
            bound: Address = await nursery.start(serve)
            self._peers.run(nursery)
            # Listening already, dialling not yet: the owner may now count on being reached.
            task_status.started(bound)
            try:
                # Waited for in here: a nursery takes new tasks until its block and its tasks end.
                await trio.sleep_forever()
            finally:
                self._peers.stop()
        raise AssertionError("only cancellation ends it")  # pragma: no cover - never reached

    def send(self, member: int, message: Message) -> bool:
        """Send a message to a peer, without waiting.

        Returns:
            False if there is no link, or its queue is full: the message is dropped.
        """
        # Encode only for a link that is there: an absent peer must not cost a busy leader time.
        link = self._peers.links.get(member)
        return link is not None and link.connected and link.send(encode(message))

    def send_frame(self, member: int, frame: bytes) -> bool:
        """Send an encoded frame that must not be missed, without waiting.

        Returns:
            False if there is no link, or its queue is full. The link is then closed, so the peer
            never sees a gap.
        """
        link = self._peers.links.get(member)
        if link is None:
            return False
        sent = link.send(frame)
        if not sent:  # the peer will see its stream end, and ask for the log again
            # Dropping it silently would leave a hole in the log that the peer can't see.
            link.close("its queue is full, and this frame must not be missed")
        return sent

    def has_room(self, member: int) -> bool:
        """Whether there is a link on which less than half a queue of bulk waits.

        Ask before you make bulk. What is made then fits: `send_bulk` accepts up to a whole queue.
        """
        # Half, not all: what is being made right now also has to fit.
        link = self._peers.links.get(member)
        return link is not None and link.has_room

    def send_bulk(self, member: int, message: Message) -> bool:
        """Send a message behind all others, without waiting; it neither delays nor displaces them.

        Returns:
            False if there is no link, or a whole queue of bulk waits: the message is dropped.
        """
        # Its own queue: bulk that piles up must not take the room of heartbeats and votes.
        link = self._peers.links.get(member)
        return link is not None and link.connected and link.send_bulk(encode(message))

    def broadcast(self, message: Message) -> None:
        """Send a message to every peer that has a link, in ascending order of ids."""
        frame = encode(message)  # once for all of them
        for link in self._peers.links.values():
            link.send(frame)  # False is ignored: what is broadcast is repeated

    def principal(self, member: int) -> str:
        """Return the name as which a member was let in last; empty if it never was."""
        return self._reception.principal(member)

    def connected(self, member: int) -> bool:
        """Whether our link to the peer is up."""
        link = self._peers.links.get(member)
        return link is not None and link.connected

    def refused(self, member: int) -> bool:
        """Whether the peer's process is gone.

        That is so if the last dial was refused, and no link from the peer is open.
        """
        # A refused dial alone may be a peer that does not listen yet; with an open link it lives.
        link = self._peers.links.get(member)
        return link is not None and link.refused and not self._reception.has_link(member)

    def trouble(self, member: int) -> str:
        """Return why there is no link to the peer; empty if there is one, or none was tried."""
        # For status and logs. `refused` is the one that decisions may rest on.
        link = self._peers.links.get(member)
        return "" if link is None else link.trouble

    def traffic(self, member: int) -> tuple[int, int]:
        """Return the bytes sent to a peer, and received from it, without those of streams."""
        link = self._peers.links.get(member)
        return (0, 0) if link is None else (link.sent_bytes, link.received_bytes)

    def disconnect(self, member: int) -> None:
        """Close our link to the peer; it is dialled again."""
        # `OutgoingLink.run` dials again after its usual pause.
        if (link := self._peers.links.get(member)) is not None:
            link.close("closed by this member")

    async def flush(self) -> None:
        """Wait until the network has taken everything that waits for connected peers.

        A peer that does not read holds it up, so the caller sets a timeout.
        """
        # One after the other is enough: all of them go on emptying. A copy: peers may come and go.
        for link in tuple(self._peers.links.values()):
            await link.flush()

    async def open_stream(
        self,
        member: int | Address,
        *,
        purpose: StreamPurpose,
        log_session_id: int = NULL_VALUE,
        join_position: int = NULL_VALUE,
    ) -> FrameStream:
        """Open a stream to a peer, or to whatever listens at an address.

        Raises:
            HandshakeError: the other end refused us, or is not the member that was called; or no
                address of that member is known.
            WireError: it does not speak our protocol.
            OSError: it can't be reached; ConnectionRefusedError if nobody listens.
            trio.BrokenResourceError: the connection broke, or ended before the answer.
            trio.TooSlowError: connecting, or the answer, took too long.
        """
        # With an address anybody may answer; with an id the answer must come from that member.
        called = member if isinstance(member, int) else NULL_VALUE
        addresses = self._addresses(member) if isinstance(member, int) else (member,)
        hello = self._hello(
            called, purpose, log_session_id=log_session_id, join_position=join_position
        )
        failures: list[Exception] = []
        for address in addresses:
            try:
                return await open_stream(
                    self._network, address, hello, self._limits, self._security
                )
            except CONNECTION_ERRORS as error:
                failures.append(error)
        # The first one is that of the best address: the other ones may be out of date.
        raise failures[0]

    def _addresses(self, member: int) -> tuple[Address, ...]:
        """Return where to open a stream to a peer.

        Raises:
            HandshakeError: no address is known.
        """
        link = self._peers.links.get(member)
        if link is None or not link.addresses:
            raise HandshakeError(f"member {member}: no address of it is known")
        return link.addresses

    def set_history(self, history: int) -> None:
        """Note the cluster's history, which is known now; links of other histories end."""
        self._history = history
        self._reception.know_history(history)
        # A link that is up keeps its old hello; the next dial says the history.
        for member, link in self._peers.links.items():
            link.hello = self._hello(member, StreamPurpose.CONSENSUS)

    def dial_anew(self) -> None:
        """Close our links; their successors tell the peers our history."""
        # A hello is said once per connection, so the peers learn it only from new ones.
        for link in self._peers.links.values():
            link.close("dialled again, to announce the history")

    def _hello(
        self,
        called: int,
        purpose: StreamPurpose,
        *,
        log_session_id: int = NULL_VALUE,
        join_position: int = NULL_VALUE,
    ) -> Hello:
        # Built anew each time: the history may have become known since the last one.
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
            instance=self._instance,
            service=self._service,
            host=self._advertised.host if self._advertised else "",
            port=self._advertised.port if self._advertised else 0,
        )


def _check_length(name: str, text: str) -> None:
    """Raise ConfigurationError if a text does not fit a hello."""
    size = len(text.encode())
    if size > MAX_STRING_BYTES:
        raise ConfigurationError(
            f"{name}: a name of {size} bytes, expected at most {MAX_STRING_BYTES} bytes"
        )
