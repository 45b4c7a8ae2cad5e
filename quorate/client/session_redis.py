"""redis-py's client with sessions: every write is done exactly once, also if a leader dies.

::

    from quorate.client.session_redis import SessionRedis

    with SessionRedis([("10.0.0.1", 6379), ("10.0.0.2", 6379), ("10.0.0.3", 6379)]) as client:
        client.incr("counter")

**What it is.** A ``redis.Redis``, with its methods. It knows all members, and asks one after
another until a command is answered. Reads are repeated as they are. A write is sent as
``QUORATE.ONCE session sequence ...`` and is repeated with the same numbers, so members do it once
and answer each repeat with the first reply. The policy of repeats is :mod:`quorate.keyvalue.retry`.

**Sessions.** The first write opens one, and each write keeps it alive. If it timed out since the
last write, a new session replaces it, unless the command may have been done in the old one.

**Threads and forks.** Many threads may share a client. A forked child opens a session of its own.

**What it refuses.** A command that cannot be done exactly once raises
:class:`~quorate.errors.UnsupportedError` with the reason. These are the methods in `_UNSUPPORTED`,
and commands that members do not have. Commands of a single connection (``WATCH``, ``SELECT``) are
refused, too, since each attempt may take another connection.

It needs redis-py: ``pip install ".[redis]"`` in a checkout of quorate. A reply of more than 16 KiB
is kept for no repeat; see docs/sessions.md.
"""

# redis-py is typed in parts only
# mypy: disable-error-code="no-untyped-call,misc"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeArgument=false

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

import redis
import redis.retry
from redis.backoff import NoBackoff
from redis.connection import SSLConnection, parse_url
from redis.exceptions import NoPermissionError

