"""Connections that others open to us: the hello, links of peers, and streams.

A peer has at most one link to us. A newer connection of that peer replaces the older one. The older
one is closed, and its end reported, before anything of the newer one is delivered: frames that were
on their way over the older one belong to a stream that its sender has given up.

Strangers
---------
Anybody can open connections and say nothing. So a hello has a timeout and a small first frame, and
the number of connections without a hello is bounded (`strangers`).
"""

import itertools
import logging
from collections import Counter
from typing import Final, Protocol

import attrs
import trio

from ..errors import WireError
from ..log_events import log_event
from .authentication import Accept, Authenticator, ChallengeWith, Reject
from .fields import MAX_STRING_BYTES, NULL_VALUE, PROTOCOL_VERSION, HelloStatus, StreamPurpose
from .identity import Identity
from .limits import RECEIVE_BYTES, LinkLimits
from .messages import Challenge, ChallengeResponse, Hello, HelloReply, Message
from .network import Connection
from .outgoing import FORWARDED, Tap
from .peer_links import PeerLinks
from .strangers import Audit, NoAudit, OnceLog, Strangers, host_of
from .streams import (
    CONNECTION_ERRORS,
    HELLOS,
    FrameStream,
    describe,
    first_message,
    next_message,
    printable,
    second_hello,
    send_all,
)
from .wire import FrameDecoder, encode

log = logging.getLogger("quorate.transport")

CLIENT_PURPOSES: Final = {
    StreamPurpose.REPLAY,
    StreamPurpose.SNAPSHOT,
    StreamPurpose.BACKUP,
    StreamPurpose.HEARTBEAT,
}
"""What a client or a tool may open a connection for; each of them only reads."""


@attrs.frozen
class Greeting:
    """What a connection began with.

    Args:
        hello: its first message.
        decoder: with what it has of the next frame.
        messages: that arrived together with the last one of the greeting.
        verdict: whether the dialler has proved who it is.
        identity: what its certificate says; None without one.
    """

    hello: Hello
    decoder: FrameDecoder
    messages: list[Message]
    verdict: Accept | Reject
    identity: Identity | None


@attrs.define(eq=False)
class _Link:
    """A peer's link to us.

    Args:
        member: the peer.
        number: of the link, as the peer numbers its links.
        connection: over which it goes.
        count: messages that were heard on it.
    """

    member: int
    number: int
    connection: Connection
    count: int = 0


class LinkHandler(Protocol):
    """What a member does with its links.

    The synchronous methods run on trio's thread, in the order of events, and must not block. An
    exception from them is a bug, and ends `Links.run`.
    """

    def admits(self, hello: Hello, /) -> tuple[HelloStatus, str]:
        """Whether the member of a hello may come in; if not, the status and the reason.

        Asked for every purpose, and again by `Links.judge_anew`. A client or a tool, whose
        ``member_id`` is -1, is not asked about. If it has the certificate of a member, that member
        is, and only `HelloStatus.REMOVED` counts.
        """
        ...

    def on_peers(self) -> None:
        """`Links.peers` has changed."""
        ...

    def on_removed(self, member: int, reason: str, /) -> None:
        """A member has answered our dial that we were removed from the cluster, and why.

        The link goes on dialling, and each such answer is reported.
        """
        ...

    def on_hello(self, member: int, hello: Hello, /) -> None:
        """A link from the member was accepted; messages of its store come next."""
        ...

    def on_message(self, sender: int, message: Message, /) -> None:
        """Take a message; they come in the order in which member `sender` sent them."""
        ...

    def on_receiving(self, member: int, /) -> None:
        """Part of a message arrived: the member is alive, however long the rest takes."""
        ...

    def on_link_up(self, member: int, /) -> None:
        """Our link to the member is ready to send."""
        ...

    def on_link_lost(self, member: int, /) -> None:
        """The member's link to us ended; no more messages of that stream come."""
        ...

    async def on_stream(self, hello: Hello, stream: FrameStream, /) -> None:
        """Serve a stream, in a task of its own; the stream is closed on return.

        BrokenResourceError, ClosedResourceError, TooSlowError and WireError end only the stream.
        """
        ...


