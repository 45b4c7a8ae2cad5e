"""Clients of etcd that keep a lease for a while: for keys, or for the lock."""

import random
from contextlib import suppress
from typing import Final

import trio

from ...errors import TransportError
from ...etcd.codes import Code
from ...etcd.messages import rpc_pb2 as rpc
from ...local.etcd_client import EtcdRefusedError
from .calls import Calls
from .connecting import Client
from .records import LOCK, Hold, Lease, Write

__all__ = ["use_lease", "use_lock"]

TTL_S: Final = (2, 3, 5)
"""Of leases. Some end while a fault holds up their clients, and some last through it."""
LOCK_TTL_S: Final = 5
MOST_RENEWALS: Final = 12
KEYS: Final = 2
"""Of each lease, so that its end has several events."""
REVOKED: Final = 0.3
"""Part of the leases that their clients end."""
HELD_S: Final = 0.3
FORGOTTEN: Final = 0.1
"""Part of the locks that nobody gives back."""


async def use_lease(calls: Calls, rng: random.Random) -> None:
    """Have two keys with a lease, renew that some times, and leave it, or end it.

    Raises:
        TransportError, trio.TooSlowError: there is none.
    """
    ttl = rng.choice(TTL_S)
    async with calls.connection(rng) as client:
        lease = await _grant(calls, client, ttl)
    for i in range(rng.randrange(1, MOST_RENEWALS)):
        with suppress(TransportError, trio.TooSlowError):
            async with calls.connection(rng) as client:
                if i < KEYS:
                    key = b"torture:lease:%d:%d" % (lease.lease, i)
                    await _put(calls, client, lease, key)
                await _renew(calls, client, lease)
        if lease.gone < trio.current_time():
            return
        await trio.sleep(ttl * rng.uniform(0.1, 0.4))
    if rng.random() < REVOKED:
        lease.revoked = calls.records.known
        async with calls.connection(rng) as client:
            request = rpc.LeaseRevokeRequest(ID=lease.lease)
            reply = await calls.ask(client, "/v3/lease/revoke", request, rpc.LeaseRevokeResponse)
            calls.note(reply.header.revision)


async def use_lock(calls: Calls, rng: random.Random) -> None:
    """Take the lock, hold it for a moment, and give it back, or forget that.

    Raises:
        TransportError, trio.TooSlowError: that fails.
    """
    async with calls.connection(rng) as client:
        lease = await _grant(calls, client, LOCK_TTL_S)
        # If it does not get the lock, the member takes its key out of the line.
        left = Write(calls.records.known, deletes=[LOCK + b"/%x" % lease.lease])
        request = rpc.LockRequest(name=LOCK, lease=lease.lease)
        calls.records.writes.append(left)
        reply = await calls.ask(client, "/v3/lock/lock", request, rpc.LockResponse)
        calls.records.holds.append(Hold(left.known, reply.header.revision, reply.key))
        calls.note(reply.header.revision)
        left.status = "fail"
        await trio.sleep(HELD_S * rng.random())
        if rng.random() < FORGOTTEN:
            return
        # Its lease may have ended before, so that this does nothing.
        calls.records.writes.append(Write(calls.records.known, deletes=[reply.key]))
        unlock = rpc.UnlockRequest(key=reply.key)
        given = await calls.ask(client, "/v3/lock/unlock", unlock, rpc.UnlockResponse)
        calls.note(given.header.revision)


async def _grant(calls: Calls, client: Client, ttl: int) -> Lease:
    sent, request = trio.current_time(), rpc.LeaseGrantRequest(TTL=ttl)
    reply = await calls.ask(client, "/v3/lease/grant", request, rpc.LeaseGrantResponse)
    until, now = sent + reply.TTL, trio.current_time()
    lease = Lease(reply.ID, until, ttl=reply.TTL, answered=now)
    calls.records.leases.append(lease)
    return lease


async def _put(calls: Calls, client: Client, lease: Lease, key: bytes) -> None:
    """Put a key with a lease; note if there is no such lease."""
    try:
        await calls.put(client, key, lease.lease)
    except EtcdRefusedError as error:
        if error.code == Code.NOT_FOUND:
            lease.gone = min(lease.gone, trio.current_time())
        raise


async def _renew(calls: Calls, client: Client, lease: Lease) -> None:
    sent, request = trio.current_time(), rpc.LeaseKeepAliveRequest(ID=lease.lease)
    lease.unanswered += 1
    reply = await calls.ask(client, "/v3/lease/keepalive", request, rpc.LeaseKeepAliveResponse)
    lease.unanswered -= 1
    if reply.TTL > 0:
        lease.answered = trio.current_time()
        lease.until = max(lease.until, sent + reply.TTL)
    else:
        lease.gone = min(lease.gone, trio.current_time())
