"""Puts that come in one turn of the event loop share an entry of the log.

A busy member gets tens of them in a turn, from many clients. Alone, each is a message to the
leader, an entry, and a message back. Together they are one of each.

Only small puts are joined. What they do is bounded, and so are their replies: neither the entry nor
its reply gets long, and it holds up the member for a moment only. A put does not wait for others:
the entry is made as soon as all tasks of the turn have run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...keyvalue.protocol.payload import ETCD
from ...node.requests.request import COMMAND, Request
from ..codes import EtcdError
from ..messages.together import MAX_TOGETHER, encode_together, replies_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...errors import RequestError
    from .turn_end import TurnEnd

__all__ = ["SMALL_BYTES", "Joining"]

SMALL_BYTES: Final = 4096
"""Payloads up to this size are joined. If smaller, more puts cost an entry each; if larger, an
entry with `MAX_TOGETHER` of them holds up the others for longer."""


class Joining:
    """Gathers requests that may share an entry, and submits them when the turn is over.

    Args:
        submit_all: takes the requests of a turn into the member.
        turn_end: calls when the turn is over.
    """

    def __init__(self, submit_all: Callable[[list[Request]], None], turn_end: TurnEnd) -> None:
        self._submit_all = submit_all
        self._turn_end = turn_end
        self._waiting: list[Request] = []

    def add(self, request: Request) -> None:
        """Submit a small put, with the others of this turn."""
        if not self._waiting:
            self._turn_end.add(self._submit)
        self._waiting.append(request)

    def _submit(self) -> None:
        """Submit what the turn has gathered."""
        waiting, self._waiting = self._waiting, []
        self._submit_all(_joined([each for each in waiting if not each.cancelled]))


def _joined(requests: Sequence[Request]) -> list[Request]:
    """Return as few requests as do the same; an entry of the log has one principal."""
    of: dict[int, list[Request]] = {}
    for request in requests:
        of.setdefault(request.principal, []).append(request)
    return [
        part[0] if len(part) == 1 else _Joined(part)
        for group in of.values()
        for part in (group[at : at + MAX_TOGETHER] for at in range(0, len(group), MAX_TOGETHER))
    ]


class _Joined(Request):
    """Several requests on their way as one.

    A client that gives up while it waits has its put made with the others. It can't know: that is
    so, too, for one that was sent already.

    Args:
        requests: of one principal.
    """

    __slots__ = ("_requests",)

    def __init__(self, requests: Sequence[Request]) -> None:
        self._requests = requests
        payload = encode_together([each.payload for each in requests])
        super().__init__(COMMAND, payload, ETCD, self._finish)
        self.principal = requests[0].principal
        self.deadline = requests[0].deadline

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for it any more."""
        return all(each.cancelled for each in self._requests)

    @cancelled.setter
    def cancelled(  # pyright: ignore[reportIncompatibleVariableOverride]
        self, value: bool
    ) -> None:
        """Ignore that: it follows from the requests."""

    def _finish(self, result: bytes | RequestError) -> None:
        requests, self._requests = self._requests, ()
        for request, reply in zip(requests, _replies(result, len(requests)), strict=True):
            request.done(reply)


def _replies(result: bytes | RequestError, count: int) -> Sequence[bytes | RequestError]:
    """Return the reply to each of so many requests."""
    if isinstance(result, bytes):
        try:
            return replies_in(result)[1]
        except EtcdError:
            pass  # nothing was done, which is the reply to each
    return [result] * count
