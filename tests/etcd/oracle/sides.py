"""One server behind gRPC (by grpcio) and behind its gateway (by the standard library)."""

# grpcio has no types
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false

import http.client
import json
import re
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any, Final, Self

import grpc
from google.protobuf.message import Message

from quorate.etcd.messages import rpc_pb2 as rpc
from quorate.etcd.methods import BY_GRPC_PATH
from quorate.local.cluster import HOST

SECONDS: Final = 10.0
_IDS: Final = re.compile(rb'"(cluster_id|member_id|raft_term|ID)":"\d+"')


class Side:
    """A server, and all ways to ask it.

    Args:
        port: where it serves clients of etcd.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self._channel = grpc.insecure_channel(f"{HOST}:{port}")
        self._http = http.client.HTTPConnection(HOST, port, timeout=SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()
        self._http.close()

    def call(self, path: str, request: Message) -> Message | tuple[int, str]:
        """Ask by gRPC; return the reply without ids, or the code and the text of the error."""
        method = BY_GRPC_PATH[path]
        ask = self._channel.unary_unary(
            path, lambda message: message.SerializeToString(), method.response.FromString
        )
        try:
            return without_ids(ask(request, timeout=SECONDS))
        except grpc.RpcError as error:
            return (error.code().value[0], error.details())  # type: ignore[attr-defined] # pyright: ignore

    def post(self, path: str, body: bytes) -> tuple[int, str, object]:
        """Ask the gateway; return status, content type and body, with stars instead of ids.

        An error is decoded, and its status is that of etcd 3.5: etcd 3.4 has another order of its
        fields, and 412 for a failed precondition.
        """
        self._http.request("POST", path, body, {"Content-Type": "application/json"})
        reply = self._http.getresponse()
        kind = reply.getheader("Content-Type") or ""
        if reply.status >= 400:
            return 400 if reply.status == 412 else reply.status, kind, json.loads(reply.read())
        return reply.status, kind, _IDS.sub(rb'"\1":"*"', reply.read())

    def watch(self) -> "Watching":
        """Open a stream of watches."""
        return Watching(self._channel)


class Watching:
    """A stream of watches by gRPC."""

    def __init__(self, channel: Any) -> None:
        self._asked: SimpleQueue[rpc.WatchRequest | None] = SimpleQueue()
        stream = channel.stream_stream(
            "/etcdserverpb.Watch/Watch",
            lambda message: message.SerializeToString(),
            rpc.WatchResponse.FromString,
        )
        self._replies = stream(iter(self._asked.get, None), timeout=SECONDS)

    def ask(self, request: rpc.WatchRequest) -> None:
        """Send a request."""
        self._asked.put(request)

    def replies(self) -> Iterator[rpc.WatchResponse]:
        """Yield replies, without ids."""
        for reply in self._replies:
            yield without_ids(reply)

    def close(self) -> None:
        """End the stream."""
        self._asked.put(None)
        self._replies.cancel()


def without_ids(reply: Any) -> Any:
    """Clear what differs between two clusters by nature; round what depends on the clock."""
    header = reply.header
    header.cluster_id = header.member_id = header.raft_term = 0
    if isinstance(reply, rpc.LeaseTimeToLiveResponse):
        reply.TTL = min(reply.TTL, 1)
        keys = sorted(reply.keys)
        del reply.keys[:]
        reply.keys.extend(keys)
    if isinstance(reply, rpc.LeaseLeasesResponse):
        leases = sorted(reply.leases, key=lambda lease: lease.ID)
        del reply.leases[:]
        reply.leases.extend(leases)
    return reply

