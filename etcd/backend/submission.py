"""A client's request while it waits for its reply, and how much of that there may be."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from ...keyvalue.protocol.payload import ETCD
from ...node.requests.request import Request
from ..codes import TOO_MANY_REQUESTS, EtcdError
from ..messages.requests import decode_reply
from .member_errors import error_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...errors import RequestError
    from ...node.requests.request import RequestKind
    from .catching_up import CatchingUp

    Done: TypeAlias = Callable[[bytes | EtcdError], None]

__all__ = ["MAX_WAITING", "MAX_WAITING_BYTES", "Load", "Submission"]

MAX_WAITING: Final = 50_000
"""Requests without a reply. If smaller, many clients get errors; if larger, an election that takes
long costs more memory."""

MAX_WAITING_BYTES: Final = 128 << 20
"""Payload bytes of these requests; the same trade-off."""


@attrs.define
class Load:
    """What waits for replies: requests, and bytes of their payloads."""

    requests: int = 0
    payload_bytes: int = 0

    def add(self, size: int) -> None:
        """Count one more request.

        Raises:
            EtcdError: there are too many.
        """
        if self.requests >= MAX_WAITING or self.payload_bytes + size > MAX_WAITING_BYTES:
            raise EtcdError(*TOO_MANY_REQUESTS)
        self.requests += 1
        self.payload_bytes += size

    def remove(self, size: int) -> None:
        """Count one less."""
        self.requests -= 1
        self.payload_bytes -= size


class Submission(Request):
    """A request that counts as load until it is over, and whose reply gets a header.

    Args:
        kind: a command or a query.
        payload: see `encode_request`.
        client: callback; gets the reply with its header, or the error.
        header: encodes a header from a revision.
        load: to which it was added.
        catching_up: holds the reply until this member has applied what it reports.
    """

    __slots__ = ("_catching_up", "_client", "_header", "_load")

    def __init__(
        self,
        kind: RequestKind,
        payload: bytes,
        client: Done,
        header: Callable[[int], bytes],
        load: Load,
        *,
        catching_up: CatchingUp,
    ) -> None:
        super().__init__(kind, payload, ETCD, self._finish)
        self._client = client
        self._header = header
        self._load = load
        self._catching_up = catching_up

    def _finish(self, result: bytes | RequestError) -> None:
        if not isinstance(result, bytes):
            self._end(error_of(result, self.kind))
            return
        try:
            revision, body = decode_reply(result)
        except EtcdError as error:
            self._end(error)
        else:
            answer = partial(self._reply, revision, body)
            self._catching_up.when_applied(revision, len(body), answer)

    def _reply(self, revision: int, body: bytes) -> None:
        # It may have been cancelled while the reply was held.
        if not self.cancelled:
            self._end(self._header(revision) + body)

    def _end(self, reply: bytes | EtcdError) -> None:
        self._release()
        self._client(reply)

    def cancel(self) -> None:
        """Cancel it, and count it no more."""
        if self.done == self._finish:
            self._release()
        super().cancel()

    def _release(self) -> None:
        self._load.remove(len(self.payload))
        # It had a reference to itself, which only the garbage collector would have found.
        self.done = _nothing


def _nothing(_result: bytes | RequestError) -> None:
    """Take a second result, which there is none of."""
