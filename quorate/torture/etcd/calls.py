"""Calls of clients of etcd at any member, each with a note of each answer."""

import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeVar

import attrs
import trio

from ...etcd.codes import COMPACTED, NO_LEADER, Code
from ...etcd.messages import rpc_pb2 as rpc
from ...local.etcd_client import EtcdRefusedError
from .connecting import ANSWER_S, Client, connected
from .records import Read, Records, Write
from .watching import Urls

if TYPE_CHECKING:
    from google.protobuf.message import Message

    Reply = TypeVar("Reply", bound=Message)

__all__ = ["Calls", "put_message"]

_UNDONE: Final = frozenset({Code.RESOURCE_EXHAUSTED, Code.NOT_FOUND})
"""Refusals with these codes have no effect."""
_ORDINARY: Final = _UNDONE | {Code.UNAVAILABLE}
"""Other refusals are not expected."""
_LOCKS: Final = "/v3/lock/"
"""Errors of these calls have lost their codes, so that `UNKNOWN` is ordinary, too."""


@attrs.define(eq=False)
class Calls:
    """What all clients share.

    Args:
        urls: of the members.
        records: for what is asked and answered.
    """

    urls: Urls
    records: Records
    _values: int = 0

    def value(self) -> bytes:
        """Return a value that was never written before."""
        self._values += 1
        return b"%d" % self._values

    @asynccontextmanager
    async def connection(self, rng: random.Random) -> AsyncGenerator[Client]:
        """Connect to any member, over gRPC or the gateway.

        Raises:
            TransportError, trio.TooSlowError: that fails.
        """
        url = rng.choice(list(self.urls().values()))
        async with connected(url, rng) as client:
            yield client

    async def ask(
        self, client: Client, path: str, request: "Message", kind: "type[Reply]"
    ) -> "Reply":
        """Make a call.

        Raises:
            TransportError, trio.TooSlowError: there is no answer, or a refusal.
        """
        try:
            with trio.fail_after(ANSWER_S):
                return await client(path, request, kind)
        except EtcdRefusedError as error:
            lost = error.code == Code.UNKNOWN and path.startswith(_LOCKS)
            if error.code not in _ORDINARY and not lost and not _says_compacted(request, error):
                self.records.trouble.append(f"{error}, as an answer to {request!r:.200}")
            raise

    async def write(
        self,
        client: Client,
        path: str,
        request: "Message",
        kind: "type[Reply]",
        write: Write,
    ) -> "Reply":
        """Make a call that writes; without an answer, what it does stays unknown.

        Raises:
            TransportError, trio.TooSlowError: as `ask`.
        """
        self.records.writes.append(write)
        try:
            return await self.ask(client, path, request, kind)
        except EtcdRefusedError as error:
            if error.code in _UNDONE or NO_LEADER[1] in str(error):
                write.status = "fail"
            raise

    async def put(self, client: Client, key: bytes, lease: int = 0) -> int:
        """Put a new value; return the revision.

        Raises:
            TransportError, trio.TooSlowError: as `ask`.
        """
        write = Write(self.records.known, [(key, self.value())], lease=lease)
        reply = await self.write(client, "/v3/kv/put", put_message(write), rpc.PutResponse, write)
        self.done(write, reply.header.revision)
        return write.revision

    def done(self, write: Write, revision: int) -> None:
        """Note that a write was answered with a revision."""
        write.status, write.revision = "ok", revision
        self.note(revision)

    def note(self, revision: int) -> None:
        """Note that clients know a revision."""
        self.records.known = max(self.records.known, revision)

    def read(self, read: Read) -> None:
        """Note a read."""
        self.records.reads.append(read)
        self.note(read.high)


def _says_compacted(request: "Message", error: EtcdRefusedError) -> bool:
    """Say whether a request named a revision, and is refused because of it."""
    names = isinstance(request, rpc.CompactionRequest | rpc.RangeRequest) and request.revision
    return bool(names) and COMPACTED[1] in str(error)


def put_message(write: Write) -> rpc.PutRequest:
    """Return the request for the first put of a write."""
    key, value = write.puts[0]
    return rpc.PutRequest(key=key, value=value, lease=write.lease)
