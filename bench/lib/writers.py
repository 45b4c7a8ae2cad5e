"""Clients in one process that set a new key with each write, wherever the cluster is.

    python -m bench.lib.writers KIND CLIENTS SECONDS NAME FILE HOST:PORT...

Each client waits for each reply, and its next write has the next number: key `NAME:CLIENT:NUMBER`.
So after a change of the members each acknowledged write can be looked up by its key.

The kinds:

- `redis-py`: each client is a `RedisCluster` of redis-py with its defaults, in its own thread. It
  begins at the first three addresses, and finds members to come by itself. What it raises is
  counted, and its next write has a new number.
- `resp` and `etcd`: one epoll loop without a framework, in plain RESP or for etcd's JSON gateway.
  They begin at the first three addresses. A client that gets an error, is cut off, or has no reply
  for a second, repeats the write at another address, chosen at random.

It prints `ready` once each client has a reply, and ends after SECONDS, or at SIGTERM, with the
replies that are still due. FILE gets the results as JSON: see :mod:`written`.
"""

# redis-py is typed in parts only
# mypy: disable-error-code="no-untyped-call"
# pyright: reportUnknownMemberType=false

import base64
import gc
import json
import re
import select
import signal
import socket
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Final, TypeAlias

import attrs

VALUE: Final = b"x" * 240
"""The end of each value; a number of 16 digits precedes it."""

PATIENCE_SECONDS: Final = 1.0
"""How long a client of RESP or JSON waits for a reply. If smaller, a pause counts as errors. If
larger, a cluster that loses the requests of all clients seems to pause for as long as they wait."""

RETRY_SECONDS: Final = 0.01
"""The pause before a write is repeated, as redis-py's first one. Smaller: clients that are refused
take the processors from the members. Larger: it adds to the pauses."""

READY_SECONDS: Final = 60.0
"""How long clients have to begin. If smaller, a busy machine ends the bench. If larger, a cluster
that does not answer holds it up."""

MOST_WRITES: Final = 4_000_000
"""All clients end after this many: each needs about 1 KB on the disks of all members."""

BEGIN: Final = 3
"""The first addresses are of members that run, those behind them of members to come."""

Address: TypeAlias = tuple[str, int]


@attrs.define
class Tally:
    """The outcomes of all clients.

    Args:
        acknowledged: when each write was acknowledged (`time.monotonic`).
        errors: number of error replies, or of errors that redis-py raised, by their text.
        cut: connections that ended in place of a reply.
        silent: writes without a reply for `PATIENCE_SECONDS`.
        slowest: seconds of the slowest write, from its first attempt on.
    """

    acknowledged: list[float] = attrs.field(factory=list[float])
    errors: Counter[str] = attrs.field(factory=Counter[str])
    cut: int = 0
    silent: int = 0
    slowest: float = 0.0
    ending: bool = False

    def done(self, began: float) -> None:
        """Note that a write was acknowledged."""
        now = time.monotonic()
        self.acknowledged.append(now)
        self.slowest = max(self.slowest, now - began)

    def failed(self, text: str) -> None:
        """Note an error; numbers are left out of its text, so that equal ones are counted."""
        self.errors[re.sub(r"\d{3,}", "N", text)[:100]] += 1


@attrs.frozen
class Job:
    """What the clients are to do.

    Args:
        clients: their number.
        until: when they end (`time.monotonic`).
        name: their keys begin with it.
        addresses: where they find the cluster.
    """

    clients: int
    until: float
    name: str
    addresses: Sequence[Address]


# --- redis-py -------------------------------------------------------------------------------------


@attrs.define
class Numbers:
    """The writes of one client.

    Args:
        sent: the last number that was sent.
        open: numbers that were not acknowledged.
    """

    sent: int = 0
    open: list[int] = attrs.field(factory=list[int])


