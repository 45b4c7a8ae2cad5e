"""Many clients with TLS in one process, which all connect at the same moment.

    python -m bench.lib.reconnecting PORT CLIENTS CA

Each client connects, shakes hands, sends PING, and waits for the reply. Then all of them are
closed, and connect again at once, as after an outage. One that is refused or closed tries again
after a tenth of a second. It is an epoll loop without a framework, so that handshakes of the
clients take little from the members.

It prints a line of JSON: for both times, the seconds until the last client had its reply, and how
often one had to try again.
"""

import json
import resource
import select
import socket
import ssl
import sys
import time
from collections.abc import Sequence
from typing import Final

import attrs

HOST: Final = "127.0.0.1"
RETRY_SECONDS: Final = 0.1
LONGEST_SECONDS: Final = 120.0
PING: Final = b"*1\r\n$4\r\nPING\r\n"
PONG: Final = b"+PONG\r\n"


@attrs.define(eq=False)
class Client:
    """One client.

    Attributes:
        stream: its connection; None before it has one.
        asked: it has sent its command.
        done: it has its reply.
        waits_until: when it tries again (monotonic clock).
    """

    stream: socket.socket | None = None
    asked: bool = False
    done: bool = False
    waits_until: float = 0.0


class Crowd:
    """All clients.

    Args:
        port: TLS port of a member.
        count: number of clients.
        context: of their connections.
    """

    def __init__(self, port: int, count: int, context: ssl.SSLContext) -> None:
        self._port = port
        self._context = context
        self._poller = select.epoll()
        self._clients = [Client() for _ in range(count)]
        self._open: dict[int, Client] = {}
        self.again = 0

    def connect_all(self) -> float:
        """Connect all clients; return how long it took until the last one had its reply.

        Raises:
            SystemExit: it takes too long.
        """
        began = time.monotonic()
        waiting = len(self._clients)
        while waiting:
            now = time.monotonic()
            if now > began + LONGEST_SECONDS:
                sys.exit(f"reconnecting: {waiting} clients have no reply")
            for client in self._clients:
                if client.stream is None and client.waits_until <= now:
                    self._connect(client)
            for fileno, _ in self._poller.poll(RETRY_SECONDS):
                client = self._open[fileno]
                try:
                    self._go_on(client)
                except OSError:
                    self._try_again(client)
            waiting = sum(not client.done for client in self._clients)
        return time.monotonic() - began

    def close_all(self) -> None:
        """Close all connections."""
        for client in self._clients:
            self._close(client)

    def _connect(self, client: Client) -> None:
        plain = socket.socket()
        plain.setblocking(False)
        plain.connect_ex((HOST, self._port))
        client.stream = plain
        self._open[plain.fileno()] = client
        self._poller.register(client.stream.fileno(), select.EPOLLOUT)

    def _go_on(self, client: Client) -> None:
        stream = client.stream
        assert stream is not None, "only open clients are polled"
        if not isinstance(stream, ssl.SSLSocket):
            if error := stream.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(error, "not connected")
            # Only now: an SSLSocket is made of one that is connected. Its descriptor is the same.
            stream = client.stream = self._context.wrap_socket(
                stream, do_handshake_on_connect=False, suppress_ragged_eofs=False
            )
        try:
            if not client.asked:
                stream.do_handshake()
                stream.send(PING)
                client.asked = True
            if stream.recv(len(PONG)) != PONG:
                raise ConnectionResetError
            client.done = True
            self._poller.modify(stream.fileno(), 0)
        except ssl.SSLWantReadError:
            self._poller.modify(stream.fileno(), select.EPOLLIN)
        except ssl.SSLWantWriteError:
            self._poller.modify(stream.fileno(), select.EPOLLOUT)

    def _try_again(self, client: Client) -> None:
        self._close(client)
        self.again += 1
        client.waits_until = time.monotonic() + RETRY_SECONDS

    def _close(self, client: Client) -> None:
        if client.stream is not None:
            del self._open[client.stream.fileno()]
            self._poller.unregister(client.stream.fileno())
            client.stream.close()
        client.stream, client.asked, client.done = None, False, False


def main(arguments: Sequence[str]) -> None:
    """Connect all clients, twice."""
    port, count, ca = int(arguments[0]), int(arguments[1]), arguments[2]
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, count + 100), hard))
    context = ssl.create_default_context(cafile=ca)
    context.check_hostname = False
    crowd = Crowd(port, count, context)
    first = crowd.connect_all()
    crowd.close_all()
    before = crowd.again
    again = crowd.connect_all()
    print(json.dumps({"first_s": first, "again_s": again, "tries": crowd.again - before}))


if __name__ == "__main__":
    main(sys.argv[1:])
