"""What a member takes at most, and when it takes snapshots: the tables [limits] and [snapshot]."""

from typing import Final

import attrs

from ...storage.log.journal import JOURNAL_BYTES, MAX_JOURNAL_BYTES
from .settings import SECONDS, between

__all__ = ["Limits", "SnapshotPolicy"]

_MIB: Final = 1024 * 1024
_MAX_BYTES: Final = 60 * _MIB  # a request is one entry of one batch, and a batch is at most 64 MiB


@attrs.frozen
class Limits:
    """What a member takes at most, so that no client and no peer can exhaust it."""

    park_seconds: float = attrs.field(default=4.0, validator=SECONDS)
    """How long a request waits for a leader, or for the answer of one that we lost and that lives.

    Below the 5 s after which redis-py gives up.
    """
    max_request_bytes: int = attrs.field(
        default=32 * _MIB, validator=between(1024, _MAX_BYTES, "bytes, 1 KiB to 60 MiB")
    )
    """The largest request of a client."""
    max_batch_bytes: int = attrs.field(
        default=_MIB, validator=between(4096, _MAX_BYTES, "bytes, 4 KiB to 60 MiB")
    )
    """Where the leader closes a batch; one request that is larger is a batch of its own."""
    batches_in_flight: int = attrs.field(default=3, validator=between(1, 1024, "1 to 1024"))
    """Batches that the leader has proposed and that are not committed yet."""
    journal_bytes: int = attrs.field(
        default=JOURNAL_BYTES,
        validator=between(16 * 1024, MAX_JOURNAL_BYTES, "bytes, 16 KiB to 64 MiB"),
    )
    """So much log is carried over from the journal to LMDB at once; other writes wait meanwhile."""
    reserve_bytes: int = attrs.field(
        default=64 * _MIB, validator=between(0, 2**50, "bytes, 0 to 1 PiB")
    )
    """With less room than that on its disk a member appends nothing more."""
    reader_bytes_per_second: int = attrs.field(
        default=64 * _MIB, validator=between(64 * 1024, 2**50, "bytes, 64 KiB to 1 PiB")
    )
    """What backups and other readers of the log from outside get, all of them together."""
    catchup_bytes_per_second: int = attrs.field(
        default=96 * _MIB, validator=between(_MIB, 2**50, "bytes, 1 MiB to 1 PiB")
    )
    """By so much a member that lacks log comes nearer to its leader: the rest is the clients'."""
    max_clients: int = attrs.field(default=4096, validator=between(1, 10**6, "1 to 1000000"))
    """Open client connections."""


@attrs.frozen
class SnapshotPolicy:
    """When a snapshot is taken by rule, and what is kept; the leader's word counts."""

    keep: int = attrs.field(default=2, validator=between(1, 100, "1 to 100"))
    """Snapshots that are kept; the log is kept from the oldest of them on."""
    interval_bytes: int = attrs.field(
        default=256 * _MIB, validator=between(64 * 1024, 2**50, "bytes, 64 KiB to 1 PiB")
    )
    """A snapshot is taken when so much log has been applied since the last one."""
    interval_entries: int = attrs.field(
        default=0, validator=between(0, 2**50, "entries, or 0 for any number")
    )
    """Likewise, when so many entries have; those since the start count."""
    margin_bytes: int = attrs.field(
        default=64 * _MIB, validator=between(0, 2**50, "bytes, 0 to 1 PiB")
    )
    """So much log is kept below the oldest snapshot, for members that are a little behind."""
