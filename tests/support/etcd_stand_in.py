"""Stands in for `quorate.etcd.state.machine` and `.checks` until they are merged; then it goes."""
# pyright: basic
# mypy: ignore-errors

from __future__ import annotations

import sys
import types

import attrs

from quorate.etcd import codes
from quorate.etcd.codes import EtcdError
from quorate.etcd.messages import rpc_pb2 as rpc
from quorate.etcd.messages.requests import Op, decode_request_untrusted, encode_error, encode_reply

KINDS = {
    Op.RANGE: rpc.RangeRequest,
    Op.PUT: rpc.PutRequest,
    Op.DELETE_RANGE: rpc.DeleteRangeRequest,
    Op.TXN: rpc.TxnRequest,
    Op.COMPACT: rpc.CompactionRequest,
    Op.LEASE_GRANT: rpc.LeaseGrantRequest,
    Op.LEASE_REVOKE: rpc.LeaseRevokeRequest,
    Op.LEASE_KEEP_ALIVE: rpc.KeepAliveBatch,
    Op.LEASE_TIME_TO_LIVE: rpc.LeaseTimeToLiveRequest,
    Op.LEASE_LEASES: rpc.LeaseLeasesRequest,
    Op.HASH_KV: rpc.HashKVRequest,
    Op.ANNOUNCE: rpc.Announcement,
    Op.ANNOUNCEMENTS: rpc.Announcements,
}


def parse_untrusted(op, message):
    parsed = KINDS[op].FromString(message)
    if op in {Op.RANGE, Op.PUT, Op.DELETE_RANGE} and not parsed.key:
        raise EtcdError(*codes.KEY_NOT_PROVIDED)
    return parsed


@attrs.frozen
class Change:
    key: bytes
    deleted: bool
    row: bytes
    revision: int
    sub: int
    created: bool


