"""Connections to a member's client port, for programs on trio and on asyncio.

:class:`Dialler` knows how to get in: TCP, TLS, ``HELLO 3`` with a user and a password. It opens a
:class:`Wire`: bytes go in, decoded RESP3 values come out, pushes among them. A wire knows nothing
of requests and replies; that is the business of its user (`lanes.py`, `watch.py`).

A wire has one user at a time. A user that is cancelled in `send` or `receive`, or that leaves a
reply unread, must close it: the next reply could not be told from a late one.
"""

from __future__ import annotations

import errno
import math
import os
import socket
import ssl
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import anyio
import hiredis
from anyio.abc import SocketAttribute
from anyio.streams.tls import TLSAttribute, TLSStream

from ..errors import HandshakeError, KeyValueError
from ..keyvalue.limits import MAX_REPLY_BYTES
from ..keyvalue.protocol.resp import encode_command
from ..keyvalue.retry import REFUSALS
from ..transport.tls.connection import describe_tls
from .secure import check_member_certificate

if TYPE_CHECKING:
    from anyio.abc import ByteStream

    from ..transport import Address
    from .secure import ClientTls

__all__ = ["DIAL_SECONDS", "Dialler", "HangUpError", "Push", "Value", "Wire"]

Push = hiredis.PushNotification
"""A push is a list of this type; its first item names its kind."""

Value: TypeAlias = (
    "bool | int | float | bytes | KeyValueError | list[Value] | dict[Value, Value] | None"
)
"""One decoded value; an error reply is a :class:`~quorate.errors.KeyValueError`, not raised."""

DIAL_SECONDS: Final = 5.0
"""For a connection with its login. Smaller, and a busy member, which checks passwords one by one,
counts as dead. Larger, and a dead machine holds up its clients for longer."""

_CHUNK_BYTES: Final = 256 * 1024

_MAX_VALUE_BYTES: Final = 2 * MAX_REPLY_BYTES
"""What may arrive before a value is complete. Smaller, and the longest replies would be refused.
Larger, and a peer that is no member could fill the memory."""

_REFUSALS: Final = REFUSALS | {"NOPERM"}
"""Codes of replies to a login that every member will give again."""

_MISSING: Final = object()


class HangUpError(ConnectionResetError):
    """The other end has closed the connection in order."""


class Wire:
    """A connection that speaks RESP3, after its login.

    Args:
        stream: the connection; the wire owns it.
        address: of the member.

    Attributes:
        closed: whether `aclose` was called.
    """

    def __init__(self, stream: ByteStream, address: Address) -> None:
        self.address = address
        self.closed = False
        self._stream = stream
        self._socket = _plain_socket(stream)
        self._reader = hiredis.Reader(replyError=KeyValueError, notEnoughData=_MISSING)
        self._unfinished = 0

    async def send(self, data: bytes) -> None:
        """Send bytes. It is no checkpoint if the system takes them at once.

        Raises:
            OSError: the connection is lost.
        """
        if self._socket is not None:
            # Through the stream it would be a checkpoint, which costs a turn of the event loop: a
            # tenth of the time of a short request.
            try:
                data = data[self._socket.send(data) :]
            except BlockingIOError:
                pass
            except OSError as error:
                raise ConnectionResetError(_lost(error)) from error
            if not data:
                return
        try:
            await self._stream.send(data)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, ssl.SSLError) as error:
            raise ConnectionResetError(_lost(error)) from error

    async def receive(self, silence_s: float = math.inf) -> Value:
        """Return the next value, which may be a `Push`; wait for it.

        Args:
            silence_s: the longest time without a byte, in seconds.

        Raises:
            OSError: the connection is lost or silent, or what arrives is no RESP.
        """
        while (value := self.next_untrusted()) is _MISSING:
            data = b""
            try:
                with anyio.CancelScope(deadline=anyio.current_time() + silence_s):
                    data = await self._stream.receive(_CHUNK_BYTES)
            except anyio.EndOfStream:
                raise HangUpError("the connection was closed by the other end") from None
            except (anyio.BrokenResourceError, anyio.ClosedResourceError, ssl.SSLError) as error:
                raise ConnectionResetError(_lost(error)) from error
            if not data:  # a stream never returns nothing, so the time is over
                raise TimeoutError(f"no answer for {silence_s:g} s")
            self._feed(data)
        return cast("Value", value)

    def next_untrusted(self) -> object:
        """Return the next value that is complete already, or `_MISSING`.

        Raises:
            OSError: what arrived is no RESP.
        """
        try:
            value = cast("object", self._reader.gets())
        except (hiredis.ProtocolError, TypeError, MemoryError) as error:
            # TypeError: a list as the key of a map. MemoryError: a list of two billion items, for
            # which hiredis asks at once. Nothing else of this program lacks memory then.
            raise ConnectionAbortedError(f"not a RESP reply: {error}") from error
        if value is not _MISSING:
            self._unfinished = 0
        return value

    def _feed(self, data: bytes) -> None:
        self._unfinished += len(data)
        if self._unfinished > _MAX_VALUE_BYTES:
            words = f"a reply of more than {_MAX_VALUE_BYTES} bytes: expected one of a member"
            raise ConnectionAbortedError(words)
        self._reader.feed(data)

    @property
    def usable(self) -> bool:
        """Whether nothing speaks against another request: it is open, and nothing is unread."""
        if self._reader.has_data():  # more came with the last reply than was asked for
            return False
        if self._socket is None or self.closed:
            return not self.closed
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False  # the other end has closed it, or has sent what nobody has asked for

    async def aclose(self) -> None:
        """Close the connection at once; also in a cancelled task."""
        self.closed = True
        await anyio.aclose_forcefully(self._stream)


