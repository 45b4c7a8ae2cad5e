"""A command that runs as a child of this process, and is ended in time.

The command is the leader of a process group of its own. Signals go to the group, so that the
programs that a shell script has started end with it. Such a group can't read from the terminal.
"""

import math
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import trio

__all__ = ["Child", "NotStartedError"]

CANNOT_RUN: Final = 126
NOT_FOUND: Final = 127


class NotStartedError(Exception):
    """The command could not be started.

    Args:
        text: what the system says.
        status: to exit with, as shells do.
    """

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class Child:
    """A command; it runs once.

    Args:
        command: its words.
        grace_s: seconds between SIGTERM and SIGKILL.
    """

    def __init__(self, command: Sequence[str], grace_s: float) -> None:
        self._command = command
        self._grace_s = grace_s
        self._process: trio.Process | None = None
        self._kill_at = trio.CancelScope(deadline=math.inf)

    async def run(self, token: int) -> int:
        """Run the command, with a fencing token in its environment; return its exit status.

        If this is cancelled the command gets SIGTERM, and SIGKILL later.

        Raises:
            NotStartedError: it can't be run.
        """
        environment = os.environ | {"QUORATE_TOKEN": str(token)}
        try:
            self._process = process = await trio.lowlevel.open_process(
                self._command, env=environment, process_group=0
            )
        except OSError as error:
            status = NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_RUN
            raise NotStartedError(f"{self._command[0]}: {error.strerror}", status) from None
        try:
            with self._kill_at:
                await process.wait()
        finally:
            await self._end(process)
        code = process.returncode
        assert code is not None, "it was waited for"
        return code if code >= 0 else 128 - code  # as shells do

    def pass_on(self, number: int) -> bool:
        """Send a signal to the command, and SIGKILL later; False if it does not run yet."""
        if self._process is None:
            return False
        _signal(self._process, number)
        self._kill_at.deadline = trio.current_time() + self._grace_s
        return True

    async def _end(self, process: trio.Process) -> None:
        """End the command and what it has started, unless it has ended by itself."""
        if process.returncode is not None:
            return
        with trio.CancelScope(shield=True):
            if not self._kill_at.cancelled_caught:
                _signal(process, signal.SIGTERM)
                with trio.move_on_after(self._grace_s):
                    await process.wait()
            # Also if the command itself has ended: what it has started may not have.
            _signal(process, signal.SIGKILL)
            await process.wait()


def _signal(process: trio.Process, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
