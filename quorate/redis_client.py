"""redis-py's client with sessions: every write is done exactly once, through any death of a leader.

::

    from quorate.redis_client import SessionRedis

    with SessionRedis([("10.0.0.1", 6379), ("10.0.0.2", 6379), ("10.0.0.3", 6379)]) as client:
        client.incr("counter")

It is a ``redis.Redis`` and has its methods. A write travels as ``QUORATE.ONCE session sequence
...``; when its connection breaks, its answer does not come, or its outcome is unknown, it is sent
again with the same numbers, to one member after the other. What only reads is sent again as it is.

A session is opened by the first write, and each write is a sign of its life. One that has timed out
meanwhile is replaced, for a command that never went out before it was refused was not done.

May be used by many threads. Needs redis-py: ``pip install 'quorate[redis]'``.

Caveats: pipelines and transactions of redis-py are refused; they would not be stamped. A reply of
more than 16 KiB is told once, see docs/sessions.md.
"""

# redis-py is typed in parts only
# mypy: disable-error-code="no-untyped-call,misc"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeArgument=false

from __future__ import annotations

import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from .keyvalue.commands import Kind, lookup

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

__all__ = ["SessionLostError", "SessionRedis"]

_IN_FLIGHT: Final = 100
"""Fewer than the replies that a session keeps: a slow thread's command must stay in the window."""

_FIRST_PAUSE_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 1.0


class SessionLostError(redis.RedisError):
    """The session ended before a command was answered that had been sent; it may be done or not."""


class _Session:
    """A session, and which of its commands are not answered."""

    def __init__(self, session_id: int) -> None:
        self.id = session_id
        self._last = 0
        self._in_flight: set[int] = set()
        self._turn = threading.Condition()

    @contextmanager
    def sequence(self) -> Generator[int]:
        """Give a number for the length of the block, in which its command is answered."""
        with self._turn:
            while self._in_flight and self._last - min(self._in_flight) >= _IN_FLIGHT:
                self._turn.wait()
            self._last = number = self._last + 1
            self._in_flight.add(number)
        try:
            yield number
        finally:
            with self._turn:
                self._in_flight.remove(number)
                self._turn.notify_all()


class SessionRedis(redis.Redis):
    """A client of a whole cluster.

    Args:
        members: host and client port of each member that is to be asked.
        session_timeout_s: how long the session lives without a write, in seconds: 1 to 86,400. An
            outage that lasts longer ends it.
        patience_s: for how long a command is sent again, in seconds.
        options: of ``redis.Redis``, for all members.
    """

    def __init__(
        self,
        members: Sequence[tuple[str, int]],
        *,
        session_timeout_s: float = 300.0,
        patience_s: float = 60.0,
        **options: Any,
    ) -> None:
        options = {"socket_timeout": 5.0, "socket_connect_timeout": 1.0, **options}
        options["retry"] = Retry(NoBackoff(), 0)  # it is here that a command is sent again
        super().__init__(*members[0], **options)
        self._others = [redis.Redis(*member, **options) for member in members[1:]]
        self._pools = [each.connection_pool for each in (self, *self._others)]
        self._at = 0
        self._session_timeout_ms = round(session_timeout_s * 1000)
        self._patience_s = patience_s
        self._session: _Session | None = None
        self._opening = threading.Lock()

    @property
    def session_id(self) -> int | None:
        """The session that writes travel in; None before the first one."""
        return None if self._session is None else self._session.id

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Have a command done, once if it writes, and return its reply.

        Raises:
            SessionLostError: it was sent, and its session ended before it was answered.
            redis.ConnectionError: nobody answered in time; it may be done or not.
            redis.TimeoutError: the same.
            redis.ResponseError: the reply is an error; ``UNKNOWN`` after all that time.
        """
        if not _writes(args[0]):
            return self._surely(args, args[0], options)
        while True:
            session = self._opened()
            with session.sequence() as sequence:
                stamped = ("QUORATE.ONCE", session.id, sequence, *args)
                try:
                    return self._surely(stamped, args[0], options)
                except _NoSessionError as ended:
                    self._replace(session)
                    if ended.sent_before:
                        raise SessionLostError(str(ended)) from None

    def close(self) -> None:
        """Close the session, if a member can be reached, and all connections."""
        session, self._session = self._session, None
        if session is not None:
            with suppress(redis.RedisError):
                self._attempt(("QUORATE.SESSION", "CLOSE", session.id), "", {})
        super().close()
        for other in self._others:
            other.close()

    def __del__(self) -> None:
        """Close the connections; nothing is sent from here, so the session times out."""
        with suppress(Exception):
            super().close()

    def pipeline(self, *_args: Any, **_options: Any) -> NoReturn:
        """Refuse: what goes through a pipeline is not stamped."""
        raise NotImplementedError("SessionRedis has no pipelines: what they send is not stamped")

    def transaction(self, *_args: Any, **_options: Any) -> NoReturn:
        """Refuse, see `pipeline`."""
        self.pipeline()

    def _opened(self) -> _Session:
        with self._opening:
            if self._session is None:
                words = ("QUORATE.SESSION", "OPEN", self._session_timeout_ms)
                self._session = _Session(int(self._surely(words, "", {})))
            return self._session

    def _replace(self, session: _Session) -> None:
        with self._opening:
            if self._session is session:
                self._session = None

    def _surely(self, arguments: Sequence[Any], name: Any, options: Any) -> Any:
        """Send a command again and again until it is answered.

        Raises:
            _NoSessionError: its session is no more.
            redis.RedisError: see `execute_command`.
        """
        end, pause, attempts = time.monotonic() + self._patience_s, _FIRST_PAUSE_S, 0
        while True:
            attempts += 1
            try:
                return self._attempt(arguments, name, options)
            except redis.AuthenticationError:
                raise
            except (redis.ConnectionError, redis.TimeoutError) as error:
                trouble: redis.RedisError = error
            except redis.ResponseError as error:
                if str(error).startswith("NOSESSION "):
                    raise _NoSessionError(str(error), sent_before=attempts > 1) from None
                if not str(error).startswith(("UNKNOWN ", "CLUSTERDOWN ")):
                    raise
                trouble = error
            if time.monotonic() + pause > end:
                raise trouble
            self._at = (self._at + 1) % len(self._pools)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _attempt(self, arguments: Sequence[Any], name: Any, options: Any) -> Any:
        pool = self._pools[self._at]
        connection = pool.get_connection()
        try:
            connection.send_command(*arguments)
            return self.parse_response(connection, name, **options)
        except redis.ResponseError:
            raise
        except BaseException:
            connection.disconnect()  # its answer may still come
            raise
        finally:
            pool.release(connection)


class _NoSessionError(Exception):
    def __init__(self, words: str, *, sent_before: bool) -> None:
        super().__init__(words)
        self.sent_before = sent_before


def _writes(name: str | bytes) -> bool:
    spec = lookup(name.encode() if isinstance(name, str) else name)
    return spec is not None and spec.kind is Kind.WRITE and spec.name != "quorate.session"
