"""The keys of etcd's clients as lines of JSON: written from etcd or a member, read into either.

::

    {"quorate_etcd": 1, "revision": 42, "prefix": ""}
    {"lease": "7587862094190", "ttl": 30}
    {"key": "L2E=", "value": "MQ==", "lease": "7587862094190"}
    {"end": true, "keys": 1}

Keys and values are in base64; a lease is text, since programs round such numbers. A lease stands
before the first key that has it. The last line says that nothing is missing. All keys are as of
one revision; their history is not copied.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import IO, TYPE_CHECKING, Any, Final, cast

import attrs

from ..errors import ConfigurationError, RefusedError
from ..etcd.messages import rpc_pb2 as rpc
from .etcd_client import EtcdRefusedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from .etcd_client import GatewayCall

__all__ = ["Copied", "export_keys", "import_keys"]

PAGE_KEYS: Final = 500
"""Keys of one reply. More, and its reply may take too much memory; fewer take more requests."""

TXN_KEYS: Final = 64
TXN_BYTES: Final = 512 << 10
"""Of one transaction. etcd takes 128 operations and 1.5 MiB; a quarter of the bytes is spare for
their encoding."""

MAX_LINE_BYTES: Final = 16 << 20
"""Longest line that is read: a value of etcd has 1.5 MiB, if it was not told otherwise."""

_VERSION: Final = 1
_LEASE_GONE: Final = -1
_EXISTS: Final = 9
_COMPACTED: Final = 11


@attrs.frozen
class Copied:
    """What was copied.

    Args:
        keys: how many.
        leases: how many of their leases.
        revision: of the server: that of all keys, or the one behind the last key written.
    """

    keys: int
    leases: int
    revision: int


def _end_of(prefix: bytes) -> bytes:
    """Return the end of the range of all keys with a prefix."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,)) if stripped else b"\0"


async def export_keys(call: GatewayCall, prefix: bytes, out: IO[str]) -> Copied:
    """Write all keys with a prefix as lines.

    Raises:
        RefusedError: the server has compacted the revision during that.
        TransportError: it cannot be reached, or refuses to be read.
    """
    request = rpc.RangeRequest(key=prefix or b"\0", range_end=_end_of(prefix), limit=PAGE_KEYS)
    leases: dict[int, bool] = {}
    keys, more = 0, True
    while more:
        try:
            page = await call("/v3/kv/range", request, rpc.RangeResponse)
        except EtcdRefusedError as error:
            if keys and error.code == _COMPACTED:
                raise RefusedError(f"{error}; it took too long: export again") from error
            raise
        if not request.revision:
            request.revision = page.header.revision
            head = {"quorate_etcd": _VERSION, "revision": request.revision}
            _write(out, head | {"prefix": _encoded(prefix)})
        for kv in page.kvs:
            if kv.lease and kv.lease not in leases:
                leases[kv.lease] = await _write_lease(call, kv.lease, out)
            lease = {"lease": str(kv.lease)} if leases.get(kv.lease) else {}
            if not kv.lease or lease:  # else it has just ended, and the key with it
                _write(out, {"key": _encoded(kv.key), "value": _encoded(kv.value)} | lease)
                keys += 1
        more = page.more and bool(page.kvs)
        if more:
            request.key = page.kvs[-1].key + b"\0"
    _write(out, {"end": True, "keys": keys})
    return Copied(keys, sum(leases.values()), request.revision)


async def _write_lease(call: GatewayCall, lease: int, out: IO[str]) -> bool:
    """Write the line of a lease; return whether it exists."""
    request = rpc.LeaseTimeToLiveRequest(ID=lease)
    found = await call("/v3/lease/timetolive", request, rpc.LeaseTimeToLiveResponse)
    if found.TTL == _LEASE_GONE or not found.grantedTTL:
        return False
    _write(out, {"lease": str(lease), "ttl": found.grantedTTL})
    return True


