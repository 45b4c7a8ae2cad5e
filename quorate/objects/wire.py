"""The bytes of what callers send to the state machine, and of its replies (msgpack)."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import msgpack

from ..errors import RequestError

MAX_RESULT_BYTES: Final = 32 << 20
"""Of one call. With `ENOUGH_BYTES` it must fit into a frame between members (64 MiB). If smaller,
long results are refused that could be sent."""

ENOUGH_BYTES: Final = 8 << 20
"""After so many bytes of results, the rest of a batch is left to the next one. If smaller, that
happens often."""

__all__ = ["ENOUGH_BYTES", "MAX_RESULT_BYTES", "Batch", "Call", "Done", "Failure"]
__all__ += ["Malformed", "Opened", "Outcome", "Reply", "Result", "SessionLost", "TooLong"]


class Call(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One call of a method.

    Args:
        target: name of the object.
        method: name of the method.
        version: of the method; 0 for a query.
        arguments: their bytes.
    """

    target: str
    method: str
    version: int
    arguments: bytes


class Batch(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The calls of several tasks of one program, in one entry of the log.

    Args:
        session: of the program; 0 asks for a new one.
        sequence: number of this batch in the session, from 1.
        calls: in their order.
    """

    session: int
    sequence: int
    calls: tuple[Call, ...]


class Failure(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """An exception of a method: its class and its text."""

    kind: str
    text: str


class Result(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """The bytes of a result."""

    data: bytes


Outcome = Result | Failure


class Done(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """What a batch has done: the outcomes of its calls, or of the first ones.

    The calls after those were not applied: their results might not have fitted into the reply.

    Args:
        position: of the entry in the log.
        outcomes: in the order of the calls.
    """

    position: int

    outcomes: tuple[Outcome, ...]


class Opened(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A new session."""

    session: int


class SessionLost(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The session is gone: nothing was done now. It is not known whether it was done before."""


class TooLong(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The batch was applied, once; its outcomes were too long to keep."""


class Malformed(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """The bytes are no batch, or no query."""

    text: str


Reply = Done | Opened | SessionLost | TooLong | Malformed

_BATCH: Final = msgpack.Decoder(Batch)
_CALL: Final = msgpack.Decoder(Call)
_REPLY: Final[msgpack.Decoder[Reply]] = msgpack.Decoder(Reply)
_ENCODER: Final = msgpack.Encoder()

encode = _ENCODER.encode


def batch_untrusted(data: bytes) -> Batch:
    """Return the batch of some bytes.

    Raises:
        ValueError: they are none.
    """
    try:
        return _BATCH.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(str(error)) from None


def call_untrusted(data: bytes) -> Call:
    """Return the call of some bytes.

    Raises:
        ValueError: they are none.
    """
    try:
        return _CALL.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(str(error)) from None


def reply_untrusted(data: bytes) -> Reply:
    """Return the reply of some bytes.

    Raises:
        RequestError: they are none: the other members run something else.
    """
    try:
        return _REPLY.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RequestError(f"the reply is none of replicated objects: {error}") from None


def check_result(data: bytes) -> bytes:
    """Return the bytes of a result.

    Raises:
        OverflowError: they are too many for a reply.
    """
    if len(data) > MAX_RESULT_BYTES:
        raise OverflowError(f"a result of {len(data)} bytes: at most {MAX_RESULT_BYTES} are sent")
    return data