class EtcdState:
    def __init__(self, tables):
        self.tables = tables
        self.revision = 1
        self.compacted = 0
        self.now = {}  # key -> KeyValue
        self.history = {}  # revision -> [(change, previous)]
        self.leases = {}  # id -> [ttl, deadline]
        self.listeners = []
        self.notes = {}

    def listen(self, callback):
        self.listeners.append(callback)

    def changes_of(self, revision):
        return [change for change, _ in self.history.get(revision, ())]

    def previous(self, change):
        for each, previous in self.history[change.revision]:
            if each is change:
                return previous
        return None

    def begin_term(self, now_ms):
        pass

    def next_deadline_ms(self):
        return min((end for _, end in self.leases.values()), default=None)

    def advance(self, now_ms):
        for lease in [n for n, (_, end) in self.leases.items() if end <= now_ms]:
            self.revoke(lease)

    def reload(self):
        pass

    def revoke(self, lease):
        del self.leases[lease]
        self.begin()
        for key in sorted(key for key, kv in self.now.items() if kv.lease == lease):
            self.delete(key)
        self.end()

    def begin(self):
        self.pending = []

    def end(self):
        if self.pending:
            self.revision += 1
            self.history[self.revision] = self.pending
            for callback in self.listeners:
                callback(self.revision, [change for change, _ in self.pending])

    def note(self, key, deleted, kv):
        before = self.now.get(key)
        row = kv.SerializeToString()
        change = Change(key, deleted, row, kv.mod_revision, len(self.pending), kv.version == 1)
        self.pending.append((change, before.SerializeToString() if before else None))

    def delete(self, key):
        self.note(key, True, rpc.KeyValue(key=key, mod_revision=self.revision + 1))
        del self.now[key]

    def query(self, payload, now_ms):
        op, message = decode_request_untrusted(payload)
        try:
            return encode_reply(self.revision, self.do(op, parse_untrusted(op, message), now_ms))
        except EtcdError as error:
            return encode_error(self.revision, error)

    def apply(self, command, now_ms):
        op, message = decode_request_untrusted(command.payload)
        self.begin()
        try:
            body = self.do(op, parse_untrusted(op, message), now_ms)
        except EtcdError as error:
            return encode_error(self.revision, error)
        self.end()
        return encode_reply(self.revision, body)

    def do(self, op, request, now_ms):
        reply = getattr(self, "do_" + op.name.lower())(request, now_ms)
        return reply.SerializeToString()

    def keys(self, request):
        if not request.range_end:
            return [request.key] if request.key in self.now else []
        end = None if request.range_end == b"\0" else request.range_end
        return sorted(k for k in self.now if request.key <= k and (end is None or k < end))

    def do_range(self, request, now_ms):
        kvs = [self.now[key] for key in self.keys(request)]
        if request.max_create_revision:
            kvs = [kv for kv in kvs if kv.create_revision <= request.max_create_revision]
        if request.sort_target == rpc.RangeRequest.CREATE:
            kvs.sort(key=lambda kv: kv.create_revision)
        if request.sort_order == rpc.RangeRequest.DESCEND:
            kvs.reverse()
        limit = request.limit or len(kvs)
        return rpc.RangeResponse(kvs=kvs[:limit], count=len(kvs), more=limit < len(kvs))

    def do_put(self, request, now_ms):
        if request.lease and request.lease not in self.leases:
            raise EtcdError(*codes.LEASE_NOT_FOUND)
        before = self.now.get(request.key)
        kv = rpc.KeyValue(key=request.key, value=request.value, lease=request.lease)
        kv.mod_revision = self.revision + 1
        kv.create_revision = before.create_revision if before else kv.mod_revision
        kv.version = before.version + 1 if before else 1
        self.note(request.key, False, kv)
        self.now[request.key] = kv
        return rpc.PutResponse(prev_kv=before if request.prev_kv else None)

    def do_delete_range(self, request, now_ms):
        keys = self.keys(request)
        kvs = [self.now[key] for key in keys] if request.prev_kv else []
        for key in keys:
            self.delete(key)
        return rpc.DeleteRangeResponse(deleted=len(keys), prev_kvs=kvs)

    def holds(self, compare):
        kv = self.now.get(compare.key, rpc.KeyValue())
        name = compare.WhichOneof("target_union") or "version"
        found, wanted = getattr(kv, name), getattr(compare, name)
        if name == "value" and compare.key not in self.now:
            return False
        return [found == wanted, found > wanted, found < wanted, found != wanted][compare.result]

    def do_txn(self, request, now_ms):
        succeeded = all(map(self.holds, request.compare))
        responses = []
        for op in request.success if succeeded else request.failure:
            name = op.WhichOneof("request").removeprefix("request_")
            reply = getattr(self, "do_" + name)(getattr(op, "request_" + name), now_ms)
            responses.append(rpc.ResponseOp(**{"response_" + name: reply}))
        return rpc.TxnResponse(succeeded=succeeded, responses=responses)

    def do_compact(self, request, now_ms):
        if request.revision <= self.compacted:
            raise EtcdError(*codes.COMPACTED)
        if request.revision > self.revision:
            raise EtcdError(*codes.FUTURE_REVISION)
        self.compacted = request.revision
        return rpc.CompactionResponse()

    def do_lease_grant(self, request, now_ms):
        if request.ID in self.leases:
            raise EtcdError(*codes.LEASE_EXISTS)
        ttl = max(request.TTL, 2)
        self.leases[request.ID] = [ttl, now_ms + ttl * 1000]
        return rpc.LeaseGrantResponse(ID=request.ID, TTL=ttl)

    def do_lease_revoke(self, request, now_ms):
        if request.ID not in self.leases:
            raise EtcdError(*codes.LEASE_NOT_FOUND)
        self.revoke(request.ID)
        self.begin()
        return rpc.LeaseRevokeResponse()

    def do_lease_keep_alive(self, request, now_ms):
        for lease in request.ids:
            if lease in self.leases:
                self.leases[lease][1] = now_ms + self.leases[lease][0] * 1000
        ttls = [self.leases.get(lease, [0])[0] for lease in request.ids]
        return rpc.KeepAliveBatchReply(ttls=ttls)

    def do_lease_time_to_live(self, request, now_ms):
        if request.ID not in self.leases:
            return rpc.LeaseTimeToLiveResponse(ID=request.ID, TTL=-1)
        ttl, end = self.leases[request.ID]
        keys = [key for key in sorted(self.now) if self.now[key].lease == request.ID]
        left = (end - now_ms) // 1000
        return rpc.LeaseTimeToLiveResponse(
            ID=request.ID, TTL=left, grantedTTL=ttl, keys=keys if request.keys else []
        )

    def do_lease_leases(self, request, now_ms):
        return rpc.LeaseLeasesResponse(leases=[rpc.LeaseStatus(ID=n) for n in self.leases])

    def do_hash_kv(self, request, now_ms):
        return rpc.HashKVResponse(hash=1, compact_revision=self.compacted)

    def do_announce(self, request, now_ms):
        self.notes[request.member_id] = request
        return rpc.Announcement()

    def do_announcements(self, request, now_ms):
        return rpc.Announcements(members=[self.notes[n] for n in sorted(self.notes)])


def install():
    for name in ("machine", "checks", "change"):
        module = types.ModuleType(f"quorate.etcd.state.{name}")
        module.EtcdState, module.parse_untrusted, module.Change = EtcdState, parse_untrusted, Change
        sys.modules[module.__name__] = module