async def import_keys(call: GatewayCall, lines: Iterable[str], *, overwrite: bool) -> Copied:
    """Write the keys of an export.

    Leases get the ids that they had, and their whole TTL. One that exists already is used as it is.

    Args:
        call: makes a call.
        lines: of the export.
        overwrite: replace keys that exist; otherwise they are an error.

    Raises:
        ConfigurationError: a line is malformed, or the end is missing.
        RefusedError: a key exists.
        TransportError: the server cannot be reached, or refuses something.
    """
    keys = leases = size = revision = 0
    puts: list[rpc.PutRequest] = []
    for line in _lines_untrusted(lines):
        if isinstance(line, rpc.LeaseGrantRequest):
            leases += await _grant(call, line)
            continue
        length = len(line.key) + len(line.value)
        if puts and (len(puts) == TXN_KEYS or size + length > TXN_BYTES):
            revision = await _put(call, puts, keys, overwrite=overwrite)
            keys, size, puts = keys + len(puts), 0, []
        puts.append(line)
        size += length
    if puts:
        revision = await _put(call, puts, keys, overwrite=overwrite)
    return Copied(keys + len(puts), leases, revision)


async def _grant(call: GatewayCall, request: rpc.LeaseGrantRequest) -> bool:
    """Grant a lease; return whether that was needed."""
    try:
        await call("/v3/lease/grant", request, rpc.LeaseGrantResponse)
    except EtcdRefusedError as error:
        if error.code != _EXISTS:
            raise
        return False
    return True


async def _put(call: GatewayCall, puts: list[rpc.PutRequest], done: int, *, overwrite: bool) -> int:
    """Put some keys at once; return the revision."""
    created = rpc.Compare.CompareTarget.CREATE
    txn = rpc.TxnRequest(success=[rpc.RequestOp(request_put=put) for put in puts])
    if not overwrite:
        txn.compare.extend(
            rpc.Compare(target=created, key=put.key, create_revision=0) for put in puts
        )
    reply = await call("/v3/kv/txn", txn, rpc.TxnResponse)
    if not reply.succeeded:
        first, last = (puts[at].key[:64] for at in (0, -1))
        raise RefusedError(
            f"one of the keys {first!r} to {last!r} exists already; "
            f"{done} keys before these were written: give --overwrite to replace what is there"
        )
    return reply.header.revision


def _lines_untrusted(lines: Iterable[str]) -> Iterator[rpc.PutRequest | rpc.LeaseGrantRequest]:
    """Read the lines of an export, and check that none is missing."""
    keys, began, ended = 0, False, False
    for number, text in enumerate(lines, 1):
        try:
            line: Any = json.loads(text) if len(text) <= MAX_LINE_BYTES else None
            if not isinstance(line, dict) or ended:
                raise TypeError  # noqa: TRY301 - it is one error with those of the conversions
            fields = cast("dict[str, Any]", line)
            if not began:
                began = fields["quorate_etcd"] == _VERSION
                if not began:
                    raise TypeError  # noqa: TRY301 - as above
                continue
            if "end" in fields:
                ended = fields["keys"] == keys
                if not ended:
                    raise TypeError  # noqa: TRY301 - as above
                continue
            found = _message_of(fields)
        except (ValueError, TypeError, KeyError, RecursionError):
            raise ConfigurationError(
                f"line {number}: {text[:80]!r}: expected what `quorate etcd export` has written, "
                "whole and in its order"
            ) from None
        keys += isinstance(found, rpc.PutRequest)
        yield found
    if not ended:
        raise ConfigurationError(
            "the end is missing: expected a last line with the number of keys; export again. "
            f"{keys} keys are there, and may have been written"
        )


def _message_of(fields: dict[str, Any]) -> rpc.PutRequest | rpc.LeaseGrantRequest:
    if "ttl" in fields:
        return rpc.LeaseGrantRequest(ID=int(fields["lease"]), TTL=int(fields["ttl"]))
    key, value = _decoded(fields["key"]), _decoded(fields["value"])
    return rpc.PutRequest(key=key, value=value, lease=int(fields.get("lease", 0)))


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from error


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _write(out: IO[str], line: Mapping[str, object]) -> None:
    out.write(json.dumps(line, separators=(",", ":")) + "\n")