class Reception:
    """Takes connections from others.

    Args:
        cluster: name of the cluster.
        member_id: of this member.
        incarnation: of this process.
        peers: learns which members have a link to us; we have one to each of them.
        handler: decides which members may come in, and gets what arrives.
        limits: see `LinkLimits`.
        authenticator: judges whether others are who they say.
        audit: takes note of those that are refused, and of readers that come in.
        history: of the cluster, 0 while unknown.
        service: kind of our service.
        tap: shows what is heard.
    """

    def __init__(
        self,
        *,
        cluster: str,
        member_id: int,
        incarnation: int,
        peers: PeerLinks,
        handler: LinkHandler,
        limits: LinkLimits,
        authenticator: Authenticator,
        audit: Audit | None = None,
        history: int = 0,
        service: str = "",
        tap: Tap,
    ) -> None:
        self._cluster = cluster
        self._tap = tap
        self._member_id = member_id
        self._incarnation = incarnation
        self._peers = peers
        self._handler = handler
        self._limits = limits
        self._authenticator = authenticator
        self._audit = audit or NoAudit()
        self._challenges = itertools.count(1)
        self._history = history
        self._service = service
        self._links: dict[int, Connection] = {}
        self._hellos: dict[int, Hello] = {}  # with which these links began
        self._principals: dict[int, str] = {}  # as which the dialler was let in, by member
        self._streams = Counter[tuple[int, str]]()  # open streams by member and principal
        self._readers: dict[Connection, Greeting] = {}  # whose streams these are
        self._log = OnceLog().warn
        self._strangers = Strangers(limits.pending_hellos, "without a hello", self._log)

    def has_link(self, member: int) -> bool:
        """Whether the member's link to us is open."""
        return member in self._links

    def principal(self, member: int) -> str:
        """Return the name as which a member was let in last; empty if it never was."""
        return self._principals.get(member, "")

    def know_history(self, history: int) -> None:
        """Note the cluster's history, which is known now; close links of other histories."""
        self._history = history
        # A list first: the dictionary changes.
        for member, hello in list(self._hellos.items()):
            if self._is_other(hello.history):
                self._log(f"closed the link from member {member}: it is of another history")
                self._close_link(member)

    def judge_anew(self) -> None:
        """Ask the handler again about each link and stream; close those that it refuses now."""
        for member, hello in list(self._hellos.items()):
            status, reason = self._handler.admits(hello)
            if status is not HelloStatus.ACCEPTED:
                self._log(f"closed the link from member {member}: {reason}")
                self._close_link(member)
        for connection, greeting in list(self._readers.items()):
            status, reason = self._judge_member(greeting)
            if status is not HelloStatus.ACCEPTED:
                self._log(f"closed {greeting.hello.purpose.name} of {connection.peer}: {reason}")
                connection.close()

    def _close_link(self, member: int) -> None:
        """Close the member's link, unless that has happened; report its end."""
        self._end_link(member)
        # Behind the report: until then the handler may still send to the member.
        self._peers.part(member)

    def _is_other(self, history: int) -> bool:
        # 0 says "not known yet". Such a member may still belong to us, so it is let in.
        return bool(history and self._history) and history != self._history

    async def handle(self, connection: Connection) -> None:
        """Serve one connection until it ends; errors of the handler are raised."""
        greeting = await self._await_hello(connection)
        if greeting is None or not await self._answer(connection, greeting):
            return
        hello, decoder, messages = greeting.hello, greeting.decoder, greeting.messages
        if hello.purpose is StreamPurpose.CONSENSUS:
            link = _Link(hello.member_id, hello.log_session_id, connection)
            await self._serve_link(link, decoder, messages)
        else:
            asker = _asker(greeting)
            self._streams[asker] += 1
            self._readers[connection] = greeting
            try:
                stream = FrameStream(connection, decoder, messages)
                stream.principal = asker[1]
                await self._serve_stream(hello, stream)
            finally:
                del self._readers[connection]
                self._streams[asker] -= 1
                # Ids of members that come and go would pile up otherwise.
                self._streams += Counter()  # drops those that are 0

    async def _await_hello(self, connection: Connection) -> Greeting | None:
        """Wait for a hello; None if none comes in time, or if newer connections need the room."""
        host = host_of(connection.peer)
        with self._strangers.waiting(host):
            try:
                with trio.fail_after(self._limits.hello_seconds):
                    return await self._receive_hello(connection)
            except CONNECTION_ERRORS as error:
                self._log(f"no hello from {host}: {describe(error)}")
        return None

    async def _receive_hello(self, connection: Connection) -> Greeting:
        """Wait for a hello, and for the proof of who the dialler is."""
        hello, decoder, messages = await first_message(connection)
        if not isinstance(hello, Hello):
            raise WireError(f"a {type(hello).__name__} came first" if hello else "it closed")
        # The credentials may mean something else in another version. It is refused anyway.
        if _is_other_version(hello):
            reject = Reject("another version")
            return Greeting(hello, decoder, messages, reject, connection.identity)
        verdict = self._authenticator.connect(hello, connection.identity)
        if isinstance(verdict, ChallengeWith):
            challenge = Challenge(0, next(self._challenges), verdict.challenge)
            await send_all(connection, encode(challenge))
            answer, messages = await next_message(connection, decoder, messages)
            if not (
                isinstance(answer, ChallengeResponse) and answer.session_id == challenge.session_id
            ):
                found = type(answer).__name__ if answer else "it closed"
                raise WireError(f"{found}, expected the response to our challenge")
            verdict = self._authenticator.respond(hello, verdict.challenge, answer.credentials)
        return Greeting(hello, decoder, messages, verdict, connection.identity)

    async def _answer(self, connection: Connection, greeting: Greeting) -> bool:
        """Accept or refuse; return whether the connection goes on."""
        hello = greeting.hello
        status, reason = self._judge(greeting)
        accepted = status is HelloStatus.ACCEPTED
        if not accepted:
            self._log(f"refused {hello.purpose.name} from member {hello.member_id}: {reason}")
            self._note("refused", connection, greeting, status=status.name, reason=reason)
        elif hello.purpose is StreamPurpose.CONSENSUS:
            if isinstance(greeting.verdict, Accept):
                self._principals[hello.member_id] = greeting.verdict.principal
            # Before the answer is sent: as soon as the peer has it, it sends.
            self._begin_link(hello, connection)
        elif hello.member_id == NULL_VALUE and hello.purpose is not StreamPurpose.HEARTBEAT:
            self._note("reader_admitted", connection, greeting)
        reply = HelloReply(self._member_id, status, _clip(reason), self._incarnation)
        try:
            with trio.fail_after(self._limits.hello_seconds):
                await send_all(connection, encode(reply))
        except CONNECTION_ERRORS:
            connection.close()  # a registered link ends when it is read from
        return accepted

    def _note(self, event: str, connection: Connection, greeting: Greeting, **facts: str) -> None:
        hello, verdict = greeting.hello, greeting.verdict
        self._audit.note(
            event,
            of=host_of(connection.peer),
            address=connection.peer,
            purpose=hello.purpose.name,
            claims_member=hello.member_id,
            principal=verdict.principal if isinstance(verdict, Accept) else "",
            **facts,
        )

    def _begin_link(self, hello: Hello, connection: Connection) -> None:
        """Note that a member's link to us is this connection from now on."""
        member = hello.member_id
        # The end of the old link is reported before the new one delivers anything.
        self._end_link(member)
        self._links[member] = connection
        self._hellos[member] = hello
        # First our link to the member, so that the handler can answer whatever the member says.
        self._peers.introduce(hello)
        # A callback of that may have had the handler judge anew, and refuse this very hello.
        if self._hellos.get(member) is hello:
            self._handler.on_hello(member, hello)
            self._peers.nudge(member)

    def _judge(self, greeting: Greeting) -> tuple[HelloStatus, str]:
        """Return the status of a hello and, if refused, what was found and what expected."""
        hello, verdict = greeting.hello, greeting.verdict
        # Version first: the other fields may mean something else in another version.
        if _is_other_version(hello):
            major, expected = hello.protocol_version >> 16, PROTOCOL_VERSION >> 16
            return HelloStatus.WRONG_VERSION, f"protocol version {major}, expected {expected}"
        # Then this: a stranger learns nothing of the rest, and reaches nothing of our state.
        if isinstance(verdict, Reject):
            return HelloStatus.UNAUTHORISED, verdict.reason
        if hello.cluster != self._cluster:
            reason = f"cluster {hello.cluster!r}, expected {self._cluster!r}"
            return HelloStatus.WRONG_CLUSTER, reason
        # Two clusters founded with one name, or a cluster founded anew. Their logs must never mix.
        if self._is_other(hello.history):
            reason = f"history {hello.history:016x} of this cluster, expected {self._history:016x}"
            return HelloStatus.WRONG_CLUSTER, reason
        if hello.service and self._service and hello.service != self._service:
            service = printable(hello.service)
            reason = f"a {service}, expected a {self._service}, as this cluster is"
            return HelloStatus.WRONG_CLUSTER, reason
        # The peer's configuration has our address under another id. Its votes and positions would
        # count for the wrong member.
        if hello.called_member_id not in {NULL_VALUE, self._member_id}:
            reason = f"called member {hello.called_member_id}, this is member {self._member_id}"
            return HelloStatus.WRONG_MEMBER, reason
        status, reason = self._judge_member(greeting)
        if status is not HelloStatus.ACCEPTED:
            return status, reason
        # Each stream reads the log and fills buffers, so one caller must not open as many as it
        # likes.
        most = self._limits.streams
        if hello.purpose is not StreamPurpose.CONSENSUS and self._streams[_asker(greeting)] >= most:
            return HelloStatus.BUSY, f"{most} streams are open already"
        return HelloStatus.ACCEPTED, ""

    def _judge_member(self, greeting: Greeting) -> tuple[HelloStatus, str]:
        """Return the status of a hello, as far as its sender decides, and the reason if refused."""
        hello = greeting.hello
        member, purpose = hello.member_id, hello.purpose
        # Clients and tools have no id. They may read, and never take part in consensus.
        if member == NULL_VALUE and purpose in CLIENT_PURPOSES:
            return self._judge_owner(greeting)
        # Our own id is that of a second process with our configuration. A link to it would be one
        # to ourselves.
        if member < 0 or member == self._member_id:
            reason = f"member {member} for {purpose.name}, expected the id of another member"
            return HelloStatus.WRONG_MEMBER, reason
        status, reason = self._handler.admits(hello)
        if status is HelloStatus.ACCEPTED and purpose is StreamPurpose.CONSENSUS:
            return self._peers.judge(hello)
        return status, reason

    def _judge_owner(self, greeting: Greeting) -> tuple[HelloStatus, str]:
        """Judge a tool, which may have the certificate of a member that was removed."""
        owner = greeting.identity.member_id if greeting.identity else None
        if owner is not None:
            hello = attrs.evolve(greeting.hello, member_id=owner)
            status, reason = self._handler.admits(hello)
            if status is HelloStatus.REMOVED:
                return status, reason
        return HelloStatus.ACCEPTED, ""

    def _end_link(self, member: int) -> None:
        """Close the member's link, if there is one, and report its end."""
        if (link := self._links.pop(member, None)) is not None:
            del self._hellos[member]
            link.close()
            self._handler.on_link_lost(member)

    async def _serve_link(
        self, link: _Link, decoder: FrameDecoder, messages: list[Message]
    ) -> None:
        member, connection = link.member, link.connection
        if self._links.get(member) is not connection:
            return  # replaced by a newer one while it was answered
        log_event(
            log,
            logging.DEBUG,
            "link",
            "link from member %(peer)d at %(address)s is up",
            peer=member,
            direction="in",
            up=True,
            address=connection.peer,
        )
        try:
            while True:
                # First what came together with the hello, then what is received.
                self._deliver(link, messages, pending=decoder.pending)
                try:
                    data = await connection.receive(RECEIVE_BYTES)
                    messages = _decoded(connection, decoder, data)
                    self._peers.count_received(member, len(data))
                except CONNECTION_ERRORS as error:
                    newer = self._links.get(member) not in {None, connection}
                    why = "a newer one took its place" if newer else describe(error)
                    log_event(
                        log,
                        logging.DEBUG,
                        "link",
                        "link from member %(peer)d ended: %(why)s",
                        peer=member,
                        direction="in",
                        up=False,
                        why=why,
                    )
                    break
        except BaseException:
            # Cancelled, or a bug in the handler: report nothing more.
            if self._links.get(member) is connection:
                del self._links[member], self._hellos[member]
            raise
        if self._links.get(member) is connection:
            self._close_link(member)

    def _deliver(self, link: _Link, messages: list[Message], *, pending: int) -> None:
        member, connection = link.member, link.connection
        for message in messages:
            # A callback may close the very link that it is called for, and then its end has been
            # reported.
            if self._links.get(member) is not connection:
                return
            if (kind := type(message)) not in FORWARDED:
                link.count += 1
                if kind in self._tap.classes:
                    self._tap.heard(member, link.number, link.count, message)
            self._handler.on_message(member, message)
        # A batch of megabytes takes long on a slow network. Without this sign the member would
        # count as silent.
        if pending and self._links.get(member) is connection:
            self._handler.on_receiving(member)

    async def _serve_stream(self, hello: Hello, stream: FrameStream) -> None:
        async with stream:
            try:
                await self._handler.on_stream(hello, stream)
            # A nursery in the handler wraps errors in groups; `except*` takes them with or without
            # one.
            except* (
                WireError,
                trio.BrokenResourceError,
                trio.ClosedResourceError,
                trio.TooSlowError,
            ) as group:
                log_event(
                    log,
                    logging.DEBUG,
                    "stream_ended",
                    "%(purpose)s from %(address)s ended: %(why)s",
                    purpose=hello.purpose.name,
                    address=stream.peer,
                    why=repr(group.exceptions),
                )