class Dialler:
    """Opens connections to members.

    Args:
        tls: with TLS; None without.
        user: to log in as; None for the user `default`.
        password: of the user; None to log in as nobody.
        or_nobody: go on without a login if the member refuses that one, and lets us in without.

    Attributes:
        tls: with TLS; None without.
    """

    def __init__(
        self,
        *,
        tls: ClientTls | None = None,
        user: str | None = None,
        password: str | None = None,
        or_nobody: bool = False,
    ) -> None:
        self.tls = tls
        login = [] if password is None else ["AUTH", user or "default", password]
        self._hello = encode_command(["HELLO", "3", *login])
        self._or_nobody = or_nobody and password is not None

    async def open(self, address: Address) -> Wire:
        """Open a connection and log in.

        Raises:
            OSError: the member can't be reached, or lets nobody in now; another one may.
            HandshakeError: what answers is no member, or TLS does not fit.
            KeyValueError: the user or its password is wrong. Every member will say so.
        """
        stream: ByteStream | None = None
        try:
            with anyio.fail_after(DIAL_SECONDS):
                plain = stream = await _connected(address)
                if self.tls is not None:
                    stream = await _encrypted(plain, self.tls, address)
                wire = Wire(stream, address)
                await self._log_in(wire)
        except BaseException as error:
            if stream is not None:  # also when cancelled: nobody else has it yet
                await anyio.aclose_forcefully(stream)
            if isinstance(error, TimeoutError) and not error.errno:
                raise TimeoutError(f"no answer within {DIAL_SECONDS:g} s") from None
            raise
        return wire

    async def _log_in(self, wire: Wire) -> None:
        try:
            await wire.send(self._hello)
            reply = await wire.receive()
            if self._or_nobody and isinstance(reply, KeyValueError) and reply.code in REFUSALS:
                await wire.send(encode_command(["HELLO", "3"]))
                refused, reply = reply, await wire.receive()
                if isinstance(reply, KeyValueError) and reply.code in REFUSALS:
                    reply = KeyValueError(f"{refused}; without a login: {reply}")
        except ConnectionAbortedError as error:
            raise HandshakeError(f"{wire.address}: {error} (is it a client port?)") from None
        except ConnectionResetError as error:
            words = "is it a client port?"
            if self.tls is None:
                words += " One with TLS needs tls=ClientTls(...)"
            raise type(error)(f"{error} ({words})") from None
        if isinstance(reply, KeyValueError):
            if reply.code in _REFUSALS:
                raise reply
            raise ConnectionRefusedError(str(reply))
        if not isinstance(reply, dict):
            raise HandshakeError(
                f"{wire.address}: expected the reply to HELLO, found {reply!r:.60}"
            )


async def _connected(address: Address) -> ByteStream:
    """Open a TCP connection.

    Raises:
        OSError: in words, without anyio's "all connection attempts failed".
    """
    try:
        stream = await anyio.connect_tcp(address.host, address.port)
    except OSError as error:
        raise _first(error) from None
    ours, theirs = SocketAttribute.local_address, SocketAttribute.remote_address
    remote = stream.extra(theirs, None)  # noqa: S610 - no Django here
    if remote is None:  # it was reset already
        await anyio.aclose_forcefully(stream)
        raise ConnectionResetError("the connection was closed by the other end")
    # A connection to a free port of this machine may get that port as its own end. It would read
    # its own commands as replies.
    if remote == stream.extra(ours):  # noqa: S610
        await anyio.aclose_forcefully(stream)
        raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
    return stream


async def _encrypted(plain: ByteStream, tls: ClientTls, address: Address) -> ByteStream:
    """Shake hands with a member, and check that it is one.

    Raises:
        OSError: the connection is lost.
        HandshakeError: it speaks no TLS, or is not certified.
    """
    try:
        stream = await TLSStream.wrap(
            plain, ssl_context=tls.context, server_side=False, standard_compatible=False
        )
        names = cast("dict[str, Any]", stream.extra(TLSAttribute.peer_certificate) or {})  # noqa: S610
        check_member_certificate(names.get("subjectAltName", ()))
    except (anyio.BrokenResourceError, anyio.EndOfStream):
        words = "the connection was closed during the TLS handshake (is it a TLS port?)"
        raise ConnectionResetError(words) from None
    except ssl.SSLError as error:
        words = f"TLS: {describe_tls(error)} (is it a port without TLS?)"
        raise HandshakeError(f"{address}: {words}") from None
    except ConnectionAbortedError as error:
        raise HandshakeError(f"{address}: {error}") from None
    return stream


def _plain_socket(stream: ByteStream) -> socket.socket | None:
    """Return the socket of a stream without TLS, on trio; asyncio lets nobody else send."""
    found = stream.extra(SocketAttribute.raw_socket, None)  # noqa: S610 - no Django here
    if isinstance(stream, TLSStream) or not isinstance(found, socket.socket):
        return None
    return found


def _first(error: OSError) -> OSError:
    """Return the first of the errors of several addresses, with the system's words."""
    cause: BaseException = error.__cause__ or error
    while isinstance(cause, BaseExceptionGroup):
        cause = cast("BaseExceptionGroup[BaseException]", cause).exceptions[0]
    if isinstance(cause, socket.gaierror):
        return OSError(f"unknown host: {cause.strerror}")
    if isinstance(cause, OSError) and cause.errno:
        return OSError(cause.errno, os.strerror(cause.errno))
    return error


def _lost(error: Exception) -> str:
    return str(error.__cause__ or error) or "the connection is lost"
