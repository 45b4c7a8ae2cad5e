"""Keys of a prefix as a waiting line: the key that was created first has its turn.

Locks and elections are this. Each contender makes a key below the prefix, named after its lease,
and waits until no key there is older. It watches only the key before its own, so one that leaves
wakes one other. When a lease ends its key goes, and the next contender has its turn.

The recipe is etcd's (`client/v3/concurrency`), keys included: programs that follow it by themselves
may stand in the same line, `etcdctl lock` for instance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from ...backend.caller import Caller
from ...messages import rpc_pb2 as rpc
from ...messages.requests import Op
from ...watching.stream import WatchStream
from ..side_by_side import until_first
from ..watch import leader_lost

if TYPE_CHECKING:
    from ...codes import EtcdError
    from ..call import Call

__all__ = ["Line", "Place", "created_at"]

_LEASE_S: Final = 60
"""TTL of the lease for a contender that brings none, as in etcd. Nobody renews it."""


@attrs.frozen
class Place:
    """A place in a line.

    Args:
        key: the contender's key.
        lease: to which it belongs.
        revision: of its creation.
        value: of the key, if it was there before; None if it was made just now.
        first: nobody was before it.
        header: of the reply by which this is known.
    """

    key: bytes
    lease: int
    revision: int
    value: bytes | None
    first: bool
    header: rpc.ResponseHeader


@attrs.frozen
class Line:
    """A waiting line.

    Args:
        call: what the method works with.
        name: what is waited for.
    """

    call: Call
    name: bytes

    @property
    def prefix(self) -> bytes:
        """The beginning of its keys."""
        return self.name + b"/"

    @property
    def end(self) -> bytes:
        """The end of the range of its keys."""
        return self.name + bytes((b"/"[0] + 1,))

    async def join(self, lease: int, value: bytes) -> Place:
        """Make a key, unless the lease has one in this line already.

        Args:
            lease: to which the key belongs; 0 grants one.
            value: of the key.

        Raises:
            EtcdError: there is no such lease, or no leader.
        """
        lease = lease or await self._grant()
        key = self.prefix + b"%x" % lease
        put = rpc.PutRequest(key=key, value=value, lease=lease)
        first = rpc.RequestOp(request_range=self._oldest())
        txn = rpc.TxnRequest(
            compare=[created_at(key, 0)],
            success=[rpc.RequestOp(request_put=put), first],
            failure=[rpc.RequestOp(request_range=rpc.RangeRequest(key=key)), first],
        )
        reply = await self.transact(txn)
        revision, found = reply.header.revision, None
        if not reply.succeeded:
            own = reply.responses[0].response_range.kvs[0]
            revision, found = own.create_revision, own.value
        oldest = reply.responses[1].response_range.kvs
        is_first = not oldest or oldest[0].create_revision == revision
        return Place(key, lease, revision, found, is_first, reply.header)

    async def wait_turn(self, place: Place) -> None:
        """Wait until no key of the line is older.

        Raises:
            EtcdError: this member has lost its leader.
        """
        before = rpc.RangeRequest(
            key=self.prefix,
            range_end=self.end,
            limit=1,
            sort_order=rpc.RangeRequest.DESCEND,
            sort_target=rpc.RangeRequest.CREATE,
            max_create_revision=place.revision - 1,
        )
        while True:
            reply = await self.read(before)
            if not reply.kvs:
                return
            await self._deletion(reply.kvs[0].key, reply.header.revision)

    async def oldest(self) -> rpc.RangeResponse:
        """Return the key that has its turn, if there is one."""
        return await self.read(self._oldest())

    async def read(self, request: rpc.RangeRequest) -> rpc.RangeResponse:
        """Read keys."""
        return rpc.RangeResponse.FromString(await self._ask(Op.RANGE, request.SerializeToString()))

    async def transact(self, request: rpc.TxnRequest) -> rpc.TxnResponse:
        """Run a transaction."""
        return rpc.TxnResponse.FromString(await self._ask(Op.TXN, request.SerializeToString()))

    def leave(self, place: Place) -> None:
        """Delete a key soon, without waiting: the contender is gone."""
        # Not a key that was made anew since then.
        delete = rpc.DeleteRangeRequest(key=place.key)
        txn = rpc.TxnRequest(
            compare=[created_at(place.key, place.revision)],
            success=[rpc.RequestOp(request_delete_range=delete)],
        )
        message = txn.SerializeToString()
        # Also for a user that may not any more: the key is its own.
        self.call.backend.submit(Op.TXN, message, _nobody, caller=Caller(self.call.principal))

    async def _grant(self) -> int:
        request = rpc.LeaseGrantRequest(TTL=_LEASE_S)
        reply = await self._ask(Op.LEASE_GRANT, request.SerializeToString())
        return rpc.LeaseGrantResponse.FromString(reply).ID

    async def _ask(self, op: Op, message: bytes) -> bytes:
        return await self.call.ask(op, message)

    def _oldest(self) -> rpc.RangeRequest:
        return rpc.RangeRequest(
            key=self.prefix,
            range_end=self.end,
            limit=1,
            sort_order=rpc.RangeRequest.ASCEND,
            sort_target=rpc.RangeRequest.CREATE,
        )

    async def _deletion(self, key: bytes, revision: int) -> None:
        """Wait until a key is deleted, from a revision on; perhaps less long."""
        request = rpc.WatchCreateRequest(
            key=key, start_revision=revision, filters=[rpc.WatchCreateRequest.NOPUT]
        )
        with WatchStream(self.call.hub, self.call.backend.header) as stream:
            stream.handle(rpc.WatchRequest(create_request=request))

            async def deleted() -> None:
                async for reply in stream:
                    response = rpc.WatchResponse.FromString(reply)
                    # Compacted in the meantime: the caller reads again.
                    if response.events or response.canceled:
                        return

            async def lost() -> None:
                await leader_lost(self.call.backend)

            await until_first(deleted, lost)


def created_at(key: bytes, revision: int) -> rpc.Compare:
    """Compare: a key was created at a revision; 0 stands for a key that does not exist."""
    return rpc.Compare(target=rpc.Compare.CREATE, key=key, create_revision=revision)


def _nobody(_reply: bytes | EtcdError) -> None:
    """Take a reply that nobody waits for."""
