"""What became of a command, judged by the type of redis-py's error, never by its text.

redis-py 8 removes the code from the text of an error reply whose code it knows: ``CLUSTERDOWN``
becomes a :class:`redis.exceptions.ClusterDownError`. It leaves all other codes in the text. So the
text is not reliable. :func:`typed` makes connections that know the codes of a member, too, and
:func:`fate_of` looks at types alone.
"""

# redis-py is typed in parts only
# mypy: disable-error-code="no-untyped-call,misc"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeArgument=false

from __future__ import annotations

from functools import cache
from typing import Any, Final

import redis
from redis.exceptions import ClusterDownError, MovedError

from ..keyvalue.retry import Fate, fate_of_code

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
    """A member forwarded the command and got no answer (``-UNKNOWN``): it may be done or not."""


class ForgottenReplyError(OutcomeUnknownError):
    """The session keeps the reply no more (``-FORGOTTEN``): the command may be done or not.

    Another attempt would get the same answer.
    """


class WritesSuspendedError(redis.ResponseError):
    """Refused, mostly since an operator has suspended writes (``-REFUSED``). Nothing was done."""


class NoSessionError(redis.ResponseError):
    """The session is closed or timed out (``-NOSESSION``). Nothing was done."""


_TYPES: Final = {
    "UNKNOWN": OutcomeUnknownError,
    "FORGOTTEN": ForgottenReplyError,
    "REFUSED": WritesSuspendedError,
    "NOSESSION": NoSessionError,
}


_CODES: Final = (
    (ClusterDownError, "CLUSTERDOWN"),
    (MovedError, "MOVED"),
    (WritesSuspendedError, "REFUSED"),
    (redis.AuthenticationError, "NOAUTH"),
    (ForgottenReplyError, "FORGOTTEN"),
    (OutcomeUnknownError, "UNKNOWN"),
)
_NO_LEADER: Final = (ClusterDownError, MovedError)
_NO_ANSWER: Final = (redis.ConnectionError, redis.TimeoutError, OutcomeUnknownError)


def fate_of(error: redis.RedisError) -> Fate:
    """Return what became of an attempt that ended with this error after the command was sent."""
    # AuthenticationError is a ConnectionError, too.
    for kind, code in _CODES:
        if isinstance(error, kind):
            return fate_of_code(code)
    return Fate.UNKNOWN if isinstance(error, _NO_ANSWER) else Fate.ANSWERED


def is_final(error: redis.RedisError) -> bool:
    """Whether the next attempt will end with the same error, at any member."""
    lasts = isinstance(error, redis.AuthenticationError)
    return lasts or not isinstance(error, (*_NO_LEADER, *_NO_ANSWER))


@cache
def typed(connection_class: type[redis.Connection]) -> type[redis.Connection]:
    """Return a class of connections that raise the types above for the codes of a member."""

    def set_parser(self: redis.Connection, parser_class: Any) -> None:
        connection_class.set_parser(self, _typed_parser(parser_class))

    return type(connection_class.__name__, (connection_class,), {"set_parser": set_parser})


@cache
def _typed_parser(parser_class: Any) -> Any:
    # redis-py looks a code up in this dict of its parser's class. It has three such parsers.
    classes = {**parser_class.EXCEPTION_CLASSES, **_TYPES}
    return type(parser_class.__name__, (parser_class,), {"EXCEPTION_CLASSES": classes})
