"""The state machine of etcd's keyspace.

A member calls `apply` for each command of the log, `query` for reads, and `advance` after each
batch; the port listens to changes. Everything follows from the log alone, so all members agree:
time is log time, and bounds are counted (`work.py`).

Revisions
    A request that changes something is one revision, so is a lease that ends. They count from 1, as
    etcd's do, and are not positions of the log.

Errors
    Bad input is a reply. A request that fails has changed nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...errors import WireError
from ..codes import COMPACTED, Code, EtcdError
from ..keyspace import announcements
from ..keyspace.compaction import Compaction
from ..keyspace.hashing import hash_slices
from ..keyspace.keys import Keys
from ..keyspace.leases import Leases
from ..keyspace.tokens import Tokens
from ..messages import rpc_pb2 as rpc
from ..messages.requests import Op, decode_request_untrusted, encode_error, encode_reply, is_command
from ..messages.together import encode_replies, payloads_untrusted
from . import leasing
from .checks import only_reads, parse_untrusted
from .library import require_library
from .ranges import check_revision, range_body
from .transactions import Transaction
from .work import Work
from .writes import apply_delete_range, apply_put, check_lease

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ...node.state_machine.service import Command
    from ..keyspace.change import Change
    from ..keyspace.rows import StateTables

__all__ = ["EtcdState"]

MAX_EXPIRED: Final = 1000
"""Leases and keys that expiry removes in one batch; a lease goes whole, however many keys it has.
Fewer, and a storm takes longer; more, and a batch takes longer than some milliseconds."""

_READ_ONLY: Final = EtcdError(Code.INTERNAL, "etcdserver: a query cannot write")

_HALTED: Final = EtcdError(
    Code.UNAVAILABLE, "etcdserver: this member is loading a snapshot; ask another one"
)


class EtcdState:
    """The keyspace of etcd, a `keyvalue.keyspace.Keyspace`.

    Args:
        tables: they hold rows and notes.

    Attributes:
        halted: a snapshot is being loaded, so nothing can be read.
    """

    def __init__(self, tables: StateTables) -> None:
        self._tables = tables
        self._keys = Keys(tables)
        self._leases = Leases(tables)
        self._tokens = Tokens(tables)
        self._compaction = Compaction(tables, self._keys)
        self._listeners: list[Callable[[int, Sequence[Change]], None]] = []
        self._now_ms = 0
        self.halted = False
        self._handlers: dict[Op, Callable[..., bytes]] = {
            Op.RANGE: self._range,
            Op.RANGE_PAGE: self._range_page,
            Op.PUT: self._put,
            Op.DELETE_RANGE: self._delete_range,
            Op.TXN: self._txn,
            Op.COMPACT: self._compact,
            Op.LEASE_GRANT: self._grant,
            Op.LEASE_REVOKE: self._revoke,
            Op.LEASE_KEEP_ALIVE: self._keep_alive,
            Op.LEASE_TIME_TO_LIVE: self._time_to_live,
            Op.LEASE_REVOKE_CHECKED: self._revoke_checked,
            Op.LEASE_TIME_TO_LIVE_CHECKED: self._time_to_live_checked,
            Op.LEASE_LEASES: self._list_leases,
            Op.HASH_KV: self._hash,
            Op.ANNOUNCE: self._announce,
            Op.ANNOUNCEMENTS: self._announcements,
            Op.RESTORED: self._restored,
            Op.TOKEN: self._put_token,
            Op.TOKEN_KNOWN: self._find_token,
        }
        self.reload()

    def halt(self) -> None:
        """Answer no query, and read no history, until `reload`.

        The index is still that of the old rows. With the new ones, or half of them, a range would
        be wrong, and history would look as if nothing had happened.
        """
        self.halted = True

    def reload(self) -> None:
        """Take the state from the tables anew.

        Listeners get the revision without changes: what is between they must read, see
        `changes_of`.
        """
        self._compaction.load()
        self._keys.load(self._compaction.revision)
        self._leases.load()
        self._tokens.load()
        self._now_ms = self._tables.timestamp_ms
        self.halted = False
        for callback in self._listeners:
            callback(self._keys.revision, ())

    def resume(self, now_ms: int) -> None:
        """Note the log time from which it goes on: in the beginning, and after each `reload`."""
        self._now_ms = max(self._now_ms, now_ms)
        self._leases.advance(now_ms)

    # --- for the port of this member

    @property
    def revision(self) -> int:
        """The last revision; 1 in the beginning."""
        return self._keys.revision

    @property
    def compacted(self) -> int:
        """The first revision that can be read, 0 in the beginning."""
        return max(self._compaction.revision, 0)

    @property
    def key_count(self) -> int:
        """Number of keys that exist."""
        return len(self._keys.live)

    @property
    def lease_count(self) -> int:
        """Number of leases that exist."""
        return len(self._leases)

    def count(self, key: bytes, range_end: bytes) -> int:
        """Return how many keys a range has."""
        return self._keys.count(key, range_end)

    def listen(self, callback: Callable[[int, Sequence[Change]], None]) -> None:
        """Have each revision reported, with its changes in order, when it is applied.

        A revision without changes means that the state was loaded anew.
        """
        self._listeners.append(callback)

    def changes_of(self, revision: int) -> Sequence[Change]:
        """Return the changes of an earlier revision.

        Raises:
            EtcdError: it is compacted, or in the future; or a snapshot is being loaded.
        """
        if self.halted:
            raise EtcdError(_HALTED.code, _HALTED.text)
        check_revision(revision, self.revision, self.compacted)
        return self._keys.changes_at(revision)

    def previous(self, change: Change) -> bytes | None:
        """Return the encoded `KeyValue` that a change has replaced; None if there is none.

        That of a compacted revision is None, too.
        """
        if change.revision <= self.compacted:
            return None
        return self._keys.before(change)

    def lease_ttl(self, lease: int) -> int | None:
        """Return for how many seconds a lease was granted; None if it does not exist."""
        return self._leases.ttl(lease)

    def hashes(self, revision: int) -> Iterator[rpc.HashKVResponse]:
        """Yield the hash of more and more of the rows up to a revision; the last one has all.

        Each step takes some milliseconds; others may come in between.

        Args:
            revision: 0 for the present one.

        Raises:
            EtcdError: it is compacted, perhaps since the call, or in the future; or a snapshot is
                being loaded.
        """
        check_revision(revision, self.revision, self.compacted)
        compacted = self.compacted
        slices = hash_slices(self._keys, revision or self.revision, compacted)
        while not self.halted:
            if self.compacted != compacted:
                raise EtcdError(*COMPACTED)
            digest = next(slices, None)
            if digest is None:
                return
            yield rpc.HashKVResponse(hash=digest, compact_revision=compacted)
        raise EtcdError(_HALTED.code, _HALTED.text)

    def announcements(self) -> rpc.Announcements:
        """Return where members listen, as they have announced it."""
        return announcements.announcements(self._tables)

    # --- the state machine

    def apply(self, command: Command, now_ms: int) -> bytes:
        """Apply a committed command, and return the reply; see `messages.requests`.

        Raises:
            ConfigurationError: this member might apply it in another way than others.
        """
        require_library()
        self._now_ms = now_ms
        payload = command.payload
        try:
            payloads = payloads_untrusted(payload)
        except WireError as error:
            return encode_error(self.revision, EtcdError(Code.INTERNAL, str(error)))
        if payloads[:1] == [payload]:
            return self._apply(payload)
        replies = [self._apply(each) for each in payloads]
        return encode_replies(self.revision, replies)

    def _apply(self, payload: bytes) -> bytes:
        """Apply one request of a client, and return the reply."""
        keys = self._keys
        try:
            op, message = decode_request_untrusted(payload)
            body = self._handlers[op](parse_untrusted(op, message))
        except EtcdError as error:
            keys.rollback()
            return encode_error(keys.revision, error)
        except WireError as error:
            return encode_error(keys.revision, EtcdError(Code.INTERNAL, str(error)))
        self._commit()
        return encode_reply(keys.revision, body)

    def query(self, payload: bytes, now_ms: int) -> bytes:
        """Answer a request that only reads; the reply to another one is an error."""
        self._now_ms = now_ms
        revision = self._keys.revision
        if self.halted:
            return encode_error(revision, _HALTED)
        try:
            op, message = decode_request_untrusted(payload)
            request = parse_untrusted(op, message)
            if isinstance(request, rpc.TxnRequest):
                reads = only_reads(request)
            else:
                reads = not is_command(op)
            if not reads:
                return encode_error(revision, _READ_ONLY)
            return encode_reply(revision, self._handlers[op](request))
        except EtcdError as error:
            return encode_error(revision, error)
        except WireError as error:
            return encode_error(revision, EtcdError(Code.INTERNAL, str(error)))

    def begin_term(self, now_ms: int) -> None:
        """Note that a new leadership term begins with the present entry."""
        self._leases.begin_term(now_ms)

    def advance(self, now_ms: int) -> None:
        """Note that a batch is applied: end some leases that are over, and compact a little."""
        left = MAX_EXPIRED
        while left > 0 and (lease := self._leases.first_due(now_ms)) is not None:
            left -= 1 + leasing.end_lease(self._leases, self._keys, lease)
            self._commit()
        self._compaction.advance(now_ms)
        self._tokens.advance(now_ms)
        self._leases.advance(now_ms)

    def next_deadline_ms(self) -> int | None:
        """Return when log time must next advance even if nobody writes; None for never."""
        parts = (self._leases, self._compaction, self._tokens)
        found = (part.next_deadline_ms() for part in parts)
        return min((at for at in found if at is not None), default=None)

    def _commit(self) -> None:
        changes = self._keys.commit()
        if changes:
            for callback in self._listeners:
                callback(self._keys.revision, changes)

    # --- requests; each returns the body of its reply, or raises EtcdError

    def _range(self, request: rpc.RangeRequest) -> bytes:
        check_revision(request.revision, self.revision, self.compacted)
        return range_body(self._keys, Work(), request, max(request.revision, 0))

    def _range_page(self, request: rpc.RangeRequest) -> bytes:
        check_revision(request.revision, self.revision, self.compacted)
        return range_body(self._keys, Work(), request, max(request.revision, 0), counts=False)

    def _put(self, request: rpc.PutRequest) -> bytes:
        check_lease(self._leases, request)
        return apply_put(self._keys, Work(), request)

    def _delete_range(self, request: rpc.DeleteRangeRequest) -> bytes:
        return apply_delete_range(self._keys, Work(), request)

    def _txn(self, request: rpc.TxnRequest) -> bytes:
        work, compacted = Work(txn=True), self._compaction.revision
        return Transaction(self._keys, work, self._leases, compacted).apply(request)

    def _compact(self, request: rpc.CompactionRequest) -> bytes:
        self._compaction.start(request.revision)
        return b""

    def _grant(self, request: rpc.LeaseGrantRequest) -> bytes:
        return leasing.grant(self._leases, request, self._now_ms)

    def _revoke(self, request: rpc.LeaseRevokeRequest) -> bytes:
        leasing.end_lease(self._leases, self._keys, request.ID)
        return b""

    def _keep_alive(self, request: rpc.KeepAliveBatch) -> bytes:
        return leasing.keep_alive(self._leases, request, self._now_ms)

    def _time_to_live(self, request: rpc.LeaseTimeToLiveRequest) -> bytes:
        return leasing.time_to_live(self._leases, self._keys, request, self._now_ms)

    def _revoke_checked(self, request: rpc.KeyValue) -> bytes:
        leasing.check_unchanged(self._keys, request.lease, request.mod_revision)
        return self._revoke(rpc.LeaseRevokeRequest(ID=request.lease))

    def _time_to_live_checked(self, request: rpc.KeyValue) -> bytes:
        leasing.check_unchanged(self._keys, request.lease, request.mod_revision)
        return self._time_to_live(rpc.LeaseTimeToLiveRequest(ID=request.lease, keys=True))

    def _list_leases(self, _request: rpc.LeaseLeasesRequest) -> bytes:
        return leasing.list_leases(self._leases)

    def _hash(self, request: rpc.HashKVRequest) -> bytes:
        # All at once, for tools. The port asks `hashes`.
        return [*self.hashes(request.revision)][-1].SerializeToString()

    def _restored(self, request: rpc.CompactionRequest) -> bytes:
        # Clients have seen later revisions than the backup has. They must not take other changes
        # for those that they know, so these revisions never come (etcd issue 16028).
        self._keys.revision += request.revision
        self._compaction.begin_at(self._keys.revision)
        for callback in self._listeners:
            callback(self._keys.revision, ())
        return b""

    def _put_token(self, request: rpc.Token) -> bytes:
        self._tokens.put(request, self._now_ms)
        return b""

    def _find_token(self, request: rpc.Token) -> bytes:
        return self._tokens.find(request.digest, self._now_ms).SerializeToString()

    def _announce(self, request: rpc.Announcement) -> bytes:
        announcements.announce(self._tables, request)
        return b""

    def _announcements(self, _request: rpc.Announcements) -> bytes:
        return self.announcements().SerializeToString()
