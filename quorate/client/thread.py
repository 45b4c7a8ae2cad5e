"""The thread of a blocking client: it runs the event loop, and the threads of a program call it.

It is a daemon thread: Python waits for others at its end, for ever if a block is never left. So the
client is closed by ``atexit`` then.
"""

from __future__ import annotations

import atexit
import os
import threading
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from copy import copy
from typing import TYPE_CHECKING, Final, TypeVar

import trio
from anyio.from_thread import BlockingPortal

from ..errors import RefusedError, RequestError, UnknownOutcomeError, UsageError
from .lanes import CLOSED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from ..keyvalue.programs.client import KeyValue

__all__ = ["ClientThread"]

T = TypeVar("T")

_EXIT_SECONDS: Final = 2.0
"""For a client that is still open when Python ends. Smaller, and a busy cluster keeps its session.
Larger, and a program whose thread is stuck ends late."""

_IN_TRIO: Final = (
    "a blocking client within trio.run would stop its event loop: use quorate.connect there, or "
    "call it from trio.to_thread.run_sync"
)
_CUT: Final = UnknownOutcomeError(
    "the client was closed before this was answered; a write may or may not take effect"
)


class ClientThread:
    """Runs a client for threads.

    Args:
        opened: the client, as an async context manager.

    Raises:
        UsageError: this thread runs trio.
    """

    def __init__(self, opened: AbstractAsyncContextManager[KeyValue]) -> None:
        _check_caller()
        self._opened = opened
        self._pid = os.getpid()
        self._scope = trio.CancelScope()
        self._token = Future[trio.lowlevel.TrioToken]()
        self._began = Future["KeyValue"]()
        self._failure: Exception | None = None
        self._left = False
        self._thread = threading.Thread(target=self._main, name="quorate-client", daemon=True)

    def open(self) -> KeyValue:
        """Start the thread; return the store once it is connected.

        Raises:
            Exception: what the client raises.
        """
        atexit.register(self.close, _EXIT_SECONDS)
        self._thread.start()
        try:
            return self._began.result()
        except BaseException:
            with suppress(Exception):  # it is the one that is raised here
                self.close()
            raise

    def call(
        self,
        function: Callable[..., Awaitable[T]],
        *arguments: object,
        cut: RequestError = _CUT,
    ) -> T:
        """Run an async function in the thread; return its result.

        Args:
            function: the function.
            arguments: of the function.
            cut: raised if the client is closed meanwhile.

        Raises:
            UsageError: this process was forked since, or this thread runs trio.
            RefusedError: the client is closed.
            Exception: what the function raises.
        """
        if os.getpid() != self._pid:
            raise UsageError(
                f"this client is that of process {self._pid}, from which this one was forked: "
                "connect anew in the child"
            )
        _check_caller()
        try:
            future = self._portal.start_task_soon(function, *arguments)
        except RuntimeError:  # the portal or the event loop has ended
            raise RefusedError(CLOSED) from None
        try:
            return future.result()
        except CancelledError:
            raise copy(cut) from None

    def close(self, patience_s: float | None = None) -> None:
        """Close the client and end the thread; a forked child leaves both to its parent.

        Args:
            patience_s: how long to wait for the end; None without limit.

        Raises:
            Exception: the client has failed.
        """
        if self._left or os.getpid() != self._pid:
            return
        self._left = True
        atexit.unregister(self.close)
        with suppress(trio.RunFinishedError):
            self._token.result().run_sync_soon(self._scope.cancel)
        if threading.current_thread() is not self._thread:  # the garbage collector runs anywhere
            self._thread.join(patience_s)
        if self._failure is not None:
            raise self._failure

    def _main(self) -> None:
        try:
            trio.run(self._run)
        except Exception as error:  # noqa: BLE001 - raised in the thread that opens or closes it
            self._failure = error
            for waited in (self._token, self._began):
                if not waited.done():
                    waited.set_exception(error)

    async def _run(self) -> None:
        failure: Exception | None = None
        async with BlockingPortal() as self._portal:
            self._token.set_result(trio.lowlevel.current_trio_token())
            try:
                with self._scope:
                    async with self._opened as kv:
                        self._began.set_result(kv)
                        await trio.sleep_forever()
            except Exception as error:  # noqa: BLE001 - raised below, without a group
                failure = error
            # Calls in other threads get an error: one that waits for changes would never end.
            await self._portal.stop(cancel_remaining=True)
        if failure is not None:
            raise failure


def _check_caller() -> None:
    if trio.lowlevel.in_trio_run():
        raise UsageError(_IN_TRIO)