def run_redis_py(tally: Tally, job: Job) -> list[Numbers]:  # noqa: C901 - closures over redis-py
    """Run the clients as threads."""
    from redis.cluster import ClusterNode, RedisCluster  # noqa: PLC0415 - only this kind needs it
    from redis.exceptions import RedisClusterException, RedisError  # noqa: PLC0415

    numbers = [Numbers() for _ in range(job.clients)]
    ready, name, ended = threading.Barrier(job.clients + 1), job.name, list[int]()

    def connect(addresses: Sequence[Address]) -> RedisCluster:
        nodes = [ClusterNode(host, port) for host, port in addresses]
        return RedisCluster(startup_nodes=nodes)

    def run(client: int, mine: Numbers) -> None:
        redis = connect(job.addresses[:BEGIN])
        redis.set(f"{name}:{client}:0", b"%016d%s" % (0, VALUE))
        ready.wait()
        while not tally.ending and time.monotonic() < job.until:
            mine.sent += 1
            began = time.monotonic()
            try:
                redis.set(f"{name}:{client}:{mine.sent}", b"%016d%s" % (mine.sent, VALUE))
            except (RedisError, RedisClusterException, OSError) as error:
                mine.open.append(mine.sent)
                tally.failed(f"{type(error).__name__}: {error}")
                if isinstance(error, RedisClusterException):
                    # It knows no address any more: begin again with all, as a restart would.
                    redis = connect(job.addresses)
            else:
                tally.done(began)
            if len(tally.acknowledged) >= MOST_WRITES:
                tally.ending = True
        redis.close()
        ended.append(client)

    threads = [threading.Thread(target=run, args=each, daemon=True) for each in enumerate(numbers)]
    for thread in threads:
        thread.start()
    ready.wait(READY_SECONDS)
    print("ready", flush=True)
    for thread in threads:
        thread.join()
    if len(ended) < job.clients:
        sys.exit("a client ended with an error")
    return numbers


# --- RESP and JSON --------------------------------------------------------------------------------


class Protocol:
    """Encodes a write, and reads its reply."""

    def encode(self, key: bytes, value: bytes) -> bytes:
        """Return the request."""
        raise NotImplementedError

    def read(self, data: bytes) -> str | None:
        """Return the error in a reply, empty if there is none; None if it is incomplete."""
        raise NotImplementedError


class Resp(Protocol):
    """Plain RESP, whose replies to SET are one line."""

    def encode(self, key: bytes, value: bytes) -> bytes:
        """Return the request."""
        parts = (len(key), key, len(value), value)
        return b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n" % parts

    def read(self, data: bytes) -> str | None:
        """Return the error in a reply, empty if there is none; None if it is incomplete."""
        if not data.endswith(b"\r\n"):
            return None
        return data[1:-2].decode() if data.startswith(b"-") else ""


class Etcd(Protocol):
    """The JSON gateway of etcd, over HTTP with connections that stay."""

    def encode(self, key: bytes, value: bytes) -> bytes:
        """Return the request."""
        pair = base64.b64encode(key), base64.b64encode(value)
        body = b'{"key":"%s","value":"%s"}' % pair
        return b"POST /v3/kv/put HTTP/1.1\r\nHost: etcd\r\nContent-Length: %d\r\n\r\n%s" % (
            len(body),
            body,
        )

    def read(self, data: bytes) -> str | None:
        """Return the error in a reply, empty if there is none; None if it is incomplete."""
        head, found, body = data.partition(b"\r\n\r\n")
        if not found:
            return None
        length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
        if len(body) < int(length[1]) if length else not body.endswith(b"0\r\n\r\n"):
            return None
        if head.split(b" ", 2)[1] == b"200":
            return ""
        said = re.search(rb'"error": *"([^"]*)"', body)
        return (said[1] if said else head.split(b"\r\n", 1)[0]).decode()


@attrs.define(eq=False)
class Client:
    """One client of the loop.

    Args:
        number: its number.
        at: index of its address.
        sent: number of its present write.
        began: when that was first sent; 0.0 if there is none.
        asked: when it was last sent.
    """

    number: int
    at: int
    stream: socket.socket | None = None
    data: bytes = b""
    sent: int = 0
    began: float = 0.0
    asked: float = 0.0


