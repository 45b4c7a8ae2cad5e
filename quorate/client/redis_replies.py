"""What an error of redis-py says of the command that was sent: judged by its type, never its text.

redis-py 8 takes the code out of the text of an error reply whose code it knows (``CLUSTERDOWN``
becomes a :class:`redis.exceptions.ClusterDownError`), and leaves it in the text of all others. So
the text says nothing reliable. :func:`typed` makes connections that give the codes of a member,
too, types of their own, and :func:`fate_of` looks at nothing else.
"""

# redis-py is typed in parts only
# mypy: disable-error-code="no-untyped-call,misc"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeArgument=false

from __future__ import annotations

import enum
from functools import cache
from typing import Any, Final

import redis
from redis.exceptions import ClusterDownError, MovedError

__all__ = [
    "Fate",
    "NoSessionError",
    "OutcomeUnknownError",
    "WritesSuspendedError",
    "fate_of",
    "is_final",
    "typed",
]


class OutcomeUnknownError(redis.ResponseError):
    """A member sent the command on and got no answer (``-UNKNOWN``): it may be done or not."""


class WritesSuspendedError(redis.ResponseError):
    """An operator has suspended writes, or asked for too much (``-REFUSED``); nothing was done."""


class NoSessionError(redis.ResponseError):
    """The session is closed or timed out (``-NOSESSION``), and nothing was done."""


_TYPES: Final = {
    "UNKNOWN": OutcomeUnknownError,
    "REFUSED": WritesSuspendedError,
    "NOSESSION": NoSessionError,
}


class Fate(enum.Enum):
    """What became of one attempt."""

    ANSWERED = "answered"
    """The error is the command's reply: another attempt would get the same."""
    NOT_DONE = "not done"
    """This attempt did nothing, and never will; of earlier ones that says nothing."""
    UNKNOWN = "unknown"
    """The command may be done, now or later."""


_NO_LEADER: Final = (ClusterDownError, MovedError)
_NO_ANSWER: Final = (redis.ConnectionError, redis.TimeoutError, OutcomeUnknownError)


def fate_of(error: redis.RedisError) -> Fate:
    """Judge an error that an attempt ended with after the command was sent."""
    if isinstance(error, (*_NO_LEADER, WritesSuspendedError, redis.AuthenticationError)):
        return Fate.NOT_DONE
    return Fate.UNKNOWN if isinstance(error, _NO_ANSWER) else Fate.ANSWERED


def is_final(error: redis.RedisError) -> bool:
    """Whether the next attempt will end in the same way, at whichever member."""
    lasts = isinstance(error, redis.AuthenticationError)
    return lasts or not isinstance(error, (*_NO_LEADER, *_NO_ANSWER))


@cache
def typed(connection_class: type[redis.Connection]) -> type[redis.Connection]:
    """Return a class of connections whose error replies have the types above."""

    def set_parser(self: redis.Connection, parser_class: Any) -> None:
        connection_class.set_parser(self, _typed_parser(parser_class))

    return type(connection_class.__name__, (connection_class,), {"set_parser": set_parser})


@cache
def _typed_parser(parser_class: Any) -> Any:
    # redis-py looks the code up in the class, whichever of its three parsers it is
    classes = {**parser_class.EXCEPTION_CLASSES, **_TYPES}
    return type(parser_class.__name__, (parser_class,), {"EXCEPTION_CLASSES": classes})
