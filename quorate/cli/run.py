"""`quorate run`: one member, until it is told to stop.

The first SIGTERM or SIGINT ends it in order, a second one at once. While it runs, the file
``pid`` in its directory holds its process id.
"""

import gc
import logging
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Annotated, Final, Literal

import trio
from cyclopts import Parameter

from ..embed import open_node
from ..errors import DamagedTablesError, StoreFullError, leaves
from ..keyvalue.port.listener import RESERVED_DESCRIPTORS
from ..local.log_lines import LineHandler, line_handler
from ..node.config.config import NodeConfig, load_config
from ..storage.lmdb.environment import free_bytes
from .app import GARBAGE_THRESHOLD

__all__ = ["run"]

_LOG: Final = logging.getLogger("quorate.run")

FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 5.0

LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]


async def run(
    file: Path,
    /,
    *,
    log_level: LogLevel = "INFO",
    stop_at_eof: Annotated[bool, Parameter(show=False, negative="")] = False,
) -> int:
    """Run one member until it is told to stop.

    SIGTERM or Ctrl-C ends it in order, a second one at once. Log lines go to standard error.

    Args:
        file: The member's configuration (TOML).
        log_level: How much to tell.
        stop_at_eof: Stop in order when standard input ends, that is when a parent process is gone.
    """
    config = load_config(file)
    handler = _log_to_stderr(log_level)
    _raise_descriptor_limit(config.limits.max_clients + 2 * RESERVED_DESCRIPTORS)
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        if isinstance(handler, LineHandler):
            await nursery.start(handler.lines.run)
        await nursery.start(_stop_on_signals, stop, handler)
        if stop_at_eof:
            nursery.start_soon(_stop_at_eof, stop)
        await _serve_until_told(config, stop)
        nursery.cancel_scope.cancel()
    _LOG.info("ended")
    return 0


async def _serve_until_told(config: NodeConfig, stop: trio.Event) -> None:
    """Run the member until `stop`; after a write that found no room, anew when there is some.

    The reserve is to keep that from happening, but others write to the disk too. Of what failed
    nothing was written, and what was acknowledged is on the disk: it begins as after a crash. So it
    does when it has met damaged tables, which it then makes anew.

    Raises:
        StoreFullError: there is no room to begin with.
    """
    began, pause = trio.Event(), FIRST_PAUSE_SECONDS
    while not stop.is_set():
        full: BaseException | None = None
        damaged: BaseException | None = None
        try:
            await _serve(config, stop, began)
        except* StoreFullError as group:
            full = next(leaves(group))
            if not began.is_set():
                raise
        except* DamagedTablesError as group:
            damaged = next(leaves(group))
        if damaged is not None:
            _LOG.error("the tables are damaged, the member begins anew: %s", damaged)
            with trio.move_on_after(pause):
                await stop.wait()
            continue
        if full is None:
            return
        _LOG.error("a write found no room, the member begins anew when there is: %s", full)
        await _room(config, stop, pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


async def _room(config: NodeConfig, stop: trio.Event, pause: float) -> None:
    """Wait until there is room on the disk, or until `stop`; at least for a while.

    A quota may leave less than the system says: then it fails again, and waits again.
    """
    enough = False
    while not (enough or stop.is_set()):
        with trio.move_on_after(pause):
            await stop.wait()
        enough = free_bytes(config.directory) >= 2 * config.limits.reserve_bytes


async def _serve(config: NodeConfig, stop: trio.Event, began: trio.Event) -> None:
    """Run the member until `stop`, or until it ends by itself; `began` is set once it runs."""
    pid = config.directory / "pid"
    opening = trio.CancelScope()
    async with trio.open_nursery() as nursery:
        # a member that is still opening has nothing to end in order
        nursery.start_soon(_cancel_at, stop, nursery.cancel_scope, opening)
        async with open_node(config) as node:
            opening.cancel()
            began.set()
            _collect_seldom()
            pid.write_text(f"{os.getpid()}\n", encoding="ascii")
            async with trio.open_nursery() as waiting:
                waiting.start_soon(_cancel_at, stop, waiting.cancel_scope, trio.CancelScope())
                await node.wait()
                waiting.cancel_scope.cancel()
    pid.unlink(missing_ok=True)


async def _cancel_at(stop: trio.Event, scope: trio.CancelScope, unless: trio.CancelScope) -> None:
    with unless:
        await stop.wait()
        scope.cancel()


async def _stop_on_signals(
    stop: trio.Event,
    handler: logging.Handler,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as received:
        task_status.started()
        # a parent that is gone does not make the first signal a second one
        name = signal.Signals(await anext(received)).name
        _LOG.info("%s: ending in order", name)
        stop.set()
        number = await anext(received)
        _LOG.warning("%s again: ending at once", signal.Signals(number).name)
        if isinstance(handler, LineHandler):
            await handler.lines.written()
        os._exit(128 + number)


async def _stop_at_eof(stop: trio.Event) -> None:
    async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as stream:
        async for _ in stream:
            pass
    _LOG.info("standard input has ended: ending in order")
    stop.set()


def _raise_descriptor_limit(wanted: int) -> None:
    """Let this process open so many files, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def _collect_seldom() -> None:
    """Spare the garbage collector what lives as long as the process, and most of its small rounds.

    What a member's work makes has hardly any cycles, but many tuples, through which the collector
    goes in vain; and a whole round, which holds up the event loop, goes through all modules too.
    There is none here: it would find some hundred objects, and hold up the member that begins. But
    where the member begins anew in this process, the one before is garbage, with all its tables.
    """
    if gc.get_freeze_count():
        gc.unfreeze()
        gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_THRESHOLD, 20, 50)


def _log_to_stderr(level: str) -> logging.Handler:
    handler = line_handler(sys.stderr)
    formatter = logging.Formatter(
        "%(asctime)s.%(msecs)03dZ %(levelname)-7s %(name)s %(message)s", "%Y-%m-%dT%H:%M:%S"
    )
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    logging.basicConfig(level=level, handlers=[handler])
    return handler
