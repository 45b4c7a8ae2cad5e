"""The tables of the source and their columns.

Integers are signed, since Spark has no unsigned ones: sessions and sequence numbers above 2^63
appear negative. Times are log time (the leaders' clocks, never going back), in UTC. Spark regards
every column as nullable, as its API for data sources requires. Only columns that mention null
below ever are null.
"""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from ...errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

__all__ = ["ETCD_KEYS", "REDIS_KEYS", "TABLES", "Column", "arrow_schema", "columns_of", "ddl"]

REDIS_KEYS: Final = "redis"
ETCD_KEYS: Final = "etcd"
"""The values of the columns `keyspace`."""


@attrs.frozen
class Column:
    """A column: its name, its type in Spark's SQL, and what it holds."""

    name: str
    sql: str
    meaning: str


_PLACE: Final = (
    Column("term", "BIGINT", "leadership term"),
    Column("position", "BIGINT", "log position at which the record batch begins, a byte offset"),
)
_ENTRY: Final = (
    *_PLACE,
    Column("entry", "INT", "place of the entry in its batch, from 0"),
    Column("length", "BIGINT", "bytes of the entry's payload"),
    Column("timestamp", "TIMESTAMP", "the leader's clock when it encoded the batch"),
    Column("kind", "STRING", "COMMAND, NEW_LEADERSHIP_TERM, TIMER ...: an EntryKind"),
    Column("flags", "INT", "the service's own"),
    Column("session", "BIGINT", "client session, 0 for none"),
    Column("sequence", "BIGINT", "number within the session"),
    Column(
        "principal",
        "BIGINT",
        "number of the user that sent it, see the table principals; 0 for `default`, for what the "
        "cluster does by itself, and for a program that names nobody; null in a row of a snapshot",
    ),
)
_MEMBER: Final = Column("member", "INT", "id of the member whose recording was read")
_PARTITION: Final = Column(
    "partition", "INT", "number of the partition; null in a cluster of one group of members"
)
_SLOT: Final = Column("slot", "INT", "slot of the key; null without a key or a partition")
_KEYSPACE: Final = Column(
    "keyspace", "STRING", "whose clients have the key: redis or etcd; null if it is no command"
)
_OWNER_EPOCH: Final = Column(
    "owner_epoch",
    "BIGINT",
    "epoch since which the partition owned the slot then, higher with each new owner; null if it "
    "did not, so that the command was refused or the row copied, or if that is not known",
)
_VOTERS: Final = "ARRAY<STRUCT<member_id: INT, instance: STRING>>"
_SEATS: Final = (
    "ARRAY<STRUCT<member_id: INT, role: STRING, instance: STRING, host: STRING, member_port: INT, "
    "client_port: INT, redirect_port: INT, priority: INT, replaces: INT, even: BOOLEAN, "
    "tls_port: INT>>"
)

_ETCD: Final = (
    Column("create_revision", "BIGINT", "revision since which a key of etcd exists; else null"),
    Column("version", "BIGINT", "number of its changes since then; null likewise"),
    Column("lease", "BIGINT", "its lease, 0 for none; null likewise"),
)

