"""Reading: `RangeRequest`.

The order of the work is etcd's, with its quirk: a limit without a sort order cuts before sorting.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias

from ..codes import COMPACTED, FUTURE_REVISION, EtcdError
from ..keyspace.keys import ALL
from ..messages import rpc_pb2 as rpc
from ..messages.wire import varint
from .work import ROW_STEPS, SORT_STEPS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ..keyspace.keys import Keys
    from .work import Work

__all__ = ["check_revision", "kv_fields", "range_body"]

_NEAR: Final = 1000
"""Changes since the revision that is read. More, and to go through them takes longer than to go
through the keys of a usual range."""

_NEAR_BYTES: Final = 4 << 20
"""Bytes of their rows, for the same reason."""

_KVS: Final = b"\x12"  # field 2
_MORE: Final = b"\x18\x01"  # field 3
_COUNT: Final = b"\x20"  # field 4
_HEADS: Final = tuple(_KVS + varint(size) for size in range(4096))

_Target: Final = rpc.RangeRequest.SortTarget
_Order: Final = rpc.RangeRequest.SortOrder
_Sorting: TypeAlias = "Callable[[rpc.KeyValue], int | bytes]"
_SORTINGS: Final[dict[int, _Sorting]] = {
    _Target.KEY: lambda kv: kv.key,
    _Target.VERSION: lambda kv: kv.version,
    _Target.CREATE: lambda kv: kv.create_revision,
    _Target.MOD: lambda kv: kv.mod_revision,
    _Target.VALUE: lambda kv: kv.value,
}


def check_revision(revision: int, current: int, compacted: int, *, nested: bool = False) -> None:
    """Check that a revision can be read; 0 is the current one.

    Args:
        revision: asked for.
        current: the last one.
        compacted: the first that can be read; -1 without any compaction.
        nested: in a transaction. There etcd takes a negative one for compacted, elsewhere for 0.

    Raises:
        EtcdError: it is compacted, or in the future.
    """
    if revision > current:
        raise EtcdError(*FUTURE_REVISION)
    if revision < compacted and (revision > 0 or (nested and revision)):
        raise EtcdError(*COMPACTED)


def kv_fields(rows: Iterable[bytes]) -> list[bytes]:
    """Return encoded `KeyValue`s as field 2 of a reply, in pieces."""
    pieces: list[bytes] = []
    for row in rows:
        size = len(row)
        pieces.append(_HEADS[size] if size < len(_HEADS) else _KVS + varint(size))
        pieces.append(row)
    return pieces


def range_body(keys: Keys, work: Work, request: rpc.RangeRequest, revision: int) -> bytes:
    """Return the reply to a range, without header.

    Args:
        keys: what is read.
        work: charged.
        request: its revision is checked.
        revision: at which it reads; 0 for the present state, with the request under way.

    Raises:
        EtcdError: it is too much work.
    """
    key, range_end, limit = request.key, request.range_end, request.limit
    if not range_end and not revision and not limit:
        version = keys.live.get(key)
        places, count = (iter(()), 0) if version is None else (iter((version[0],)), 1)
    else:
        places, count = _places(keys, work, request, revision)
    if request.count_only:
        return _COUNT + varint(count) if count else b""
    sorting = _sorting(request)
    filtered = _filtered(request)
    if limit > 0 and not filtered and request.sort_order in _UNSORTED.get(request.sort_target, ()):
        places = islice(places, limit + 1)
    rows = _rows(keys, work, places)
    if filtered or sorting or request.keys_only:
        work.look(SORT_STEPS * len(rows))
        rows = _worked(rows, request, sorting)
    more = 0 < limit < len(rows)
    pieces = kv_fields(rows[:limit] if more else rows)
    if more:
        pieces.append(_MORE)
    if count:
        pieces.append(_COUNT + varint(count))
    return b"".join(pieces)


# Orders that etcd does not take for sorted ones when it cuts.
_UNSORTED: Final = {
    target: (_Order.NONE, _Order.ASCEND) if target == _Target.KEY else (_Order.NONE,)
    for target in _SORTINGS
}


def _places(
    keys: Keys, work: Work, request: rpc.RangeRequest, revision: int
) -> tuple[Iterator[int], int]:
    """Return where the keys of a range lie, and how many they are."""
    key, range_end = request.key, request.range_end
    live = keys.live
    if not revision or revision >= keys.revision + bool(keys.changes):
        return (live[one][0] for one in keys.span(key, range_end)), keys.count(key, range_end)
    places = _places_at(keys, work, request, revision)
    if request.limit and request.range_end:
        changed = _changed_since(keys, work, revision)
        if changed is not None:
            # Pages of one revision: each looks at its own keys only.
            return places, _count_at(keys, request, revision, changed)
    found = list(places)
    return iter(found), len(found)


def _places_at(keys: Keys, work: Work, request: rpc.RangeRequest, revision: int) -> Iterator[int]:
    for key in keys.candidates(request.key, request.range_end):
        work.look()
        place = keys.place_at(key, revision)
        if place is not None:
            yield place


def _changed_since(keys: Keys, work: Work, revision: int) -> set[bytes] | None:
    """Return which keys have changed since a revision; None if that is too much to look at."""
    if keys.revision - revision > _NEAR:  # each has a change
        return None
    changed: set[bytes] = set()
    size = 0
    for number, change in enumerate(keys.changes_since(revision)):
        work.look(ROW_STEPS)
        size += len(change.row)
        if number >= _NEAR or size > _NEAR_BYTES:
            return None
        changed.add(change.key)
    return changed


def _count_at(
    keys: Keys, request: rpc.RangeRequest, revision: int, changed: Iterable[bytes]
) -> int:
    """Return how many keys a range had: as many as now, without what has changed since."""
    key, range_end = request.key, request.range_end
    count = keys.count(key, range_end)
    for one in changed:
        if key <= one and (range_end == ALL or one < range_end):
            count += (keys.place_at(one, revision) is not None) - (one in keys.live)
    return count


def _rows(keys: Keys, work: Work, places: Iterator[int]) -> list[bytes]:
    rows: list[bytes] = []
    for place in places:
        row = keys.row(place)
        work.read(len(row))
        rows.append(row)
    return rows


def _worked(
    rows: list[bytes],
    request: rpc.RangeRequest,
    sorting: _Sorting | None,
) -> list[bytes]:
    """Filter and sort rows, and take away their values, as a request asks for."""
    kvs = map(rpc.KeyValue.FromString, rows)
    found = [kv for kv in kvs if _passes(request, kv)]
    if sorting is not None:
        found.sort(key=sorting, reverse=request.sort_order == _Order.DESCEND)
    if request.keys_only:
        for kv in found:
            kv.ClearField("value")
    return [kv.SerializeToString() for kv in found]


def _sorting(request: rpc.RangeRequest) -> _Sorting | None:
    """Return by what to sort; None if the order of the keys will do."""
    if request.sort_target == _Target.KEY and request.sort_order != _Order.DESCEND:
        return None
    return _SORTINGS[request.sort_target]


def _filtered(request: rpc.RangeRequest) -> bool:
    """Say whether a range wants only some of its keys. A bound of 0 is none."""
    return bool(
        request.min_mod_revision
        or request.max_mod_revision
        or request.min_create_revision
        or request.max_create_revision
    )


def _passes(request: rpc.RangeRequest, kv: rpc.KeyValue) -> bool:
    changed, created = kv.mod_revision, kv.create_revision
    return request.min_mod_revision <= changed <= (
        request.max_mod_revision or changed
    ) and request.min_create_revision <= created <= (request.max_create_revision or created)