from ..errors import ConfigurationError, UnsupportedError
from ..keyvalue.commands.table import CommandSpec, Kind, resolve
from ..keyvalue.limits import MAX_SESSION_MS, MIN_SESSION_MS
from ..keyvalue.retry import Fate, Retry, SessionWindow, Turns, check_seconds
from .redis_replies import (
    NoSessionError,
    OutcomeUnknownError,
    WritesSuspendedError,
    fate_of,
    is_final,
    typed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

__all__ = ["OutcomeUnknownError", "SessionLostError", "SessionRedis", "WritesSuspendedError"]

_ON_ANY_CONNECTION: Final = frozenset(
    {
        *("client|id", "client|info", "client|kill", "client|list", "cluster", "command", "config"),
        *(
            "echo",
            "info",
            "lastsave",
            "ping",
            "quorate.control",
            "quorate.status",
            "role",
            "time",
        ),
        "wait",
    }
)
"""Commands of a connection whose reply does not depend on which connection asks."""

_NOT_STAMPED: Final = "its commands carry no session number, so they may be done twice"
_OF_A_CONNECTION: Final = "it needs one connection, and each command may take another one"
_NO_MODULE: Final = "members have no such commands"
_UNSUPPORTED: Final = {
    "pipeline": _NOT_STAMPED,
    "transaction": _NOT_STAMPED,
    "lock": "redis-py releases a lock by a script, and members have no scripts; use SET NX PX",
    "register_script": "members have no scripts",
    "pubsub": "members have no channels",
    "keyspace_notifications": "members have no channels",
    "monitor": _OF_A_CONNECTION,
    "from_pool": "a pool has one member; name all: SessionRedis([(host, port), ...])",
    "set_retry": "it repeats commands itself, for patience_s seconds",
    **dict.fromkeys(("himport_prepare", "himport_discard", "himport_discard_all"), _NO_MODULE),
    **dict.fromkeys(("bf", "cf", "cms", "ft", "json", "tdigest", "topk", "ts", "vset"), _NO_MODULE),
}
"""The methods of ``redis.Redis`` that cannot work here, and why."""

_OWN_OPTIONS: Final = frozenset(
    {
        *("cache", "cache_config", "connection_pool", "host", "port", "unix_socket_path"),
        *("retry", "retry_on_error", "retry_on_timeout", "single_connection_client"),
    }
)
"""Options of ``redis.Redis`` that would bypass the repeats, or the choice of a member."""


class SessionLostError(redis.RedisError):
    """The session ended before a command was answered. The command may be done or not."""


class _Session(SessionWindow):
    """A session whose threads wait for each other."""

    def __init__(self, session_id: int) -> None:
        super().__init__(session_id)
        self._turn = threading.Condition()

    @contextmanager
    def sequence(self, end: float) -> Generator[int]:
        """Give a number for the length of the block, in which its command is answered.

        Raises:
            redis.TimeoutError: older commands were not answered until `end`.
        """
        with self._turn:
            while self.is_full:
                if not self._turn.wait(end - time.monotonic()):
                    words = "older writes were not answered in time; this one was not sent"
                    raise redis.TimeoutError(words)
            number = self.begin()
        try:
            yield number
        finally:
            with self._turn:
                self.end(number)
                self._turn.notify_all()


class SessionRedis(redis.Redis):
    """A client of a whole cluster.

    Args:
        members: host and client port of each member.
        session_timeout_s: how long the session lives without a write, in seconds: 1 to 86,400. A
            longer outage ends it.
        patience_s: how long a command is sent again, in seconds: 0 to 86,400.
        options: of ``redis.Redis``, for all members.

    Raises:
        ConfigurationError: an argument is out of range, or an option is one that it sets itself.
    """

    def __init__(
        self,
        members: Sequence[tuple[str, int]],
        *,
        session_timeout_s: float = 300.0,
        patience_s: float = 60.0,
        **options: Any,
    ) -> None:
        self._members = _checked_members(members)
        if own := sorted(_OWN_OPTIONS & options.keys()):
            raise ConfigurationError(
                f"{own[0]} = {options[own[0]]!r}: expected no such option, SessionRedis sets it"
            )
        if db := options.get("db"):
            raise ConfigurationError(f"db = {db!r}: expected 0, members have one database")
        longest = MAX_SESSION_MS / 1000
        check_seconds("session_timeout_s", session_timeout_s, MIN_SESSION_MS / 1000, longest)
        check_seconds("patience_s", patience_s, 0.0, longest)
        self._options: dict[str, Any] = {"socket_timeout": 5.0, "socket_connect_timeout": 1.0}
        self._options |= options
        retry = redis.retry.Retry(NoBackoff(), 0)  # repeats are the business of this class
        super().__init__(*self._members[0], retry=retry, **self._options)
        self._others = [
            redis.Redis(*member, retry=retry, **self._options) for member in self._members[1:]
        ]
        self._pools = [each.connection_pool for each in (self, *self._others)]
        for pool in self._pools:
            pool.connection_class = typed(pool.connection_class)
        self._turns = Turns(self._pools)
        self._session_timeout_s = session_timeout_s
        self._patience_s = patience_s
        self._session: _Session | None = None
        self._opening = threading.Lock()
        self._process = os.getpid()

    @classmethod
    def from_url(cls, url: str, *others: str, **options: Any) -> Self:
        """Make a client from URLs, ``redis://host:port``, one for each member.

        Args:
            url: of a member. Its other parts, such as a password, must be the same in all URLs.
            others: of the other members.
            options: of the client, and of ``redis.Redis``.

        Raises:
            ConfigurationError: a URL has no TCP address, or the URLs differ in more than that.
        """
        try:
            parsed = [parse_url(one) for one in (url, *others)]
        except (ValueError, AttributeError) as error:
            raise ConfigurationError(f"urls = {(url, *others)!r}: {error}") from error
        members = [(one.pop("host", "localhost"), one.pop("port", 6379)) for one in parsed]
        said = parsed[0]
        if any(one != said for one in parsed) or "path" in said:
            raise ConfigurationError(
                f"urls = {(url, *others)!r}: expected redis://host:port of each member, the rest "
                "the same in all"
            )
        if said.pop("connection_class", None) is SSLConnection:
            said["ssl"] = True
        return cls(members, **{**options, **said})

    def client(self) -> Self:
        """Return a client of the same members, with its own session and connections."""
        patience = {"session_timeout_s": self._session_timeout_s, "patience_s": self._patience_s}
        return type(self)(self._members, **{**self._options, **patience})

    @property
    def session_id(self) -> int | None:
        """The session that writes travel in; None before the first one."""
        session = self._session  # another thread may replace it meanwhile
        return None if session is None else session.session_id

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command until it is answered, and return its reply. A write is done once.

        Raises:
            redis.exceptions.ClusterDownError: there was no leader for `patience_s`; it is not done.
            SessionLostError: its session ended before it was answered; it may be done or not.
            OutcomeUnknownError: the cluster did not answer in time; it may be done or not.
            redis.ConnectionError: no member answered in time; it may be done or not.
            redis.TimeoutError: the same.
            WritesSuspendedError: an operator has suspended writes; it is not done.
            redis.ResponseError: any other one is the reply of the command.
            UnsupportedError: it cannot be done exactly once, or members do not have it.
        """
        words = _split(args)
        spec = _supported(words)
        end = time.monotonic() + self._patience_s
        if spec.kind is not Kind.WRITE or spec.name == "quorate.session":
            return self._surely(words, args[0], options, end)
        while True:
            session = self._opened(end)
            with session.sequence(end) as sequence:
                stamped = ("QUORATE.ONCE", session.session_id, sequence, *words)
                try:
                    return self._surely(stamped, args[0], options, end)
                except _SessionEndedError as ended:
                    self._replace(session)
                    if ended.may_be_done:
                        raise SessionLostError(
                            "the session ended before this was answered; it may be done or not "
                            f"(NOSESSION {ended})"
                        ) from None

    def close(self) -> None:
        """Close the session, if a member can be reached, and all connections."""
        session, self._session = self._session, None
        if session is not None and self._process == os.getpid():
            with suppress(redis.RedisError, _UnsentError):
                self._attempt(("QUORATE.SESSION", "CLOSE", session.session_id), "", {})
        super().close()
        for other in self._others:
            other.close()

    def __del__(self) -> None:
        """Close the connections; nothing is sent from here, so the session times out."""
        with suppress(Exception):
            super().close()

    def _opened(self, end: float) -> _Session:
        if self._process != os.getpid():
            # After a fork the session is the parent's. Its numbers would be given twice, and only
            # the first command of each is done. Some thread of the parent may hold the lock here,
            # and no thread would ever release it.
            self._session, self._opening, self._process = None, threading.Lock(), os.getpid()
        if not self._opening.acquire(timeout=max(0.0, end - time.monotonic())):
            raise redis.TimeoutError(
                f"no session could be opened in {self._patience_s:g} s; nothing was done"
            )
        try:
            if self._session is None:
                words = ("QUORATE.SESSION", "OPEN", round(self._session_timeout_s * 1000))
                self._session = _Session(int(self._surely(words, "", {}, end)))
            return self._session
        finally:
            self._opening.release()

    def _replace(self, session: _Session) -> None:
        with self._opening:
            if self._session is session:
                self._session = None

    def _surely(self, words: Sequence[Any], name: Any, options: Any, end: float) -> Any:
        """Send a command until it is answered, or until `end` on the monotonic clock.

        Raises:
            _SessionEndedError: its session has ended.
            redis.RedisError: see `execute_command`.
        """
        retry, unknown = Retry(time.monotonic, end), None
        while True:
            try:
                return self._attempt(words, name, options)
            except NoSessionError as error:
                raise _SessionEndedError(str(error), may_be_done=unknown is not None) from None
            except _UnsentError as unsent:
                trouble, fate = unsent.cause, Fate.NOT_DONE
            except redis.RedisError as error:
                trouble, fate = error, fate_of(error)
            if fate is Fate.ANSWERED:
                # Rules may have changed since an attempt that was done.
                raise (unknown or trouble) if isinstance(trouble, NoPermissionError) else trouble
            if fate is Fate.UNKNOWN:
                unknown = trouble
            pause = retry.pause_s()
            if pause is None or (unknown is None and is_final(trouble)):
                # The last attempt may have done nothing: an earlier one may have.
                raise unknown or trouble
            self._turns.advance()
            time.sleep(pause)

    def _attempt(self, words: Sequence[Any], name: Any, options: Any) -> Any:
        """Send a command once, to the current member.

        Raises:
            _UnsentError: there is no connection.
            redis.RedisError: see `fate_of`.
        """
        pool = self._turns.current
        try:
            connection = pool.get_connection()
        except (redis.ConnectionError, redis.TimeoutError, redis.ResponseError) as error:
            raise _UnsentError(error) from error
        try:
            connection.send_command(*words)
            return self.parse_response(connection, name, **options)
        except redis.ResponseError:
            raise
        except BaseException:
            connection.disconnect()  # a late reply must not be read as that of the next command
            raise
        finally:
            pool.release(connection)


class _SessionEndedError(Exception):
    def __init__(self, words: str, *, may_be_done: bool) -> None:
        super().__init__(words)
        self.may_be_done = may_be_done


class _UnsentError(Exception):
    def __init__(self, cause: redis.RedisError) -> None:
        super().__init__(str(cause))
        self.cause = cause


def _checked_members(members: Any) -> list[tuple[str, int]]:
    try:
        found = [(host, port) for host, port in members]
    except (TypeError, ValueError):
        found = []
    if not found or not all(isinstance(h, str) and isinstance(p, int) for h, p in found):
        raise ConfigurationError(
            f"members = {members!r}: expected host and client port of each member, such as "
            '[("10.0.0.1", 7000), ("10.0.0.2", 7000)]'
        )
    return found


def _split(args: Sequence[Any]) -> tuple[Any, ...]:
    """Return the words of a command; redis-py writes several in one (``CONFIG GET``)."""
    name, *rest = args
    return (*(name.encode() if isinstance(name, str) else bytes(name)).split(), *rest)


def _supported(words: Sequence[Any]) -> CommandSpec:
    """Return the specification of a command.

    Raises:
        UnsupportedError: this client cannot do it.
    """
    named = [word if isinstance(word, bytes) else str(word).encode() for word in words[:2]]
    spec = resolve(named) if named else None
    name = b"".join(named[:1]) if spec is None else spec.name.encode()
    alike = {name.decode("utf-8", "replace"), name.partition(b"|")[0].decode("utf-8", "replace")}
    if spec is None or (spec.kind is Kind.CONNECTION and not alike & _ON_ANY_CONNECTION):
        raise UnsupportedError(
            f"SessionRedis cannot do {b' '.join(named).decode('utf-8', 'replace').upper():.80}: "
            "members have no such command, or it needs a single connection"
        )
    return spec


def _refuse(name: str, reason: str) -> Callable[..., NoReturn]:
    def refused(*_args: Any, **_options: Any) -> NoReturn:
        raise UnsupportedError(f"SessionRedis has no {name}(): {reason}")

    refused.__doc__ = f"Refuse: {reason}."
    refused.__name__ = name
    return refused


for _name, _reason in _UNSUPPORTED.items():
    _method = _refuse(_name, _reason)
    setattr(SessionRedis, _name, classmethod(_method) if _name == "from_pool" else _method)
