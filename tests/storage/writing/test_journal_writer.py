"""The compiled writer and its twin in Python do the same with the same writes."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import select
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from quorate.storage.writing.journal_writer import NATIVE, PythonWriter, Span, Writer, open_synced

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

needs_native = pytest.mark.skipif(
    not NATIVE, reason="storage/writing/journal_writer.c was not compiled"
)
WAIT_SECONDS = 60


@pytest.fixture
def wake() -> Generator[int]:
    made = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    yield made
    os.close(made)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.touch()
    return path


@pytest.fixture
def file(path: Path) -> Generator[int]:
    """Through the page cache: what is written may have any length."""
    made = os.open(path, os.O_RDWR | os.O_DSYNC | os.O_CLOEXEC)
    yield made
    os.close(made)


def hear(writer: PythonWriter, wake: int) -> int | None:
    """Wait for the signal that a write is over."""
    assert select.select([wake], [], [], WAIT_SECONDS)[0], "no signal came"
    assert os.eventfd_read(wake) == 1
    return writer.outcome()


def run_by(make: type[PythonWriter]) -> Callable[[Span], int]:
    def write(span: Span) -> int:
        wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        writer = make(wake)
        try:
            writer.write(span.file, span.offset, span.data)
            outcome = hear(writer, wake)
        finally:
            writer.close()
            os.close(wake)
        assert outcome is not None
        return outcome

    return write


WRITERS = (pytest.param(Writer, marks=needs_native, id="c"), PythonWriter)
both = pytest.mark.parametrize(
    "write",
    [
        pytest.param(run_by(Writer), marks=needs_native, id="c"),
        pytest.param(run_by(PythonWriter), id="python"),
    ],
)
each = pytest.mark.parametrize("make", WRITERS)


@both
def test_a_span_lies_where_it_should(write: Callable[[Span], int], file: int) -> None:
    os.pwrite(file, b"x" * 12, 0)
    assert write(Span(file, 4, b"data")) == 0
    assert os.pread(file, 100, 0) == b"xxxxdataxxxx"
    large = os.urandom(3 << 20)
    assert write(Span(file, 8, large)) == 0
    assert os.pread(file, 4 << 20, 0) == b"xxxxdata" + large
    assert write(Span(file, 0, b"")) == 0


BLOCK = bytes(range(256)) * 16


def flags_of(file: int) -> int:
    return fcntl.fcntl(file, fcntl.F_GETFL)


def test_a_file_is_opened_past_the_page_cache_or_else_through_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the file system does not take it, at once or when it is written; durable anyway."""
    opened = os.open

    def refuse(path: Path, flags: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return opened(path, flags)

    whole = open_synced(path, BLOCK)
    odd = open_synced(path, b"odd")  # which is no multiple of any block
    monkeypatch.setattr(os, "open", refuse)
    refused = open_synced(path, BLOCK)
    for file in (whole, odd, refused):
        assert flags_of(file) & os.O_DSYNC
    assert not (flags_of(odd) | flags_of(refused)) & os.O_DIRECT
    with pytest.raises(NotADirectoryError):
        open_synced(path / "not there", BLOCK)
    for file in (whole, odd, refused):
        os.close(file)
    assert path.read_bytes() == BLOCK


@both
def test_any_bytes_may_be_written_past_the_page_cache(
    write: Callable[[Span], int], path: Path
) -> None:
    """Wherever they lie in memory, as long as they are whole blocks."""
    file = open_synced(path, BLOCK)
    for blocks in (1, 3, 40, 2):
        data = os.urandom(blocks * len(BLOCK))
        for begin in (data, (b"x" + data)[1:]):
            assert write(Span(file, len(BLOCK), begin)) == 0
            assert path.read_bytes()[len(BLOCK) :].startswith(data)
    if flags_of(file) & os.O_DIRECT:
        assert write(Span(file, 0, b"odd")) == errno.EINVAL
    os.close(file)
    assert path.read_bytes().startswith(BLOCK)


@both
def test_what_failed_has_its_number(write: Callable[[Span], int], file: int, path: Path) -> None:
    readonly = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    assert write(Span(readonly, 0, b"data")) == errno.EBADF
    os.close(readonly)
    assert write(Span(file, -1, b"data")) == errno.EINVAL
    sink = os.open("/dev/full", os.O_WRONLY | os.O_CLOEXEC)
    assert write(Span(sink, 0, b"data")) == errno.ENOSPC
    os.close(sink)


@both
def test_a_write_that_is_cut_short_is_gone_on_with_until_it_fails(
    write: Callable[[Span], int], file: int
) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, before[1]))
    try:
        assert write(Span(file, 0, b"d" * 10_000)) == errno.EFBIG
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert os.pread(file, 10_000, 0) == b"d" * 6000


