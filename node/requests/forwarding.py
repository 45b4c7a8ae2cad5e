"""The leader's end of a forwarded request: how its outcome travels back.

Each forwarded request is answered, or its sender learns from a broken link that no answer will
come. Small replies always get onto the link; if that is impossible, the link is closed. Large
replies are bulk: the link takes a limited amount of them. The consequences:

- While too much waits for the sender, a query is not executed; the sender is asked to retry.
- A command has taken effect and cannot be repeated. So its reply may use all of the link's bulk
  queue, where a query stops at half of it. If that is full, the sender gets an error that says so.
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

SMALL_BYTES = 512
"""Payloads up to this size are not bulk. If smaller, more replies count against the bulk limit. If
larger, replies to all requests that a member may have forwarded overflow the queue of a link."""


class ForwardStatus(IntEnum):
    """How a forwarded request ended at the leader.

    REPLY: the payload is the reply. RETRY: nothing was done, try again. Each other status stands
    for an error, whose text is the payload.
    """

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
    """Return the error for a reply whose status is neither REPLY nor RETRY."""
    kind = _ERRORS.get(reply.status, UnknownOutcomeError)
    return kind(reply.payload.decode(errors="replace"))


@attrs.frozen
class ReplySender:
    """Callback of a forwarded request: sends its outcome to the member that forwarded it.

    Args:
        links: of this member.
        sender: the member that forwarded it.
        request_id: the sender's number for it.
        kind: of the request.
    """

    links: Links
    sender: int
    request_id: int
    kind: RequestKind

    def __call__(self, result: bytes | RequestError) -> None:
        """Send a reply or an error."""
        if isinstance(result, RequestError):
            self.send_small(_status_of(result), str(result).encode(errors="replace"))
        elif len(result) <= SMALL_BYTES:
            self.send_small(ForwardStatus.REPLY, result)
        elif len(result) > MAX_BATCH_BYTES:
            query = self.kind is RequestKind.QUERY
            status = ForwardStatus.OVERSIZED if query else ForwardStatus.UNKNOWN
            self.send_small(
                status, b"a reply of %d bytes is too large to be forwarded" % len(result)
            )
        elif not self.links.send_bulk(
            self.sender, ForwardReply(self.request_id, ForwardStatus.REPLY, result)
        ):
            self._report_unsent(len(result))

    def _report_unsent(self, size: int) -> None:
        if self.kind is RequestKind.QUERY:
            self.send_small(ForwardStatus.RETRY)
        else:
            self.send_small(
                ForwardStatus.UNKNOWN,
                b"this write took effect, but its reply of %d bytes was lost: too many bytes wait "
                b"for the member that forwarded it" % size,
            )

    def send_small(self, status: ForwardStatus, payload: bytes = b"") -> None:
        """Send a small reply. It is delivered unless the link breaks."""
        reply = ForwardReply(self.request_id, status, payload[:SMALL_BYTES])
        self.links.send_frame(self.sender, encode(reply))


class ForwardedRequest(Request):
    """A request that another member has forwarded."""

    __slots__ = ("_answer",)

    def __init__(self, links: Links, sender: int, message: ForwardRequest) -> None:
        kind = RequestKind(message.kind)
        self._answer = ReplySender(links, sender, message.request_id, kind)
        super().__init__(kind, message.payload, message.flags, self._answer)
        self.session, self.sequence = message.session, message.sequence
        # As the other member says: it has authenticated the client, and is trusted as a member.
        self.principal, self.rules = message.principal, message.rules

    def answer(self, query: Callable[[bytes, int], bytes]) -> bool:
        """Answer a query, or ask for a retry while the link to its sender has no room."""
        # Executing it now would cost the leader time for a reply that only waits in memory.
        if self._answer.links.has_room(self._answer.sender):
            return super().answer(query)
        self._answer.send_small(ForwardStatus.RETRY)
        return True


def _status_of(error: RequestError) -> ForwardStatus:
    """Return the status by which an error travels."""
    if isinstance(error, NoLeaderError):
        # It was not sent, so the forwarding member may send it again.
        return ForwardStatus.RETRY
    if isinstance(error, OversizedRequestError):
        return ForwardStatus.OVERSIZED
    if isinstance(error, RefusedError):
        return ForwardStatus.REFUSED
    return ForwardStatus.UNKNOWN
