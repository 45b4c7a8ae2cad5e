"""A client's socket with TLS: OpenSSL between the port and a non-blocking socket.

The port's connections call `recv`, `send`, `shutdown` and `close` of a socket, and wait with
``epoll``. An object with these methods stands in front of the real socket here, so nothing above it
differs. OpenSSL works between two buffers in memory: one takes what has arrived, and from the other
we send.

Nothing may wait in a buffer
    ``epoll`` sees the real socket alone. Bytes that wait *here* would be forgotten.

    - Each `recv` decrypts everything that has arrived and is whole. It may return a little more
      than was asked for: the rest of a record that an earlier call has begun.
    - If ciphertext is left that the socket does not take, `send` reports one byte less than it has
      encrypted. So the connection waits for ``EPOLLOUT``, and offers that byte again, which is
      skipped. The same device serves members: see :mod:`quorate.transport.tls.connection`.
    - TLS may end, or break, behind bytes that are still returned. The reading half of the socket is
      shut down then: the kernel reports it as readable from that moment on, and the next `recv`
      returns the end or raises the error.

The end
    An end of TCP without an end of TLS counts as an end. Anybody on the way can cause it, but so
    can they on a plain connection: commands that are whole are executed, and half of one never is.
    Most client libraries close that way.
"""

import socket
import ssl
from contextlib import suppress
from typing import Final, cast

import attrs

from ...errors import HandshakeError, WireError
from ...transport.tls.connection import certificate_untrusted, describe_tls, uris_of

__all__ = ["CHUNK_BYTES", "HANDSHAKE_BYTES", "Certificate", "TlsSocket"]

CHUNK_BYTES: Final = 64 << 10
"""Most bytes that are encrypted at once, and so the most ciphertext that waits here for a client
that does not read. Smaller: more system calls for a large reply. Larger: more memory for each slow
client that no budget counts."""

HANDSHAKE_BYTES: Final = 64 << 10
"""Most bytes of a client in a handshake. A chain of three certificates has about 4 KiB. Smaller:
long chains are refused. Larger: strangers can make us buffer more."""

_HANDSHAKE_RECEIVE_BYTES: Final = 4 << 10
_RECORD_BYTES: Final = 16 << 10  # one call returns one record at most
_MOST_UNSENT: Final = 2 * CHUNK_BYTES


@attrs.frozen
class Certificate:
    """What a client's certificate says.

    Args:
        uris: among its names.
        ends: when it expires, seconds since the epoch.
    """

    uris: list[str]
    ends: int


