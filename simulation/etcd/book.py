"""What etcd would say: a plain model that applies the committed log, and finds what differs.

The first member that applies an entry shows it to the model. That the other members do the same is
the matter of the invariants, since the state that stores report has all rows.

Trouble is noted here, and raised by the workload: what a member raises ends it, as a crash does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from ...etcd.codes import EtcdError
from ...etcd.messages import rpc_pb2 as rpc
from ...etcd.messages.requests import Op, decode_reply, decode_request_untrusted
from ...etcd.messages.together import payloads_untrusted, replies_in_untrusted
from ...keyvalue.protocol.payload import ETCD
from .model import Model

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.message import Message

    from ...node import Command
    from ..machines.host import Place
    from ..store import Store

MESSAGES: Final[dict[Op, tuple[type[Message], type[Message]]]] = {
    Op.RANGE: (rpc.RangeRequest, rpc.RangeResponse),
    Op.PUT: (rpc.PutRequest, rpc.PutResponse),
    Op.DELETE_RANGE: (rpc.DeleteRangeRequest, rpc.DeleteRangeResponse),
    Op.TXN: (rpc.TxnRequest, rpc.TxnResponse),
    Op.COMPACT: (rpc.CompactionRequest, rpc.CompactionResponse),
    Op.LEASE_GRANT: (rpc.LeaseGrantRequest, rpc.LeaseGrantResponse),
    Op.LEASE_REVOKE: (rpc.LeaseRevokeRequest, rpc.LeaseRevokeResponse),
    Op.LEASE_KEEP_ALIVE: (rpc.KeepAliveBatch, rpc.KeepAliveBatchReply),
}
"""Request and reply of each operation that the model knows."""

SLACK_S: Final = 0.01
"""Log time has milliseconds, and the clients' time has more."""


