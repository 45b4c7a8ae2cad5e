"""`quorate top` on a terminal: an alternate screen, until q or Ctrl-C."""

import os
import pty
import signal
import subprocess
import sys
import termios
import time

import pytest

from tests.cli.watch.test_top import RECORDING

PATIENCE_SECONDS = 30.0
BEGIN, END = b"\x1b[?1049h", b"\x1b[?1049l"


def read_until(terminal: int, words: bytes) -> bytes:
    received, deadline = b"", time.monotonic() + PATIENCE_SECONDS
    while words not in received:
        assert time.monotonic() < deadline, received
        received += os.read(terminal, 1 << 16)
    return received


@pytest.mark.parametrize("how", ["q", "Ctrl-C"])
def test_a_key_ends_it_and_the_terminal_is_as_before(how: str) -> None:
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    child = subprocess.Popen(
        [sys.executable, "-m", "quorate", "top", "--replay", str(RECORDING)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"},
    )
    try:
        assert BEGIN in read_until(ours, b"q ends")
        if how == "q":
            os.write(ours, b"q")
        else:
            child.send_signal(signal.SIGINT)
        assert END in read_until(ours, END)
        assert child.wait(PATIENCE_SECONDS) == 0
        assert termios.tcgetattr(theirs) == before
    finally:
        child.kill()
        child.wait()
        os.close(ours)
        os.close(theirs)
