"""Random requests to real etcd and to quorate get the same replies, up to ids and terms."""

import os
from collections.abc import Callable, Iterator
from random import Random

import attrs
import pytest
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quorate.etcd.gateway.json_replies import encode
from quorate.etcd.messages import rpc_pb2 as rpc
from quorate.etcd.methods import BY_GRPC_PATH
from tests.etcd.oracle.drawn import KEYS, LEASES, Drawing
from tests.etcd.oracle.servers import SHIM, etcd_program, running
from tests.etcd.oracle.sides import Side, Watching

EXAMPLES = int(os.environ.get("ETCD_EXAMPLES", "8"))
"""Few in the suite, since each step waits for two disks. A hunt has thousands; it needs
`--hypothesis-profile=search`, too, in order to draw others than last time."""
STEPS = 20
LATEST = 4
"""Watches begin at most so many revisions later."""
END = b"\xfe the end of an example"
UNHURRIED = (HealthCheck.too_slow, HealthCheck.data_too_large)
drawn = settings(max_examples=EXAMPLES, suppress_health_check=UNHURRIED)


@attrs.frozen
class Pair:
    """Both servers."""

    real: Side
    ours: Side

    def begin(self) -> int:
        """Remove all keys and leases, and bring both to the same revision; return it."""
        for side in (self.real, self.ours):
            for lease in LEASES:
                side.call("/etcdserverpb.Lease/LeaseRevoke", rpc.LeaseRevokeRequest(ID=lease))
            everything = rpc.DeleteRangeRequest(key=b"\0", range_end=b"\0")
            side.call("/etcdserverpb.KV/DeleteRange", everything)
        goal = max(revision_of(side) for side in (self.real, self.ours)) + 2
        for side in (self.real, self.ours):
            while revision_of(side) < goal - 1:
                side.call("/etcdserverpb.KV/Put", rpc.PutRequest(key=END))
            side.call("/etcdserverpb.KV/DeleteRange", rpc.DeleteRangeRequest(key=END))
            side.call("/etcdserverpb.KV/Compact", rpc.CompactionRequest(revision=goal))
        return goal


def revision_of(side: Side) -> int:
    """Return the current revision of a server."""
    reply = side.call("/etcdserverpb.KV/Range", rpc.RangeRequest(key=b"x", count_only=True))
    assert isinstance(reply, rpc.RangeResponse)
    return reply.header.revision


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Run both for all tests of this file."""
    etcd, folder = [etcd_program(), "--unsafe-no-fsync"], tmp_path_factory.mktemp("oracle")
    with (
        running(etcd, folder / "etcd") as real,
        running(SHIM, folder / "quorate") as ours,
        Side(real) as real_side,
        Side(ours) as our_side,
    ):
        yield Pair(real_side, our_side)


def both(ask: Callable[[Side], object], pair: Pair) -> object:
    """Ask both servers and compare; return the reply."""
    expected, found = ask(pair.real), ask(pair.ours)
    assert found == expected
    return found


@drawn
@given(random=st.randoms(use_true_random=False))
def test_replies_of_grpc_are_those_of_etcd(pair: Pair, random: Random) -> None:
    revision = pair.begin()
    for _ in range(STEPS):
        path, request = Drawing(random, revision).request()
        both(lambda side, p=path, r=request: side.call(p, r), pair)  # type: ignore[misc]
        revision = revision_of(pair.ours)


@drawn
@given(random=st.randoms(use_true_random=False))
def test_replies_of_the_gateway_are_those_of_etcd_byte_for_byte(pair: Pair, random: Random) -> None:
    revision = pair.begin()
    for _ in range(STEPS):
        path, request = Drawing(random, revision).request()
        if isinstance(request, rpc.LeaseLeasesRequest | rpc.LeaseTimeToLiveRequest):
            continue  # in no order, and by the clock; gRPC compares them
        both(lambda side, p=path, r=request: posted(side, p, r), pair)  # type: ignore[misc]
        revision = revision_of(pair.ours)


def posted(side: Side, path: str, request: Message) -> tuple[int, str, object]:
    """Return what the gateway replies."""
    return side.post(f"/v3{BY_GRPC_PATH[path].paths[0]}", encode(request))


@drawn
@given(random=st.randoms(use_true_random=False))
def test_watches_see_what_those_of_etcd_see(pair: Pair, random: Random) -> None:
    revision = pair.begin()
    request = drawn_watch(random, revision)
    early = random.random() < 0.5
    streams = [side.watch() for side in (pair.real, pair.ours)]
    try:
        if early:
            created(streams, request)
        for _ in range(STEPS):
            path, change = Drawing(random, revision).request()
            if isinstance(change, rpc.CompactionRequest):
                continue  # it may overtake a watcher, here or there
            both(lambda side, p=path, r=change: side.call(p, r), pair)  # type: ignore[misc]
            revision = revision_of(pair.ours)
        if not early:
            created(streams, request)
        for side in (pair.real, pair.ours):
            for _ in range(LATEST):
                side.call("/etcdserverpb.KV/Put", rpc.PutRequest(key=END))
        last = revision_of(pair.ours)
        expected, found = (events_until(last, stream) for stream in streams)
        assert found == expected
    finally:
        for stream in streams:
            stream.close()


def drawn_watch(random: Random, revision: int) -> rpc.WatchCreateRequest:
    """Draw a watch that sees at least `END`."""
    made = rpc.WatchCreateRequest(key=random.choice((*KEYS[:5], b"\0")), range_end=b"\0")
    made.start_revision = random.choice([0, revision + 1, revision + LATEST])
    made.prev_kv, made.fragment = random.random() < 0.5, random.random() < 0.3
    if random.random() < 0.2:
        made.filters.append(rpc.WatchCreateRequest.NODELETE)
    return made


def created(streams: list[Watching], request: rpc.WatchCreateRequest) -> None:
    """Create a watch on both, and compare the replies."""
    firsts: list[object] = []
    for stream in streams:
        stream.ask(rpc.WatchRequest(create_request=request))
        firsts.append(next(stream.replies()))
    assert firsts[1] == firsts[0]


def events_until(last: int, stream: Watching) -> list[object]:
    """Return all events up to a revision; how they are cut into replies is left to the server."""
    found: list[object] = []
    for reply in stream.replies():
        assert not reply.canceled
        found += reply.events
        if any(event.kv.mod_revision == last for event in reply.events):
            break
    return found
