"""Transport: what a message costs to encode and decode, and how fast links carry the log.

The codec part times one call, and takes the best of several rounds. The link part runs two members
in one process over loopback TCP. One sends `LogBatch` frames, which it encoded once, and keeps at
most a window of bytes unacknowledged; the other decodes them. So both ends share one core with
everything else on the machine; on two machines each end has its own core.
"""

import socket
import sys
import time
import timeit
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import Final

import trio

from bench.lib.harness import USUAL, Common, make_app, open_bench
from quorate.transport import (
    Address,
    AppendFlags,
    AppendPosition,
    CanvassPosition,
    CatchupPosition,
    CommitPosition,
    ForwardReply,
    ForwardRequest,
    FrameDecoder,
    FrameStream,
    Hello,
    HelloReply,
    HelloStatus,
    LeadershipCession,
    Links,
    LogBatch,
    LogJoined,
    LogSubscribe,
    Message,
    NewLeadershipTerm,
    ReplayRequest,
    RequestVote,
    StaleLeader,
    StopCatchup,
    StreamPurpose,
    TcpNetwork,
    TermSpan,
    Vote,
    VoteReason,
    encode,
)

ROUNDS: Final = 5
CALLS: Final = 20_000
SPANS: Final = tuple(TermSpan(term, term << 20, (term + 1) << 20) for term in range(8))
APPEND: Final = AppendPosition(4, 1 << 40, 2, AppendFlags.READY, 77)
COMMIT: Final = CommitPosition(4, 1 << 40, 1, 77)
MESSAGES: Final[tuple[Message, ...]] = (
    Hello("cluster", 1, 65536, 2**63, StreamPurpose.CONSENSUS),
    HelloReply(1, HelloStatus.ACCEPTED, "", 2**63),
    CanvassPosition(3, 1 << 40, 3, 1),
    RequestVote(3, 1 << 40, 4, 1),
    Vote(4, 3, 1 << 40, 1, 2, True, 4, VoteReason.GRANTED),
    NewLeadershipTerm(1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, False, 10, 11, SPANS),
    APPEND,
    COMMIT,
    CatchupPosition(4, 1 << 40, 2, "127.0.0.1:7000"),
    StopCatchup(4, 2),
    StaleLeader(5, 2),
    LeadershipCession(4, 1 << 40, 1),
    LogSubscribe(4, 99, 2),
    LogJoined(4, 99, 1 << 40, 1),
    LogBatch(4, 77, bytes(16 << 10)),
    ForwardRequest(1, 0, 0, bytes(256)),
    ForwardReply(1, 0, bytes(256)),
    ReplayRequest(0, -1),
)


def microseconds(call: Callable[[], object]) -> float:
    """Time one call."""
    return round(min(timeit.repeat(call, number=CALLS, repeat=ROUNDS)) / CALLS * 1e6, 3)


def codec_costs() -> dict[str, dict[str, float]]:
    """Time every class of messages, in µs."""
    costs: dict[str, dict[str, float]] = {}
    decoder = FrameDecoder()
    for message in MESSAGES:
        frame = encode(message)
        costs[type(message).__name__] = {
            "bytes": len(frame),
            "encode_us": microseconds(partial(encode, message)),
            "decode_us": microseconds(partial(decoder.feed, frame)),
        }
    return costs


class Receiver:
    """Counts the messages from the links."""

    def __init__(self) -> None:
        self.received: int = 0
        self.wanted = 0
        self.arrived = trio.Event()
        self.up = trio.Event()

    def admits(self, _hello: Hello) -> tuple[HelloStatus, str]:
        """Let everybody in."""
        return HelloStatus.ACCEPTED, ""

    def on_peers(self) -> None:
        """Never happens here."""
        raise AssertionError

    def on_removed(self, member: int, reason: str) -> None:
        """Never happens here."""
        raise AssertionError(member, reason)

    def on_hello(self, _member: int, _hello: Hello) -> None:
        """Do nothing: any store will do."""

    def on_message(self, _sender: int, _message: Message) -> None:
        """Count the message; wake the waiting task at the wanted number."""
        self.received += 1
        if self.received == self.wanted:
            self.arrived.set()

    def on_receiving(self, _member: int) -> None:
        """Do nothing until the message is complete."""

    def on_link_up(self, _member: int) -> None:
        """Wake the waiting task."""
        self.up.set()

    def on_link_lost(self, member: int) -> None:
        """Never happens here."""
        raise AssertionError(member)

    async def on_stream(self, hello: Hello, stream: FrameStream) -> None:
        """Never happens here."""
        raise AssertionError(hello, stream)

    async def until(self, count: int) -> None:
        """Wait until a number of messages has arrived."""
        if self.received < count:
            self.wanted, self.arrived = count, trio.Event()
            await self.arrived.wait()


