"""Requests about leases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..codes import LEASE_CHANGED, EtcdError
from ..keyspace.places import revision_of
from ..messages import rpc_pb2 as rpc

if TYPE_CHECKING:
    from ..keyspace.keys import Keys
    from ..keyspace.leases import Leases

__all__ = ["check_unchanged", "end_lease", "grant", "keep_alive", "list_leases", "time_to_live"]


def grant(leases: Leases, request: rpc.LeaseGrantRequest, now_ms: int) -> bytes:
    """Make a lease; return the reply without header.

    Raises:
        EtcdError: see `Leases.grant`.
    """
    ttl = leases.grant(request.ID, request.TTL, now_ms)
    return rpc.LeaseGrantResponse(ID=request.ID, TTL=ttl).SerializeToString()


def end_lease(leases: Leases, keys: Keys, lease: int) -> int:
    """Remove a lease and delete its keys, in order; return how many. The caller commits.

    Raises:
        EtcdError: it does not exist.
    """
    leases.remove(lease)
    found = sorted(keys.leased.get(lease, ()))
    for key in found:
        keys.delete(key)
    return len(found)


def check_unchanged(keys: Keys, lease: int, revision: int) -> None:
    """Check that a lease has no key that it did not have at a revision.

    A key of the lease that was put again since then counts as new: when it joined is not known.

    Raises:
        EtcdError: it may have one.
    """
    live = keys.live
    if any(revision_of(live[key][0]) > revision for key in keys.leased.get(lease, ())):
        raise EtcdError(*LEASE_CHANGED)


def keep_alive(leases: Leases, request: rpc.KeepAliveBatch, now_ms: int) -> bytes:
    """Renew leases; return a `KeepAliveBatchReply`."""
    ttls = [leases.renew(lease, now_ms) for lease in request.ids]
    return rpc.KeepAliveBatchReply(ttls=ttls).SerializeToString()


def time_to_live(
    leases: Leases, keys: Keys, request: rpc.LeaseTimeToLiveRequest, now_ms: int
) -> bytes:
    """Return the reply about a lease, without header; its TTL is -1 if it does not exist."""
    lease = request.ID
    granted = leases.ttl(lease)
    if granted is None:
        return rpc.LeaseTimeToLiveResponse(ID=lease, TTL=-1).SerializeToString()
    found = sorted(keys.leased.get(lease, ())) if request.keys else ()
    return rpc.LeaseTimeToLiveResponse(
        ID=lease, TTL=leases.left_ms(lease, now_ms) // 1000, grantedTTL=granted, keys=found
    ).SerializeToString()


def list_leases(leases: Leases) -> bytes:
    """Return the reply with all leases, without header."""
    statuses = [rpc.LeaseStatus(ID=lease) for lease in leases.ids()]
    return rpc.LeaseLeasesResponse(leases=statuses).SerializeToString()
