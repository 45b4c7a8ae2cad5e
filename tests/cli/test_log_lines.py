"""Lines for a descriptor that nobody reads hold up nobody, and are not lost without a word."""

from __future__ import annotations

import fcntl
import logging
import os
import pty
import re
import socket
import sys
import tty
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO, cast

import pytest
import trio
from rich.console import Console

from quorate.cli.app import run
from quorate.local import log_lines
from quorate.local.log_lines import (
    MAX_QUEUED_BYTES,
    LineHandler,
    Lines,
    line_handler,
    print_bounded,
    unblocked_console,
)

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

LINE = b"l" * 999 + b"\n"
MORE_THAN_FITS = 400  # of a thousand bytes each: a pipe takes 64 KiB, a socket some 200


def dropped(count: int) -> bytes:
    return b"%d dropped\n" % count


@contextmanager
def ends(kind: str) -> Generator[tuple[int, int]]:
    """What is read from, and what is written to."""
    if kind == "pipe":
        there, here = os.pipe()
    elif kind == "socket":
        there, here = (each.detach() for each in socket.socketpair())
    else:
        there, here = pty.openpty()
        tty.setraw(here)
    try:
        yield there, here
    finally:
        os.close(there)
        os.close(here)


KINDS = pytest.mark.parametrize("kind", ["pipe", "socket", "terminal"])


def read_all(there: int) -> bytes:
    """What is there to read now."""
    os.set_blocking(there, False)
    received = b""
    while True:
        try:
            received += os.read(there, 1 << 20)
        except BlockingIOError:
            return received


@KINDS
def test_what_nobody_reads_is_queued_and_written_when_somebody_does(kind: str) -> None:
    with ends(kind) as (there, here):
        flags = fcntl.fcntl(here, fcntl.F_GETFL)
        lines = Lines(here, dropped)
        for _ in range(MORE_THAN_FITS):
            lines.put(LINE)
        received = read_all(there)
        assert 0 < len(received) < MORE_THAN_FITS * len(LINE)
        while len(received) < MORE_THAN_FITS * len(LINE):
            lines.put(b"")
            received += read_all(there)
        assert received == MORE_THAN_FITS * LINE
        assert fcntl.fcntl(here, fcntl.F_GETFL) == flags, "others write to it too"
        lines.close()


@KINDS
def test_beyond_the_bound_lines_are_dropped_and_counted(kind: str) -> None:
    with ends(kind) as (there, here):
        lines = Lines(here, dropped)
        count = 3 * MAX_QUEUED_BYTES // len(LINE)
        for _ in range(count):
            lines.put(LINE)
        received = b""
        while not received.endswith(b" dropped\n"):
            lines.put(b"")
            received += read_all(there)
        written = received.count(LINE)
        assert MAX_QUEUED_BYTES // len(LINE) <= written < count
        assert received == written * LINE + b"%d dropped\n" % (count - written)
        lines.put(b"and more\n")
        assert read_all(there) == b"and more\n"
        lines.close()


@KINDS
def test_the_end_waits_for_a_reader_but_not_for_ever(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_lines, "FLUSH_SECONDS", 0.01)
    with ends(kind) as (there, here):
        lines = Lines(here, dropped)
        for _ in range(MORE_THAN_FITS):
            lines.put(LINE)
        lines.close()
        lines.put(b"too late\n")
        assert len(read_all(there)) < MORE_THAN_FITS * len(LINE)
        os.fstat(here)  # it is still open


@KINDS
async def test_a_task_writes_what_is_queued_as_soon_as_it_is_taken(kind: str) -> None:
    with ends(kind) as (there, here):
        lines = Lines(here, dropped)
        async with trio.open_nursery() as nursery:
            await nursery.start(lines.run)
            for _ in range(MORE_THAN_FITS):
                lines.put(LINE)
            received = b""
            with trio.fail_after(5):
                while len(received) < MORE_THAN_FITS * len(LINE):
                    received += read_all(there)
                    await trio.lowlevel.checkpoint()
            assert received == MORE_THAN_FITS * LINE
            await lines.written()
            nursery.cancel_scope.cancel()
        lines.close()


