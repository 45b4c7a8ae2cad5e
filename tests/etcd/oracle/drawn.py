"""Requests that are drawn at random: few keys, few leases, much that is wrong or on the edge."""

from random import Random

import attrs
from google.protobuf.message import Message

from quorate.etcd.messages import rpc_pb2 as rpc

KEYS = (b"a", b"b", b"c", b"d", b"a\0", b"aa", b"\xff", b"\0", b"key/\xc3\xa9")
LEASES = (1, 2, 3, -7, 1 << 60)
HOUR = 3600
LEASE_SECONDS = (HOUR, 10**6, 9 * 10**9, 9 * 10**9 + 1)


@attrs.frozen
class Drawing:
    """One draw of requests.

    Args:
        random: drawn by the test.
        revision: of both stores before the request.
        compacted: requests ask for no revision far below it.
    """

    random: Random
    revision: int

    def request(self) -> tuple[str, Message]:
        """Draw a request; return the path of its method with it."""
        choice = self.random.random()
        for share, path, draw in (
            (0.3, "KV/Range", self.range),
            (0.5, "KV/Put", self.put),
            (0.6, "KV/DeleteRange", self.delete),
            (0.83, "KV/Txn", self.txn),
            (0.86, "KV/Compact", self.compact),
            (0.91, "Lease/LeaseGrant", self.grant),
            (0.94, "Lease/LeaseRevoke", lambda: rpc.LeaseRevokeRequest(ID=self.lease())),
            (0.97, "Lease/LeaseTimeToLive", self.time_to_live),
        ):
            if choice < share:
                return f"/etcdserverpb.{path}", draw()
        return "/etcdserverpb.Lease/LeaseLeases", rpc.LeaseLeasesRequest()

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def key(self) -> bytes:
        return b"" if self.chance(0.02) else self.random.choice(KEYS)

    def end(self) -> bytes:
        choice = self.random.random()
        return b"" if choice < 0.4 else b"\0" if choice < 0.6 else self.random.choice(KEYS)

    def lease(self) -> int:
        return self.random.choice(LEASES)

    def past(self, most: int) -> int:
        return max(-2, self.revision - self.random.randint(-2, most))

    def range(self) -> rpc.RangeRequest:
        made = rpc.RangeRequest(key=self.key(), range_end=self.end())
        if self.chance(0.4):
            made.revision = self.past(12)
        if self.chance(0.4):
            made.limit = self.random.choice([1, 2, 3, 100, -1])
        if self.chance(0.3):
            made.sort_order = self.random.choice([0, 1, 2])  # type: ignore[assignment]
        if self.chance(0.3):
            made.sort_target = self.random.randint(0, 4)  # type: ignore[assignment]
        made.keys_only, made.count_only = self.chance(0.15), self.chance(0.15)
        made.serializable = self.chance(0.1)
        for field in ("min_mod", "max_mod", "min_create", "max_create"):
            if self.chance(0.12):
                setattr(made, f"{field}_revision", self.past(20))
        return made

    def put(self) -> rpc.PutRequest:
        value = self.random.choice([b"", b"x", b"y", b"<&>", b"zz" * self.random.randint(0, 300)])
        made = rpc.PutRequest(key=self.key(), value=value, prev_kv=self.chance(0.3))
        if self.chance(0.3):
            made.lease = self.lease()
        if self.chance(0.1):
            made.ignore_value = True
            if self.chance(0.8):
                made.value = b""
        if self.chance(0.1):
            made.ignore_lease = True
            if self.chance(0.8):
                made.lease = 0
        return made

    def delete(self) -> rpc.DeleteRangeRequest:
        end = self.end() if self.chance(0.3) else b""
        return rpc.DeleteRangeRequest(key=self.key(), range_end=end, prev_kv=self.chance(0.4))

    def compare(self) -> rpc.Compare:
        made = rpc.Compare(key=self.key())
        made.result = self.random.randint(0, 3)  # type: ignore[assignment]
        made.target = self.random.randint(0, 4)  # type: ignore[assignment]
        if self.chance(0.2):
            made.range_end = self.end()
        match made.target if self.chance(0.9) else self.random.randint(0, 4):
            case 0:
                made.version = self.random.randint(0, 3)
            case 1:
                made.create_revision = self.random.choice([0, max(0, self.past(10))])
            case 2:
                made.mod_revision = self.random.choice([0, max(0, self.past(10))])
            case 3:
                made.value = self.random.choice([b"", b"x", b"y"])
            case _:
                made.lease = self.random.choice((0, *LEASES))
        return made

    def txn(self, depth: int = 0) -> rpc.TxnRequest:
        compares = [self.compare() for _ in range(self.random.choice([0, 0, 1, 1, 2]))]
        made = rpc.TxnRequest(compare=compares)
        for side in (made.success, made.failure):
            side.extend(self.operation(depth) for _ in range(self.random.choice([0, 1, 2, 3])))
        return made

    def operation(self, depth: int) -> rpc.RequestOp:
        choice = self.random.random()
        if choice < 0.35:
            return rpc.RequestOp(request_range=self.range())
        if choice < 0.65:
            return rpc.RequestOp(request_put=self.put())
        if choice < 0.8 or depth == 3:
            delete = self.delete()
            if delete.range_end == b"\0":  # etcd itself takes it for an end before all keys
                delete.range_end = b"\xff\xff"
            return rpc.RequestOp(request_delete_range=delete)
        return rpc.RequestOp(request_txn=self.txn(depth + 1))

    def compact(self) -> rpc.CompactionRequest:
        return rpc.CompactionRequest(revision=max(0, self.past(20)), physical=self.chance(0.3))

    def grant(self) -> rpc.LeaseGrantRequest:
        return rpc.LeaseGrantRequest(ID=self.lease(), TTL=self.random.choice(LEASE_SECONDS))

    def time_to_live(self) -> rpc.LeaseTimeToLiveRequest:
        return rpc.LeaseTimeToLiveRequest(ID=self.lease(), keys=self.chance(0.7))
