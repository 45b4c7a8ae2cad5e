"""What clients of etcd were answered and shown: revisions, and moments in seconds of one clock."""

import math
from collections.abc import Sequence
from typing import Final, Literal

import attrs

from ...etcd.messages import rpc_pb2 as rpc

__all__ = [
    "END",
    "LOCK",
    "PREFIX",
    "Compaction",
    "Delivery",
    "Hold",
    "Lease",
    "Past",
    "Progress",
    "Read",
    "Records",
    "Watched",
    "Write",
]

PREFIX: Final = b"torture:"
END: Final = b"torture;"
"""All keys are in this range."""
LOCK: Final = b"torture:lock"
"""The name of the lock. Its keys have a slash behind that, and the lease in hexadecimal digits."""


@attrs.define(eq=False)
class Write:
    """A request that writes.

    Args:
        known: the highest revision that any client knew when this was asked for.
        puts: keys and values, in order; no other request has these values.
        deletes: keys.
        lease: of the puts.
        compared: the `mod_revision` that the first key must have had; None if nothing was compared.
        status: "fail" if the answer says that nothing was done; "unknown" without an answer.
        revision: that was answered.
    """

    known: int
    puts: Sequence[tuple[bytes, bytes]] = ()
    deletes: Sequence[bytes] = ()
    lease: int = 0
    compared: int | None = None
    status: Literal["ok", "fail", "unknown"] = "unknown"
    revision: int = 0


@attrs.frozen
class Read:
    """A read that was answered: it must be the state at a revision from `low` to `high`.

    Args:
        low: a revision that it has to know.
        high: the revision that was answered.
        key: the key, or the first one.
        end: of the range; empty for one key.
        kvs: that were found.
        other_than: the first key's `mod_revision` must be another one: a comparison failed.
    """

    low: int
    high: int
    key: bytes
    end: bytes
    kvs: Sequence[rpc.KeyValue]
    other_than: int | None = None


@attrs.define(eq=False)
class Lease:
    """A lease.

    Args:
        lease: its id.
        until: it lasts until then at least: the TTL that was answered, counted from the request.
        gone: when an answer first said that there is no such lease.
        revoked: the highest revision known when its end was asked for; None if it never was.
        ttl: in seconds; that of a lease that never ends by itself is infinite.
        answered: when the last renewal was answered, or the grant.
        unanswered: how many renewals were sent and have no answer.
    """

    lease: int
    until: float
    gone: float = math.inf
    revoked: int | None = None
    ttl: float = math.inf
    answered: float = 0.0
    unanswered: int = 0

    @property
    def latest(self) -> float:
        """When it ends, at the latest: any unanswered renewal may have come at its last moment."""
        return self.answered + (1 + self.unanswered) * self.ttl


@attrs.frozen
class Hold:
    """The lock was taken: `key` was the oldest at a revision from `low` to `high`."""

    low: int
    high: int
    key: bytes


@attrs.define(eq=False)
class Compaction:
    """A request to compact.

    Args:
        revision: up to which.
        asked: when.
        known: the highest revision of those that were answered by then.
        status: "fail" if the answer says that this was done before.
        before: the highest revision for which others had asked when that came; any of them may
            have been done before this one.
    """

    revision: int
    asked: float
    known: int
    status: Literal["ok", "fail", "unknown"] = "unknown"
    before: int = 0


@attrs.frozen
class Past:
    """An answer to a read at a revision of the past.

    Args:
        revision: that was to be read.
        known: the highest compaction that was answered when this was asked for.
        asked: the highest compaction that was asked for when this was answered.
        served: there were keys; otherwise the answer says that the revision is compacted.
    """

    revision: int
    known: int
    asked: int
    served: bool


@attrs.frozen
class Progress:
    """A watch was told that it has everything up to `revision`; `shown` is the last that it had."""

    revision: int
    shown: int


@attrs.frozen
class Delivery:
    """One reply of a watch, and when it came."""

    at: float
    events: Sequence[rpc.Event]


@attrs.define(eq=False)
class Watched:
    """A watch of all keys, over all its connections.

    Args:
        name: says where.
        start: the first revision that it asked for.
        began: when it began.
        cut: it is there because the member said then that all before `start` is compacted.
        deliveries: all replies with events.
        whole: it must have seen everything up to the last revision.
        progress: what it was told about how far it is.
    """

    name: str
    start: int
    deliveries: list[Delivery] = attrs.field(factory=list[Delivery])
    whole: bool = False
    began: float = 0.0
    cut: bool = False
    progress: list[Progress] = attrs.field(factory=list[Progress])

    @property
    def next(self) -> int:
        """The first revision that it has not shown."""
        if not self.deliveries:
            return self.start
        return self.deliveries[-1].events[-1].kv.mod_revision + 1


@attrs.define(eq=False)
class Records:
    """Everything.

    Attributes:
        known: the highest revision that any client knows.
        trouble: answers that no member may give.
        at_rest: all leases should have ended.
        resumed: how often a watch has gone on after a break.
        seconds: for which clients have worked.
    """

    known: int = 1
    writes: list[Write] = attrs.field(factory=list[Write])
    reads: list[Read] = attrs.field(factory=list[Read])
    leases: list[Lease] = attrs.field(factory=list[Lease])
    holds: list[Hold] = attrs.field(factory=list[Hold])
    watches: list[Watched] = attrs.field(factory=list[Watched])
    compactions: list[Compaction] = attrs.field(factory=list[Compaction])
    past: list[Past] = attrs.field(factory=list[Past])
    trouble: list[str] = attrs.field(factory=list[str])
    at_rest: bool = False
    resumed: int = 0
    seconds: float = 0.0

    @property
    def shown(self) -> int:
        """The highest revision that a watch has shown."""
        return max((each.next - 1 for each in self.watches), default=1)

    def asked(self) -> int:
        """Return the highest revision that clients asked to compact."""
        return max((each.revision for each in self.compactions), default=0)

    @property
    def compacted(self) -> int:
        """The highest revision that is compacted, as answers say."""
        done = [each.revision for each in self.compactions if each.status != "unknown"]
        return max(done, default=0)

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of answers and of what the watches showed, by kind."""
        return {
            "writes": sum(each.status == "ok" for each in self.writes),
            "reads": len(self.reads),
            "revisions": self.known,
            "leases": len(self.leases),
            "locks": len(self.holds),
            "watches": len(self.watches),
            "resumed": self.resumed,
            "progress": sum(len(each.progress) for each in self.watches),
            "compactions": sum(each.status == "ok" for each in self.compactions),
            "compacted reads": sum(not each.served for each in self.past),
            "compacted watches": sum(each.cut for each in self.watches),
        }
