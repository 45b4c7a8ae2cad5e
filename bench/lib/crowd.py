"""Many clients in one process, which prints the outcomes of their commands for each second.

    python -m bench.lib.crowd PORT CLIENTS SECONDS [VALUE_BYTES] [NAME]

Each client sets its own key again and again, and waits for each reply. The value begins with a
number that counts up. `redis-benchmark` ends at the first error and reports only on a whole run.
This program continues, reconnects when it is cut off, and counts everything. It is an epoll loop
without a framework, so that two thousand clients leave the processors to the members.

It ends after SECONDS, or at SIGTERM, once it has the last replies. It prints a line of JSON for
each second. A last line has the numbers that each client sent, and those not acknowledged.
"""

import json
import select
import signal
import socket
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Final

import attrs
import hiredis

HOST: Final = "127.0.0.1"
RETRY_SECONDS: Final = 0.1
CONNECTS_IN_A_ROW: Final = 64
GRACE_SECONDS: Final = 10.0
"""Seconds to wait for the last replies."""

SHARES: Final = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999, "longest_ms": 1.0}


def percentiles(seconds: Iterable[float]) -> dict[str, float]:
    """Return the percentiles of these shares, in ms; nothing if there are no times."""
    ranked = sorted(seconds)
    if not ranked:
        return {}
    return {name: 1000 * ranked[int(share * (len(ranked) - 1))] for name, share in SHARES.items()}


@attrs.define(eq=False)
class Client:
    """One client.

    Args:
        key: the key that it sets.

    Attributes:
        sent: number of the last value that was sent.
        open: numbers that were not acknowledged.
        asked: when the unanswered command was sent; 0 if there is none.
    """

    key: bytes
    stream: socket.socket | None = None
    reader: hiredis.Reader = attrs.field(factory=hiredis.Reader)
    sent: int = 0
    open: list[int] = attrs.field(factory=list[int])
    asked: float = 0.0


@attrs.define
class Tally:
    """Times (in seconds) and counts since the last line."""

    times: list[float] = attrs.field(factory=list[float])
    errors: dict[str, int] = attrs.field(factory=dict[str, int])
    dropped: int = 0

    def line(self, at: float) -> str:
        """Return the line, and reset."""
        told: dict[str, object] = {"at": at, "answers": len(self.times), "errors": self.errors}
        told |= {"dropped": self.dropped, **percentiles(self.times)}
        self.times, self.errors, self.dropped = [], {}, 0
        return json.dumps(told)


class Crowd:
    """All clients."""

    def __init__(self, port: int, count: int, value_bytes: int, name: str) -> None:
        self._port = port
        self._rest = b"x" * (value_bytes - 16)
        self._epoll = select.epoll()
        self._by_file: dict[int, Client] = {}
        self._again: list[tuple[float, Client]] = []
        self.clients = [Client(b"%s:%d" % (name.encode(), i)) for i in range(count)]
        self.tally = Tally()
        self.ending = False

    def connect(self, client: Client) -> None:
        """Connect a client, now or after a pause, and send its next command."""
        try:
            client.stream = socket.create_connection((HOST, self._port), timeout=5)
        except OSError:
            self._again.append((time.perf_counter() + RETRY_SECONDS, client))
            return
        client.stream.settimeout(None)
        client.stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.reader = hiredis.Reader()
        self._by_file[client.stream.fileno()] = client
        self._epoll.register(client.stream, select.EPOLLIN)
        self._ask(client)

    def _ask(self, client: Client) -> None:
        if self.ending or client.stream is None:
            return
        client.sent += 1
        value = b"%016d%s" % (client.sent, self._rest)
        command = b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n"
        data = command % (len(client.key), client.key, len(value), value)
        client.asked = time.perf_counter()
        try:
            client.stream.sendall(data)  # it fits the buffer of the socket
        except OSError:
            self._lose(client)

    def _lose(self, client: Client) -> None:
        """The member has ended the connection."""
        assert client.stream is not None
        if client.asked:
            self.tally.dropped += 1
            client.open.append(client.sent)
        del self._by_file[client.stream.fileno()]
        client.stream.close()
        client.stream, client.asked = None, 0.0
        self._again.append((time.perf_counter() + RETRY_SECONDS, client))

    def turn(self) -> None:
        """Serve all clients that are ready."""
        for file, _ in self._epoll.poll(0.02, 512):
            client = self._by_file[file]
            assert client.stream is not None
            try:
                data = client.stream.recv(65536, socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            except OSError:
                data = b""
            if not data:
                self._lose(client)
                continue
            client.reader.feed(data)
            if (reply := client.reader.gets()) is not False:
                self._answered(client, reply)
        now = time.perf_counter()
        due = [client for at, client in self._again if at <= now]
        self._again = [(at, client) for at, client in self._again if at > now]
        for client in due:
            self.connect(client)

    def _answered(self, client: Client, reply: object) -> None:
        self.tally.times.append(time.perf_counter() - client.asked)
        client.asked = 0.0
        if isinstance(reply, hiredis.ReplyError):
            code = str(reply).partition(" ")[0]
            self.tally.errors[code] = self.tally.errors.get(code, 0) + 1
            client.open.append(client.sent)
        self._ask(client)

    def end(self) -> None:
        """Send nothing more."""
        self.ending = True

    def waiting(self) -> int:
        """Return the number of clients that wait for a reply."""
        return sum(client.asked > 0 for client in self.clients)


def run(crowd: Crowd, seconds: float) -> None:
    """Run the load for its seconds, and wait for the last replies."""
    began = time.perf_counter()
    for number, client in enumerate(crowd.clients):
        crowd.connect(client)
        if number % CONNECTS_IN_A_ROW == 0:  # otherwise the backlog overflows, and a lost SYN costs
            # 1 s
            crowd.turn()
    told = began
    while (now := time.perf_counter()) < began + seconds and not crowd.ending:
        crowd.turn()
        if now >= told + 1:
            print(crowd.tally.line(now - began), flush=True)
            told = now
    crowd.ending, last = True, time.perf_counter() + GRACE_SECONDS
    while crowd.waiting() and time.perf_counter() < last:
        crowd.turn()
    print(crowd.tally.line(time.perf_counter() - began), flush=True)
    for client in crowd.clients:
        client.open += [client.sent] * (client.asked > 0)
    told_to = {c.key.decode(): (c.sent, c.open) for c in crowd.clients}
    print(json.dumps({"unanswered": crowd.waiting(), "clients": told_to}), flush=True)


def main(words: Sequence[str]) -> None:
    """Run with the arguments of the command line."""
    port, clients, seconds, *rest = words
    size, name = (*rest, *("256", "crowd")[len(rest) :])
    crowd = Crowd(int(port), int(clients), int(size), name)
    signal.signal(signal.SIGTERM, lambda _number, _frame: crowd.end())
    run(crowd, float(seconds))


if __name__ == "__main__":
    main(sys.argv[1:])
