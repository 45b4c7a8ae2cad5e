"""Reads the members' recordings while they run, and replays them for the judge of recipes.

Members drop old log, so it is not enough to read it at the end.
"""

from collections.abc import Sequence
from pathlib import Path

from ..errors import StorageError
from ..local.stores import has_store, store_of
from ..node.state_machine.service import Command
from ..simulation.recipes.replay import Replay
from ..storage import (
    Entry,
    EntryKind,
    decode_entries_untrusted,
    decode_header_untrusted,
    open_readonly,
)
from ..storage.log.batch import BatchHeader

__all__ = ["Follower"]


class Follower:
    """Follows the committed log in the recordings of members.

    Args:
        directory: for the replay; it must not exist.
        prefixes: of the keys that are looked at.

    Attributes:
        replay: of what was read.
    """

    def __init__(self, directory: Path, prefixes: tuple[bytes, ...]) -> None:
        self.replay = Replay(directory, prefixes)

    def follow(self, directories: Sequence[Path], until: int | None = None) -> None:
        """Read on, wherever a recording has more.

        Args:
            directories: of the members.
            until: the position at which to stop; None to read all that is committed.
        """
        for directory in directories:
            # Its member may be ending, beginning, or getting a new disk. Another one has it, too.
            try:
                if has_store(directory):
                    self._read(store_of(directory), until)
            except (StorageError, OSError):
                continue

    def _read(self, store: Path, until: int | None) -> None:
        replay = self.replay
        with open_readonly(store) as reader:
            end = reader.last_commit_position
            if replay.position < reader.start_position or replay.position >= end:
                return
            for batch in reader.scan(replay.position):
                header = decode_header_untrusted(batch)
                if header.end > end or (until is not None and header.position >= until):
                    return
                entries = decode_entries_untrusted(batch)
                for index, entry in enumerate(entries):
                    if entry.kind is EntryKind.COMMAND:
                        replay.apply(_command(entry, header, index))
                replay.advance(header.end, header.timestamp_ms, header.timestamp_ms / 1000)


def _command(entry: Entry, header: BatchHeader, index: int) -> Command:
    return Command(
        bytes(entry.payload),
        entry.flags,
        entry.session,
        entry.sequence,
        header.term,
        header.position,
        index,
        header.timestamp_ms,
        principal=entry.principal,
    )
