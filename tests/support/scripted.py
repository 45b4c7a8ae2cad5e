"""A scripted member: a socket that answers each command of a session with the next reply."""

import queue
import socket
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Final, cast

import hiredis

LOST: Final = None
"""Close the connection in place of a reply."""

_HELLO: Final = b"%2\r\n$5\r\nproto\r\n:3\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n"


class ScriptedMember:
    """A listener, and the commands that it received.

    Args:
        replies: replies to the commands after the handshake, for all connections together.
    """

    def __init__(self, replies: Sequence[bytes | None]) -> None:
        self.asked: list[list[bytes]] = []
        self._replies: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.then(*replies)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []

    def then(self, *replies: bytes | None) -> None:
        """Add replies."""
        for reply in replies:
            self._replies.put(reply)

    @property
    def address(self) -> tuple[str, int]:
        """Return its address."""
        return cast("tuple[str, int]", self._listener.getsockname())

    def serve(self) -> None:
        """Accept connections until it is closed."""
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def close(self) -> None:
        """Close the listener and all connections."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            connection.close()

    def _answer(self, connection: socket.socket) -> None:
        reader = hiredis.Reader()
        with connection:
            while True:
                try:
                    data = connection.recv(1 << 16)
                except OSError:
                    return
                if not data:
                    return
                reader.feed(data)
                while (words := reader.gets()) is not False:
                    reply = self._reply_to(words)
                    if reply is None:
                        return
                    connection.sendall(reply)

    def _reply_to(self, words: list[bytes]) -> bytes | None:
        match words[0]:
            case b"HELLO":
                return _HELLO
            case b"CLIENT":
                return b"+OK\r\n"
            case _:
                self.asked.append(words)
                return self._replies.get(timeout=10)


@contextmanager
def scripted(*replies: bytes | None) -> Generator[ScriptedMember]:
    """Run a scripted member for the duration of a block."""
    member = ScriptedMember(replies)
    thread = threading.Thread(target=member.serve)
    thread.start()
    try:
        yield member
    finally:
        member.close()
        thread.join()
