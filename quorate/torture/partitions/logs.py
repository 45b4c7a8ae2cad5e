"""What must hold of the logs of all groups, read when no process runs any more."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ...errors import StorageError, WireError
from ...keyvalue.protocol.payload import ETCD, PayloadParser
from ...keyvalue.slots.cluster_map import META
from ...keyvalue.slots.history import SLOTS_COMMAND, PartitionLog, wrong_moves
from ...local.stores import store_of
from ...storage import EntryKind, decode_entries_untrusted, decode_header_untrusted, open_readonly
from ..checks import check_recordings

if TYPE_CHECKING:
    from pathlib import Path

    from .machines import Machines

__all__ = ["check_logs"]

_PARSER: Final = PayloadParser()


def check_logs(machines: Machines) -> tuple[int, int, list[str]]:
    """Check the logs of each group, and then those of all partitions together.

    Returns:
        How many bytes are committed in all groups, how many steps of moves there were, and what is
        wrong.
    """
    committed, found, logs = 0, list[str](), list[PartitionLog]()
    for number in machines.groups:
        folders = machines.folders(number)
        commit, wrong = check_recordings(folders)
        committed += max(0, commit)
        found += [f"group {number}: {each}" for each in wrong]
        if number != META and not wrong:
            logs.append(max((_steps(number, each) for each in folders), key=lambda log: log[0])[1])
    found += [f"{each.kind}: {each.text}; {each.step}" for each in wrong_moves(logs)]
    return committed, sum(len(log.steps) for log in logs), found


def _steps(partition: int, folder: Path) -> tuple[int, PartitionLog]:
    """Return how far a log is committed, and what it says of slots.

    Raises:
        StorageError: it is pruned, or cannot be read.
    """
    found = PartitionLog(partition)
    with open_readonly(store_of(folder)) as reader:
        if reader.start_position:
            raise StorageError(f"{folder}: its log begins at {reader.start_position}: expected 0")
        commit = reader.last_commit_position
        for batch in reader.scan(0):
            header = decode_header_untrusted(batch)
            if header.position >= commit:
                break
            if SLOTS_COMMAND not in batch.upper():
                continue
            for index, entry in enumerate(decode_entries_untrusted(batch)):
                if entry.kind is not EntryKind.COMMAND or entry.flags & ETCD:
                    continue
                with suppress(WireError):  # the state machine refuses it, and changes nothing
                    for words in _PARSER.parse_untrusted(entry.payload):
                        found.apply_untrusted(words, header.position, index, header.timestamp_ms)
    return commit, found