@both
def test_likewise_past_the_page_cache(write: Callable[[Span], int], path: Path) -> None:
    file = open_synced(path, BLOCK)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3 * len(BLOCK), before[1]))
    try:
        assert write(Span(file, len(BLOCK), 4 * BLOCK)) == errno.EFBIG
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    os.close(file)
    assert path.read_bytes() == 3 * BLOCK


@each
def test_one_write_at_a_time_whose_outcome_is_returned_once(
    make: type[PythonWriter], wake: int, file: int
) -> None:
    writer = make(wake)
    assert writer.outcome() is None
    for number in range(100):
        writer.write(file, 0, b"%d" % number)
        with pytest.raises(RuntimeError, match="at work"):  # over or not: nobody has asked
            writer.write(file, 0, b"")
        assert hear(writer, wake) == 0
        assert writer.outcome() is None
        assert os.pread(file, 10, 0) == b"%d" % number
    writer.close()


@each
def test_the_end_comes_after_the_write_that_is_under_way(
    make: type[PythonWriter], wake: int, file: int
) -> None:
    writer = make(wake)
    writer.write(file, 0, bytes(8 << 20))
    writer.close()
    assert os.fstat(file).st_size == 8 << 20
    assert hear(writer, wake) == 0
    writer.close()
    with pytest.raises(RuntimeError, match="closed"):
        writer.write(file, 0, b"")


@each
def test_a_closed_eventfd_ends_no_process(make: type[PythonWriter], file: int) -> None:
    """Nobody hears of the write then, but its outcome is there."""
    wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    writer = make(wake)
    os.close(wake)
    writer.write(file, 0, b"data")
    writer.close()
    assert writer.outcome() == 0
    assert os.pread(file, 10, 0) == b"data"


@each
def test_a_forked_child_neither_writes_nor_waits_for_the_thread(
    make: type[PythonWriter], wake: int, file: int
) -> None:
    writer = make(wake)
    if (child := os.fork()) == 0:
        try:
            try:
                writer.write(file, 0, b"data")
            except RuntimeError as error:
                writer.close()
                os._exit(0 if "belongs to process" in str(error) else 2)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    writer.write(file, 0, b"data")
    assert hear(writer, wake) == 0
    writer.close()


@needs_native
def test_a_writer_that_is_let_go_ends(wake: int, file: int) -> None:
    for _ in range(20):
        Writer(wake).write(file, 0, b"data" * 1000)
    assert os.eventfd_read(wake) == 20


@each
def test_other_types_are_refused(make: type[PythonWriter], wake: int, file: int) -> None:
    writer = make(wake)
    with pytest.raises(TypeError):
        writer.write(file, 0, bytearray(1))  # type: ignore[arg-type]
    writer.close()


@needs_native
def test_a_write_for_which_there_is_no_memory_is_a_failed_write(path: Path) -> None:
    """In a process of its own, whose memory is limited."""
    script = f"""
import os, resource, select
from quorate.storage.writing.journal_writer import Writer, open_synced
wake = os.eventfd(0)
writer = Writer(wake)
data = bytes(64 << 20)
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (16 << 20),) * 2)
writer.write(os.open({str(path)!r}, os.O_RDWR), 0, data)
assert select.select([wake], [], [], 60)[0], "no signal came"
print(writer.outcome(), writer.outcome())
writer.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(errno.ENOMEM), "None"]
