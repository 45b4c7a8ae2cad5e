"""A client of running members for programs without an event loop, in the Redis protocol.

One :class:`Members` has one connection to one member at a time. It switches to the next member when
the connection is lost. It is not thread-safe.
"""

import json
import socket
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias, cast

import attrs
import cattrs
import hiredis

from ...errors import ConfigurationError, TransportError
from ...keyvalue.protocol.resp import encode_command
from ...keyvalue.retry import Retry, Turns
from ...node.requests.status import MemberAddress
from ...transport import parse_address

__all__ = ["Members", "Refused", "Reply", "Standing", "parse_members", "standing"]

Reply: TypeAlias = "bytes | int | Exception | list[Reply] | None"

_CONNECT_SECONDS: Final = 2.0
_ANSWER_SECONDS: Final = 10.0
"""A member answers within 4 s, even a request that it cannot complete. Smaller: a slow answer looks
like a dead member. Larger: a dead member holds up the call for longer."""

_CHUNK_BYTES: Final = 1 << 18


class Refused(Exception):  # noqa: N818 - a reply, not a failure of this program
    """An error reply, with the text that the member sent; it begins with the code."""

    @property
    def code(self) -> str:
        """The first word of the reply: ``ERR``, ``UNKNOWN``, ``NOSESSION``."""
        return str(self).partition(" ")[0]


def parse_members(text: str) -> tuple[tuple[str, int], ...]:
    """Read ``HOST:PORT,HOST:PORT``; IPv6 in brackets.

    Raises:
        ConfigurationError: the text has another form.
    """
    try:
        found = [parse_address(one.strip()) for one in text.split(",")]
    except ConfigurationError:
        found = []
    if not (found and all(one.port for one in found)):
        raise ConfigurationError(
            f'connect = "{text}": expected HOST:PORT,HOST:PORT, the client ports of members'
        )
    return tuple((one.host, one.port) for one in found)


class Members:
    """A connection to any of these members that answers.

    Args:
        addresses: host and client port of each.
        patience_s: seconds to retry a call, at one member after the other.
    """

    def __init__(self, addresses: Sequence[tuple[str, int]], *, patience_s: float = 60.0) -> None:
        self._turns = Turns(tuple(addresses))
        self._patience_s = patience_s
        self._socket: socket.socket | None = None
        self._reader = hiredis.Reader()

    def close(self) -> None:
        """Close the connection; the next call opens one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def surely(
        self, commands: Sequence[Sequence[bytes | str | int]], again: Callable[[Reply], bool]
    ) -> list[Reply]:
        """Send commands until they are answered. They must be safe to send twice.

        Args:
            commands: the commands, sent together.
            again: returns whether the last reply requires that they are sent again.

        Returns:
            A reply for each command; :class:`Refused` for an error.

        Raises:
            TransportError: no member has answered within `patience_s`.
        """
        clock = time.monotonic  # noqa: TID251 - no member runs here
        retry = Retry(clock, clock() + self._patience_s)
        while True:
            try:
                replies = self._call(commands)
            except OSError as error:
                trouble = f"{self._turns.current}: {str(error) or type(error).__name__}"
            else:
                if not again(replies[-1]):
                    return replies
                trouble = str(replies[-1])
            pause = retry.pause_s()
            if pause is None:
                raise TransportError(f"no answer for {self._patience_s:g} s: {trouble}")
            self.close()
            self._turns.advance()
            time.sleep(pause)

    def _call(self, commands: Sequence[Sequence[bytes | str | int]]) -> list[Reply]:
        """Send commands and return their replies.

        Raises:
            OSError: the connection is lost; it is closed.
        """
        try:
            if self._socket is None:
                self._socket = socket.create_connection(self._turns.current, _CONNECT_SECONDS)
                self._socket.settimeout(_ANSWER_SECONDS)
                self._reader = hiredis.Reader(replyError=Refused)
            self._socket.sendall(b"".join(encode_command(command) for command in commands))
            return [self._receive(self._socket) for _ in commands]
        except hiredis.ProtocolError as error:
            self.close()
            raise ConnectionAbortedError(f"not a RESP reply: {error}") from error
        except BaseException:
            self.close()  # replies to these commands may still arrive on it
            raise

    def _receive(self, connection: socket.socket) -> Reply:
        while (found := cast("Reply | bool", self._reader.gets())) is False:  # incomplete
            data = connection.recv(_CHUNK_BYTES)
            if not data:
                raise ConnectionResetError("the member closed the connection")
            self._reader.feed(data)
        return found


@attrs.frozen
class _Topology:
    members: tuple[MemberAddress, ...]


@attrs.frozen
class Standing:
    """A member's view of its cluster: the cluster's name, and the members' client addresses."""

    cluster: str
    topology: _Topology


def standing(members: str, *, patience_s: float = 10.0) -> Standing:
    """Ask members for their cluster's name and members; the first answer counts.

    Raises:
        ConfigurationError: `members` is malformed.
        TransportError: no member answers, or the answer is not from a member.
    """
    asking = Members(parse_members(members), patience_s=patience_s)
    try:
        (reply,) = asking.surely([("QUORATE.STATUS",)], again=lambda _reply: False)
        return _standing_untrusted(reply)
    finally:
        asking.close()


def _standing_untrusted(reply: Reply) -> Standing:
    try:
        found = cast("object", json.loads(cast("bytes", reply)))
        return cattrs.structure(found, Standing)
    except (ValueError, TypeError, RecursionError, cattrs.BaseValidationError) as error:
        raise TransportError(f"expected the status of a member, found {reply!r:.80}") from error