async def test_a_file_is_written_behind_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def hang(fileno: int, data: bytes) -> None:
        trio.from_thread.run(hanging.wait, trio_token=token)
        os.write(fileno, data)

    monkeypatch.setattr(log_lines, "_write_all", hang)
    with (tmp_path / "log").open("wb") as file:
        lines = Lines(file.fileno(), dropped)
        lines.put(b"before\n")
        async with trio.open_nursery() as nursery:
            await nursery.start(lines.run)
            count = 2 * MAX_QUEUED_BYTES // len(LINE)
            for _ in range(count):
                lines.put(LINE)
                await trio.lowlevel.checkpoint()
            assert (tmp_path / "log").read_bytes() == b"before\n"
            monkeypatch.setattr(log_lines, "FLUSH_SECONDS", 0.01)
            await lines.written()  # not for ever
            hanging.set()
            with trio.fail_after(10):
                while not (tmp_path / "log").read_bytes().endswith(b" dropped\n"):  # noqa: ASYNC110 - a thread writes
                    await trio.sleep(0.001)
            nursery.cancel_scope.cancel()
        lines.put(b"behind\n")
        lines.close()
    written = (tmp_path / "log").read_bytes()
    assert written.startswith(b"before\n" + LINE)
    assert written.endswith(b" dropped\nbehind\n")


def test_what_cannot_be_opened_again_is_asked_before_each_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_arguments: object) -> int:
        raise PermissionError

    with ends("pipe") as (there, here):
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", refuse)
            lines = Lines(here, dropped)
        for _ in range(MORE_THAN_FITS):
            lines.put(LINE * 5)
        assert 0 < len(read_all(there)) < MORE_THAN_FITS * len(LINE)
        monkeypatch.setattr(log_lines, "FLUSH_SECONDS", 0)
        lines.close()


def test_a_reader_that_is_gone_is_no_trouble() -> None:
    there, here = os.pipe()
    os.close(there)
    lines = Lines(here, dropped)
    lines.put(LINE)
    lines.close()
    os.close(here)


def test_a_handler_logs_and_counts_in_the_format_of_the_others() -> None:
    with ends("pipe") as (there, here), os.fdopen(os.dup(here), "w", encoding="ascii") as stream:
        handler = line_handler(cast("TextIO", stream))
        assert isinstance(handler, LineHandler)
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))
        logger = logging.Logger("quorate.test")  # noqa: LOG001 - not to be seen by others
        logger.addHandler(handler)
        logger.warning("\N{SNOWMAN} %d", 5)
        assert read_all(there) == b"WARNING quorate.test \\u2603 5\n"
        for _ in range(3 * MAX_QUEUED_BYTES // len(LINE)):
            logger.info("%s", LINE.decode())
        received = b""
        while b"were dropped" not in received:
            handler.lines.put(b"")
            received += read_all(there)
        assert re.search(rb"\nWARNING quorate.run \d+ lines were dropped: standard", received)
        handler.close()


def test_a_console_that_nobody_reads_does_not_block() -> None:
    with ends("pipe") as (there, here), os.fdopen(os.dup(here), "w", encoding="utf-8") as stream:
        console = Console(file=cast("TextIO", stream), highlight=False, width=80)
        with unblocked_console(console):
            for _ in range(100):
                console.print("x" * 70)
            assert read_all(there) == (b"x" * 70 + b"\n") * 100
            for _ in range(1500):
                console.print("x" * 70)
            received = read_all(there)
        assert (received + read_all(there)).count(b"\n") == 1500
        assert console.file is stream


def test_an_error_that_nobody_reads_does_not_keep_a_process_from_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_lines, "FLUSH_SECONDS", 0.01)
    with ends("pipe") as (there, here), os.fdopen(os.dup(here), "w", encoding="utf-8") as stream:
        full = Lines(here, dropped)
        full.put(LINE * 100)
        full.close()
        monkeypatch.setattr(sys, "stderr", stream)
        assert run(["run", "/nonexistent/node.toml"]) != 0
        read_all(there)
        print_bounded(cast("TextIO", stream), "again")
        assert read_all(there) == b"again"
