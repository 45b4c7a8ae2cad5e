"""Finds recordings: files, and directories of members with rings of them."""

import sys
import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import attrs

from ...errors import UsageError
from ...local.words import counted
from ...node.live.flight import flight_file
from ...recordings import NOBODY
from ...recordings.cutting import cut_short_untrusted
from ...recordings.head import Head
from ...recordings.merging import ONE_MACHINE, Clocks, Repeated, merge, merged_head
from ...recordings.reading import Recording, open_recording_untrusted, read_recording_untrusted
from ...recordings.ring import files_of
from ...recordings.writing import RecordingWriter, open_to_write

__all__ = [
    "STANDARD_INPUT",
    "Merged",
    "one_file",
    "opened",
    "other_than",
    "recordings_at",
    "tell_cut",
]

STANDARD_INPUT = Path("-")


def recordings_at(paths: Sequence[Path]) -> list[Path]:
    """Return the recordings at some paths: files, and directories of members or of flights.

    Raises:
        UsageError: there is none at one of them, or one is named twice.
    """
    found = [file for path in paths for file in _recordings_at(path)]
    known = set[Path]()
    for file in found:
        # Its events would be counted twice.
        if (one := file.resolve()) in known:
            raise UsageError(f"{file}: it is named twice: expected each recording once")
        known.add(one)
    return found


def _recordings_at(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise UsageError(f"{path}: expected a recording, or a directory of a member")
    found = files_of(flight_file(path)) or files_of(path / flight_file(path).name)
    if not found:
        raise UsageError(
            f"{path}: no recording is in it, expected {flight_file(path)} of a member's directory"
        )
    return found


@contextmanager
def opened(path: Path) -> Generator[Recording]:
    """Open a recording for the length of the block; ``-`` is standard input.

    Raises:
        RecordingError: it is none.
        OSError: it can't be read.
    """
    if path == STANDARD_INPUT:
        yield read_recording_untrusted(sys.stdin.buffer, "standard input")
    else:
        one_file(path)
        with open_recording_untrusted(path) as recording:
            yield recording


def one_file(path: Path) -> None:
    """Check that a path is no directory.

    Raises:
        UsageError: it is one, which may have several recordings.
    """
    if path.is_dir():
        raise UsageError(
            f"{path}: it is a directory, expected one recording: "
            f"quorate trace merge {path} --out FILE makes one of those in it"
        )


def other_than(out: Path, files: Sequence[Path]) -> None:
    """Check that a file to be written is none of those that are read: it would be emptied first.

    Raises:
        UsageError: it is one of them.
    """
    if any(file.exists() and out.exists() and out.samefile(file) for file in files):
        raise UsageError(f"{out}: it is read, too: expected another name for what is written")


def tell_cut(files: Sequence[Path]) -> None:
    """Say of which recordings the end is missing.

    Raises:
        OSError: one can't be read.
    """
    for file in files:
        if file != STANDARD_INPUT and (words := cut_short_untrusted(file)):
            print(words, file=sys.stderr)


@attrs.frozen
class Merged:
    """Several recordings, to be read as one.

    Args:
        files: of the recordings.
        head: of the one that they become.
        clocks: how those of the files differ; None if they are one.
        repeated: what was left out once they were read, since several of them have it.
    """

    files: tuple[Path, ...]
    head: Head
    clocks: Clocks | None = None
    repeated: Repeated = attrs.field(factory=Repeated)

    @classmethod
    def of(cls, paths: Sequence[Path], *, one_clock: bool) -> "Merged":
        """Find out how the clocks of some recordings differ.

        Args:
            paths: files and directories.
            one_clock: all were written on one machine.

        Raises:
            UsageError: there is no recording at one of them.
            RecordingError: one is damaged, or they are of several clusters.
            OSError: one can't be read.
        """
        files = recordings_at(paths)
        with ExitStack() as stack:
            each = [stack.enter_context(opened(file)) for file in files]
            heads = [recording.head for recording in each]
            reporters = sorted({head.reporter for head in heads} - {NOBODY})
            if one_clock:
                same = dict.fromkeys(reporters, ONE_MACHINE)
                return cls(tuple(files), merged_head(heads, same))
            clocks = Clocks.of(each)
        return cls(tuple(files), merged_head(heads, clocks.by_member()), clocks)

    def write(self, path: Path) -> None:
        """Write them as one.

        Raises:
            UsageError: the file is one of them.
            OSError: the file can't be written.
        """
        other_than(path, self.files)
        with open_to_write(path) as file, ExitStack() as stack:
            each = [stack.enter_context(opened(one)) for one in self.files]
            writer = RecordingWriter(file, self.head)
            for event in merge(each, self.head, self.repeated, self.clocks):
                writer.write(event)

    def lines(self) -> Iterator[str]:
        """Yield the lines of the recording that they become, with their ends."""
        yield self.head.as_json() + "\n"
        with ExitStack() as stack:
            each = [stack.enter_context(opened(one)) for one in self.files]
            for event in merge(each, self.head, self.repeated, self.clocks):
                yield event.as_json() + "\n"

    def tell_repeated(self) -> None:
        """Say what was left out."""
        if self.repeated.events:
            names = ", ".join(sorted(self.repeated.names))
            count = counted(self.repeated.events, "event", "events")
            print(f"{count} in two recordings, written once: {names}", file=sys.stderr)


@contextmanager
def as_one_file(paths: Sequence[Path]) -> Generator[Path]:
    """Return one recording with what is at some paths; it is there for the length of the block.

    Raises:
        UsageError: there is no recording at one of them.
        RecordingError: one is damaged, or they are of several clusters.
        OSError: one can't be read.
    """
    if len(paths) == 1 and paths[0].is_file():
        with opened(paths[0]):
            tell_cut(paths)
            yield paths[0]
        return
    with tempfile.TemporaryDirectory(prefix="quorate-") as folder:
        path = Path(folder) / "merged.qtrace"
        merged = Merged.of(paths, one_clock=False)
        tell_cut(merged.files)
        merged.write(path)
        merged.tell_repeated()
        yield path