def _asker(greeting: Greeting) -> tuple[int, str]:
    """Return those whose streams are counted together: a member, or the owner of a certificate."""
    # One reader can't take the streams of another one, whose certificate has another name.
    verdict = greeting.verdict
    principal = verdict.principal if isinstance(verdict, Accept) else ""
    return greeting.hello.member_id, principal


def _is_other_version(hello: Hello) -> bool:
    return hello.protocol_version >> 16 != PROTOCOL_VERSION >> 16


def _decoded(connection: Connection, decoder: FrameDecoder, data: bytes) -> list[Message]:
    """Return the messages of a link that are whole now.

    Raises:
        trio.BrokenResourceError: the link ended, orderly or not.
        WireError: the bytes are no valid frames, or a hello came again.
    """
    # Raised, so that both ways in which a link can end take one path.
    if not data:
        cut = f", {decoder.pending} bytes into a frame" if decoder.pending else ""
        raise trio.BrokenResourceError(f"closed{cut}")
    messages = decoder.feed(data)
    for message in messages:
        if isinstance(message, HELLOS):
            raise second_hello(message, connection.peer)
    return messages


def _clip(text: str) -> str:
    """Shorten a text to what a message can carry."""
    # Cut as bytes, which may split a character: "ignore" drops the half one.
    return text.encode()[:MAX_STRING_BYTES].decode(errors="ignore")
