"""Bounds on what a member uses, and its snapshot policy: the tables [limits] and [snapshot]."""

from typing import Final

import attrs

from ...storage.log.journal import JOURNAL_BYTES, MAX_JOURNAL_BYTES
from .settings import SECONDS, between

__all__ = ["Limits", "SnapshotPolicy"]

_MIB: Final = 1024 * 1024
# A request is one entry of one batch, and a batch with its headers is at most 64 MiB.
_MAX_BYTES: Final = 60 * _MIB


@attrs.frozen
class Limits:
    """Bounds on what a member uses, so that no client and no member can exhaust it.

    Args:
        park_seconds: how long a request waits for a leader, in seconds (4). After an orderly change
            of leader, also how long it waits for the old leader's answer. If smaller, an election
            causes errors. If larger, clients give up first: redis-py does after 5 s.
        max_request_bytes: the largest request of a client (32 MiB). If smaller, large values are
            refused. If larger, each of them holds up the log and its followers for longer.
        max_batch_bytes: size at which the leader closes a batch (1 MiB); a larger request is a
            batch of its own. If smaller, a busy leader pays for more batches. If larger, each write
            waits for more bytes.
        batches_in_flight: how many batches may be proposed and not yet committed (3). If smaller,
            disk and network idle in turn. If larger, batches get smaller and more are lost with a
            leader.
        journal_bytes: size at which the journal is carried over to LMDB (2 MiB). Other writes wait
            during that. If smaller, it happens more often. If larger, each time takes longer.
        reserve_bytes: free disk space below which a member appends nothing (64 MiB). It returns
            when twice that is free. If smaller, the disk may fill before the member notices. If
            larger, disk space stays unused.
        reader_bytes_per_second: rate of all backups and other outside readers of the log together
            (64 MiB/s). If smaller, they fall behind a busy cluster. If larger, they take more of
            the members' network and disk.
        catchup_bytes_per_second: by how much a lagging member may approach its leader (96 MiB/s).
            New writes do not count. If smaller, it returns later. If larger, clients get less of
            the leader during that time.
        max_clients: open client connections of one member (4096). If larger, idle connections may
            exhaust file descriptors.
    """

    park_seconds: float = attrs.field(default=4.0, validator=SECONDS)
    max_request_bytes: int = attrs.field(
        default=32 * _MIB, validator=between(1024, _MAX_BYTES, "bytes, 1 KiB to 60 MiB")
    )
    max_batch_bytes: int = attrs.field(
        default=_MIB, validator=between(4096, _MAX_BYTES, "bytes, 4 KiB to 60 MiB")
    )
    batches_in_flight: int = attrs.field(default=3, validator=between(1, 1024, "1 to 1024"))
    journal_bytes: int = attrs.field(
        default=JOURNAL_BYTES,
        validator=between(16 * 1024, MAX_JOURNAL_BYTES, "bytes, 16 KiB to 64 MiB"),
    )
    reserve_bytes: int = attrs.field(
        default=64 * _MIB, validator=between(0, 2**50, "bytes, 0 to 1 PiB")
    )
    reader_bytes_per_second: int = attrs.field(
        default=64 * _MIB, validator=between(64 * 1024, 2**50, "bytes, 64 KiB to 1 PiB")
    )
    catchup_bytes_per_second: int = attrs.field(
        default=96 * _MIB, validator=between(_MIB, 2**50, "bytes, 1 MiB to 1 PiB")
    )
    max_clients: int = attrs.field(default=4096, validator=between(1, 10**6, "1 to 1000000"))


@attrs.frozen
class SnapshotPolicy:
    """When a snapshot is taken by rule, and what is kept.

    The intervals of the leader apply to all members; `keep` and `margin_bytes` apply to each member
    alone.

    Args:
        keep: how many snapshots are kept (2). The log is kept from the oldest of them on. If 1, a
            damaged snapshot must be fetched from another member. If larger, more disk is used.
        interval_bytes: a snapshot is taken when this much log was applied since the last one (256
            MiB). If smaller, snapshots cost more. If larger, the log on disk and a restart take
            longer.
        interval_entries: likewise by number of entries; 0 (the default) for no such rule. Entries
            are counted from the start of the process.
        margin_bytes: how much log is kept below the oldest snapshot (64 MiB). If smaller, a member
            that was away briefly needs a whole snapshot. If larger, more disk is used.
    """

    keep: int = attrs.field(default=2, validator=between(1, 100, "1 to 100"))
    interval_bytes: int = attrs.field(
        default=256 * _MIB, validator=between(64 * 1024, 2**50, "bytes, 64 KiB to 1 PiB")
    )
    interval_entries: int = attrs.field(
        default=0, validator=between(0, 2**50, "entries, or 0 for any number")
    )
    margin_bytes: int = attrs.field(
        default=64 * _MIB, validator=between(0, 2**50, "bytes, 0 to 1 PiB")
    )
