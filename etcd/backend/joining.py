"""Puts that come in one turn of the event loop share an entry of the log.

A busy member gets tens of them in a turn, from many clients. Alone, each is a message to the
leader, an entry, and a message back. Together they are one of each.

Only small puts are joined. What they do is bounded, and so are their replies: neither the entry nor
its reply gets long, and it holds up the member for a moment only. A put does not wait for others:
the entry is made as soon as all tasks of the turn have run.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from ...errors import UnknownOutcomeError, WireError
from ...keyvalue.protocol.payload import ETCD
from ...log_events import log_event
from ...node.requests import forwarding
from ...node.requests.request import COMMAND, Request
from ..codes import EtcdError
from ..messages.requests import encode_reply
from ..messages.together import encode_replies, encode_together, replies_in_untrusted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ...errors import RequestError
    from .turn_end import TurnEnd

__all__ = ["MAX_ENTRY_BYTES", "MAX_JOINED", "SMALL_BYTES", "Joining"]

_log = logging.getLogger(__name__)

_EMPTY_ENTRY_BYTES: Final = len(encode_together(()))
_SIZE_BYTES: Final = len(encode_together((b"",))) - _EMPTY_ENTRY_BYTES
_PUT_REPLY_BYTES: Final = _SIZE_BYTES + len(encode_reply(0, b""))

SMALL_BYTES: Final = 4096
"""Payloads up to this size are joined. If smaller, more puts cost an entry each; if larger, an
entry with `MAX_JOINED` of them holds up the others for longer."""

MAX_JOINED: Final = (forwarding.SMALL_BYTES - len(encode_replies(0, ()))) // _PUT_REPLY_BYTES
"""Puts in one entry: 38. If smaller, many clients cost more entries. If larger, the reply to puts
that all took effect counts against the bulk limit of the link to the member that forwarded them.
A put's own reply never does, and one that does may be lost. Errors are longer than replies, so with
many of them the reply may still be bulk."""

MAX_ENTRY_BYTES: Final = 64 << 10
"""Bytes of one entry of several puts. If smaller, more puts cost an entry each; if larger, an entry
holds up the others for longer."""


class Joining:
    """Gathers requests that may share an entry, and submits them when the turn is over.

    Args:
        submit_all: takes the requests of a turn into the member.
        turn_end: calls when the turn is over.
        max_request_bytes: the largest request that the member takes.
    """

    def __init__(
        self,
        submit_all: Callable[[list[Request]], None],
        turn_end: TurnEnd,
        max_request_bytes: int,
    ) -> None:
        self._submit_all = submit_all
        self._turn_end = turn_end
        self._most_bytes = min(max_request_bytes, MAX_ENTRY_BYTES)
        self._waiting: list[Request] = []

    def add(self, request: Request) -> None:
        """Submit a small put, with the others of this turn."""
        if not self._waiting:
            self._turn_end.add(self._submit)
        self._waiting.append(request)

    def _submit(self) -> None:
        """Submit what the turn has gathered."""
        waiting, self._waiting = self._waiting, []
        wanted = [each for each in waiting if not each.cancelled]
        self._submit_all(_joined(wanted, self._most_bytes))


def _joined(requests: Iterable[Request], most_bytes: int) -> list[Request]:
    """Return as few requests as do the same; an entry of the log has one principal."""
    of: dict[tuple[int, int], list[Request]] = {}
    for request in requests:
        of.setdefault((request.principal, request.rules), []).append(request)
    return [_as_one(part) for group in of.values() for part in _parts(group, most_bytes)]


def _parts(requests: Iterable[Request], most_bytes: int) -> Iterator[list[Request]]:
    """Yield requests in parts that may each be one entry."""
    part: list[Request] = []
    size = _EMPTY_ENTRY_BYTES
    for request in requests:
        added = len(request.payload) + _SIZE_BYTES
        if part and (len(part) == MAX_JOINED or size + added > most_bytes):
            yield part
            part, size = [], _EMPTY_ENTRY_BYTES
        part.append(request)
        size += added
    yield part


def _as_one(requests: Sequence[Request]) -> Request:
    return requests[0] if len(requests) == 1 else _Joined(requests)


class _Joined(Request):
    """Several requests on their way as one.

    A client that gives up before it is sent has its put left out. Later it is made with the others.

    Args:
        requests: of one principal, allowed by the users of one version.
    """

    __slots__ = ("_requests",)

    def __init__(self, requests: Sequence[Request]) -> None:
        self._requests = requests
        payload = encode_together([each.payload for each in requests])
        super().__init__(COMMAND, payload, ETCD, self._finish)
        self.principal, self.rules = requests[0].principal, requests[0].rules
        self.recheck = requests[0].recheck
        # One of them may have been begun anew, and has less time left.
        self.deadline = min(each.deadline for each in requests)
        for each in requests:
            each.carrier = self

    def leave(self, _client: object) -> None:
        """Note that one of the requests was cancelled; see `remaining`."""
        # What is on its way already keeps its callback: the others still wait for their replies.
        self.cancelled = True

    def remaining(self) -> Sequence[Request]:
        """Return a request for those that were not cancelled."""
        wanted = [each for each in self._take() if not each.cancelled]
        if not wanted:
            return ()
        request = _as_one(wanted)
        request.deadline, request.losses = self.deadline, self.losses
        return (request,)

    def _take(self) -> Sequence[Request]:
        """Return the requests, which go on without this."""
        requests, self._requests = self._requests, ()
        for each in requests:
            each.carrier = None
        # It had a reference to itself, which only the garbage collector would have found.
        self.done, self.payload = _nothing, b""
        return requests

    def _finish(self, result: bytes | RequestError) -> None:
        requests = self._take()
        for request, reply in zip(requests, _replies(result, len(requests)), strict=True):
            try:
                request.done(reply)
            except Exception:  # noqa: BLE001 - a bug with one client must not cost the others theirs
                words = "a bug: a client of etcd got no reply"
                log_event(_log, logging.ERROR, "etcd_reply_failed", words, exc_info=True)


def _nothing(_result: bytes | RequestError) -> None:
    """Take a second result, which there is none of."""


def _replies(result: bytes | RequestError, count: int) -> Sequence[bytes | RequestError]:
    """Return the reply to each request of an entry."""
    if isinstance(result, bytes):
        try:
            return replies_in_untrusted(result, count)[1]
        except EtcdError:
            pass  # nothing was done, which is the reply to each
        except WireError as error:
            result = UnknownOutcomeError(f"the reply to {count} puts is malformed: {error}")
    return [result] * count
