"""One end of a TLS connection, over any other connection.

The idea
--------
`Connection` has a synchronous `send_nowait`, so that a leader hands a batch to all followers
without a task switch. trio's own TLS stream has an async `send_all`, and allows one sender at a
time. So OpenSSL works between two buffers in memory here: it encrypts into one, and decrypts what
we put into the other. Bytes move between these buffers and the network when we say so.

The owed byte
-------------
`send_nowait` returns how many bytes were taken, and the caller comes back with the rest once the
network is ready. But what was encrypted can't be taken back. If the network does not take all of
the ciphertext, the rest waits here, and no task would ever send it.

So one byte less than was encrypted is reported. The caller waits until the connection is writable,
which sends what waits, and offers that byte again. The byte is *owed*: the next call skips it. The
naive way is a task for each connection that sends the rest; then a caller would not know when the
network has taken a frame, and nothing would hold it up.

A call that encrypts a single byte may therefore return 0. Callers here send frames of twelve bytes
and more, and continue a frame with the same bytes.

The end
-------
An orderly end is a message of TLS. An end without it may be forged by anybody on the way, so it
breaks the connection instead of ending it.
"""

import re
import secrets
import ssl
import time
from contextlib import suppress
from typing import Any, Final, cast

import trio

from ...errors import HandshakeError, WireError
from ..identity import Identity, identity_untrusted
from ..network import Connection

CHUNK_BYTES: Final = 64 << 10
"""Most bytes that are encrypted at once, and so the most ciphertext that waits here. Smaller: more
system calls for a large frame. Larger: more memory for each slow peer."""

RECEIVE_BYTES: Final = 64 << 10
"""Most bytes that are taken from the network at once; see the constant of that name in `limits`."""

HANDSHAKE_RECEIVE_BYTES: Final = 4 << 10
"""The same before the handshake has ended, when the other end is a stranger."""

HANDSHAKE_BYTES: Final = 64 << 10
"""Most bytes of a handshake. A chain of three certificates has about 4 KiB. Smaller: long chains
are refused. Larger: strangers can make us buffer more."""

ANSWER_BYTES: Final = 16 << 10
"""Most bytes of answers to new keys that wait while the network takes nothing. The other end may
send new keys without end and read none of the answers. Smaller: one that changes its keys often
over a slow network is cut off. Larger: one that attacks makes us buffer more."""

KEY_BYTES: Final = 1 << 38
"""Most bytes that one key encrypts (RFC 8446, section 5.5, has about as many for AES-GCM). OpenSSL
never changes keys by itself, so the connection breaks then, and a link is dialled again. Smaller:
busy links break more often. Larger: an attacker that collects ciphertext has better odds."""


