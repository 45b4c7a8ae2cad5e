"""Requests that other members forward to us, the leader, and how their answers travel.

Every one of them is answered, or its sender learns from a broken link that it will not be: large
replies are bulk, which the link to the sender takes only so much of; everything else is small, and
closes the link rather than be missed. So a query is not even worked on while too much waits for its
sender, who is told to ask anew. A command's reply, which can't be made again, may wait twice as
long; where even that is not enough, its sender is told that it took effect unseen.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import attrs

from ...errors import (
    NoLeaderError,
    OversizedRequestError,
    RefusedError,
    RequestError,
    UnknownOutcomeError,
)
from ...transport import MAX_BATCH_BYTES, ForwardReply, Links, encode
from .request import Request, RequestKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...transport import ForwardRequest

# Payloads up to here are no bulk: all the requests that a member may have forwarded, with replies
# of this size, fit into one queue of a link.
SMALL_BYTES = 512


class ForwardStatus(IntEnum):
    """How a forwarded request ended at the other member."""

    REPLY = 0
    RETRY = 1
    UNKNOWN = 2
    OVERSIZED = 3
    REFUSED = 4


_ERRORS: dict[int, type[RequestError]] = {
    ForwardStatus.UNKNOWN: UnknownOutcomeError,
    ForwardStatus.OVERSIZED: OversizedRequestError,
    ForwardStatus.REFUSED: RefusedError,
}


def error_of(reply: ForwardReply) -> RequestError:
    """Give the error that a reply of any other status than REPLY and RETRY stands for."""
    kind = _ERRORS.get(reply.status, UnknownOutcomeError)
    return kind(reply.payload.decode(errors="replace"))


@attrs.frozen
class Answer:
    """Sends what became of a forwarded request to the member that it came from.

    Args:
        links: of this member.
        sender: who forwarded it.
        request_id: the sender's number for it.
        kind: of the request.
    """

    links: Links
    sender: int
    request_id: int
    kind: RequestKind

    def __call__(self, result: bytes | RequestError) -> None:
        """Send a result, or why there is none."""
        if isinstance(result, RequestError):
            self.tell(_status_of(result), str(result).encode(errors="replace"))
        elif len(result) <= SMALL_BYTES:
            self.tell(ForwardStatus.REPLY, result)
        elif len(result) > MAX_BATCH_BYTES:
            query = self.kind is RequestKind.QUERY
            status = ForwardStatus.OVERSIZED if query else ForwardStatus.UNKNOWN
            self.tell(status, b"a reply of %d bytes is too large to be forwarded" % len(result))
        elif not self.links.send_bulk(
            self.sender, ForwardReply(self.request_id, ForwardStatus.REPLY, result)
        ):
            self._tell_unsent(len(result))

    def _tell_unsent(self, size: int) -> None:
        if self.kind is RequestKind.QUERY:
            self.tell(ForwardStatus.RETRY)
        else:
            self.tell(
                ForwardStatus.UNKNOWN,
                b"this write took effect, but its reply of %d bytes was lost: too much waits for "
                b"the member that forwarded it" % size,
            )

    def tell(self, status: ForwardStatus, payload: bytes = b"") -> None:
        """Send something small; it is not missed unless the link is lost."""
        reply = ForwardReply(self.request_id, status, payload[:SMALL_BYTES])
        self.links.send_frame(self.sender, encode(reply))


class ForwardedRequest(Request):
    """A request of another member's client."""

    __slots__ = ("_answer",)

    def __init__(self, links: Links, sender: int, message: ForwardRequest) -> None:
        kind = RequestKind(message.kind)
        self._answer = Answer(links, sender, message.request_id, kind)
        super().__init__(kind, message.payload, message.flags, self._answer)
        self.session, self.sequence = message.session, message.sequence

    def answer(self, query: Callable[[bytes, int], bytes]) -> bool:
        """Answer a query, or have it asked anew if its reply would only wait."""
        if self._answer.links.has_room(self._answer.sender):
            return super().answer(query)
        self._answer.tell(ForwardStatus.RETRY)
        return True


def _status_of(error: RequestError) -> ForwardStatus:
    """The status by which an error travels; an unsent one is tried again where it came from."""
    if isinstance(error, NoLeaderError):
        return ForwardStatus.RETRY
    if isinstance(error, OversizedRequestError):
        return ForwardStatus.OVERSIZED
    if isinstance(error, RefusedError):
        return ForwardStatus.REFUSED
    return ForwardStatus.UNKNOWN
