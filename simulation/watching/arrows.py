"""Which message that is heard is which one that was sent: the arrows between members.

A link delivers in order, so the n-th message that was sent on it is the n-th that is heard. There
are two exceptions. A link that breaks loses what is on its way, and the next link counts anew. And
bulk, which is what members forward for clients, may be overtaken by other messages, so the order
holds among bulk, and among the rest.

A member accepts one link from another at a time. It ends the old one before it answers the hello of
the new one, and the sender uses a link only after that answer. So what is heard was always sent on
the newest link.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING, Final

import attrs

from ...node.live.messages import contents_of
from ...transport import ForwardReply, ForwardRequest
from ...transport.wire import decode_untrusted

if TYPE_CHECKING:
    from ...node import Member
    from ...transport import Address, Message
    from ...transport.outgoing import OutgoingLink, Queue
    from .trace import Trace

_BULK: Final = (ForwardRequest, ForwardReply)


@attrs.define(eq=False)
class _Way:
    """The messages from one member to another that are on the newest link.

    Attributes:
        link: how many links there were.
        sent: how many messages were sent on this one.
        under_way: number and type of those that were not heard yet; bulk, and the rest.
    """

    link: int = 0
    sent: int = 0
    under_way: dict[bool, deque[tuple[int, str]]] = attrs.field(
        factory=lambda: {bulk: deque[tuple[int, str]]() for bulk in (False, True)}
    )

    def renew(self) -> None:
        """Begin a new link: what is on the old one is lost."""
        self.link += 1
        self.sent = 0
        for waiting in self.under_way.values():
            waiting.clear()


class Arrows:
    """Numbers the messages between members, and writes those that are sent.

    Args:
        trace: whose file has them.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._ways = defaultdict[tuple[int, int], _Way](_Way)

    def attend(self, member: Member) -> None:
        """Follow the links of a member that was just made."""
        i = member.config.member_id
        peers = member.links._peers  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        make = peers._make  # pyright: ignore[reportPrivateUsage]

        def make_followed(to: int, addresses: tuple[Address, ...]) -> OutgoingLink:
            link = make(to, addresses)
            self._follow(i, to, link)
            return link

        setattr(peers, "_make", make_followed)  # noqa: B010 - of this member only
        for to, link in peers.links.items():
            self._follow(i, to, link)

    def _follow(self, i: int, to: int, link: OutgoingLink) -> None:
        """Number what member `i` sends on a link, and note when the link is up and down."""
        way = self._ways[i, to]
        send, close = link._send, link.close  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        on_up = link._on_up  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]

        def followed(frame: bytes, queue: Queue) -> bool:
            sent = send(frame, queue)
            if sent:
                self._sends(i, to, way, decode_untrusted(frame))
            return sent

        def up() -> None:
            way.renew()
            self._trace.show("link", i, peer=to, direction="out", up=True, why="")
            on_up()

        def closed(reason: str) -> None:
            if link.connected:
                self._trace.show("link", i, peer=to, direction="out", up=False, why=reason)
            close(reason)

        # All of this one link only.
        setattr(link, "_send", followed)  # noqa: B010
        setattr(link, "_on_up", up)  # noqa: B010
        setattr(link, "close", closed)  # noqa: B010

    def _sends(self, i: int, to: int, way: _Way, message: Message) -> None:
        kind = type(message).__name__
        way.sent += 1
        way.under_way[isinstance(message, _BULK)].append((way.sent, kind))
        about = {"to": to, "link": way.link, "n": way.sent, "type": kind}
        self._trace.show("sends", i, **about, **contents_of(message))

    def of(self, sender: int, i: int, message: Message) -> dict[str, int]:
        """Return link and number, term and position of a message that arrives at member `i`."""
        way, contents = self._ways[sender, i], contents_of(message)
        waiting = way.under_way[isinstance(message, _BULK)]
        if not waiting or waiting[0][1] != type(message).__name__:
            return contents
        return {"link": way.link, "n": waiting.popleft()[0], **contents}