TABLES: Final[dict[str, tuple[Column, ...]]] = {
    "commands": (
        *_ENTRY,
        Column("number", "INT", "place of the command in its entry, from 0"),
        _KEYSPACE,
        Column("operation", "STRING", "the requested operation: SET, DEL, ...; null if malformed"),
        Column("key", "BINARY", "the key; null if the command names none"),
        Column("value", "BINARY", "the value; null if the command has none"),
        Column("expires_at", "TIMESTAMP", "the requested expiry; null without one"),
        Column("payload", "BINARY", "the entry as recorded, on its first row; else null"),
        _MEMBER,
        _PARTITION,
        _SLOT,
        _OWNER_EPOCH,
    ),
    "entries": (*_ENTRY, Column("payload", "BINARY", "the entry as recorded"), _MEMBER, _PARTITION),
    "batches": (
        *_PLACE,
        Column("length", "BIGINT", "bytes of the batch: the next one begins at position + length"),
        Column("timestamp", "TIMESTAMP", "the leader's clock when it encoded the batch"),
        Column("entries", "INT", "number of entries"),
        Column("commit_position", "BIGINT", "commit position that the leader knew then"),
        Column("checksum", "BIGINT", "CRC-32C of the batch except magic and checksum"),
        _MEMBER,
        _PARTITION,
    ),
    "terms": (
        Column("term", "BIGINT", "leadership term"),
        Column("base", "BIGINT", "log position at which it begins"),
        Column("end", "BIGINT", "log position at which it ends, null while it is open"),
        Column("timestamp", "TIMESTAMP", "when the member first saw it"),
        Column("leader", "INT", "id of the member that leads it; null if its first entry is gone"),
        Column("reason", "STRING", "why the winner began the election; null likewise"),
        Column("election_ms", "BIGINT", "how long it took, by the winner's clock; null likewise"),
        _MEMBER,
        _PARTITION,
    ),
    "configurations": (
        *_PLACE,
        Column("timestamp", "TIMESTAMP", "the leader's clock when it encoded the batch"),
        Column("version", "BIGINT", "version; null, as all that follows, if it can't be read"),
        Column("joint", "BOOLEAN", "whether the voters are changing"),
        Column("voters", _VOTERS, "the voters, after the change if it is joint"),
        Column("outgoing", _VOTERS, "of a joint one: the voters before the change; else empty"),
        Column("next_id", "BIGINT", "id of the next new member"),
        Column("seats", _SEATS, "all members, ascending by id"),
        _MEMBER,
        _PARTITION,
    ),
    "principals": (
        Column("principal", "BIGINT", "number of a user in the log; it never stands for another"),
        Column("name", "STRING", "name of the user, which may have been deleted since"),
        _MEMBER,
        _PARTITION,
    ),
    "snapshot": (
        Column("position", "BIGINT", "log position that the snapshot covers up to"),
        Column("timestamp", "TIMESTAMP", "log time there"),
        _KEYSPACE,
        Column("key", "BINARY", "a key that had not expired"),
        Column("value", "BINARY", "its value"),
        Column("tag", "INT", "type of the value, for OBJECT ENCODING; null for a key of etcd"),
        Column("expires_at", "TIMESTAMP", "when it expires, null for never"),
        Column(
            "revision",
            "BIGINT",
            "revision of the entry that set it, as WATCH compares it; of etcd: mod_revision",
        ),
        *_ETCD,
        _MEMBER,
        _PARTITION,
        _SLOT,
        _OWNER_EPOCH,
    ),
    "etcd": (
        Column("position", "BIGINT", "log position of the batch that has changed the key"),
        Column("timestamp", "TIMESTAMP", "the leader's clock when it encoded the batch"),
        Column("revision", "BIGINT", "mod_revision: all changes of one request have the same"),
        Column("key", "BINARY", "the key"),
        Column("value", "BINARY", "its value from then on; null if it was deleted"),
        Column("deleted", "BOOLEAN", "whether it was deleted, or its lease has ended"),
        Column("create_revision", "BIGINT", "revision since which it exists; null if deleted"),
        Column("version", "BIGINT", "number of its changes since then; null likewise"),
        Column("lease", "BIGINT", "its lease, 0 for none; null likewise"),
        _MEMBER,
        _PARTITION,
    ),
}
"""The tables' rows: one for each command and key (MSET has several), entry, batch, term,
configuration of the members, name of a user, key, change of a key of etcd."""


def columns_of(table: str) -> tuple[Column, ...]:
    """Return the columns of a table.

    Raises:
        ConfigurationError: there is no such table.
    """
    if table not in TABLES:
        raise ConfigurationError(f'table = "{table}": expected one of {", ".join(TABLES)}')
    return TABLES[table]


def ddl(table: str, names: Sequence[str] = ()) -> str:
    """Return a table's schema in Spark's SQL, or that of some of its columns."""
    columns = columns_of(table)
    wanted = [column for column in columns if not names or column.name in names]
    return ", ".join(f"`{column.name}` {column.sql}" for column in wanted)


def arrow_schema(table: str, names: Sequence[str] | None = None) -> pa.Schema:
    """Return the schema of a table, or of some of its columns in the given order.

    Raises:
        ConfigurationError: there is no such table or column.
    """
    known = {column.name: column for column in columns_of(table)}
    wanted = list(known) if names is None else list(names)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise ConfigurationError(
            f"column {unknown[0]}: the table {table} has {', '.join(known)}, and no other"
        )
    import pyarrow as pa  # noqa: PLC0415 - see `source`

    return pa.schema([pa.field(name, _arrow_type(known[name].sql)) for name in wanted])


def _arrow_type(sql: str) -> pa.DataType:
    """Return the type of Arrow that Spark expects for one of its own."""
    import pyarrow as pa  # noqa: PLC0415 - see `source`

    inner = sql.removeprefix("ARRAY<STRUCT<").removesuffix(">>")
    if inner != sql:
        pairs = (field.split(": ") for field in inner.split(", "))
        return pa.list_(pa.struct([pa.field(name, _arrow_type(kind)) for name, kind in pairs]))
    types = {
        "INT": pa.int32(),
        "BIGINT": pa.int64(),
        "STRING": pa.string(),
        "BINARY": pa.binary(),
        "BOOLEAN": pa.bool_(),
        "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    }
    return types[sql]
