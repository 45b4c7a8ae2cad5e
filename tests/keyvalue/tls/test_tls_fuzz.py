"""What a client may send before and after a handshake: documented errors, bounded memory."""

import socket
import ssl
from collections.abc import Generator
from contextlib import contextmanager, suppress
from random import Random

import pytest

from quorate.errors import HandshakeError
from quorate.keyvalue.tls.socket import HANDSHAKE_BYTES, TlsSocket
from tests.support.certificates import client_context, port_context


class Pair:
    """A server's socket with TLS, and a client that is OpenSSL between two buffers."""

    def __init__(self) -> None:
        plain, self.stream = socket.socketpair()
        plain.setblocking(False)
        self.stream.setblocking(False)
        self.server = TlsSocket(plain, port_context(0, "optional"))
        self._arrived, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = client_context().wrap_bio(self._arrived, self.outgoing)

    def connect(self) -> None:
        """Shake hands."""
        over = False
        while not over:
            with suppress(ssl.SSLWantReadError):
                self.client.do_handshake()
            self.stream.sendall(self.outgoing.read())
            over = self.server.shake_hands()
            with suppress(BlockingIOError):
                self._arrived.write(self.stream.recv(1 << 20))


@contextmanager
def pair() -> Generator[Pair]:
    made = Pair()
    try:
        yield made
    finally:
        made.server.close()
        made.stream.close()


def mutated(random: Random, data: bytes) -> bytes:
    """Change, cut and repeat bytes."""
    changed = bytearray(data)
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(changed) + 1)
        match random.randrange(4):
            case 0:
                changed[at : at + 1] = random.randbytes(1)
            case 1:
                del changed[at : at + random.randint(1, 50)]
            case 2:
                changed[at:at] = random.randbytes(random.randint(1, 50))
            case _:
                changed[at:at] = changed[: random.randint(1, 50)]
    return bytes(changed)


@pytest.mark.parametrize("seed", range(8))
def test_a_hello_that_is_changed_raises_documented_errors(seed: int) -> None:
    random = Random(seed)
    for _ in range(40):
        with pair() as made:
            with suppress(ssl.SSLWantReadError):
                made.client.do_handshake()
            made.stream.sendall(mutated(random, made.outgoing.read()))
            with suppress(HandshakeError):
                for _ in range(3):
                    made.server.shake_hands()


@pytest.mark.parametrize("seed", range(8))
def test_records_that_are_changed_raise_documented_errors(seed: int) -> None:
    random = Random(seed)
    for _ in range(20):
        with pair() as made:
            made.connect()
            made.client.write(b"first")
            made.client.write(b"second" * 1000)
            made.stream.sendall(mutated(random, made.outgoing.read()))
            made.stream.shutdown(socket.SHUT_WR)
            got = b""
            with suppress(OSError):  # BlockingIOError is one
                while data := made.server.recv(65536):
                    got += data
            assert (b"first" + b"second" * 1000).startswith(got)


def test_a_handshake_without_end_is_refused() -> None:
    """A record of a handshake that announces more than comes, again and again."""
    with pair() as made, pytest.raises(HandshakeError):  # noqa: PT012 - any of the steps
        record = b"\x16\x03\x01\x40\x00" + b"\x01\x00\xff\xff" + bytes(0x4000 - 4)
        for _ in range(2 * HANDSHAKE_BYTES // 4096):
            with suppress(BlockingIOError):
                made.stream.send(record)
            made.server.shake_hands()


def test_ciphertext_that_a_client_does_not_read_is_bounded() -> None:
    """Beyond it, `send` takes nothing, and the budgets of the port count what waits."""
    with pair() as made:
        made.connect()
        assert made.client.version() == "TLSv1.3"
        made.server.send(b"x")
        full = b"y" * 60_000
        with suppress(BlockingIOError):
            while made.server.send(full) == len(full):
                pass
        # The socket is full, and what waits is bounded.
        waiting = made.server._outgoing.pending + len(made.server._unsent)  # pyright: ignore[reportPrivateUsage]
        assert waiting <= 70_000
