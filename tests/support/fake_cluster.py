"""A cluster for clients, without sockets: a store in this process behind a few addresses.

Its members answer what `quorate.connect` sends, in virtual time. A test chooses who leads, who is
down, and what happens to a request on its way.
"""

import enum
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import anyio
import hiredis
from anyio.abc import ByteStream

from quorate.client.dialling import Dialler, Wire
from quorate.errors import UnknownOutcomeError
from quorate.keyvalue.conversation.request_command import parse_request_untrusted
from quorate.keyvalue.protocol import resp
from quorate.keyvalue.protocol.payload import RESP3
from quorate.keyvalue.protocol.resp import CommandError
from quorate.node.requests.request import RequestKind
from quorate.node.state_machine.service import Command
from quorate.transport import Address
from tests.support.service_world import Fed

LATENCY: Final = 0.001


class Fault(enum.Enum):
    """What happens to a request."""

    LOST = "the connection is lost before it arrives"
    DONE = "it is done, and the connection is lost before the reply"
    SILENT = "it is done, and nothing comes back"


Judge = Callable[[Address, list[bytes]], Fault | bytes | None]
"""Returns what happens to a request at a member: a fault, another reply, or nothing special."""


class FakeCluster:
    """Members at 10.0.0.1:7000 and so on; the first one leads.

    Attributes:
        leader: the address of the leader.
        down: addresses that refuse connections.
        judge: decides about each request.
        requests: the words of each request that arrived.
        dialled: the addresses of the connections that were opened.
        latency: how long a member takes for a reply, in seconds, if it is not `LATENCY`.
        limit: the longest request, in bytes; 0 for a user who may not ask for it.
    """

    def __init__(self, fed: Fed, members: int = 3) -> None:
        self.fed = fed
        self.addresses = [Address(f"10.0.0.{n + 1}", 7000) for n in range(members)]
        self.leader = self.addresses[0]
        self.down: set[Address] = set()
        self.judge: Judge = lambda _address, _words: None
        self.requests: list[list[bytes]] = []
        self.dialled: list[Address] = []
        self.latency: dict[Address, float] = {}
        self.limit = 32 << 20

    def answer(self, stream: "FakeStream", words: list[bytes]) -> bytes:
        """Do what a member does; return its reply.

        Raises:
            UnknownOutcomeError: the connection is lost.
        """
        if words == [b"CLUSTER", b"SLOTS"]:
            stream.aware = True
            host, port = self.leader.host.encode(), self.leader.port
            return b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n" + resp.bulk(host) + resp.integer(port)
        if words == [b"QUORATE.MAP"]:
            return resp.error("ERR unknown command 'QUORATE.MAP', with args beginning with: ")
        if words[:2] == [b"CONFIG", b"GET"]:
            if not self.limit:
                return resp.error("NOPERM this user has no permissions to run 'config|get'")
            return b"%1\r\n" + resp.bulk(words[2]) + resp.bulk(b"%d" % self.limit)
        if words[0] == b"GET":  # the same as within a request
            words = [b"QUORATE.REQUEST", b"0", b"0", b"0", resp.encode_command(words)]
            reply = self._answer_request(stream, words)
            return reply[reply.index(b"\r\n") + 2 : -2] if reply[:1] == b"$" else reply
        return self._answer_request(stream, words)

    def _answer_request(self, stream: "FakeStream", words: list[bytes]) -> bytes:
        self.requests.append(words)
        match self.judge(stream.address, words):
            case Fault.LOST:
                raise UnknownOutcomeError
            case Fault.DONE:
                self._execute(words)
                raise UnknownOutcomeError
            case Fault.SILENT:
                self._execute(words)
                return b""
            case bytes(reply):
                return reply
            case None:
                pass
        if stream.aware and stream.address != self.leader:
            return resp.error(f"MOVED 7 {self.leader}")
        return self._execute(words)

    def _execute(self, words: list[bytes]) -> bytes:
        try:
            request = parse_request_untrusted(words)
        except CommandError as error:
            return error.reply
        flags = request.flags | RESP3
        if request.kind is RequestKind.QUERY:
            return request.convert()(self.fed.service.query(request.payload, flags))
        fed = self.fed
        command = Command(request.payload, flags, *request.stamp, 1, fed.position, 0, fed.now)
        return request.convert()(fed.replay(command))


class FakeStream(ByteStream):
    """One connection; it does the work of the member when the reply is awaited."""

    def __init__(self, cluster: FakeCluster, address: Address) -> None:
        self.address = address
        self.aware = False
        self._cluster = cluster
        self._reader = hiredis.Reader()
        self._replies: deque[bytes | None] = deque()
        self._closed = anyio.Event()
        self._due = 0.0

    async def send(self, item: bytes) -> None:
        """Take a request, and do it at once."""
        await anyio.lowlevel.checkpoint()
        self._check()
        self._due = anyio.current_time() + self._cluster.latency.get(self.address, LATENCY)
        self._reader.feed(bytes(item))
        while (words := self._reader.gets()) is not False:
            try:
                self._replies.append(self._cluster.answer(self, words))
            except UnknownOutcomeError:
                self._replies.append(None)

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Return a reply after a while."""
        self._check()
        await anyio.sleep_until(self._due)
        self._check()
        reply = self._replies.popleft() if self._replies else b""
        if reply is None:
            raise anyio.EndOfStream
        if not reply:
            await self._closed.wait()
            raise anyio.ClosedResourceError
        return reply

    async def send_eof(self) -> None:
        """Nobody calls this."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Close it."""
        self._closed.set()
        await anyio.lowlevel.checkpoint()

    def _check(self) -> None:
        if self._closed.is_set():
            raise anyio.ClosedResourceError
        if self.address in self._cluster.down:
            raise anyio.BrokenResourceError


class FakeDialler(Dialler):
    """Opens connections to a fake cluster."""

    def __init__(self, cluster: FakeCluster) -> None:
        super().__init__()
        self._cluster = cluster
        self.error: Exception | None = None

    async def open(self, address: Address) -> Wire:
        """Open a connection."""
        await anyio.sleep(LATENCY)
        self._cluster.dialled.append(address)
        if self.error is not None:
            raise self.error
        if address in self._cluster.down or address not in self._cluster.addresses:
            raise ConnectionRefusedError(111, "Connection refused")
        return Wire(FakeStream(self._cluster, address), address)


def stamps(requests: Sequence[list[bytes]]) -> list[bytes]:
    """Return the sequences of the requests that carry one."""
    return [words[2] for words in requests if words[1] != b"0"]
