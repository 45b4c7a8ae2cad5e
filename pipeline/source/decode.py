"""Decodes record batches of the log into Arrow record batches, column by column.

numpy reads the fixed columns directly from the descriptor tables. Payloads are visited one by one
only if a decoder must read them. Only requested columns are made.
"""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, Protocol

import attrs
import numpy as np
import pyarrow as pa

from ...errors import WireError
from ...keyvalue.protocol.payload import ETCD
from ...keyvalue.slots.hashing import key_slot
from ...storage import (
    DESCRIPTOR_BYTES,
    HEADER_BYTES,
    BatchHeader,
    EntryKind,
    decode_entries_untrusted,
    decode_header_untrusted,
)
from ..payloads.decoding import NOTHING, decode_commands
from ..payloads.plain import plain_untrusted
from .columns import ETCD_KEYS, REDIS_KEYS, arrow_schema
from .owned import epochs_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from ...node.protocol.quorum import VoterId
    from ..payloads.decoding import Asked, Decoder
    from .owned import Change

    Numbers = npt.NDArray[np.int64]

__all__ = ["decode"]

_DESCRIPTOR: Final = np.dtype(
    [
        ("kind", "u1"),
        ("flags", "u1"),
        ("reserved", "<u2"),
        ("length", "<u4"),
        ("offset", "<u4"),
        ("principal", "<u4"),
        ("session", "<i8"),
        ("sequence", "<i8"),
    ]
)
assert _DESCRIPTOR.itemsize == DESCRIPTOR_BYTES
_KINDS: Final = pa.array([None, *(kind.name for kind in EntryKind)], pa.string())
_KEYSPACES: Final = pa.array([None, REDIS_KEYS, ETCD_KEYS], pa.string())
_COMMAND: Final = int(EntryKind.COMMAND)
_US_PER_MS: Final = 1000