class TlsConnection:
    """One end of a TLS connection; see `network.Connection`.

    Args:
        inner: carries the ciphertext; belongs to this object from now on.
        context: with our certificate, and the CAs that we trust.
        server: this end was called.

    Attributes:
        identity: who the other end is; None before the handshake, or without a certificate.
    """

    def __init__(self, inner: Connection, context: ssl.SSLContext, *, server: bool) -> None:
        self.peer = inner.peer
        self.identity: Identity | None = None
        self._inner = inner
        self._arrived, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._arrived, self._outgoing, server_side=server)
        self._unsent = memoryview(b"")  # ciphertext that the network has not taken
        self._owed = False  # the next byte that is offered was encrypted already
        # Drawn: the links to two followers must not break at the same moment.
        self._key_bytes = KEY_BYTES - secrets.randbelow(KEY_BYTES // 2)
        self._closed = False
        self._ready = False  # the handshake is over
        self._ended = False  # the other end has said that it sends no more
        self._good_until = float("inf")  # the other end's certificate (trio's clock)
        self._broken = ""  # why the connection is of no use any more

    # --- the handshake ----------------------------------------------------------------------------

    async def shake_hands(self, turns: trio.Lock, *, certified: bool = True) -> None:
        """Agree on keys, and learn who the other end is.

        Args:
            turns: held for each step, so that a storm of handshakes has one step for each turn of
                the event loop.
            certified: the other end shows a certificate; a browser shows none.

        Raises:
            HandshakeError: the other end speaks no TLS, or is not certified by our CA.
            trio.BrokenResourceError: the connection broke.
        """
        received = 0
        while not await self._step(turns):
            await self._send_all()
            data = await self._inner.receive(HANDSHAKE_RECEIVE_BYTES)
            if not data:
                raise HandshakeError(f"{self.peer} closed the connection during the TLS handshake")
            received += len(data)
            if received > HANDSHAKE_BYTES:
                raise HandshakeError(
                    f"{self.peer} sent more than {HANDSHAKE_BYTES} bytes of a TLS handshake"
                )
            self._arrived.write(data)
        await self._send_all()
        self._ready = True
        if not certified:
            return
        try:
            certificate = certificate_untrusted(self._tls)
            self.identity = identity_untrusted(uris_of(certificate))
        except WireError as error:
            raise HandshakeError(f"{self.peer}: {error}") from None
        # OpenSSL has looked at it once, by the system's clock; a stream may last for months.
        ends = ssl.cert_time_to_seconds(cast("str", certificate["notAfter"]))
        self._good_until = trio.current_time() + ends - time.time()  # noqa: TID251 - as OpenSSL

    async def linger(self) -> None:
        """Read and drop what comes, until the other end closes.

        A TCP connection that is closed with unread bytes is reset, and the other end may lose what
        it was sent last: the alert that says why.
        """
        while await self._inner.receive(HANDSHAKE_RECEIVE_BYTES):
            pass

    async def _step(self, turns: trio.Lock) -> bool:
        """Go on with the handshake as far as what has arrived allows; return whether it is over."""
        async with turns:
            # In the lock: the next one of many handshakes then gets the next turn, not this one. A
            # step takes up to half a millisecond of processor.
            await trio.lowlevel.checkpoint()
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                return False
            except ssl.SSLError as error:
                # The other end learns the reason, too: OpenSSL has left an alert to send.
                self._send_what_fits()
                raise HandshakeError(f"{self.peer}: TLS: {describe_tls(error)}") from None
            return True

    async def _send_all(self) -> None:
        while not self._flush():
            await self._inner.wait_writable()

    # --- sending ----------------------------------------------------------------------------------

    def send_nowait(self, data: bytes | memoryview) -> int:
        """See `Connection`."""
        self._check()
        size = len(data)
        if not self._flush() or not size:
            return 0
        if self._key_bytes <= 0 and not self._owed:
            raise self._break("its key has encrypted enough; the next connection has another one")
        taken, self._owed = int(self._owed), False
        self._key_bytes -= size
        view = memoryview(data)
        while taken < size:
            try:
                taken += self._tls.write(view[taken : taken + CHUNK_BYTES])
            except ssl.SSLError as error:
                raise self._break(f"TLS: {describe_tls(error)}") from None
            if not self._flush():
                self._owed = True
                return taken - 1
        return taken

    async def wait_writable(self) -> None:
        """See `Connection`."""
        while True:
            if self._closed:
                raise trio.ClosedResourceError
            await self._inner.wait_writable()
            try:
                # Readiness for a part of the ciphertext is no readiness for more.
                if self._closed or self._flush():
                    break
            except trio.BrokenResourceError:
                break  # `send_nowait` raises it
        if self._closed:
            raise trio.ClosedResourceError

    def _flush(self) -> bool:
        """Hand ciphertext to the network; return whether it has taken all."""
        while True:
            if not self._unsent:
                if not self._outgoing.pending:
                    return True
                self._unsent = memoryview(self._outgoing.read())
            taken = self._inner.send_nowait(self._unsent)
            self._unsent = self._unsent[taken:]
            if self._unsent:
                return False

    # --- receiving --------------------------------------------------------------------------------

    async def receive(self, max_bytes: int) -> bytes:
        """See `Connection`."""
        if self._tls.pending() or self._arrived.pending or self._ended or self._broken:
            # Nothing has to be waited for, but a reader of much must let other tasks run. Before
            # the bytes are taken: a call that is cancelled must not lose them.
            await trio.lowlevel.checkpoint()
        while True:
            self._check()
            if data := self._decrypted(max_bytes):
                return data
            self._check()
            if self._ended:
                return b""
            arrived = await self._inner.receive(RECEIVE_BYTES)
            if not arrived:
                # Anybody on the way can end a TCP connection.
                raise self._break("the connection ended without the end that TLS has")
            self._arrived.write(arrived)

    def _decrypted(self, max_bytes: int) -> bytes:
        """Return what has arrived, and is whole; ``b""`` if nothing is."""
        parts: list[bytes] = []
        room = max_bytes
        try:
            # One call returns one record of 16 KiB at most. Asked before each call: one that finds
            # nothing costs an exception, and a buffer of the size that is asked for.
            while room and (self._arrived.pending or self._tls.pending()):
                part = self._tls.read(room)
                if not part:
                    self._ended = True
                    break
                parts.append(part)
                room -= len(part)
        except ssl.SSLWantReadError:
            pass  # the rest is a part of a record
        except ssl.SSLZeroReturnError:
            self._ended = True
        except ssl.SSLError as error:
            # What came before it is good, and is delivered first.
            self._break(f"TLS: {describe_tls(error)}")
        if self._outgoing.pending:
            self._send_what_fits()  # an alert, or an answer to new keys
            if self._outgoing.pending > ANSWER_BYTES:
                self._break("it sends new keys, and does not read the answers")
        return b"".join(parts)

    # --- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """See `Connection`. Bytes that the network has not taken by now are lost."""
        if self._closed:
            return
        self._closed = True
        if self._ready and not (self._broken or self._unsent):
            # It complains that the other end has not answered, for which we do not wait.
            with suppress(OSError):
                self._tls.unwrap()
            self._send_what_fits()
        self._inner.close()

    def _send_what_fits(self) -> None:
        """Send an alert, or the end, as far as the network takes it now."""
        # Suppressed: then the other end learns of it by the end of the connection.
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            self._flush()

    def _check(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError
        if not self._broken and trio.current_time() > self._good_until:
            self._break("the certificate of the other end has ended")
        if self._broken:
            raise trio.BrokenResourceError(self._broken)

    def _break(self, reason: str) -> trio.BrokenResourceError:
        """Note that the connection is of no use any more; return the error to raise."""
        self._broken = reason
        return trio.BrokenResourceError(reason)


_PLACE: Final = re.compile(r" *\(_ssl\.c:\d+\)|^\[\w+\] *")


def describe_tls(error: ssl.SSLError) -> str:
    """Return what is wrong in words, without OpenSSL's places in files."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is refused: {error.verify_message}"
    # Some have no reason, only a text such as "[SSL] PEM lib (_ssl.c:3926)".
    words = error.reason or _PLACE.sub("", str(error))
    return words.lower().replace("_", " ")


def certificate_untrusted(tls: ssl.SSLObject) -> dict[str, Any]:
    """Return the other end's certificate, which OpenSSL has verified.

    Raises:
        WireError: it has names that are no text.
    """
    try:
        return cast("dict[str, Any]", tls.getpeercert() or {})
    except ValueError:  # a CA may have signed anything
        raise WireError("the certificate has names that are no text") from None


def uris_of(certificate: dict[str, Any]) -> list[str]:
    """Return the URIs of a certificate."""
    names = cast("tuple[tuple[str, str], ...]", certificate.get("subjectAltName", ()))
    return [name for kind, name in names if kind == "URI"]
