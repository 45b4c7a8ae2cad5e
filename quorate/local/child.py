"""A member, or the supervisor of a machine, as a child process.

The standard input of a child is a pipe from this process. When it closes, the child stops in order,
so children never outlive their parent. A child writes its log lines to a file, or to our standard
error. A pipe to this process would stop the child if this process did not read.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["STOP_SECONDS", "ChildProcess"]

STOP_SECONDS: Final = 20.0
"""How long a child has to stop in order before it is killed. Shorter, and a busy machine makes
crashes of orderly stops; longer, and one that hangs holds up the command."""


class ChildProcess:
    """``quorate run FILE``: at most one process at a time.

    Args:
        file: its configuration.
        log: file of its log lines; None for our standard error.
        own_group: whether the child is a process group of its own. Ctrl-C goes to this process
            alone then, which stops all in order.

    Attributes:
        launcher: a command that runs the child's command in its place, such as ``nice``.
        environment: variables of the child in addition to those of this process.
        options: further options of `quorate run`.
    """

    def __init__(self, file: Path, log: Path | None, *, own_group: bool = True) -> None:
        self.file = file
        self.launcher: Sequence[str] = ()
        self.environment: Mapping[str, str] = {}
        self.options: Sequence[str] = ()
        self._log_file = log
        self._own_group = own_group
        self._process: trio.Process | None = None

    @property
    def pid(self) -> int | None:
        """The process id of the child; None if it does not run."""
        return self._process.pid if self._process and self._process.poll() is None else None

    @property
    def returncode(self) -> int | None:
        """Exit status of the last child; None while it runs, or if there was none."""
        return self._process.poll() if self._process else None

    async def start(self) -> None:
        """Start a child; it is not ready yet when this returns.

        Raises:
            OSError: the system refuses it, or its log file cannot be opened.
        """
        assert self.pid is None
        if self._log_file is None:
            await self._open(None)
            return
        with self._log_file.open("ab") as log:
            await self._open(log.fileno())

    async def _open(self, log: int | None) -> None:
        command = [sys.executable, "-m", "quorate", "run", "--stop-at-eof", *self.options]
        self._process = await trio.lowlevel.open_process(
            [*self.launcher, *command, str(self.file)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env={**os.environ, **self.environment},
            process_group=0 if self._own_group else None,
        )

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the child, if it runs."""
        if self._process and self.pid is not None:
            self._process.send_signal(number)

    async def wait(self) -> int:
        """Wait until the child has ended."""
        assert self._process is not None
        return await self._process.wait()

    async def kill(self) -> None:
        """Kill the child, as a crash does, and wait for its end."""
        if self.pid is not None:
            self.send_signal(signal.SIGKILL)
            await self.wait()

    async def stop(self) -> None:
        """Stop the child in order; kill it if that takes too long."""
        if self.pid is None:
            return
        self.send_signal(signal.SIGCONT)  # a stopped process does not handle SIGTERM
        self.send_signal(signal.SIGTERM)
        with trio.move_on_after(STOP_SECONDS):
            await self.wait()
        await self.kill()