def free_address() -> Address:
    """Find a free port of this machine."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return Address(*sock.getsockname())


class Echo(Receiver):
    """Sends every message back."""

    links: Links

    def on_message(self, sender: int, message: Message) -> None:
        """Send it back."""
        self.received += 1
        assert self.links.send(sender, message)


@asynccontextmanager
async def two_members(receivers: dict[int, Receiver]) -> AsyncGenerator[dict[int, Links]]:
    """Run members 0 and 1 over loopback TCP, with both links up."""
    addresses = {0: free_address(), 1: free_address()}
    links = {
        member: Links(
            instance=member,
            cluster="bench",
            member_id=member,
            incarnation=member,
            bind=addresses[member],
            peers=addresses,
            network=TcpNetwork(),
            handler=receiver,
            rng=Random(member),
        )
        for member, receiver in receivers.items()
    }
    async with trio.open_nursery() as nursery:
        for member in addresses:
            await nursery.start(links[member].run)
        for receiver in receivers.values():
            await receiver.up.wait()
        yield links
        nursery.cancel_scope.cancel()


async def throughput(frame: bytes, seconds: float, window: int) -> dict[str, float]:
    """Send frames over one link for `seconds`, with at most `window` of them in flight."""
    receivers = {0: Receiver(), 1: Receiver()}
    async with two_members(receivers) as links:
        sent, processor, start = 0, time.process_time(), time.perf_counter()
        while time.perf_counter() - start < seconds:
            for _ in range(max(1, window // 4)):
                assert links[0].send_frame(1, frame)
                sent += 1
            await trio.lowlevel.checkpoint()
            await receivers[1].until(sent - window)
        await receivers[1].until(sent)
        elapsed, used = time.perf_counter() - start, time.process_time() - processor
    return {
        "frame_bytes": len(frame),
        "messages_per_s": round(sent / elapsed),
        "mb_per_s": round(sent * len(frame) / elapsed / 1e6, 1),
        "cpu_us_per_message": round(used / sent * 1e6, 2),
    }


async def round_trips(seconds: float) -> dict[str, float]:
    """Send a small message to and fro; return the time of one round trip."""
    echoes: dict[int, Echo] = {0: Echo(), 1: Echo()}
    async with two_members({**echoes}) as links:
        for member, echo in echoes.items():
            echo.links = links[member]
        links[0].send(1, COMMIT)
        await trio.sleep(seconds)
        return {"round_trip_us": round(seconds / echoes[0].received * 1e6, 1)}


async def link_speeds(seconds: float) -> dict[str, dict[str, float]]:
    """Measure the links."""
    return {
        "append_position": await throughput(encode(APPEND), seconds, 1000),
        "log_batch_16_kib": await throughput(encode(LogBatch(4, 7, bytes(16 << 10))), seconds, 256),
        "log_batch_1_mib": await throughput(encode(LogBatch(4, 7, bytes(1 << 20))), seconds, 8),
        "round_trip": await round_trips(seconds),
    }


app = make_app()


@app.default
async def main(*, options: Common = USUAL, seconds: float = 3.0) -> None:
    """Measure what messages cost and how fast links are.

    Parameters
    ----------
    seconds
        Duration of each measurement of links.
    """
    if options.quick:
        seconds = 1.0
    with open_bench("transport", options, seconds=seconds) as bench:
        for name, cost in codec_costs().items():
            bench.found({"message": name, **cost})
        for name, figures in (await link_speeds(seconds)).items():
            bench.found({"link": name, **figures})


if __name__ == "__main__":
    sys.exit(app())