class Loop:
    """All clients of RESP or of JSON."""

    def __init__(self, protocol: Protocol, tally: Tally, job: Job) -> None:
        clients, addresses = job.clients, job.addresses
        self._protocol, self._tally = protocol, tally
        self._name, self._until = job.name.encode(), job.until
        self._addresses = addresses
        self._epoll = select.epoll()
        self._by_file: dict[int, Client] = {}
        self._again: deque[tuple[float, Client]] = deque()
        self._random = Random(0)
        self.clients = [Client(i, i % min(BEGIN, len(addresses))) for i in range(clients)]

    def run(self) -> None:
        """Write until the end, and wait for the last replies."""
        for client in self.clients:
            self._again.append((0.0, client))
        told, tally = False, self._tally
        while not tally.ending and time.monotonic() < self._until:
            self._turn()
            tally.ending |= len(tally.acknowledged) >= MOST_WRITES
            if not told and all(client.sent > 1 for client in self.clients):
                print("ready", flush=True)
                told = True
        tally.ending, last = True, time.monotonic() + 2 * PATIENCE_SECONDS
        while any(client.began for client in self.clients) and time.monotonic() < last:
            self._turn()

    def _turn(self) -> None:
        for file, _ in self._epoll.poll(RETRY_SECONDS, 512):
            # One that was served a moment ago may have lost its connection since.
            if (client := self._by_file.get(file)) is not None:
                self._receive(client)
        now = time.monotonic()
        while self._again and self._again[0][0] <= now:
            self._connect(self._again.popleft()[1])
        for client in self.clients:
            if client.stream is not None and client.asked and now > client.asked + PATIENCE_SECONDS:
                self._tally.silent += 1
                self._leave(client)

    def _connect(self, client: Client) -> None:
        if self._tally.ending and not client.began:
            return
        try:
            stream = socket.create_connection(self._addresses[client.at], timeout=1.0)
        except OSError:
            # Nothing was sent, so this is no error: nobody listens there yet, or any more.
            self._leave(client)
            return
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.stream, client.data = stream, b""
        self._by_file[stream.fileno()] = client
        self._epoll.register(stream, select.EPOLLIN)
        if client.began:
            self._send(client)
        else:
            self._next(client)

    def _next(self, client: Client) -> None:
        if self._tally.ending:
            client.began = client.asked = 0.0
            return
        client.sent += 1
        client.began = time.monotonic()
        self._send(client)

    def _send(self, client: Client) -> None:
        assert client.stream is not None
        key = b"%s:%d:%d" % (self._name, client.number, client.sent)
        client.asked = time.monotonic()
        try:
            client.stream.sendall(self._protocol.encode(key, b"%016d%s" % (client.sent, VALUE)))
        except OSError:
            self._tally.cut += 1
            self._leave(client)

    def _receive(self, client: Client) -> None:
        assert client.stream is not None
        try:
            data = client.stream.recv(65536)
        except OSError:
            data = b""
        if not data:
            self._tally.cut += bool(client.asked)
            self._leave(client)
            return
        client.data += data
        if (error := self._protocol.read(client.data)) is None:
            return
        client.data = b""
        if error:
            self._tally.failed(error)
            self._leave(client)
            return
        self._tally.done(client.began)
        self._next(client)

    def _leave(self, client: Client) -> None:
        """Go to another address, after a pause."""
        if client.stream is not None:
            del self._by_file[client.stream.fileno()]
            client.stream.close()
        client.stream, client.asked = None, 0.0
        others = [at for at in range(len(self._addresses)) if at != client.at]
        client.at = self._random.choice(others or [0])
        self._again.append((time.monotonic() + RETRY_SECONDS, client))


def run_loop(protocol: Protocol, tally: Tally, job: Job) -> list[Numbers]:
    """Run the clients in one loop."""
    loop = Loop(protocol, tally, job)
    loop.run()
    # A write is repeated until it is acknowledged, so only the last one may be open.
    return [Numbers(one.sent, [one.sent] * bool(one.began)) for one in loop.clients]


def main(words: Sequence[str]) -> None:
    """Run with the arguments of the command line."""
    kind, clients, seconds, name, file, *places = words
    addresses = [(host, int(port)) for host, _, port in (each.rpartition(":") for each in places)]
    tally = Tally()

    def end(_number: int, _frame: object) -> None:
        tally.ending = True

    signal.signal(signal.SIGTERM, end)
    gc.freeze()
    gc.disable()  # a collection would look like a pause of the cluster
    job = Job(int(clients), time.monotonic() + float(seconds), name, addresses)
    runs: dict[str, Callable[[Tally, Job], list[Numbers]]] = {
        "redis-py": run_redis_py,
        "resp": partial(run_loop, Resp()),
        "etcd": partial(run_loop, Etcd()),
    }
    numbers = runs[kind](tally, job)
    found = attrs.asdict(tally) | {"clients": [attrs.astuple(one) for one in numbers]}
    Path(file).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