class TlsSocket:
    """A non-blocking socket with TLS, at the server's end.

    Args:
        sock: a connected one, non-blocking; belongs to this object from now on.
        context: with our certificate.
    """

    __slots__ = (
        "_arrived",
        "_decrypt",
        "_encrypt",
        "_ended",
        "_handshake_bytes",
        "_outgoing",
        "_owed",
        "_receive",
        "_send",
        "_shut",
        "_socket",
        "_tls",
        "_trouble",
        "_unsent",
    )

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        self._socket = sock
        # Bound once: each command needs both.
        self._receive, self._send = sock.recv, sock.send
        self._arrived, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._arrived, self._outgoing, server_side=True)
        self._decrypt, self._encrypt = self._tls.read, self._tls.write
        self._unsent = memoryview(b"")  # ciphertext that the socket has not taken
        self._owed = False  # the next byte that is offered was encrypted already
        self._ended = False  # the client sends no more
        self._shut = False  # we send no more
        self._trouble = ""  # why nothing more can be decrypted
        self._handshake_bytes = 0

    def fileno(self) -> int:
        """Return the descriptor of the real socket."""
        return self._socket.fileno()

    def getsockname(self) -> tuple[str, int]:
        """Return our address, as the real socket does."""
        return cast("tuple[str, int]", self._socket.getsockname())

    # --- the handshake

    def shake_hands(self) -> bool:
        """Take what has arrived of the handshake, and answer it; return whether it is over.

        Raises:
            HandshakeError: the client speaks no TLS, or has no certificate of our CA.
            OSError: the connection is lost.
        """
        try:
            data = self._receive(_HANDSHAKE_RECEIVE_BYTES)
        except BlockingIOError:
            return False
        if not data:
            raise HandshakeError("it has closed the connection during the TLS handshake")
        self._handshake_bytes += len(data)
        if self._handshake_bytes > HANDSHAKE_BYTES:
            raise HandshakeError(f"more than {HANDSHAKE_BYTES} bytes of a TLS handshake")
        self._arrived.write(data)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            # A new socket takes far more than our part of a handshake.
            self._flush()
            return False
        except ssl.SSLError as error:
            # The client learns the reason, too: OpenSSL has left an alert to send.
            with suppress(OSError):
                self._flush()
            raise HandshakeError(f"TLS: {describe_tls(error)}") from None
        self._flush()
        return True

    @property
    def certificate(self) -> Certificate | None:
        """The client's certificate, which OpenSSL has verified; None if it showed none."""
        if not self._tls.getpeercert(binary_form=True):
            return None
        try:
            found = certificate_untrusted(self._tls)
        except WireError:
            return Certificate([], 0)
        return Certificate(uris_of(found), ssl.cert_time_to_seconds(str(found["notAfter"])))

    @property
    def has_input(self) -> bool:
        """Whether bytes wait here that `recv` has not looked at: they came with the handshake."""
        return self._arrived.pending > 0

    # --- reading

    def recv(self, size: int) -> bytes:
        """Return what has arrived and is whole; ``b""`` at the end.

        After `shutdown` it returns ciphertext, which the caller drops.

        Args:
            size: of ciphertext, at most.

        Raises:
            BlockingIOError: there is nothing, or only a part of a record.
            OSError: the connection is lost, or its bytes are no TLS.
        """
        if self._trouble:
            raise ConnectionAbortedError(self._trouble)
        try:
            data = self._receive(size)
        except BlockingIOError:
            # The first command may have come with the end of the handshake.
            if not self._arrived.pending:
                raise
        else:
            if not data or self._shut:
                return data
            if self._ended:
                return b""
            self._arrived.write(data)
        if found := self._decrypted():
            return found
        if self._trouble:
            raise ConnectionAbortedError(self._trouble)
        if self._ended:
            return b""
        raise BlockingIOError

    def _decrypted(self) -> bytes:
        found = b""
        parts: list[bytes] = []
        arrived, tls = self._arrived, self._tls
        try:
            # Mostly there is one record. Asked before each call: one that finds nothing costs an
            # exception.
            while arrived.pending or tls.pending():
                part = self._decrypt(_RECORD_BYTES)
                if not part:
                    self._stop_reading()
                    break
                if found:
                    parts.append(part)
                else:
                    found = part
        except ssl.SSLWantReadError:
            pass  # the rest is a part of a record
        except ssl.SSLZeroReturnError:
            self._stop_reading()
        except ssl.SSLError as error:
            # What came before it is good, and is returned first.
            self._trouble = f"TLS: {describe_tls(error)}"
            self._stop_reading()
        if self._outgoing.pending:
            self._answer()
        return found + b"".join(parts) if parts else found

    def _stop_reading(self) -> None:
        """Make the kernel report the socket as readable for ever, so that the end is noticed."""
        self._ended = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)

    def _answer(self) -> None:
        """Send an alert, or an answer to new keys, as far as the socket takes it now."""
        try:
            self._flush()
        except OSError as error:
            self._trouble = str(error)
        # A client may ask for new keys over and over, and not read the answers.
        if self._outgoing.pending + len(self._unsent) > _MOST_UNSENT:
            self._trouble = "TLS: the client reads no answers to new keys"
            self._stop_reading()

    # --- sending

    def send(self, data: bytes | memoryview) -> int:
        """Encrypt and send as much as the socket takes; return how many bytes that were.

        The caller offers the rest again, from the byte behind these on.

        Raises:
            BlockingIOError: nothing was taken.
            OSError: the connection is lost.
        """
        size = len(data)
        if not (self._unsent or self._owed) and 0 < size <= _RECORD_BYTES:
            # As below, for nearly all replies: one record, which the socket takes whole.
            self._encrypt(data)
            record = self._outgoing.read()
            try:
                sent = self._send(record)
            except BlockingIOError:
                sent = 0
            if sent == len(record):
                return size
            self._unsent, self._owed = memoryview(record)[sent:], True
            return size - 1
        if self._unsent and not self._flush():
            raise BlockingIOError
        taken, self._owed = int(self._owed), False
        view = memoryview(data)
        while taken < size:
            taken += self._encrypt(view[taken : taken + CHUNK_BYTES])
            if not self._flush():
                # Encrypted bytes can't be taken back, and nobody would send the rest of them.
                self._owed = True
                return taken - 1
        return taken

    def _flush(self) -> bool:
        """Hand ciphertext to the socket; return whether it has taken all.

        Raises:
            OSError: the connection is lost.
        """
        while True:
            if not self._unsent:
                if not self._outgoing.pending:
                    return True
                self._unsent = memoryview(self._outgoing.read())
            try:
                sent = self._send(self._unsent)
            except BlockingIOError:
                return False
            self._unsent = self._unsent[sent:]

    # --- the end

    def shutdown(self, how: int) -> None:
        """Send the end of TLS, and shut the real socket down.

        Raises:
            OSError: the connection is lost.
        """
        self._end()
        self._shut = True
        self._socket.shutdown(how)

    def close(self) -> None:
        """Send the end of TLS, as far as the socket takes it, and close."""
        self._end()
        self._socket.close()

    def _end(self) -> None:
        if self._trouble or self._unsent:
            return  # it would have to wait behind what is not sent
        # It complains that the client has not answered, for which we do not wait.
        with suppress(OSError):
            self._tls.unwrap()
        with suppress(OSError):
            self._flush()