class Book:
    """The model, and where it stands in the log.

    Attributes:
        model: of the keyspace.
        trouble: what must not be, in words.
        checked: replies that were compared.
        joined: entries of several requests.
        ended: when each lease ended by itself, in seconds of the world.
        lasts: until when each lease must last at least, by what its client was told.
        true_clocks: says whether the clocks of all members have been right so far.
    """

    def __init__(self) -> None:
        self.model = Model()
        self.trouble: list[str] = []
        self.checked = 0
        self.joined = 0
        self.ended: dict[int, float] = {}
        self.lasts: dict[int, float] = {}
        self.true_clocks: Callable[[], bool] = lambda: False
        self._point = (-1, -1)
        self._position = 0
        self._now_ms = 0
        self._last_ms = 0  # log time of the last batch
        self._term = -1  # of the last command
        self._announced = False  # a term, since that command

    def attending(self, make: Callable[[Place], Store]) -> Callable[[Place], Store]:
        """Have every store that is made show what it applies."""

        def made(place: Place) -> Store:
            store = make(place)
            self._attend(store)
            return store

        return made

    def _attend(self, store: Store) -> None:
        apply, begin_term, advance = store.apply, store.begin_term, store.advance
        begun: list[int] = []  # terms that this store knows, and the model perhaps not yet

        def applied(command: Command) -> bytes:
            reply = apply(command)
            if (point := (command.position, command.index)) > self._point:
                self._point = point
                self._begin(begun)
                self._apply(command, reply)
            return reply

        def term_begun(timestamp_ms: int) -> None:
            begun.append(timestamp_ms)
            begin_term(timestamp_ms)

        def advanced(position: int, timestamp_ms: int) -> None:
            advance(position, timestamp_ms)
            if position > self._position:
                self._position = position
                self._begin(begun)
                self._advance(timestamp_ms)
            begun.clear()

        setattr(store, "apply", applied)  # noqa: B010 - of this one store
        setattr(store, "begin_term", term_begun)  # noqa: B010
        setattr(store, "advance", advanced)  # noqa: B010

    # --- the log

    def _begin(self, begun: list[int]) -> None:
        for timestamp_ms in begun:
            self._now_ms = max(self._now_ms, timestamp_ms)
            self.model.begin_term(self._last_ms, self._now_ms)
            self._announced = True
        begun.clear()

    def _advance(self, timestamp_ms: int) -> None:
        self._now_ms = self._last_ms = max(self._now_ms, timestamp_ms)
        before = set(self.model.ttls)
        self.model.expire(self._now_ms)
        for lease in before.difference(self.model.ttls):
            self.ended[lease] = trio.current_time()
            self._check_lease(lease)

    def _apply(self, command: Command, reply: bytes) -> None:
        self._now_ms = max(self._now_ms, command.timestamp_ms)
        if command.term > self._term:
            if not self._announced and self._term >= 0:
                self.trouble.append(f"Term: the state was not told of term {command.term}")
            self._term, self._announced = command.term, False
        if not command.flags & ETCD:
            return
        payloads, place = payloads_untrusted(command.payload), f"{command.position}/{command.index}"
        if payloads == [command.payload]:
            replies = [reply]
        else:
            self.joined += 1
            _, replies = replies_in_untrusted(reply, len(payloads))
        for one, answer in zip(payloads, replies, strict=True):
            self._apply_one(one, answer, place)

    def _apply_one(self, payload: bytes, reply: bytes, place: str) -> None:
        op, message = decode_request_untrusted(payload)
        if op not in MESSAGES:
            return
        asked, answered = MESSAGES[op]
        request = asked.FromString(message)
        expected, actual = self._expected(request), _given(reply, answered)
        self.checked += 1
        if expected != actual:
            self.trouble.append(
                f"Model: {op.name} at {place}: {request}: was answered {actual}, not {expected}"
            )

    def _expected(self, request: Message) -> tuple[int, Message | str]:
        model, now_ms = self.model, self._now_ms
        reply: Message
        try:
            match request:
                case rpc.LeaseGrantRequest():
                    model.grant(request.ID, request.TTL, now_ms)
                    reply = rpc.LeaseGrantResponse(ID=request.ID, TTL=model.ttls[request.ID])
                case rpc.LeaseRevokeRequest():
                    model.revoke(request.ID)
                    reply = rpc.LeaseRevokeResponse()
                case rpc.KeepAliveBatch():
                    for lease in request.ids:
                        model.renew(lease, now_ms)
                    reply = rpc.KeepAliveBatchReply(
                        ttls=[model.ttls.get(lease, 0) for lease in request.ids]
                    )
                case _:
                    reply = model.apply(request)
        except EtcdError as error:
            return model.revision, error.text
        return model.revision, reply

    # --- leases

    def lives(self, lease: int, until: float) -> None:
        """Note that a client was told that a lease lasts until a time at least."""
        self.lasts[lease] = max(self.lasts.get(lease, 0.0), until)
        self._check_lease(lease)

    def _check_lease(self, lease: int) -> None:
        ended, lasts = self.ended.get(lease), self.lasts.get(lease)
        if ended is None or lasts is None or ended >= lasts - SLACK_S or not self.true_clocks():
            return
        self.trouble.append(f"Lease: {lease} ended at {ended}, and had to last until {lasts}")


def _given(reply: bytes, kind: type[Message]) -> tuple[int, Message | str]:
    """Return revision and message of a reply; the text of an error."""
    try:
        revision, body = decode_reply(reply)
    except EtcdError as error:
        return int.from_bytes(reply[1:9], "little"), error.text
    message = kind.FromString(body)
    if isinstance(message, rpc.TxnResponse):
        without_headers(message)
    return revision, message


def without_headers(reply: rpc.TxnResponse) -> None:
    """Clear the headers of the parts, which the model has not."""
    for one in reply.responses:
        part = getattr(one, one.WhichOneof("response") or "response_range")
        part.ClearField("header")
        if isinstance(part, rpc.TxnResponse):
            without_headers(part)