def decode(
    batches: Sequence[bytes],
    table: str,
    *,
    names: Sequence[str] | None = None,
    member_id: int = 0,
    decoder: Decoder = decode_commands,
    prefix: bytes = b"",
    partition: int | None = None,
    owned: Sequence[Change] = (),
) -> pa.RecordBatch:
    """Decode whole batches as rows of a table; the caller has verified their checksums.

    Args:
        batches: record batches of the log.
        table: "commands", "entries", "batches" or "configurations".
        names: the columns and their order; all columns if left out.
        member_id: the value of the column ``member``.
        decoder: decodes the payloads of commands.
        prefix: the table "commands" has only rows with a key that begins like this.
        partition: the value of the column ``partition``; None for a log that is of none.
        owned: the slots that the partition owned.

    Raises:
        WireError: a batch is malformed, or an entry lies at a wrong place in it.
        ConfigurationError: there is no such table or column.
    """
    schema = arrow_schema(table, names)
    if table == "configurations":
        batches = [batch for batch in batches if _has_configuration(batch)]
    headers = [decode_header_untrusted(batch) for batch in batches]
    columns: _Columns
    if table == "batches":
        columns = _Batches(batches, headers)
    elif table == "entries":
        columns = _Entries(batches, headers)
    elif table == "configurations":
        columns = _Configurations(batches, headers, schema)
    else:
        columns = _Commands(_Entries(batches, headers), decoder, prefix)
    same = {"member": member_id, "partition": partition}
    if partition is None:
        same |= {"slot": None, "owner_epoch": None}
    made = [
        pa.repeat(pa.scalar(same[field.name], field.type), columns.count)
        if field.name in same
        else _column(columns, field.name, owned).cast(field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(made, schema=schema)


def _column(columns: _Columns, name: str, owned: Sequence[Change]) -> pa.Array:
    if isinstance(columns, _Commands) and name in {"slot", "owner_epoch"}:
        slots = columns.slots()
        return slots if name == "slot" else columns.epochs(slots, owned)
    return columns[name]


def _moments(milliseconds: Numbers) -> pa.Array:
    return pa.array(milliseconds * _US_PER_MS).cast(pa.timestamp("us")).cast(_UTC)


_UTC: Final = pa.timestamp("us", tz="UTC")


class _Columns(Protocol):
    """Columns by name, each made when it is requested."""

    count: int

    def __getitem__(self, name: str) -> pa.Array: ...


class _Batches:
    """The columns of the batches."""

    def __init__(self, batches: Sequence[bytes], headers: Sequence[BatchHeader]) -> None:
        self._batches = batches
        self._headers = headers
        self.count = len(batches)

    def __getitem__(self, name: str) -> pa.Array:
        match name:
            case "timestamp":
                return _moments(self._numbers("timestamp_ms"))
            case "entries":
                return pa.array(self._numbers("count"))
            case "checksum":
                return pa.array([int.from_bytes(batch[4:8], "little") for batch in self._batches])
            case _:
                return pa.array(self._numbers(name))

    def _numbers(self, name: str) -> Numbers:
        return np.array([getattr(header, name) for header in self._headers], np.int64)


def _has_configuration(batch: bytes) -> bool:
    """Say whether a batch holds an entry of membership, which is alone in its batch."""
    return len(batch) > HEADER_BYTES and batch[HEADER_BYTES] == EntryKind.MEMBERSHIP


class _Configurations:
    """The columns of the configurations. There are few, so they are made row by row."""

    def __init__(
        self, batches: Sequence[bytes], headers: Sequence[BatchHeader], schema: pa.Schema
    ) -> None:
        rows = [
            {"term": header.term, "position": header.position, "timestamp": header.timestamp_ms}
            | row
            for batch, header in zip(batches, headers, strict=True)
            if (row := _configuration(batch)) is not None
        ]
        self._rows = rows
        self._types = {field.name: field.type for field in schema}
        self.count = len(rows)

    def __getitem__(self, name: str) -> pa.Array:
        values = [row.get(name) for row in self._rows]
        if name == "timestamp":
            return _moments(np.array(values, np.int64))
        return pa.array(values, self._types[name])


def _configuration(batch: bytes) -> dict[str, Any] | None:
    """Return a configuration as columns; None for an admission as older versions made them."""
    from ...node.protocol.membership import decode_membership_untrusted  # noqa: PLC0415 - large

    try:
        found = decode_membership_untrusted(decode_entries_untrusted(batch)[0].payload)
    except WireError:
        return {}  # the audit reports it
    if found is None:
        return None
    return {
        "version": found.version,
        "joint": found.joint,
        "voters": list(map(_voter, found.voters)),
        "outgoing": list(map(_voter, found.outgoing)),
        "next_id": found.next_id,
        "seats": [
            attrs.asdict(seat) | {"role": seat.role.value, "instance": f"{seat.instance:016x}"}
            for seat in found.seats
        ],
    }


def _voter(voter: VoterId) -> dict[str, int | str]:
    return {"member_id": voter.member_id, "instance": f"{voter.instance_id:016x}"}


class _Entries:
    """The columns of the entries, each made when it is requested."""

    def __init__(self, batches: Sequence[bytes], headers: Sequence[BatchHeader]) -> None:
        ends = [HEADER_BYTES + DESCRIPTOR_BYTES * header.count for header in headers]
        tables = b"".join(batch[HEADER_BYTES:end] for batch, end in zip(batches, ends, strict=True))
        self.table: npt.NDArray[Any] = np.frombuffer(tables, _DESCRIPTOR)
        self.headers = headers
        self.data = b"".join(batches)
        self.counts = np.array([header.count for header in headers], np.int64)
        self.count = len(self.table)
        self._check_untrusted(np.array(ends, np.int64))

    def _check_untrusted(self, ends: Numbers) -> None:
        """Check that each payload lies inside its batch, after the previous payload."""
        kinds = self.table["kind"]
        offsets = self.table["offset"].astype(np.int64)
        stops = offsets + self.table["length"]
        lengths = np.array([header.length for header in self.headers], np.int64)
        if (
            (kinds < 1).any()
            or (kinds > len(EntryKind)).any()
            or (offsets < self.spread(ends)).any()
            or (stops > self.spread(lengths)).any()
            or (self.starts()[1:] < (self.starts() + self.table["length"])[:-1]).any()
        ):
            raise WireError("batch: an entry of unknown kind, or one at a wrong place")

    def spread(self, of_batches: Numbers) -> Numbers:
        """Repeat a number of each batch for all of its entries."""
        return np.repeat(of_batches, self.counts)

    def starts(self) -> Numbers:
        """Return where each payload begins in the concatenated batches."""
        begins = [0, *accumulate(header.length for header in self.headers)][:-1]
        return self.spread(np.array(begins, np.int64)) + self.table["offset"].astype(np.int64)

    def numbers(self, name: str) -> Numbers:
        """Repeat a field of the headers for all entries."""
        return self.spread(np.array([getattr(one, name) for one in self.headers], np.int64))

    def places(self) -> Numbers:
        """Return the place of each entry in its batch."""
        firsts = np.cumsum(self.counts) - self.counts
        return np.arange(self.count, dtype=np.int64) - self.spread(firsts)

    def payload(self) -> pa.Array:
        """Return the payloads."""
        starts = self.starts()
        return _cut(self.data, starts, starts + self.table["length"])

    def __getitem__(self, name: str) -> pa.Array:
        match name:
            case "term" | "position":
                return pa.array(self.numbers(name))
            case "timestamp":
                return _moments(self.numbers("timestamp_ms"))
            case "entry":
                return pa.array(self.places())
            case "kind":
                return _KINDS.take(pa.array(self.table["kind"]))
            case "payload":
                return self.payload()
            case _:
                return pa.array(np.ascontiguousarray(self.table[name]))


class _Commands:
    """The columns of the commands: their entries' columns, repeated, and their own.

    Rows of plain payloads come first in each column, then rows from the decoder. At the end, all
    rows are sorted into the order of the log.
    """

    def __init__(self, entries: _Entries, decoder: Decoder, prefix: bytes) -> None:
        self._entries = entries
        starts = entries.starts()
        stops = starts + entries.table["length"]
        usual = decoder is decode_commands
        redis = (entries.table["flags"] & ETCD) == 0
        asking = np.flatnonzero((entries.table["kind"] == _COMMAND) & redis & usual)
        plain = plain_untrusted(entries.data, starts[asking], stops[asking])
        self._plain = attrs.evolve(plain, places=asking[plain.places])
        others = np.ones(entries.count, np.bool_)
        others[self._plain.places] = False
        places = self._decode(np.flatnonzero(others), decoder, prefix)
        if prefix:
            self._plain = self._plain.where(self._begin_with(prefix))
        self._places = np.concatenate((self._plain.places, np.array(places, np.int64)))
        self._order = None
        if places and len(self._plain.places):
            self._order = np.argsort(self._places, kind="stable")
            self._places = self._places[self._order]
        self.count = len(self._places)

    def _decode(self, rows: Numbers, decoder: Decoder, prefix: bytes) -> list[int]:
        """Decode payloads one by one; return the entry of each command."""
        places: list[int] = []
        self._asked: list[Asked] = []
        entries = self._entries
        payloads = entries.payload().take(pa.array(rows)).to_pylist()
        times = entries.numbers("timestamp_ms")[rows].tolist()
        kinds = entries.table["kind"][rows].tolist()
        flags = entries.table["flags"][rows].tolist()
        for at, kind, payload, flag, time in zip(
            rows.tolist(), kinds, payloads, flags, times, strict=True
        ):
            asked = (NOTHING,) if kind != _COMMAND else decoder(payload, flag, time)
            if prefix:
                asked = [one for one in asked if one[2] is not None and one[2].startswith(prefix)]
            for one in asked:
                places.append(at)
                self._asked.append(one)
        return places

    def _begin_with(self, prefix: bytes) -> npt.NDArray[np.bool_]:
        """Return which keys of plain payloads begin with this prefix."""
        data = np.frombuffer(self._entries.data, np.uint8)
        begins, stops = self._plain.keys
        found = stops - begins >= len(prefix)
        for at, byte in enumerate(prefix):
            found &= data.take(begins + at, mode="clip") == byte
        return found

    def __getitem__(self, name: str) -> pa.Array:
        plain, asked, data = self._plain, self._asked, self._entries.data
        match name:
            case "number":
                numbers = pa.array(plain.numbers.astype(np.int32))
                return self._join(numbers, pa.array([one[0] for one in asked], pa.int32()))
            case "operation":
                names = pa.array(plain.names, pa.string()).take(pa.array(plain.operations))
                return self._join(names, pa.array([one[1] for one in asked], pa.string()))
            case "key":
                keys = _cut(data, *plain.keys)
                return self._join(keys, pa.array([one[2] for one in asked], pa.binary()))
            case "value":
                values = _cut(data, *plain.values)
                return self._join(values, pa.array([one[3] for one in asked], pa.binary()))
            case "expires_at":
                moments = [None if one[4] is None else one[4] * _US_PER_MS for one in asked]
                times = pa.array(moments, pa.int64()).cast(pa.timestamp("us")).cast(_UTC)
                return self._join(pa.nulls(len(plain.places), _UTC), times)
            case "payload":
                return self._payload()
            case "keyspace":
                return self._keyspaces()
            case _:
                return self._entries[name].take(pa.array(self._places))

    def slots(self) -> pa.Array:
        """Return the slots of the keys; those of etcd's clients have none."""
        keys, names = self["key"].to_pylist(), self["keyspace"].to_pylist()
        slots = [
            None if key is None or name == ETCD_KEYS else key_slot(key)
            for key, name in zip(keys, names, strict=True)
        ]
        return pa.array(slots, pa.int32())

    def _keyspaces(self) -> pa.Array:
        """Return whose keys the commands name; null for all other entries."""
        table = self._entries.table[self._places]
        numbers = np.where(table["flags"] & ETCD, 2, 1) * (table["kind"] == _COMMAND)
        return _KEYSPACES.take(pa.array(numbers))

    def epochs(self, slots: pa.Array, owned: Sequence[Change]) -> pa.Array:
        """Return since which epoch the partition owned the slots, null where it did not."""
        entries = self._entries
        places = (entries.numbers("position") + entries.places())[self._places]
        numbers = slots.fill_null(0).to_numpy().astype(np.int64)
        found = epochs_at(owned, numbers, places)
        return pa.array(found, mask=(found == 0) | slots.is_null().to_numpy(zero_copy_only=False))

    def _join(self, plain: pa.Array, others: pa.Array) -> pa.Array:
        if self._order is None:
            return plain if len(plain) else others
        return pa.concat_arrays([plain, others]).take(pa.array(self._order))

    def _payload(self) -> pa.Array:
        """Return the payload on the first row of each entry, null on the others."""
        first = np.ones(self.count, bool)
        first[1:] = self._places[1:] != self._places[:-1]
        return self._entries.payload().take(pa.array(self._places, mask=~first))


def _cut(data: bytes, starts: Numbers, stops: Numbers) -> pa.Array:
    """Return pieces of the data, null where one ends before it begins.

    The other pieces ascend and do not overlap. So one copy without a loop is enough: the pieces
    are every second section between all their edges.
    """
    absent = stops < starts
    edges = np.empty(2 * len(starts) + 1, np.int32)
    edges[:-1:2] = starts
    edges[1::2] = stops
    edges[-1] = len(data)
    if absent.any():
        kept = np.maximum.accumulate(np.where(absent, 0, stops))
        edges[:-1:2][absent] = edges[1::2][absent] = kept[absent]
    pieces = pa.BinaryArray.from_buffers(
        pa.binary(), 2 * len(starts), [None, pa.py_buffer(edges.tobytes()), pa.py_buffer(data)]
    )
    return pieces.take(pa.array(np.arange(0, 2 * len(starts), 2), mask=absent))
